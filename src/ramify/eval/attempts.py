"""The record of an attempt: taken from its tree of one trajectory, and never from counting tags in the text."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from ramify.core.json_types import Reader, count, each, mapping, member, number, one_of, record, text, truth
from ramify.core.messages import Problem, ToolCall, ToolStatus
from ramify.core.records import Reward
from ramify.core.tree import StopReason, Trajectory, Tree
from ramify.obs.token_counts import TokenCounts, count_tokens
from ramify.rewards.extract import answer_of
from ramify.rollout.repair import repairs_of

GROUPS = ("benchmark", "kind", "level", "category", "language", "data_source")
"""Columns of a problem by which results are grouped, if the problem has them."""

Outcome: TypeAlias = Literal["executed", "failed", "refused"]
_OUTCOMES: Mapping[str, Outcome] = MappingProxyType(
    {
        ToolStatus.OK: "executed",
        ToolStatus.EMPTY: "executed",
        ToolStatus.ERROR: "failed",
        ToolStatus.TIMEOUT: "failed",
        ToolStatus.MALFORMED: "refused",
        ToolStatus.UNKNOWN_TOOL: "refused",
        ToolStatus.OVER_LIMIT: "refused",
    }
)


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One tool call: the status of its result, which is "over_limit" too for the call that ended the attempt.

    `repeated`: the attempt had already made the same call with the same arguments.
    """

    tool: str
    status: str
    repeated: bool

    @property
    def outcome(self) -> Outcome:
        """Return how the call ended: the tool ran and returned a result, ran and failed, or did not run."""
        return _OUTCOMES[self.status]


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """One attempt: a line of results.jsonl, keyed by (problem, attempt).

    Attributes:
        problem: Id of the problem.
        attempt: Number of the attempt, from 0.
        groups: The problem's columns among `GROUPS`, as text.
        answer: The extracted answer; "" if there is none.
        correct: Whether the part of the reward that decides is at least 1; partial credit does not count.
        reward: Value of the reward.
        parts: All parts of the reward.
        stop: Why the attempt ended.
        calls: Its tool calls, in order.
        tokens: Its token counts.
        repairs: How often each rewriter had it go on from elsewhere, by name, and each outcome of the debugger.
    """

    problem: str
    attempt: int
    groups: Mapping[str, str]
    answer: str
    correct: bool
    reward: float
    parts: Mapping[str, float]
    stop: StopReason
    calls: tuple[CallRecord, ...]
    tokens: TokenCounts
    repairs: Mapping[str, int]

    def to_json(self) -> dict[str, Any]:
        """The record as a JSON object, for `read_attempt`."""
        return asdict(self)


def record_attempt(tree: Tree, reward: Reward, decides: str = "correct") -> AttemptRecord:
    """The record of an attempt; `TreeKey.step` of the tree's key is the number of the attempt.

    Args:
        tree: A tree of one trajectory.
        reward: Its reward.
        decides: The part of the reward that decides whether the attempt is correct; without this part it is not.

    Raises:
        ValueError: The tree has more than one leaf; leaves of one tree are not independent attempts.
    """
    if len(tree.trajectories) != 1:
        raise ValueError(
            f"problem {tree.problem.id!r}: an attempt is one trajectory, this tree branches into "
            f"{len(tree.trajectories)}"
        )
    (trajectory,) = tree.trajectories
    return AttemptRecord(
        tree.problem.id,
        tree.key.step,
        _groups(tree.problem),
        answer_of(trajectory),
        reward.parts.get(decides, 0.0) >= 1.0,
        reward.value,
        dict(reward.parts),
        trajectory.stop,
        _calls(trajectory),
        count_tokens(trajectory),
        repairs_of(trajectory),
    )


def _groups(problem: Problem) -> dict[str, str]:
    named = {name: problem.info.get(name) for name in GROUPS}
    return {name: str(value) for name, value in named.items() if value is not None and str(value)}


def _calls(trajectory: Trajectory) -> tuple[CallRecord, ...]:
    calls: list[tuple[ToolCall, str]] = [(call, result.status) for call, result in trajectory.exchanges]
    if trajectory.stop is StopReason.CALLS:
        calls.extend((call, ToolStatus.OVER_LIMIT) for call in trajectory.leaf.calls)
    earlier: list[tuple[str, Mapping[str, Any]]] = []
    records = []
    for call, status in calls:
        signature = (call.name, call.arguments)
        records.append(CallRecord(call.name, status, call.malformed is None and signature in earlier))
        earlier.append(signature)
    return tuple(records)


def _read_float(value: Any) -> float:  # noqa: ANN401 - any JSON value
    return float(number(value))


read_attempt: Reader[AttemptRecord] = record(
    AttemptRecord,
    problem=text,
    attempt=count,
    groups=mapping(text),
    answer=text,
    correct=truth,
    reward=_read_float,
    parts=mapping(_read_float),
    stop=member(StopReason),
    calls=each(record(CallRecord, tool=text, status=one_of(_OUTCOMES), repeated=truth)),
    tokens=record(TokenCounts, prompt=count, written=count, results=count, sent=count),
    repairs=mapping(count),
)
"""Reads the JSON object of a line."""
