"""Trajectories as trackers show them: messages and a few numbers, without keys."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias

from ramify.core.records import Reward, ScoredTree
from ramify.core.tree import Source, Trajectory
from ramify.net.secrets import shown
from ramify.rewards.extract import answer_of

LoggedTrees: TypeAlias = Mapping[str, "Sequence[LoggedTrajectory]"]
"""Trajectories by the name under which they are logged: "trees", "eval/trees"."""

_ROLES: Mapping[Source, str] = {Source.POLICY: "assistant", Source.TOOL: "tool"}


@dataclass(frozen=True, slots=True)
class LoggedTrajectory:
    """A trajectory of a tree.

    Attributes:
        problem: Id of the problem.
        prompt: Its last message.
        answer: The final answer; "" if there is none.
        reward: Value of its reward.
        turns: Turns that the policy wrote.
        messages: Role and text of all messages, those of the problem first.
    """

    problem: str
    prompt: str
    answer: str
    reward: float
    turns: int
    messages: tuple[tuple[str, str], ...]


def logged_trajectories(trees: Sequence[ScoredTree]) -> tuple[LoggedTrajectory, ...]:
    """Return all trajectories of the trees, in order."""
    return tuple(
        _logged(trajectory, reward)
        for scored in trees
        for trajectory, reward in zip(scored.tree.trajectories, scored.rewards, strict=True)
    )


def _logged(trajectory: Trajectory, reward: Reward) -> LoggedTrajectory:
    problem = trajectory.problem
    prompt = [(message.role, message.text) for message in problem.messages]
    nodes = [node for node in trajectory.nodes if node.source is not Source.PROMPT]
    # A turn that branches is several nodes.
    runs = groupby(nodes, lambda node: _ROLES.get(node.source, "user"))
    spoken = [(role, "".join(node.text for node in run)) for role, run in runs]
    return LoggedTrajectory(
        problem=problem.id,
        prompt=_clean(prompt[-1][1]) if prompt else "",
        answer=_clean(answer_of(trajectory)),
        reward=reward.value,
        turns=sum(role == "assistant" for role, _ in spoken),
        messages=tuple((role, _clean(text)) for role, text in (*prompt, *spoken)),
    )


def _clean(text: str) -> str:
    return shown(text, keep="\n")
