"""Demands on a server: it is the one that the recipe describes, and has the weights of this step, which are handed over here."""

import re
import secrets
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from ramify.chat.tokenizer import ChatTokenizer
from ramify.core.errors import ConfigError, EngineError
from ramify.engines.vllm.carriers import Carrier, Failures
from ramify.engines.vllm.replica import Replica
from ramify.engines.vllm.server import TESTED, ServerInfo, VllmServer
from ramify.net.failures import FailureKind, RequestFailedError

_UNTOUCHED = "default"
"""Label of weights that a server read when it started; its answers name it without dev mode too, where nothing else can load any."""
_PROBE = "Paris, 12 plus 30 is 42; <search> caf\u00e9 \u4e2d\u6587 (x < y)"
"""A text on which our tokenizer and the server's are compared."""
_SHORT_NUMBER = re.compile(r"[0-9]{1,6}")
"""int() refuses text of thousands of digits."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Requirements that a server must meet.

    Attributes:
        model: Name of the model to ask for; None: the only one that it serves.
        tokenizer: The tokenizer of the recipe's model.
        context_tokens: Tokens that a sequence may have.
        dtype: In which it computes.
        logprobs: Logprobs that are asked for with a token.
        takes_weights: It gets new weights.
        sleeps: It hands back its memory between rollouts.
    """

    model: str | None
    tokenizer: ChatTokenizer
    context_tokens: int
    dtype: str
    logprobs: int
    takes_weights: bool
    sleeps: bool = False

    async def look(self, server: VllmServer) -> ServerInfo:
        """Return what the server says about itself.

        Raises:
            ConfigError: It is not what it has to be; says which flag or key to change.
            RequestFailedError: It does not answer, or not as vLLM does.
        """
        info = await server.look(self.model)
        if not self.takes_weights and await server.is_asleep():
            # Requests would wait for their limit; and nobody brings back weights that a server dropped.
            raise RequestFailedError(
                FailureKind.SERVER,
                f"{server.url} sleeps, or was paused: a training run uses it, or was killed. Start it again",
            )
        for is_wrong, message in self._findings(info):
            if is_wrong:
                raise ConfigError(message.replace("{url}", server.url))
        if await server.encode(_PROBE) != self.tokenizer.encode(_PROBE):
            raise ConfigError(
                f"engine: {server.url} has another tokenizer than model.path. Serve the model of the recipe."
            )
        return info

    def _findings(self, info: ServerInfo) -> tuple[tuple[bool, str], ...]:
        """Return pairs of a test and the message for a server that fails it."""
        most = info.max_logprobs
        return (
            (
                info.context_tokens < self.context_tokens,
                f"engine: {{url}} takes {info.context_tokens} tokens, prompt and response may have {self.context_tokens}. "
                "Start it with a larger --max-model-len, or lower the limits.",
            ),
            (
                info.dtype not in (None, self.dtype),
                f"engine.dtype: {{url}} computes in {info.dtype}, the recipe says {self.dtype}. Change one of them.",
            ),
            (
                info.logprobs_mode not in (None, "processed_logprobs"),
                f"engine: {{url}} reports {info.logprobs_mode}, which leave out the temperature. Start it with "
                "--logprobs-mode processed_logprobs",
            ),
            (
                most is not None and 0 <= most < self.logprobs,
                f"engine.top_k: {{url}} returns at most {most} logprobs, {self.logprobs} are needed. Start it with "
                f"--max-logprobs {self.logprobs}",
            ),
            (
                info.splits_prompts_on_cpu,
                "engine: {url} runs on a CPU, where vLLM crashes on chunked prefill. Start it with "
                "--no-enable-chunked-prefill (engine.flags)",
            ),
            (
                self.takes_weights and not info.label,
                "engine: {url} takes no new weights. Start it with VLLM_SERVER_DEV_MODE=1 in its environment",
            ),
            (
                self.sleeps and info.can_sleep is False,
                # vLLM answers /sleep all the same, and keeps its memory.
                "engine.sleep: {url} cannot sleep. Start it with --enable-sleep-mode, or set sleep = false.",
            ),
        )


def release_note(url: str, version: str) -> str | None:
    """Return a line about a release that was not tested; None for those that were."""
    release = tuple(int(part) for part in version.split(".")[:2] if _SHORT_NUMBER.fullmatch(part))
    if TESTED[0] <= release <= TESTED[1]:
        return None
    oldest, newest = (".".join(map(str, end)) for end in TESTED)
    releases = oldest if oldest == newest else f"{oldest} to {newest}"
    return f"engine 'vllm': {url} is vLLM {version}; ramify is tested with {releases}"


