"""Trees to grow: those of a step, or one that goes on from a node of a recorded tree."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ramify.core.errors import DataError
from ramify.core.messages import Problem
from ramify.core.tree import Node, Trajectory, Tree, TreeKey
from ramify.rollout.rewriting import open_turn
from ramify.rollout.settings import AgentParts
from ramify.rollout.turn import TrajectoryState


@dataclass(frozen=True, slots=True)
class TreeRequest:
    """A tree to grow: the problem, and the key that names its random streams, whatever else grows at the same time.

    `above`: the path of an earlier tree, from its prompt on, that all trajectories continue; empty: they begin at a prompt.
    """

    problem: Problem
    key: TreeKey
    above: tuple[Node, ...] = ()


def step_requests(
    problems: Sequence[Problem], step: int, *, first_slot: int = 0, attempt: int = 0
) -> tuple[TreeRequest, ...]:
    """Return the requests of a step, one tree for each problem.

    Args:
        problems: The problems, in the order of the data.
        step: Step of the run.
        first_slot: Place of the first problem, if the step grows more trees than these.
        attempt: Round of growing within the step.
    """
    return tuple(
        TreeRequest(problem, TreeKey(step, slot, attempt))
        for slot, problem in enumerate(problems, first_slot)
    )


def request_from(tree: Tree, start: str) -> TreeRequest:
    """Return the request for a tree that goes on from a node of `tree`, with random streams of its own.

    Raises:
        DataError: There is no such node, or nothing can go on from it: it is a leaf, or a turn that calls tools, whose
            results come next.
    """
    name = f"problem {tree.problem.id!r}"
    node = tree.by_id.get(start)
    if node is None:
        raise DataError(
            f"{name}: its tree has no node {start!r}. Choose one of {', '.join(map(repr, tree.by_id))}"
        )
    if node.stop is not None:
        raise DataError(f"{name}: node {start!r} is a leaf. Choose a node above it")
    if node.turn is not None:
        raise DataError(f"{name}: node {start!r} ends a turn. Choose {start + '.0'!r}, the reply to it")
    key = replace(tree.key, attempt=tree.key.attempt + 1)
    return TreeRequest(tree.problem, key, tree.path_to(node))


def state_after(parts: AgentParts, problem: Problem, above: Sequence[Node]) -> TrajectoryState:
    """Return the state of a trajectory at the end of a recorded path; its path and key are still to be set."""
    *_, context = Trajectory(problem, tuple(above)).contexts
    shared = sum(size for _, size in open_turn(context))
    text = parts.renderer.decode(context.token_ids[len(context.token_ids) - shared :])
    observed = [node for node in above if node.results or node.messages]
    return TrajectoryState(
        None,
        (),
        context.token_ids,
        spent=sum(len(node.token_ids) for node in above[1:]),
        calls=sum(len(node.results) for node in above),
        steps=sum(bool(node.messages) for node in above),
        depth=len(observed),
        decided=len(observed),
        turns=tuple(node.entropy for node in above if node.entropy is not None),
        shared=shared,
        shared_text=text.rstrip("\N{REPLACEMENT CHARACTER}") if shared else "",
    )
