"""A chat model as judge of answers: right, wrong, or no verdict. No other score ever replaces a missing verdict."""

import asyncio
import json
import logging
import secrets
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from ramify.core.errors import ServiceDownError
from ramify.core.messages import Problem
from ramify.core.protocols import Cache, CacheKey, ChatModel, Json
from ramify.core.records import TokenUsage
from ramify.net.failures import FailureKind, RequestFailedError
from ramify.rewards.configs import JudgeConfig
from ramify.rewards.judge_prompt import PROMPT_VERSION, judge_messages, marked_verdict

JudgeSource: TypeAlias = Literal["asked", "cache", "equal", "blank", "none"]
"""The source of a verdict: the model, the cache, `skip_equal`, or a blank answer; "none": there is no verdict."""

_LOG = logging.getLogger(__name__)
_TEMPERATURE = 0.0
_OUTAGES = frozenset((FailureKind.CONNECTION.value, FailureKind.TOO_MANY.value, FailureKind.SERVER.value))
"""Failures after which all requests wait, since the service may be down."""
_OUTAGES_TO_SAY = 3
"""Outages in a row after which the user hears of the wait."""
_TRIES = 8
"""Most times that one answer is sent to a service that may be down: an answer that breaks the service must not end the run."""
_REASON_CHARS = 1000
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


@dataclass(slots=True)
class JudgeCounts:
    """A judge's counts so far. Each answer is counted once, under its source in `verdicts` or its kind in `failures`."""

    verdicts: Counter[str] = field(default_factory=Counter)
    right: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    last_failure: str = ""
    """The reason of the last failure, in words."""
    requests: int = 0
    """Requests to the model, not counting retries of its HTTP client, which are in `usage`."""
    asked_again: int = 0
    """Those of the requests that repeat an earlier one, whose reply did not have the required form or did not come."""
    usage: TokenUsage = field(default_factory=TokenUsage)
    """Tokens of its model, including those of replies without a verdict, and retries."""

    @property
    def judged(self) -> int:
        """Answers with a verdict."""
        return self.verdicts.total()

    def as_json(self) -> dict[str, Json]:
        """Return the counts for a file."""
        return {
            "judged": self.judged,
            "right": self.right,
            "failed": self.failures.total(),
            "failures": dict(sorted(self.failures.items())),
            "verdicts": dict(sorted(self.verdicts.items())),
            "requests": self.requests + self.usage.retries,
            "asked_again": self.asked_again + self.usage.retries,
            "prompt_tokens": self.usage.prompt_tokens,
            "completion_tokens": self.usage.completion_tokens,
        }

    def line(self) -> str:
        """Return the line for people: "judge: 40 verdicts (asked 31, cache 9), 12 right; without a verdict: none; 33 requests, ..."."""
        last = f"; the last time: {self.last_failure}" if self.failures else ""
        return (
            f"judge: {self.judged} verdicts ({_listed(self.verdicts)}), {self.right} right; without a verdict: "
            f"{_listed(self.failures)}; {self.requests + self.usage.retries} requests, "
            f"{self.asked_again + self.usage.retries} of them again; "
            f"tokens: {self.usage.prompt_tokens} read, {self.usage.completion_tokens} written{last}"
        )


@dataclass(slots=True)
class _Case:
    """An answer to judge, and the number of requests about it so far."""

    question: str
    golds: Sequence[str]
    prediction: str
    requests: int = 0


