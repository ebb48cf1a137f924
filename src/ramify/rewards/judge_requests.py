"""Requests for a judge's verdicts: patient with a service that is down, cached, and counted."""

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, Protocol, TypeAlias, TypeVar, cast

from ramify.core.errors import ServiceDownError
from ramify.core.messages import Message
from ramify.core.protocols import Cache, CacheKey, ChatModel, Json
from ramify.core.records import TokenUsage
from ramify.net.failures import FailureKind, RequestFailedError
from ramify.rewards.configs import JudgeConfig

JudgeSource: TypeAlias = Literal["asked", "cache", "equal", "blank", "none"]
"""The source of a verdict: the model, the cache, `skip_equal`, or a blank answer; "none": there is no verdict."""
Value = TypeVar("Value", bound=int)
_ValueOut = TypeVar("_ValueOut", bound=int, covariant=True)

_LOG = logging.getLogger(__name__)
_TEMPERATURE = 0.0
_OUTAGES = frozenset((FailureKind.CONNECTION.value, FailureKind.TOO_MANY.value, FailureKind.SERVER.value))
"""Failures after which all requests wait, since the service may be down."""
_OUTAGES_TO_SAY = 3
"""Outages in a row after which the user hears of the wait."""
_TRIES = 8
"""Most times that one case is sent to a service that may be down: a case that breaks the service must not end the run."""
_REASON_CHARS = 1000


class JudgeCase(Protocol[_ValueOut]):
    """A case for a judge: what it is shown, and the form of its verdict."""

    @property
    def key(self) -> str:
        """All that is shown, as a text; equal texts have equal verdicts."""

    def messages(self, mark: str) -> Sequence[Message]:
        """Return the request; `mark` is random and new for each."""

    def verdict(self, reply: str, mark: str) -> _ValueOut | None:
        """Return the verdict of a reply; None: it does not have the required form."""


@dataclass(frozen=True, slots=True)
class JudgePrompt:
    """The name and the version of a judge's prompt: cached verdicts belong to both."""

    name: str
    version: int


@dataclass(frozen=True, slots=True)
class Verdict(Generic[Value]):
    """A judge's verdict on one case.

    Attributes:
        value: The verdict; None: there is none, and `failure` says why.
        reason: The beginning of what the judge wrote before its verdict; without a verdict, one line on what went wrong.
        source: See `JudgeSource`.
        failure: "no_verdict" (no reply had the required form), "deadline", "no_gold", or a `FailureKind`.
    """

    value: Value | None
    reason: str
    source: JudgeSource
    failure: str | None = None


@dataclass(slots=True)
class JudgeCounts:
    """A judge's counts so far. Each case is counted once, under its source in `verdicts` or its kind in `failures`."""

    verdicts: Counter[str] = field(default_factory=Counter)
    right: int | None = None
    """Answers that are right; None: the verdicts are no answer to that."""
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
        """Cases with a verdict."""
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
        right = "" if self.right is None else f", {self.right} right"
        last = f"; the last time: {self.last_failure}" if self.failures else ""
        return (
            f"judge: {self.judged} verdicts ({_listed(self.verdicts)}){right}; without a verdict: "
            f"{_listed(self.failures)}; {self.requests + self.usage.retries} requests, "
            f"{self.asked_again + self.usage.retries} of them again; "
            f"tokens: {self.usage.prompt_tokens} read, {self.usage.completion_tokens} written{last}"
        )


@dataclass(slots=True)
class _Asking(Generic[Value]):
    """A case, and the number of requests about it so far."""

    case: JudgeCase[Value]
    requests: int = 0


def judge_identity(model: str, config: JudgeConfig, prompt: JudgePrompt) -> dict[str, Json]:
    """Return what all verdicts of a judge depend on, besides what it is shown."""
    return {
        "model": model,
        "prompt": prompt.version,
        "temperature": _TEMPERATURE,
        "max_tokens": config.max_tokens,
        "attempts": config.attempts,
    }


