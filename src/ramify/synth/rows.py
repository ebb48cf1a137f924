"""Rows for supervised training from recorded answers: what they say, and why one is refused."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ramify.chat.conversation import AssistantTurn, Parts
from ramify.chat.demonstrations import check, demonstrate, split
from ramify.chat.example_renderer import ExampleRenderer
from ramify.core.errors import RowError
from ramify.core.messages import Problem, ToolCall, ToolSpec
from ramify.core.records import Reward
from ramify.core.tree import Source, StopReason, Trajectory, TreeKey
from ramify.synth.configs import QualityConfig
from ramify.synth.folder import Stage
from ramify.synth.hints import read_hint
from ramify.tools.search import normalise


def is_right(reward: Reward) -> bool:
    """Whether an answer is right; partial credit does not count."""
    return reward.parts.get("correct", 0.0) >= 1.0


@dataclass(frozen=True, slots=True)
class Answer:
    """A recorded answer.

    Attributes:
        problem: The question as an agent with tools was asked it, which is the row's prompt whoever answered.
        stage: What it was answered with.
        key: Key of its tree.
        trajectory: Its path.
        right: Whether it is right.
        counts: Whether its outcome says something about the policy.
        given: Ids of the policy's nodes that an earlier answer wrote.
    """

    problem: Problem
    stage: Stage
    key: TreeKey
    trajectory: Trajectory
    right: bool
    counts: bool
    given: frozenset[str]

    @property
    def hint(self) -> str | None:
        """The name of the hint that it goes on from."""
        return next(filter(None, (read_hint(node.rewriter) for node in self.trajectory.nodes)), None)

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The calls in the context of the answer's end: those of a part that it left behind do not count."""
        parts = self.trajectory.segments[-1].parts
        return tuple(call for node, size in parts if size == len(node.token_ids) for call in node.calls)


def spoken(renderer: ExampleRenderer, answer: Answer) -> Parts:
    """The turns and the tool results in the context of the answer's end.

    A hint, a note or a shorter text that a rewriter put there belongs to the turn that it stands in.

    Raises:
        RowError: The context does not begin at the problem, or the user speaks in it.
    """
    first, *rest = answer.trajectory.segments[-1].parts
    if first[0].source is not Source.PROMPT:
        raise RowError("its context does not begin at the question")
    parts: list[tuple[Source, str]] = []
    said: list[int] = []
    for node, size in rest:
        if node.source is Source.TOOL and not node.rewriter:
            if node.messages:
                raise RowError("the user speaks in it")
            parts += _said(renderer, said)
            said = []
            parts += ((Source.TOOL, result.text) for result in node.results)
        else:
            said += node.token_ids[:size]
    return (*parts, *_said(renderer, said))


def _said(renderer: ExampleRenderer, ids: list[int]) -> Parts:
    ends = renderer.tokenizer.eos_ids
    text = renderer.decode([token for token in ids if token not in ends])
    return ((Source.POLICY, text),) if text.strip() else ()


def refused(answer: Answer, quality: QualityConfig) -> str | None:
    """Why an answer gives no row, as far as its text does not matter; None if it may give one."""
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
    made = [
        (call.name, {name: _plain(call, value) for name, value in call.arguments.items()})
        for call in answer.calls
    ]
    if any(call in made[:index] for index, call in enumerate(made)):
        return "a call is repeated"
    return None


def _plain(call: ToolCall, value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """An argument without what makes no difference: in a program the blanks around it, else also case and other blanks."""
    if not isinstance(value, str):
        return value
    return value.strip() if call.name == "python" else normalise(value)


def completion_of(
    renderer: ExampleRenderer, answer: Answer, tools: Sequence[ToolSpec], max_tokens: int
) -> str:
    """The text of a row, which has been read again as a demonstration: each tag is paired, each call has its result.

    Raises:
        RowError: It cannot be read again, or has more than `max_tokens` tokens with its prompt.
    """
    text = renderer.written(spoken(renderer, answer), tools)
    parts = split(renderer, (AssistantTurn(text),), tools)
    check(renderer, parts, tools)
    (trajectory,) = demonstrate(renderer, answer.problem, parts, TreeKey(0, 0), tools).trajectories
    size = sum(len(node.token_ids) for node in trajectory.nodes)
    if size > max_tokens:
        raise RowError(f"more than {max_tokens} tokens", f"{size}")
    return text