class Judge:
    """Judges answers through a chat model. Tasks of one event loop may share it."""

    def __init__(self, model: ChatModel, config: JudgeConfig, cache: Cache | None = None) -> None:
        """Judge through `model`. The caller closes `model` and `cache`."""
        self._model, self._cache, self._config = model, cache, config
        self._slots = asyncio.Semaphore(config.in_flight)
        self._failed_in_a_row = self._outages_in_a_row = self._wave = 0
        self._trial = asyncio.Lock()
        self.counts = JudgeCounts()

    @property
    def identity(self) -> Mapping[str, Json]:
        """Everything that the verdicts depend on besides the answers; for a manifest."""
        return {
            "model": self._model.name,
            "prompt": PROMPT_VERSION,
            "temperature": _TEMPERATURE,
            "max_tokens": self._config.max_tokens,
            "attempts": self._config.attempts,
            "max_answer_chars": _ANSWER_CHARS,
            "skip_equal": self._config.skip_equal,
        }

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
            judgement = Judgement(None, "there is no accepted answer", "none", "no_gold")
        elif not prediction.strip():
            judgement = Judgement(False, "there is no answer", "blank")
        elif self._config.skip_equal and _folded(prediction) in map(_folded, accepted):
            judgement = Judgement(True, "an accepted answer, letter for letter", "equal")
        else:
            async with self._slots:
                answer = _cut(prediction.strip(), _ANSWER_CHARS)
                judgement = await self._patiently(_Case(question.strip(), accepted, answer))
        self._count(judgement)
        return judgement

    async def _patiently(self, case: _Case) -> Judgement:
        """Ask; after an outage of the service wait and ask again."""
        for _ in range(_TRIES):
            judgement = await self._when_up(case)
            if judgement.failure not in _OUTAGES:
                break
        return judgement

    async def _when_up(self, case: _Case) -> Judgement:
        """Ask at once; while the service may be down, ask after a pause, and let no other request through."""
        while self._outages_in_a_row:
            async with self._trial:
                if not self._outages_in_a_row:
                    break
                if self._outages_in_a_row == _OUTAGES_TO_SAY:
                    _LOG.warning(
                        f"judge {self._model.name}: {self.counts.last_failure}. Waiting for it; {self._config.failures_to_stop} "
                        "failures in a row end the run."
                    )
                await asyncio.sleep(min(self._config.pause_seconds, 2.0 ** (self._outages_in_a_row - 1)))
                return await self._in_time(case)
        return await self._in_time(case)

    async def _in_time(self, case: _Case) -> Judgement:
        """Ask within the time limit, and count an outage.

        Requests that were pending together count as one: one short outage fails them all.
        """
        seconds, wave = self._config.timeout_seconds, self._wave
        try:
            async with asyncio.timeout(seconds):
                judgement = await self._ask(case)
        except TimeoutError:
            judgement = Judgement(None, f"no verdict within {seconds:g} s", "none", "deadline")
        if judgement.failure not in _OUTAGES:
            self._outages_in_a_row = 0
        elif wave == self._wave:
            self._wave += 1
            self._outages_in_a_row += 1
            self.counts.last_failure = judgement.reason
            self._fail(judgement)
        return judgement

    async def _ask(self, case: _Case) -> Judgement:
        """Ask until a reply has the required form; the HTTP client has already retried other failures."""
        failed = Judgement(None, "the judge's reply does not end with a verdict", "none", "no_verdict")
        for attempt in range(self._config.attempts):
            try:
                verdict, source = await self._reply(case, attempt)
            except RequestFailedError as error:
                failed = Judgement(None, error.detail, "none", error.kind.value)
                if error.kind is not FailureKind.MALFORMED:
                    break
                continue
            if verdict is not None:
                return Judgement(*verdict, source)
        return failed

    async def _reply(self, case: _Case, attempt: int) -> tuple[tuple[bool, str] | None, JudgeSource]:
        """Return a verdict with its reason, or None, and its source. None is cached as empty, so for a shorter time."""
        source: JudgeSource = "cache"

        async def request() -> Json:
            nonlocal source
            source = "asked"
            verdict = await self._fresh(case)
            return None if verdict is None else list(verdict)

        if self._cache is None:
            return _read(await request()), source
        parameters: dict[str, Json] = {
            "prompt": PROMPT_VERSION,
            "temperature": _TEMPERATURE,
            "max_tokens": self._config.max_tokens,
            "attempt": attempt,
        }
        text = json.dumps([case.question, list(case.golds), case.prediction], ensure_ascii=False)
        key = CacheKey("judge", self._model.name, parameters, text)
        return _read(await self._cache.fetch(key, request)), source

    async def _fresh(self, case: _Case) -> tuple[bool, str] | None:
        self.counts.requests += 1
        self.counts.asked_again += case.requests > 0
        case.requests += 1
        mark = secrets.token_hex(8)
        try:
            reply = await self._model.complete(
                judge_messages(case.question, case.golds, case.prediction, mark),
                max_tokens=self._config.max_tokens,
                temperature=_TEMPERATURE,
            )
        finally:
            self.counts.usage = self._model.usage
        verdict = marked_verdict(reply, mark)
        if verdict is None:
            return None
        return verdict, reply.rstrip().rpartition("\n")[0].strip()[:_REASON_CHARS]

    def _count(self, judgement: Judgement) -> None:
        if judgement.failure is None:
            self.counts.verdicts[judgement.source] += 1
            self.counts.right += judgement.correct is True
            if judgement.source == "asked":
                self._failed_in_a_row = 0
            return
        self.counts.failures[judgement.failure] += 1
        self.counts.last_failure = judgement.reason
        if judgement.failure != "no_gold" and judgement.failure not in _OUTAGES:
            self._fail(judgement)

    def _fail(self, judgement: Judgement) -> None:
        """Count a failure toward those in a row.

        Raises:
            ServiceDownError: There are too many.
        """
        self._failed_in_a_row += 1
        if self._failed_in_a_row >= self._config.failures_to_stop:
            raise ServiceDownError(
                f"the judge {self._model.name} gave no verdict {self._failed_in_a_row} times in a row, the last "
                f"time: {judgement.failure}: {judgement.reason}. Check its model and its service"
            )


def question_of(problem: Problem) -> str:
    """Return the question of a problem: the column "question" of its row, else the last message of the user."""
    bare = problem.info.get("question")
    if isinstance(bare, str) and bare.strip():
        return bare
    return next((message.text for message in reversed(problem.messages) if message.role == "user"), "")


def _read(answer: Json) -> tuple[bool, str] | None:
    match answer:
        case [bool(verdict), str(reason)]:
            return verdict, reason
    return None


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"


def _folded(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).casefold().split())


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]} [... {len(text) - 2 * half} characters are left out here ...] {text[-half:]}"
