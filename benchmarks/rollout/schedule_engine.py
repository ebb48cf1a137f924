"""One GPU on the virtual clock: an engine of limited capacity that plays given turns.

Continuous batching: all sequences advance by one token a step, a step takes as long as reading the weights and
everybody's keys and values takes, and what arrives is prefilled before the next step. A prefix cache with pages
keeps what was prefilled or written. Both sides of the schedule rows run on it.
"""

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ramify.chat.tokenizer import ChatTokenizer
from ramify.core.draws import uniform
from ramify.core.records import Completion, EngineInfo, Finish, Floats, Request
from ramify.core.tree import Entropy

TurnOf = Callable[[Request], Sequence[int]]
"""A request -> the token ids of the whole turn that it is in."""

_CONTEXT_TOKENS = 1 << 16
_SLOTS = 1024
_ENTROPY_DRAW = 100  # the first draws of a turn's stream decide what it says


@dataclass(frozen=True, slots=True)
class EngineCosts:
    """Seconds of an engine's work.

    Attributes:
        step: Of a decode step, whatever its width: the weights are read once, and kernels are launched.
        context_token: Of a decode step, for each token of context of each sequence.
        prefill_token: Of a token that is fed.
    """

    step: float
    context_token: float
    prefill_token: float

    def decode(self, width: int, context: int, steps: int) -> float:
        """Seconds of `steps` steps of `width` sequences that have `context` tokens together before the first."""
        read = steps * context + width * steps * (steps - 1) // 2
        compute = self.prefill_token * width
        return max(self.step * steps + self.context_token * read, compute * steps)


@dataclass(slots=True, eq=False)
class _Sequence:
    """A request that is being served: tokens that are left to write, tokens of context so far."""

    request: Request
    left: int
    context: int
    done: "asyncio.Future[None]"


@dataclass(slots=True)
class Work:
    """What an engine has done: seconds in which it had work, decode steps, tokens written, tokens prefilled."""

    busy_seconds: float = 0.0
    steps: int = 0
    written: int = 0
    prefilled: int = 0


class PrefixCache:
    """Which prefixes are known, in whole pages."""

    def __init__(self, page: int) -> None:
        self._page = page
        self._pages: dict[tuple[int, tuple[int, ...]], int] = {}

    def feed(self, token_ids: tuple[int, ...]) -> int:
        """Take in a context; how many of its tokens were missing, at least the last, whose logits are needed."""
        parent, known, new = 0, 0, False
        for start in range(0, len(token_ids) - self._page + 1, self._page):
            page = (parent, token_ids[start : start + self._page])
            page_id = self._pages.get(page)
            if page_id is None:
                page_id = self._pages[page] = len(self._pages) + 1
                new = True
            parent, known = page_id, known if new else start + self._page
        return max(1, len(token_ids) - known)


class _Player:
    """What both engines below share: given turns, a prefix cache, an account of the work."""

    def __init__(self, costs: EngineCosts, page: int, turn_of: TurnOf, tokenizer: ChatTokenizer) -> None:
        self.work = Work()
        self._costs = costs
        self._turn_of = turn_of
        self._cache = PrefixCache(page)
        self._info = EngineInfo(
            name="virtual",
            vocab_size=tokenizer.vocab_size,
            context_tokens=_CONTEXT_TOKENS,
            num_slots=_SLOTS,
            exact_entropy=True,
            policy_version=0,
            tokenizer=tokenizer.fingerprint,
        )

    async def generate(self, request: Request) -> Completion:
        """Play the next tokens of the turn that the request is in."""
        left = tuple(self._turn_of(request)[request.stop_context :])
        tokens = left[: request.max_new_tokens]
        await self._spend(request, len(tokens))
        self._cache.feed(request.token_ids + tokens)
        return Completion(
            token_ids=tokens,
            logprobs=(0.0,) * len(tokens),
            entropies=(_entropy(request.seed),) * min(len(tokens), request.entropy_first_k),
            finish=Finish.STOP if len(tokens) == len(left) else Finish.LENGTH,
            version_runs=((0, len(tokens)),),
        )

    async def score(self, token_ids: Sequence[int]) -> Floats:
        """There are no logprobs."""
        raise NotImplementedError(f"no logprobs of {len(token_ids)} tokens")

    async def load_weights(self, version: int) -> None:
        """There are no weights."""
        raise NotImplementedError(f"no weights to load as version {version}")

    async def sleep(self) -> None:
        """Nothing."""

    def info(self) -> EngineInfo:
        """Room for everybody."""
        return self._info

    async def close(self) -> None:
        """Nothing is held."""

    async def _spend(self, request: Request, tokens: int) -> None:
        raise NotImplementedError

    def _feed(self, request: Request) -> int:
        """Tokens of a request's context that the cache did not have."""
        missing = self._cache.feed(request.token_ids)
        self.work.prefilled += missing
        return missing


