"""The vLLM engine: requests go to servers, are repeated where a server dies, and are read back exactly.

A request is sent in parts, so that only tokens whose entropy was asked for come with the most likely tokens beside
them. Each part has a seed of its own, because vLLM counts its draws from the start of a request. Stop strings are
matched again on our side, on the bytes of the whole turn: one may begin in the request before.

Every answer says which weights wrote it. An answer by other weights than those that were handed over (a server that
started again has those of its first day) is dropped and asked for again, once the server has the right ones. A request
that is repeated has the same ids and seed, and nothing of a failed answer is kept, so none is lost or counted twice.
"""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ramify.chat.stops import StopMatcher
from ramify.chat.tokenizer import ChatTokenizer
from ramify.core.closing import close_all
from ramify.core.draws import stream
from ramify.core.errors import EngineError, ServiceDownError
from ramify.core.records import Completion, EngineInfo, Finish, Floats, Request, version_folder
from ramify.engines.served_logprobs import TOLERANCE, TOLERANCE_16_BITS, top_k_bracket
from ramify.engines.vllm.answers import Asked, Served
from ramify.engines.vllm.fit import Fit, release_note
from ramify.engines.vllm.folder import WeightsFolder
from ramify.engines.vllm.replica import LostServerError, Replica
from ramify.engines.vllm.routing import blocks_of, least_work
from ramify.net.failures import FailureKind, RequestFailedError

_MOST_FAILURES = 10
"""Failed attempts after which a request counts as what kills the servers."""
_PAUSE_SECONDS = 0.2
_UNTOUCHED = "default"
"""Label of weights that a server read when it started."""


