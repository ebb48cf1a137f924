"""The vLLM engine: requests go to servers, are repeated where a server dies, and are read back exactly.

A request is sent in parts, so that only tokens whose entropy was asked for come with the most likely tokens beside
them. Each part has a seed of its own, because vLLM counts its draws from the start of a request. Stop strings are
matched again on our side, on the bytes of the whole turn: one may begin in the request before.

Every answer says which weights wrote it. An answer by other weights than those that were handed over (a server that
started again has those of its first day) is dropped and asked for again, once the server has the right ones. A request
that is repeated has the same ids and seed, and nothing of a failed answer is kept, so none is lost or counted twice.

A server that cannot be brought back, or answers wrongly, is given up. The others go on; the run ends when none is left.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial

import numpy as np

from ramify.chat.stops import StopMatcher
from ramify.chat.tokenizer import ChatTokenizer
from ramify.core.closing import close_all
from ramify.core.draws import stream
from ramify.core.errors import EngineError, ServiceDownError
from ramify.core.protocols import WeightBuckets
from ramify.core.records import Completion, EngineInfo, Finish, Floats, Request, version_folder
from ramify.engines.configs import VllmEngineConfig
from ramify.engines.served_logprobs import TOLERANCE, TOLERANCE_16_BITS, top_k_bracket
from ramify.engines.vllm.answers import GenerateRequest, GenerateResponse
from ramify.engines.vllm.carriers import BucketCarrier, FolderCarrier
from ramify.engines.vllm.folder import WeightsFolder
from ramify.engines.vllm.replica import LostServerError, Replica, ServerState
from ramify.engines.vllm.routing import blocks_of, least_work
from ramify.engines.vllm.weight_sync import Fit, WeightSync
from ramify.net.failures import FailureKind, RequestFailedError

_MOST_FAILURES = 10
"""Failed attempts after which a request counts as what kills the servers."""
_PAUSE_SECONDS = 0.2
_SETTLED = (ServerState.AWAKE, ServerState.LOST)


class VllmEngine:
    """Implements `ramify.core.protocols.Engine` with vLLM servers."""

    def __init__(
        self,
        replicas: Sequence[Replica],
        tokenizer: ChatTokenizer,
        config: VllmEngineConfig,
        *,
        vocab_size: int,
        context_tokens: int,
        weights: WeightsFolder | BucketCarrier | None = None,
        route: Callable[[Sequence[Replica], Sequence[int]], Replica] = least_work,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Start the processes of servers that ramify starts, unless they share the learner's GPUs; open no connection yet.

        Where one cannot be started (MachineError), what was passed in is still the caller's to close.

        Args:
            replicas: The servers; all serve the same model.
            tokenizer: Finds stop strings and the end of a turn.
            config: The engine's settings. Without `weights` the servers never sleep.
            vocab_size: Rows of the model's head.
            context_tokens: Length of the longest sequence.
            weights: Where new weights come from: a folder, which it removes when it is closed, or a learner that `read_from`
                names; None: it takes none.
            route: Chooses the server of a request by the blocks of its context.
            note: Receives what happens to servers.
        """
        self._replicas, self._tokenizer = tuple(replicas), tokenizer
        self._stop_ids = tuple(sorted(tokenizer.eos_ids))
        # One more is asked for.
        self._top_k = min(config.top_k, vocab_size - 1)
        self._route, self._note = route, note
        self._info = EngineInfo(
            "vllm",
            vocab_size,
            context_tokens,
            config.slots * len(self._replicas),
            exact_entropy=False,
            policy_version=0,
            tokenizer=tokenizer.fingerprint,
            logprob_tolerance=TOLERANCE if config.dtype == "float32" else TOLERANCE_16_BITS,
            weights_folder=weights.path if isinstance(weights, WeightsFolder) else None,
            shares_gpus=config.sleep and weights is not None,
        )
        self._weights, self._sleeps = weights, self._info.shares_gpus
        carrier = FolderCarrier(weights.path) if isinstance(weights, WeightsFolder) else weights
        fit = Fit(
            config.model,
            tokenizer,
            context_tokens,
            config.dtype,
            self._top_k + 1,
            weights is not None,
            self._sleeps,
        )
        self._sync = WeightSync(fit, carrier, self._wake_waiters, note)
        self._scores: dict[Replica, tuple[tuple[int, ...], str | None, Floats]] = {}
        self._matcher = cache(partial(StopMatcher, tokenizer.token_bytes))
        self._keepers: list[asyncio.Task[None]] = []
        self._news = asyncio.Event()
        # Set when all servers were up for the first time: until then one that is given up ends the run.
        self._has_opened = self._closed = False
        # A server measures the free memory as it starts: where the learner may be computing, it waits for the first use.
        for replica in () if self._sleeps else self._replicas:
            if replica.process is not None:
                replica.process.start()

    @property
    def takes_buckets(self) -> bool:
        """True if `read_from` names the learner whose weights it takes."""
        return isinstance(self._weights, BucketCarrier)

    def read_from(self, weights: WeightBuckets) -> None:
        """Take weights from there from now on."""
        assert isinstance(self._weights, BucketCarrier)
        self._weights.weights = weights

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
        """Return the logprob of each token after the first, by every server; they must agree. [T] -> [T - 1]

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
        living = [replica for replica in self._replicas if replica.state is not ServerState.LOST]
        scores = await asyncio.gather(*(self._scored(replica, token_ids) for replica in living))
        first: tuple[Replica, Floats] | None = None
        for replica, logprobs in zip(living, scores, strict=True):
            if logprobs is not None:
                first = first or (replica, logprobs)
                self._compare(replica, logprobs, *first)
        assert first is not None  # `_until` raises when no server is left
        self._refuse_unmoved(tuple(token_ids), dict(zip(living, scores, strict=True)))
        return first[1]

    def _refuse_unmoved(self, ids: tuple[int, ...], scores: Mapping[Replica, Floats | None]) -> None:
        """Raise EngineError if a hand-over changed the logprobs of some servers, and of others not one bit."""
        moved: list[Replica] = []
        unmoved: list[Replica] = []
        for replica, logprobs in scores.items():
            before = self._scores.get(replica)
            if logprobs is None or (before is not None and before[:2] == (ids, replica.label)):
                continue
            if before is not None and before[0] == ids:
                (unmoved if np.array_equal(logprobs, before[2]) else moved).append(replica)
            self._scores[replica] = (ids, replica.label, logprobs)
        if moved and unmoved:
            raise EngineError(
                f"{unmoved[0].url} computes a fixed prompt as before the hand-over, {moved[0].url} does not: the first has "
                "old weights"
            )

    def _compare(self, replica: Replica, logprobs: Floats, other: Replica, expected: Floats) -> None:
        tolerance = self._info.logprob_tolerance
        difference = float(np.abs(logprobs - expected).max())
        if not (tolerance is not None and difference <= tolerance):
            raise EngineError(
                f"{replica.url} computes other logprobs than {other.url}, by up to {difference:.2g} nats on a "
                "fixed prompt: their weights differ"
            )

    async def _scored(self, replica: Replica, token_ids: Sequence[int]) -> Floats | None:
        """Return the logprobs by one server; None if it was given up."""
        last, failures = "", 0
        while failures < _MOST_FAILURES:
            await self._until(lambda: replica.state in _SETTLED)
            if not replica.is_up:
                return None
            try:
                return await replica.while_up(replica.server.prompt_logprobs(token_ids))
            except LostServerError:
                last, failures = "it went down", failures + 1
            except RequestFailedError as failed:
                last = failed.detail
                failures += await self._after_failure(replica, failed, failures)
        raise EngineError(f"engine 'vllm': {replica.url} does not score a prompt: {last}")

    async def load_weights(self, version: int) -> None:
        """Wake the servers, and have each load the weights of `version` from the weights folder.

        Raises:
            EngineError: There is no such folder, or no server comes back with these weights.
        """
        folder = self._info.weights_folder
        if self._weights is None:
            raise EngineError("engine 'vllm' takes no weights here: it has no folder to read them from")
        if folder is not None and not version_folder(folder, version).is_dir():
            raise EngineError(f"engine 'vllm': there are no weights of version {version} in {folder}")
        if not self._has_opened:
            await self._open()
        self._sync.advance(version)
        self._info = replace(self._info, policy_version=version)
        # Servers that sleep get these weights when they wake.
        await self._open()
        await self._sync.hand_over(self._replicas)
        for replica in self._replicas:
            await self._until(
                lambda replica=replica: (  # type: ignore[misc]
                    replica.state is ServerState.LOST or (replica.is_up and self._sync.is_current(replica))
                )
            )

    async def sleep(self) -> None:
        """Have the servers release their memory until the next `load_weights`, if the recipe says so.

        Raises:
            RamifyError: They were to start for the first time, and one of them never came up.
        """
        if self._sleeps:
            if not self._has_opened:
                await self._open()
            await self._stop_keeping()
            living = [replica for replica in self._replicas if replica.failed is None]
            await asyncio.gather(*(replica.sleep() for replica in living))
            for replica in living:
                self._note_lost(replica)

    def info(self) -> EngineInfo:
        """Return the engine's capabilities."""
        return self._info

    async def close(self) -> None:
        """Stop the servers that ramify started, and free connections; closing twice is allowed."""
        self._closed = True
        await self._stop_keeping()
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
        """Begin to keep the servers, and wait until each is up or given up.

        Raises:
            RamifyError: No server is left, or one of them never came up.
        """
        if not self._keepers:
            self._keepers = [asyncio.create_task(self._keep(replica)) for replica in self._replicas]
        for replica in self._replicas:
            await self._until(lambda replica=replica: self._has_opened or replica.is_up)  # type: ignore[misc]
        self._has_opened = True

    async def _keep(self, replica: Replica) -> None:
        """Keep a server until it is given up."""
        if replica.failed is None:
            await replica.keep(self._sync)
            self._note_lost(replica)

    def _note_lost(self, replica: Replica) -> None:
        others = sum(other.failed is None for other in self._replicas)
        # The error of the last one ends the run, and is told then.
        if replica.failed is not None and others and self._has_opened:
            self._note(
                f"{replica.failed}; it is left out, and {others} of {len(self._replicas)} servers go on"
            )

    async def _stop_keeping(self) -> None:
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        self._keepers = []

    def _wake_waiters(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def _until(self, holds: Callable[[], bool]) -> None:
        """Wait until `holds` returns True.

        Raises:
            RamifyError: No server is left, or one of them never came up.
        """
        while True:
            lost = [replica.failed for replica in self._replicas if replica.failed is not None]
            if lost and (not self._has_opened or len(lost) == len(self._replicas)):
                raise lost[-1]
            if holds():
                return
            await self._news.wait()

    async def _part(self, request: Request, written: tuple[int, ...], most: int, tops: bool) -> Completion:
        """Have up to `most` tokens written after those that were; what fails is repeated until a server answers."""
        ids = request.token_ids + written
        part = GenerateRequest(
            ids,
            most,
            stream(request.seed, len(ids)),
            request.temperature,
            request.filters,
            request.stops,
            self._stop_ids,
            self._top_k if tops else 0,
        )
        blocks = blocks_of(ids)
        last, failures = "", 0
        while failures < _MOST_FAILURES:
            await self._until(lambda: any(replica.is_up for replica in self._replicas))
            replica = self._route([replica for replica in self._replicas if replica.is_up], blocks)
            replica.prefixes.add(blocks)
            try:
                with replica.carrying():
                    response = await replica.generate(part)
            except LostServerError:
                last, failures = f"{replica.url} went down", failures + 1
                continue
            except RequestFailedError as failed:
                last = failed.detail
                failures += await self._after_failure(replica, failed, failures)
                continue
            if not all(self._sync.knows(label) for label, _ in response.labels):
                last, failures = (
                    f"{replica.url} wrote with other weights than those of this step",
                    failures + 1,
                )
                replica.suspect()
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            done = self._completion(response, request, written)
            replica.prefixes.add(blocks_of(ids + done.token_ids))
            return done
        raise EngineError(
            f"engine 'vllm': a request failed {_MOST_FAILURES} times, the last time because {last}"
        )

    async def _after_failure(self, replica: Replica, failed: RequestFailedError, failures: int) -> int:
        """Have the server looked at, and wait a moment; return 1 if the request has one attempt less.

        A wrong answer takes none of them: the number of those is limited for each server.

        Raises:
            ServiceDownError: The key is refused.
        """
        if failed.kind is FailureKind.REFUSED:
            raise ServiceDownError(
                f"{failed.detail}: the server refuses the key. Look at engine.key_variable."
            )
        if not failed.kind.retriable:
            replica.count_wrong_answer(failed.detail)
            self._wake_waiters()
            await asyncio.sleep(_PAUSE_SECONDS)
            return 0
        replica.suspect()
        await asyncio.sleep(_PAUSE_SECONDS * 2 ** min(failures, 5))
        return 1

    def _completion(
        self, response: GenerateResponse, request: Request, written: tuple[int, ...]
    ) -> Completion:
        """Return the tokens up to the one that ends the turn by our own reading of it."""
        start = len(request.token_ids) - request.stop_context
        turn = [*request.token_ids[start:], *written]
        matcher = self._matcher(request.stops)
        finish, size = Finish.LENGTH, len(response.token_ids)
        for size_now, token in enumerate(response.token_ids, start=1):
            turn.append(token)
            if token in self._tokenizer.eos_ids:
                finish, size = Finish.EOS, size_now
                break
            if matcher.completes(turn):
                finish, size = Finish.STOP, size_now
                break
        entropies = tuple(top_k_bracket(top, self._info.vocab_size) for top in response.tops[:size])
        return Completion(
            response.token_ids[:size],
            response.logprobs[:size],
            entropies,
            finish,
            self._runs(response.labels, size),
        )

    def _runs(self, labels: Sequence[tuple[str, int]], size: int) -> tuple[tuple[int, int], ...]:
        """Return the versions of the first `size` tokens."""
        runs: list[tuple[int, int]] = []
        for label, count in labels:
            count = min(count, size)
            size -= count
            if count:
                runs.append((self._sync.version_of(label), count))
        return tuple(runs)