def _entropy(seed: int) -> Entropy:
    """Draw the entropy of a turn's tokens, between 0 and 1 nat, so that rules which read it differ from turn to turn."""
    nats = uniform(seed, _ENTROPY_DRAW)
    return Entropy(nats, nats)


class EmptyEngine(_Player):
    """An engine without load: every request is served as if it were alone."""

    async def _spend(self, request: Request, tokens: int) -> None:
        fed = self._feed(request)
        self.work.written += tokens
        alone = self._costs.decode(1, len(request.token_ids), tokens)
        await asyncio.sleep(fed * self._costs.prefill_token + alone)


class CapacityEngine(_Player):
    """An engine whose requests share one GPU."""

    def __init__(self, costs: EngineCosts, page: int, turn_of: TurnOf, tokenizer: ChatTokenizer) -> None:
        super().__init__(costs, page, turn_of, tokenizer)
        self._waiting: list[_Sequence] = []
        self._active: list[_Sequence] = []
        self._changed = asyncio.Event()
        self._server: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Stop serving."""
        if self._server is not None:
            self._server.cancel()

    async def _spend(self, request: Request, tokens: int) -> None:
        loop = asyncio.get_running_loop()
        sequence = _Sequence(request, tokens, len(request.token_ids), loop.create_future())
        if self._server is None:
            self._server = loop.create_task(self._serve())
        self._waiting.append(sequence)
        self._changed.set()
        try:
            await sequence.done
        except asyncio.CancelledError:
            for line in (self._waiting, self._active):
                if sequence in line:
                    line.remove(sequence)
            self._changed.set()
            raise

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if not self._waiting and not self._active:
                self._changed.clear()
                await self._changed.wait()
            began = loop.time()
            await self._prefill()
            await self._decode()
            self.work.busy_seconds += loop.time() - began

    async def _prefill(self) -> None:
        tokens = 0
        while self._waiting:
            sequence = self._waiting.pop(0)
            tokens += self._feed(sequence.request)
            self._active.append(sequence)
        self._changed.clear()
        await asyncio.sleep(tokens * self._costs.prefill_token)

    async def _decode(self) -> None:
        """Steps until a sequence is whole, or one arrives or leaves."""
        if not self._active:
            return
        width, context = len(self._active), sum(sequence.context for sequence in self._active)
        batch, steps = list(self._active), min(sequence.left for sequence in self._active)

        def seconds(count: int) -> float:
            return self._costs.decode(width, context, count)

        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(seconds(steps)):
                await self._changed.wait()
        except TimeoutError:
            pass
        else:
            # Who arrives or leaves does so after the step that is under way.
            elapsed = loop.time() - began
            steps = max(1, bisect_left(range(steps), elapsed, key=seconds))
            await asyncio.sleep(began + seconds(steps) - loop.time())
        self.work.steps += steps
        self.work.written += steps * width
        for sequence in batch:
            sequence.left -= steps
            sequence.context += steps
            if not sequence.left and not sequence.done.done():
                sequence.done.set_result(None)
        self._active = [sequence for sequence in self._active if sequence.left > 0]