class WeightSync:
    """Implements `ramify.engines.vllm.replica.Checks`: a server takes requests once it fits, with the weights of this step.

    Attributes:
        current: Label of the weights that were handed over last; None: none were.
        version: Their version.
    """

    def __init__(
        self, fit: Fit, carrier: Carrier | None, changed: Callable[[], None], note: Callable[[str], None]
    ) -> None:
        """Begin with the weights that the servers have.

        Args:
            fit: The demands on a server.
            carrier: Brings new weights; None: there will be none.
            changed: Called when a server changed its state.
            note: Receives a line about a release that was not tested.
        """
        self._fit, self._carrier, self.changed, self._note = fit, carrier, changed, note
        self.current: str | None = None
        self.version = 0
        # Labels of weights whose answers count, and their versions; empty before the first server was asked.
        self._versions: dict[str, int] = {}
        self._reasons: dict[Replica, str] = {}
        self._name, self._handed_over = f"ramify-{secrets.token_hex(4)}", 0

    def knows(self, label: str) -> bool:
        """Return True if answers by the weights of this label count."""
        return label in self._versions

    def version_of(self, label: str) -> int:
        """Return the version of a label that it knows."""
        return self._versions[label]

    def advance(self, version: int) -> None:
        """Make the weights of `version` the current ones; `hand_over` and `prepare` load them."""
        self._handed_over += 1
        label = f"{self._name}-{self._handed_over}"
        # Requests in flight go on with the new weights, so answers may name the old ones too.
        handed_over = {old: number for old, number in self._versions.items() if old.startswith(self._name)}
        self.current, self.version, self._versions = label, version, {**handed_over, label: version}

    def is_current(self, replica: Replica) -> bool:
        """Return True if a server has the current weights."""
        return replica.label == self.current and not replica.needs_weights

    async def hand_over(self, replicas: Sequence[Replica]) -> None:
        """Load the current weights into servers that take requests; one that fails is looked at, and prepared again."""
        async with AsyncExitStack() as held:
            for replica in replicas:
                await held.enter_async_context(replica.handing_over)
            late = [replica for replica in replicas if replica.is_up and not self.is_current(replica)]
            if not late:  # those that are down get them as they come up
                return
            for replica, failure in (await self._load(late)).items():
                self._reasons[replica] = failure.detail
                replica.suspect()

    async def _load(self, replicas: Sequence[Replica]) -> Failures:
        label = self.current
        assert self._carrier is not None
        assert label is not None
        for replica in replicas:
            replica.prefixes.clear()
            # Until all of it has succeeded: a server that lost only the last answer would count as right, and stay paused.
            replica.needs_weights = True
        failures = await self._carrier.carry(replicas, self.version, label)
        for replica in replicas:
            if (failure := failures.get(replica)) is not None:
                # Its worker hangs, while its /health answers: nothing else would end it.
                if failure.kind is FailureKind.TIMEOUT and replica.process is not None:
                    replica.process.kill()
                    self._note(f"engine 'vllm': its process was ended, and starts again: {failure.detail}")
            else:
                replica.label, replica.needs_weights = label, False
        self.changed()
        return failures

    async def prepare(self, replica: Replica) -> None:
        """Check a server that has just answered, and give it the weights of this step.

        Raises:
            ConfigError: It is not the server that the recipe describes.
            EngineError: Its weights are none of this run.
            RequestFailedError: It does not answer.
        """
        # It may have ended for that reason, and is given the weights again now.
        self._reasons.pop(replica, None)
        info = await self._fit.look(replica.server)
        if not self._versions and (note := release_note(replica.url, info.version)):
            self._note(note)
        label = info.label or _UNTOUCHED
        if not self._versions or (self.current is None and self._carrier is not None):
            # Servers may hold anything before the first hand-over, if there will be one.
            self._versions[label] = 0
        replica.label = label
        if self.current is None or label == self.current:
            self._refuse_unknown(replica, label)
        elif label != _UNTOUCHED and not label.startswith(self._name):
            raise EngineError(
                f"engine 'vllm': {replica.url} has the weights {label!r} of another run. Give each run servers of "
                "its own."
            )
        # Others may have been handed over while these were loaded.
        while self.current is not None and not self.is_current(replica):
            if failure := (await self._load([replica])).get(replica):
                raise failure

    def _refuse_unknown(self, replica: Replica, label: str) -> None:
        if not self.knows(label):
            known = next(iter(self._versions))
            raise EngineError(
                f"engine 'vllm': {replica.url} has the weights {label!r}, others have {known!r}: somebody else "
                "loads weights into it"
            )

    async def check(self, replica: Replica) -> None:
        """Return if a server is healthy, awake, and has the weights of this step.

        Raises:
            RequestFailedError: It is not, or it started again.
        """
        await replica.server.health()
        label = await replica.server.label() or _UNTOUCHED
        if (reason := self._reasons.pop(replica, None)) is not None:
            raise RequestFailedError(FailureKind.SERVER, f"a hand-over of weights to it failed: {reason}")
        if not self.knows(label) or (self.current is not None and label != self.current):
            raise RequestFailedError(FailureKind.SERVER, f"its weights are {label!r}, so it started again")
        if self.current is not None and not self.is_current(replica):
            raise RequestFailedError(FailureKind.SERVER, "a hand-over of weights to it was cut off")
        if self._fit.takes_weights and await replica.server.is_asleep():
            raise RequestFailedError(FailureKind.SERVER, "it sleeps, or was paused")