class JudgeRequests(Generic[Value]):
    """Gets verdicts from a chat model. Tasks of one event loop may share it."""

    def __init__(
        self, model: ChatModel, config: JudgeConfig, prompt: JudgePrompt, cache: Cache | None = None
    ) -> None:
        """Send requests to `model`. The caller closes `model` and `cache`."""
        self._model, self._cache, self._config, self._prompt = model, cache, config, prompt
        self._slots = asyncio.Semaphore(config.in_flight)
        self._failed_in_a_row = self._outages_in_a_row = self._wave = 0
        self._trial = asyncio.Lock()
        self.counts = JudgeCounts()

    async def judge(self, case: JudgeCase[Value]) -> Verdict[Value]:
        """Judge one case.

        Raises:
            ServiceDownError: The model's service refuses the key, or there were too many failures in a row.
        """
        async with self._slots:
            asking = _Asking(case)
            verdict = await self._patiently(asking)
        self.count(verdict)
        # What the cache has as empty says nothing about the service now.
        if verdict.failure is not None and asking.requests and verdict.failure not in _OUTAGES:
            self._fail(verdict)
        return verdict

    def count(self, verdict: Verdict[Value]) -> None:
        """Count a verdict, also one that needed no request."""
        if verdict.failure is None:
            self.counts.verdicts[verdict.source] += 1
            if verdict.source == "asked":
                self._failed_in_a_row = 0
            return
        self.counts.failures[verdict.failure] += 1
        self.counts.last_failure = verdict.reason

    async def _patiently(self, asking: _Asking[Value]) -> Verdict[Value]:
        """Ask; after an outage of the service wait and ask again."""
        for _ in range(_TRIES):
            verdict = await self._when_up(asking)
            if verdict.failure not in _OUTAGES:
                break
        return verdict

    async def _when_up(self, asking: _Asking[Value]) -> Verdict[Value]:
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
                return await self._in_time(asking)
        return await self._in_time(asking)

    async def _in_time(self, asking: _Asking[Value]) -> Verdict[Value]:
        """Ask within the time limit, and count an outage.

        Requests that were pending together count as one: one short outage fails them all.
        """
        seconds, wave = self._config.timeout_seconds, self._wave
        try:
            async with asyncio.timeout(seconds):
                verdict = await self._ask(asking)
        except TimeoutError:
            verdict = Verdict(None, f"no verdict within {seconds:g} s", "none", "deadline")
        if verdict.failure not in _OUTAGES:
            self._outages_in_a_row = 0
        elif wave == self._wave:
            self._wave += 1
            self._outages_in_a_row += 1
            self.counts.last_failure = verdict.reason
            self._fail(verdict)
        return verdict

    async def _ask(self, asking: _Asking[Value]) -> Verdict[Value]:
        """Ask until a reply has the required form; the HTTP client has already retried other failures."""
        failed: Verdict[Value] = Verdict(
            None, "the judge's reply does not end with a verdict", "none", "no_verdict"
        )
        for attempt in range(self._config.attempts):
            try:
                answer, source = await self._reply(asking, attempt)
            except RequestFailedError as error:
                failed = Verdict(None, error.detail, "none", error.kind.value)
                if error.kind is not FailureKind.MALFORMED:
                    break
                continue
            if answer is not None:
                return Verdict(*answer, source)
        return failed

    async def _reply(
        self, asking: _Asking[Value], attempt: int
    ) -> tuple[tuple[Value, str] | None, JudgeSource]:
        """Return a verdict with its reason, or None, and its source. None is cached as empty, so for a shorter time."""
        source: JudgeSource = "cache"

        async def request() -> Json:
            nonlocal source
            source = "asked"
            answer = await self._fresh(asking)
            return None if answer is None else list(answer)

        if self._cache is None:
            return self._read(await request()), source
        parameters: dict[str, Json] = {
            "prompt": self._prompt.version,
            "temperature": _TEMPERATURE,
            "max_tokens": self._config.max_tokens,
            "attempt": attempt,
        }
        key = CacheKey(self._prompt.name, self._model.name, parameters, asking.case.key)
        return self._read(await self._cache.fetch(key, request)), source

    @staticmethod
    def _read(answer: Json) -> tuple[Value, str] | None:
        match answer:
            # The cache's key names the prompt, so its verdicts are of the type that this prompt's cases give.
            case [int(value), str(reason)]:
                return cast("Value", value), reason
        return None

    async def _fresh(self, asking: _Asking[Value]) -> tuple[Value, str] | None:
        self.counts.requests += 1
        self.counts.asked_again += asking.requests > 0
        asking.requests += 1
        mark = secrets.token_hex(8)
        try:
            reply = await self._model.complete(
                asking.case.messages(mark), max_tokens=self._config.max_tokens, temperature=_TEMPERATURE
            )
        finally:
            self.counts.usage = self._model.usage
        verdict = asking.case.verdict(reply, mark)
        if verdict is None:
            return None
        return verdict, reply.rstrip().rpartition("\n")[0].strip()[:_REASON_CHARS]

    def _fail(self, verdict: Verdict[Value]) -> None:
        """Count a failure toward those in a row.

        Raises:
            ServiceDownError: There are too many.
        """
        self._failed_in_a_row += 1
        if self._failed_in_a_row >= self._config.failures_to_stop:
            raise ServiceDownError(
                f"the judge {self._model.name} gave no verdict {self._failed_in_a_row} times in a row, the last "
                f"time: {verdict.failure}: {verdict.reason}. Check its model and its service"
            )


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"
