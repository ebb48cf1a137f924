"""Trees to grow: those of a step, or one that goes on from a node of a recorded tree; their prompts.

Errors about the content of one problem never end a run: the tree of a problem that failed has no tokens.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from ramify.core.errors import ContentError, DataError, RamifyError, SignalInterrupt
from ramify.core.messages import Message, Problem, TextPart
from ramify.core.protocols import Event, EventSink
from ramify.core.tree import Node, Source, StopReason, Trajectory, Tree, TreeKey, make_tree, node_id
from ramify.files.user_code import one_line
from ramify.net.secrets import redact
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


@contextmanager
def content_errors(work: str) -> Iterator[None]:
    """Raise a `ContentError` in place of an error about the text at hand; `work` says what was done with it.

    Wrap only code that reads texts. Errors of the engine, the machine or the recipe are those of the run.
    """
    try:
        yield
    except DataError as error:
        raise ContentError(str(error)) from error
    except (RamifyError, SignalInterrupt):
        raise
    # A foreign text may make any library raise anything, a RecursionError for one, and a user's function may exit.
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        raise ContentError(f"{work}: {one_line(error)}") from error


def with_opening(problem: Problem, opening: str, most: int) -> Problem:
    """Return the problem with what its environment says first at the end of its last message.

    Args:
        problem: The problem.
        opening: What the environment says; "": nothing.
        most: Most characters of it.

    Raises:
        ContentError: There is no text at all, the assistant speaks last, or the opening is too long. Results are cut, and say so; an opening is the problem
            itself.
    """
    if len(opening) > most:
        raise ContentError(
            f"what the environment says first has {len(opening)} characters, max_result_chars is {most}"
        )
    if not opening:
        if not any(message.text.strip() for message in problem.messages):
            raise ContentError(
                "the problem has no text: its prompt is empty, and its environment says nothing first"
            )
        return problem
    *before, last = problem.messages
    if last.role == "assistant":
        raise ContentError(
            "the prompt ends with a turn of the assistant, which would stand before what the environment says first"
        )
    # As a paragraph of its own; a prompt without text is the opening alone.
    text = f"\n\n{opening}" if last.text.strip() else opening
    return replace(problem, messages=(*before, Message(last.role, (*last.content, TextPart(text)))))


def without_opening(problem: Problem) -> tuple[Problem, str]:
    """Return what `with_opening` was given for a recorded problem: the problem, and the opening; "" if there was none."""
    *before, last = problem.messages
    *own, part = last.content
    is_alone = not "".join(each.text for each in own).strip()
    if not own or not (is_alone or part.text.startswith("\n\n")):
        return problem, ""
    bare = replace(problem, messages=(*before, Message(last.role, tuple(own))))
    return bare, part.text if is_alone else part.text.removeprefix("\n\n")


def prompt_of(parts: AgentParts, problem: Problem, above: Sequence[Node]) -> tuple[int, ...]:
    """Return the tokens of the problem's prompt: the recorded ones if a tree goes on from a path.

    Raises:
        ContentError: It cannot be rendered, or leaves the policy no room.
    """
    with content_errors("the prompt cannot be rendered"):
        prompt = above[0].token_ids if above else parts.renderer.render_prompt(problem, parts.tools)
    most = parts.engine.info().context_tokens
    if len(prompt) >= most:
        raise ContentError(f"the prompt has {len(prompt)} tokens, the engine's context {most}")
    return prompt


def failed_tree(problem: Problem, key: TreeKey, above: Sequence[Node], leaves: int) -> Tree:
    """Return the tree of a problem that failed: no tokens, and `leaves` trajectories that all failed.

    Args:
        problem: The problem.
        key: Key of the tree.
        above: The recorded path that the tree goes on from; empty: it has an empty prompt.
        leaves: Number of trajectories.
    """
    nodes = tuple(above) or (Node("", (), None, Source.PROMPT, (), ""),)
    start = nodes[-1].path
    failed = [
        Node(
            node_id((*start, index)),
            (*start, index),
            node_id(start),
            Source.POLICY,
            (),
            "",
            stop=StopReason.FAILED,
        )
        for index in range(leaves)
    ]
    return make_tree(problem, key, [*nodes, *failed], start=node_id(start))


def report_failed_problem(events: EventSink, key: TreeKey, problem: Problem, reason: str) -> None:
    """Emit the event of a problem that failed as a whole; its field `reason` says why."""
    fields = {"problem": problem.id, "reason": redact(reason)[:500]}
    now = asyncio.get_running_loop().time()
    events.emit(Event("problem/failed", (key.step, key.slot), "", 0.0, fields, now))