class VllmEngine:
    """Implements `ramify.core.protocols.Engine` with vLLM servers."""

    def __init__(
        self,
        replicas: Sequence[Replica],
        tokenizer: ChatTokenizer,
        *,
        vocab_size: int,
        context_tokens: int,
        slots: int,
        dtype: str,
        entropy_top_k: int,
        model: str | None = None,
        weights: WeightsFolder | None = None,
        sleeps: bool = False,
        route: Callable[[Sequence[Replica], Sequence[int]], Replica] = least_work,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Start the processes of servers that ramify starts; open no connection yet.

        Args:
            replicas: The servers; all serve the same model.
            tokenizer: Finds stop strings and the end of a turn.
            vocab_size: Rows of the model's head.
            context_tokens: Length of the longest sequence.
            slots: Sequences in flight at once, over all servers.
            dtype: In which the servers compute: "float32" or "bfloat16".
            entropy_top_k: Most likely tokens from which the bracket of an entropy is computed.
            model: Name of the model at the servers; None: the only one that they serve.
            weights: Where new weights come from, which it removes when it is closed; None: it takes none.
            sleeps: The servers hand back their memory between rollouts.
            route: Chooses the server of a request by the blocks of its context.
            note: Receives what happens to servers.
        """
        self._replicas, self._tokenizer = tuple(replicas), tokenizer
        self._stop_ids = tuple(sorted(tokenizer.eos_ids))
        # One more is asked for.
        self._top_k = min(entropy_top_k, vocab_size - 1)
        self._route, self._note, self._sleeps = route, note, sleeps
        self._fit = Fit(model, tokenizer, context_tokens, dtype, self._top_k + 1, weights is not None)
        self._info = EngineInfo(
            "vllm",
            vocab_size,
            context_tokens,
            slots,
            exact_entropy=False,
            policy_version=0,
            tokenizer=tokenizer.fingerprint,
            logprob_tolerance=TOLERANCE if dtype == "float32" else TOLERANCE_16_BITS,
            weights_folder=None if weights is None else weights.path,
        )
        self._weights = weights
        self._matchers: dict[tuple[str, ...], StopMatcher] = {}
        # Labels of weights whose answers count, and their versions; empty before the first server was asked.
        self._versions: dict[str, int] = {}
        # The label of the weights that were handed over last; None: none were.
        self._current: str | None = None
        self._name, self._handed = f"ramify-{secrets.token_hex(4)}", 0
        self._keepers: list[asyncio.Task[None]] = []
        self._news = asyncio.Event()
        self._is_open = self._closed = False
        for replica in self._replicas:
            if replica.process is not None:
                replica.process.start()

    async def generate(self, request: Request) -> Completion:
        """Continue the request's ids; cancelling drops it at the server.

        Raises:
            EngineError: The request does not fit the context or asks for no tokens; no server answers it; the engine is
                closed.
            ServiceDownError: A server refuses the key.
        """
        self._check(request)
        await self._open()
        done = Completion((), (), (), Finish.LENGTH, ())
        # Usually one part or two; a server may also end a turn that has not ended (server.py).
        while done.finish is Finish.LENGTH and (left := request.max_new_tokens - len(done.token_ids)):
            window = request.entropy_first_k - len(done.token_ids)
            part = await self._part(
                request, done.token_ids, min(window, left) if window > 0 else left, window > 0
            )
            done = Completion(
                done.token_ids + part.token_ids,
                done.logprobs + part.logprobs,
                done.entropies + part.entropies,
                part.finish,
                done.version_runs + part.version_runs,
            )
        return done

    async def score(self, token_ids: Sequence[int]) -> Floats:
        """Logprob of each token after the first, by every server; they must agree. [T] -> [T - 1]

        Raises:
            EngineError: Two servers differ by more than the engine states, or one does not answer; the engine is closed.
        """
        most, vocab = self._info.context_tokens - 1, self._info.vocab_size
        if self._closed:
            raise EngineError("the engine is closed: make a new one to score tokens")
        if not 2 <= len(token_ids) <= most or not all(0 <= i < vocab for i in token_ids):
            raise EngineError(
                f"expected 2 to {most} token ids from 0 to {vocab - 1} to score, got {len(token_ids)}"
            )
        await self._open()
        living = [replica for replica in self._replicas if replica.failed is None]
        found = await asyncio.gather(*(self._scored(replica, token_ids) for replica in living))
        tolerance = self._info.logprob_tolerance
        for replica, scores in zip(living[1:], found[1:], strict=True):
            difference = float(np.abs(scores - found[0]).max())
            if not (tolerance is not None and difference <= tolerance):
                raise EngineError(
                    f"{replica.url} computes other logprobs than {living[0].url}, by up to {difference:.2g} nats on a "
                    "fixed prompt: their weights differ"
                )
        return found[0]

    async def _scored(self, replica: Replica, token_ids: Sequence[int]) -> Floats:
        last = ""
        for attempt in range(_MOST_FAILURES):
            await self._until(lambda: replica.is_up)
            try:
                return await replica.while_up(replica.server.prompt_logprobs(token_ids))
            except LostServerError:
                last = "it went down"
            except RequestFailedError as failed:
                last = failed.detail
                await self._after_failure(replica, failed, attempt)
        raise EngineError(f"engine 'vllm': {replica.url} does not score a prompt: {last}")

    async def load_weights(self, version: int) -> None:
        """Have every server load the weights of `version` from the weights folder.

        Raises:
            EngineError: There is no such folder, or no server comes back with these weights.
        """
        folder = self._info.weights_folder
        if folder is None:
            raise EngineError("engine 'vllm' takes no weights here: it has no folder to read them from")
        if not version_folder(folder, version).is_dir():
            raise EngineError(f"engine 'vllm': there are no weights of version {version} in {folder}")
        await self._open()
        self._handed += 1
        label = f"{self._name}-{self._handed}"
        kept = {old: number for old, number in self._versions.items() if old.startswith(self._name)}
        self._current, self._versions = label, {**kept, label: version}
        self._info = replace(self._info, policy_version=version)
        await asyncio.gather(*(self._hand_over(replica) for replica in self._replicas if replica.is_up))
        # A server that is down gets them when it is back.
        for replica in self._replicas:
            await self._until(lambda replica=replica: replica.is_up and replica.label == label)  # type: ignore[misc]

    async def _hand_over(self, replica: Replica) -> None:
        async with replica.handing_over:
            try:
                if self._sleeps:
                    await replica.server.wake()
                await self._load(replica)
            except RequestFailedError:
                replica.suspect()

    async def _load(self, replica: Replica) -> None:
        folder, label = self._info.weights_folder, self._current
        assert folder is not None
        assert label is not None
        replica.prefixes.clear()
        await replica.server.load(version_folder(folder, self._info.policy_version), label)
        replica.label = label
        self.changed()

    async def rest(self) -> None:
        """Hand back the servers' memory until the next `load_weights`, if they sleep."""
        if self._sleeps:
            await asyncio.gather(*(replica.server.sleep() for replica in self._replicas if replica.is_up))

    def info(self) -> EngineInfo:
        """Sizes and version."""
        return self._info

    async def close(self) -> None:
        """Stop the servers that ramify started, and free connections; closing twice is allowed."""
        self._closed = True
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        await close_all((*self._replicas, *(() if self._weights is None else (self._weights,))))

    def _check(self, request: Request) -> None:
        size, limit = len(request.token_ids), self._info.context_tokens
        if self._closed:
            raise EngineError("the engine is closed: make a new one to write more")
        if size < 1 or request.max_new_tokens < 1:
            raise EngineError(
                f"a request needs at least 1 token of context and 1 to write, not {size} and {request.max_new_tokens}"
            )
        if size + request.max_new_tokens > limit:
            raise EngineError(
                f"a request of {size} tokens for {request.max_new_tokens} more does not fit the engine's context of "
                f"{limit} tokens"
            )

    async def _open(self) -> None:
        """Begin to keep the servers, and wait until all of them are up or given up."""
        if not self._keepers:
            self._keepers = [asyncio.create_task(replica.keep(self)) for replica in self._replicas]
        if not self._is_open:
            for replica in self._replicas:
                await self._until(lambda replica=replica: replica.is_up)  # type: ignore[misc]
            self._is_open = True

    def changed(self) -> None:
        """Wake those who wait for a server."""
        self._news.set()
        self._news = asyncio.Event()

    async def _until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds.

        Raises:
            RamifyError: A server was given up: the engine cannot do what it was built for.
        """
        while True:
            for replica in self._replicas:
                if replica.failed is not None:
                    raise replica.failed
            if holds():
                return
            await self._news.wait()

    async def prepare(self, replica: Replica) -> None:
        """Check a server that has just answered, and give it the weights of this step.

        Raises:
            ConfigError: It is not the server that the recipe describes.
            EngineError: Its weights are none of this run.
            RequestFailedError: It does not answer.
        """
        info = await self._fit.look(replica.server)
        if not self._versions and (note := release_note(replica.url, info.version)):
            self._note(note)
        if not self._versions or (self._current is None and self._weights is not None):
            # What servers hold before the first hand-over does not matter if there will be one.
            self._versions[info.label] = 0
        replica.label = info.label
        if self._current in (None, info.label):
            if info.label not in self._versions:
                known = next(iter(self._versions))
                raise EngineError(
                    f"engine 'vllm': {replica.url} has the weights {info.label!r}, others have {known!r}: somebody else "
                    "loads weights into it"
                )
            return
        if info.label != _UNTOUCHED and not info.label.startswith(self._name):
            raise EngineError(
                f"engine 'vllm': {replica.url} has the weights {info.label!r} of another run; give each run servers of "
                "its own"
            )
        await self._load(replica)

    async def check(self, replica: Replica) -> None:
        """Return if a server is healthy and has the weights of this step.

        Raises:
            RequestFailedError: It is not, or it started again.
        """
        await replica.server.health()
        label = await replica.server.label()
        if label not in self._versions or (self._current is not None and label != self._current):
            raise RequestFailedError(FailureKind.SERVER, f"its weights are {label!r}, so it started again")

    async def _part(self, request: Request, written: tuple[int, ...], most: int, tops: bool) -> Completion:
        """Have up to `most` tokens written after those that were; what fails is repeated until a server answers."""
        ids = request.token_ids + written
        asked = Asked(
            ids,
            most,
            stream(request.seed, len(ids)),
            request.temperature,
            request.top_p,
            request.stops,
            self._stop_ids,
            self._top_k if tops else 0,
        )
        blocks = blocks_of(ids)
        last = ""
        for attempt in range(_MOST_FAILURES):
            await self._until(lambda: any(replica.is_up for replica in self._replicas))
            replica = self._route([replica for replica in self._replicas if replica.is_up], blocks)
            replica.prefixes.add(blocks)
            try:
                with replica.carrying():
                    served = await replica.while_up(replica.server.generate(asked))
            except LostServerError:
                last = f"{replica.url} went down"
                continue
            except RequestFailedError as failed:
                last = failed.detail
                await self._after_failure(replica, failed, attempt)
                continue
            if any(label not in self._versions for label, _ in served.labels):
                last = f"{replica.url} wrote with other weights than those of this step"
                replica.suspect()
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            done = self._completion(served, request, written)
            replica.prefixes.add(blocks_of(ids + done.token_ids))
            return done
        raise EngineError(
            f"engine 'vllm': a request failed {_MOST_FAILURES} times, the last time because {last}"
        )

    async def _after_failure(self, replica: Replica, failed: RequestFailedError, attempt: int) -> None:
        """After a failed request: have the server looked at, and wait a moment.

        Raises:
            EngineError: Another attempt could not mend it.
            ServiceDownError: The key is refused.
        """
        if failed.kind is FailureKind.REFUSED:
            raise ServiceDownError(
                f"{failed.detail}: the server refuses the key; look at engine.key_variable"
            )
        if not failed.kind.retriable:
            raise EngineError(f"engine 'vllm': {failed.detail}")
        replica.suspect()
        await asyncio.sleep(_PAUSE_SECONDS * 2 ** min(attempt, 5))

    def _completion(self, served: Served, request: Request, written: tuple[int, ...]) -> Completion:
        """What was served, up to the token that ends the turn by our own reading of it."""
        start = len(request.token_ids) - request.stop_context
        turn = [*request.token_ids[start:], *written]
        matcher = self._matcher(request.stops)
        finish, size = Finish.LENGTH, len(served.token_ids)
        for place, token in enumerate(served.token_ids, start=1):
            turn.append(token)
            if token in self._tokenizer.eos_ids:
                finish, size = Finish.EOS, place
                break
            if matcher.completes(turn):
                finish, size = Finish.STOP, place
                break
        entropies = tuple(top_k_bracket(top, self._info.vocab_size) for top in served.tops[:size])
        return Completion(
            served.token_ids[:size],
            served.logprobs[:size],
            entropies,
            finish,
            self._runs(served.labels, size),
        )

    def _runs(self, labels: Sequence[tuple[str, int]], size: int) -> tuple[tuple[int, int], ...]:
        """Versions of the first `size` tokens."""
        runs: list[tuple[int, int]] = []
        for label, count in labels:
            count = min(count, size)
            size -= count
            if count:
                runs.append((self._versions[label], count))
        return tuple(runs)

    def _matcher(self, stops: tuple[str, ...]) -> StopMatcher:
        if stops not in self._matchers:
            self._matchers[stops] = StopMatcher(self._tokenizer.token_bytes, stops)
        return self._matchers[stops]
