"""Recorded answers, and rows for supervised training from them: their texts, and reasons for refusing them.

RUN/recipe.toml  manifest.json  trees/direct.jsonl  trees/tools.jsonl  trees/hints.jsonl; at the end, all at once or not at all,
questions.jsonl  sft.jsonl  rl.jsonl  rejected.jsonl  summary.json
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from ramify.chat.conversation import AssistantTurn, Parts
from ramify.chat.demonstrations import check, demonstrate, split
from ramify.chat.renderer import ExampleRenderer
from ramify.chat.tokenizer import begun_turn
from ramify.core.errors import RowError
from ramify.core.messages import Problem, ToolCall, ToolSpec
from ramify.core.records import Reward
from ramify.core.tree import Source, StopReason, Trajectory, TreeKey
from ramify.obs.trace import TracedTree, each_tree
from ramify.synth.configs import QualityConfig
from ramify.synth.hints import read_hint
from ramify.tools.search import normalise

Stage: TypeAlias = Literal["direct", "tools", "hints"]
"""A way of answering: without tools, with tools, or with tools after a hint."""

STAGES: tuple[Stage, ...] = get_args(Stage)


def stage_file(folder: Path, stage: Stage) -> Path:
    """Return the file with the trees of a stage."""
    return folder / "trees" / f"{stage}.jsonl"


def read_stage(folder: Path, stage: Stage) -> Iterator[TracedTree]:
    """Yield the trees of a stage in the order of the file, one after the other.

    Raises:
        DataError: A line is no tree; names file and row.
    """
    path = stage_file(folder, stage)
    if path.exists():
        yield from each_tree(path)


def is_right(reward: Reward) -> bool:
    """Return True if an answer is right; partial credit does not count."""
    return reward.parts.get("correct", 0.0) >= 1.0


@dataclass(frozen=True, slots=True)
class Answer:
    """A recorded answer.

    Attributes:
        problem: The question as shown to the agent with tools; the prompt of the row in every stage.
        stage: The way of answering.
        key: Key of its tree.
        trajectory: Its path.
        right: True if it is right.
        counts: True if its outcome says something about the policy.
        earlier: Ids of the policy's nodes that an earlier answer wrote.
    """

    problem: Problem
    stage: Stage
    key: TreeKey
    trajectory: Trajectory
    right: bool
    counts: bool
    earlier: frozenset[str]

    @property
    def hint(self) -> str | None:
        """The name of the hint that it continues."""
        return next(filter(None, (read_hint(node.rewriter) for node in self.trajectory.nodes)), None)

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The calls in the final context of the answer: those of abandoned parts do not count."""
        parts = self.trajectory.segments[-1].parts
        return tuple(call for node, size in parts if size == len(node.token_ids) for call in node.calls)


def answer_parts(renderer: ExampleRenderer, answer: Answer) -> Parts:
    """Return the turns and the tool results in the final context of the answer.

    A text that a rewriter inserted (a hint, a note, a shorter text) belongs to the turn around it.

    Raises:
        RowError: The context does not begin at the problem, or has a later user message.
    """
    first, *following = answer.trajectory.segments[-1].parts
    if first[0].source is not Source.PROMPT:
        raise RowError("its context does not begin at the question")
    parts: list[tuple[Source, str]] = []
    policy_ids: list[int] = []
    for node, size in following:
        if node.source is Source.TOOL and not node.rewriter:
            if node.messages:
                raise RowError("a user message in the answer")
            parts += _policy_part(renderer, policy_ids)
            policy_ids = []
            parts += ((Source.TOOL, result.text) for result in node.results)
        else:
            policy_ids += node.token_ids[:size]
    return (*parts, *_policy_part(renderer, policy_ids))


def _policy_part(renderer: ExampleRenderer, ids: list[int]) -> Parts:
    ends = renderer.tokenizer.eos_ids
    text = renderer.decode([token for token in ids if token not in ends])
    return ((Source.POLICY, text),) if text.strip() else ()


def refusal_reason(answer: Answer, quality: QualityConfig) -> str | None:
    """Return the reason why an answer gives no row, without looking at its text; None if it may give one."""
    stop = answer.trajectory.stop
    if stop.truncated:
        return f"cut: {stop}"
    if not answer.counts:
        return "no verdict"
    if stop is not StopReason.ANSWERED:
        return "no answer"
    if not answer.right:
        return "wrong"
    if len(answer.calls) > quality.max_calls:
        return f"more than {quality.max_calls} calls"
    calls = [
        (call.name, {name: _plain(call, value) for name, value in call.arguments.items()})
        for call in answer.calls
    ]
    if any(call in calls[:index] for index, call in enumerate(calls)):
        return "a call is repeated"
    return None


def _plain(call: ToolCall, value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Return an argument in the form in which calls are compared; only in programs do case and inner blanks matter."""
    if not isinstance(value, str):
        return value
    return value.strip() if call.name == "python" else normalise(value)


def completion_of(
    renderer: ExampleRenderer, answer: Answer, tools: Sequence[ToolSpec], max_tokens: int
) -> str:
    """Return the text of a row after checking it as a demonstration: each tag is paired, each call has its result.

    Raises:
        RowError: It cannot be read again, or has more than `max_tokens` tokens with its prompt.
    """
    text = renderer.written(answer_parts(renderer, answer), tools)
    parts = split(renderer, (AssistantTurn(text),), tools)
    check(renderer, parts, tools, begun=begun_turn(answer.problem.messages))
    (trajectory,) = demonstrate(renderer, answer.problem, parts, TreeKey(0, 0), tools).trajectories
    size = sum(len(node.token_ids) for node in trajectory.nodes)
    if size > max_tokens:
        raise RowError(f"more than {max_tokens} tokens", f"{size}")
    return text
