"""A chat model as judge of answers: right, wrong, or no verdict. No other score ever replaces a missing verdict."""

import json
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ramify.core.messages import Message, Problem
from ramify.core.protocols import Cache, ChatModel, Json
from ramify.rewards.configs import JudgeConfig
from ramify.rewards.judge_prompt import PROMPT_VERSION, cut_middle, judge_messages, marked_verdict
from ramify.rewards.judge_requests import (
    JudgeCounts,
    JudgePrompt,
    JudgeRequests,
    JudgeSource,
    Verdict,
    judge_identity,
)

_PROMPT = JudgePrompt("judge", PROMPT_VERSION)
_ANSWER_CHARS = 10_000
"""Most characters of the judged answer; the middle of a longer one is cut out."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The judgement of one answer.

    Attributes:
        correct: The verdict; None: there is none, and `failure` says why.
        reason: The beginning of what the judge wrote before its verdict; without a verdict, one line on what went wrong.
        source: See `JudgeSource`.
        failure: "no_verdict" (no reply had the required form), "deadline", "no_gold", or a `FailureKind`.
    """

    correct: bool | None
    reason: str
    source: JudgeSource
    failure: str | None = None

    @property
    def value(self) -> float | None:
        """1.0, 0.0 or None, as a part of a reward."""
        return None if self.correct is None else float(self.correct)


@dataclass(frozen=True, slots=True)
class _Case:
    """An answer to judge."""

    question: str
    golds: Sequence[str]
    prediction: str

    @property
    def key(self) -> str:
        return json.dumps([self.question, list(self.golds), self.prediction], ensure_ascii=False)

    def messages(self, mark: str) -> tuple[Message, ...]:
        return judge_messages(self.question, self.golds, self.prediction, mark)

    def verdict(self, reply: str, mark: str) -> bool | None:
        return marked_verdict(reply, mark)


class Judge:
    """Judges answers through a chat model. Tasks of one event loop may share it."""

    def __init__(self, model: ChatModel, config: JudgeConfig, cache: Cache | None = None) -> None:
        """Judge through `model`. The caller closes `model` and `cache`."""
        self._model, self._config = model, config
        self._requests: JudgeRequests[bool] = JudgeRequests(model, config, _PROMPT, cache)
        self.counts.right = 0

    @property
    def identity(self) -> Mapping[str, Json]:
        """Everything that the verdicts depend on besides the answers; for a manifest."""
        return {
            **judge_identity(self._model.name, self._config, _PROMPT),
            "max_answer_chars": _ANSWER_CHARS,
            "skip_equal": self._config.skip_equal,
        }

    @property
    def counts(self) -> JudgeCounts:
        """The counts so far."""
        return self._requests.counts

    @property
    def in_flight(self) -> int:
        """Most answers that are judged at the same time."""
        return self._config.in_flight

    async def score(self, problem: Problem, answer: str) -> float | None:
        """Return 1.0 or 0.0 for the answer to a problem, None if there is no verdict; raises as `__call__` does."""
        return (await self(question_of(problem), problem.answer, answer)).value

    async def __call__(self, question: str, golds: Sequence[str], prediction: str) -> Judgement:
        """Judge one answer; it is right if it matches any of `golds`.

        Raises:
            ServiceDownError: The model's service refuses the key, or there were too many failures in a row.
        """
        accepted = tuple(dict.fromkeys(gold.strip() for gold in golds if gold.strip()))
        if not accepted:
            verdict = self._without_request(None, "there is no accepted answer", "none", "no_gold")
        elif not prediction.strip():
            verdict = self._without_request(False, "there is no answer", "blank")
        elif self._config.skip_equal and _folded(prediction) in map(_folded, accepted):
            verdict = self._without_request(True, "an accepted answer, letter for letter", "equal")
        else:
            answer = cut_middle(prediction.strip(), _ANSWER_CHARS)
            verdict = await self._requests.judge(_Case(question.strip(), accepted, answer))
        self.counts.right = (self.counts.right or 0) + (verdict.value is True)
        return Judgement(verdict.value, verdict.reason, verdict.source, verdict.failure)

    def _without_request(
        self, value: bool | None, reason: str, source: JudgeSource, failure: str | None = None
    ) -> Verdict[bool]:
        verdict = Verdict(value, reason, source, failure)
        self._requests.count(verdict)
        return verdict


def question_of(problem: Problem) -> str:
    """Return the question of a problem: the column "question" of its row, else the last message of the user."""
    bare = problem.info.get("question")
    if isinstance(bare, str) and bare.strip():
        return bare
    return next((message.text for message in reversed(problem.messages) if message.role == "user"), "")


def _folded(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).casefold().split())
