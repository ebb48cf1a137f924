"""The local engine: continuous batching over slots, in this process, on the learner's own weights.

One step of the model serves every active sequence: those that write feed their last token, those that have just
been admitted feed the part of their context that no slot holds. A request that continues an earlier one finds
its tokens in a slot and feeds only what is new; a branch copies the slot of its parent up to the branch.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel

from ramify.chat.stops import StopMatcher
from ramify.chat.tokenizer import ChatTokenizer
from ramify.core.errors import EngineError
from ramify.core.quiescence import LiveCount
from ramify.core.records import Completion, EngineInfo, Finish, Request
from ramify.core.tree import Entropy
from ramify.engines.sampling import Sampled, Sampler, sample
from ramify.engines.slot_attention import StepPlan, Stretch
from ramify.engines.slots import CacheShape, Match, SlotTable


@dataclass(eq=False)
class _Sequence:
    """A request on its way through the engine."""

    request: Request
    ids: npt.NDArray[np.int32]
    matcher: StopMatcher
    future: "asyncio.Future[Completion]"
    turn: list[int]
    row: int = -1
    logprobs: list[float] = field(default_factory=list)
    entropies: list[Entropy] = field(default_factory=list)

    @property
    def num_written(self) -> int:
        return len(self.logprobs)


@dataclass
class EngineCounters:
    """What the engine has done: tokens fed as new context, tokens written, steps of the model."""

    prefilled: int = 0
    written: int = 0
    steps: int = 0


class LocalEngine:
    """Implements `core.protocols.Engine` on a transformers model loaded with ramify attention."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: ChatTokenizer,
        *,
        num_slots: int,
        context_tokens: int,
        live: LiveCount | None = None,
        sampler: Sampler = sample,
    ) -> None:
        """Share `model` with whoever else holds it.

        Args:
            model: Its weights are read at every step; nothing is copied.
            tokenizer: For stop strings and the end of a turn.
            num_slots: Sequences that can be active at once; parked contexts live in what is left.
            context_tokens: Longest sequence.
            live: In deterministic mode, the number of living trajectories: the engine steps only when all of
                them wait for it, and admits in the order of priorities.
            sampler: Chooses tokens; one that plays a script serves replays and benchmarks.
        """
        config = model.config
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = CacheShape(
            config.num_hidden_layers, num_slots, config.num_key_value_heads, context_tokens, head_dim
        )
        self._model = model
        self._tokenizer = tokenizer
        self._device = model.device
        self._table = SlotTable(shape, model.dtype, model.device)
        self._live = live
        self._sampler = sampler
        self._version = 0
        self._waiting: list[_Sequence] = []
        self._active: list[_Sequence] = []
        self._matchers: dict[tuple[str, ...], StopMatcher] = {}
        self._driver: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self.counters = EngineCounters()
        if live is not None:
            live.watch(self._changed.set)

    async def generate(self, request: Request) -> Completion:
        """Go on from the request's ids; cancelling frees the slot at once.

        Raises:
            EngineError: The request does not fit the context or asks for nothing.
        """
        size, limit = len(request.token_ids), self._table.shape.context_tokens
        if size < 1 or request.max_new_tokens < 1 or size + request.max_new_tokens > limit:
            raise EngineError(
                f"a request of {size} tokens for {request.max_new_tokens} more does not fit {limit} tokens"
            )
        start = size - request.stop_context
        sequence = _Sequence(
            request,
            np.array(request.token_ids, np.int32),
            self._matcher(request.stops),
            asyncio.get_running_loop().create_future(),
            list(request.token_ids[start:]),
        )
        self._waiting.append(sequence)
        self._changed.set()
        if self._driver is None or self._driver.done():
            self._driver = asyncio.create_task(self._drive())
            self._driver.add_done_callback(self._stopped)
        try:
            return await sequence.future
        finally:
            self._drop(sequence)

    async def load_weights(self, source: str, version: int) -> None:
        """Drop cached keys and values; the weights themselves are the learner's ("shared").

        Raises:
            EngineError: Another source: this engine holds no weights of its own.
        """
        if source != "shared":
            raise EngineError(f"the local engine shares the learner's weights and cannot load {source!r}")
        self._table.clear()
        self._version = version

    def info(self) -> EngineInfo:
        """Sizes and version."""
        shape = self._table.shape
        return EngineInfo(
            "local",
            self._model.config.vocab_size,
            shape.context_tokens,
            shape.num_slots,
            True,
            self._version,
            self._tokenizer.fingerprint,
        )

    async def close(self) -> None:
        """Stop writing and free the slots' memory; the engine is of no use afterwards."""
        if self._driver is not None:
            self._driver.cancel()
            await asyncio.gather(self._driver, return_exceptions=True)
            self._driver = None
        self._table.free()

    def _matcher(self, stops: tuple[str, ...]) -> StopMatcher:
        if stops not in self._matchers:
            self._matchers[stops] = StopMatcher(self._tokenizer.token_bytes, stops)
        return self._matchers[stops]

    def _drop(self, sequence: _Sequence) -> None:
        if sequence.row >= 0:
            self._release(sequence)
        elif not sequence.num_written and sequence in self._waiting:
            self._waiting.remove(sequence)
        self._changed.set()

    async def _drive(self) -> None:
        """Step until nothing is left to write."""
        while self._waiting or self._active:
            if self._live is not None and len(self._waiting) + len(self._active) < self._live.value:
                self._changed.clear()
                await self._changed.wait()
                continue
            self._step()
            await asyncio.sleep(0)

    def _stopped(self, driver: "asyncio.Task[None]") -> None:
        """A failure of the driver reaches every caller."""
        error = EngineError("the engine was closed") if driver.cancelled() else driver.exception()
        if error is None:
            return
        for sequence in (*self._waiting, *self._active):
            if not sequence.future.done():
                sequence.future.set_exception(error)

    @torch.inference_mode()
    def _step(self) -> None:
        fed, plan = self._admit()
        positions = self._table.lengths[: len(self._active) - len(plan)].copy()
        decoding = self._active[: len(positions)]
        tokens = [
            sequence.turn[-1] if sequence.num_written else int(sequence.ids[-1]) for sequence in decoding
        ]
        logits = self._forward(tokens, positions, fed, plan)
        self._table.append(np.arange(len(tokens)), np.array(tokens, np.int64))
        for stretch in plan:
            self._table.extend(stretch.row, stretch.stop - stretch.start)
        self._take(self._sample(logits))

    def _admit(self) -> tuple[list[int], tuple[Stretch, ...]]:
        """Give waiting requests slots; returns the context tokens to feed and where they go."""
        self._waiting.sort(key=lambda sequence: sequence.request.priority)
        ready: list[tuple[_Sequence, Match]] = []
        pending: set[bytes] = set()
        free = self._table.shape.num_slots - self._table.num_active
        for sequence in self._waiting:
            if len(ready) == free:
                break
            match = self._table.longest_prefix(sequence.ids[:-1])
            # A request whose context is being computed in this very step waits one step and then copies it.
            rest = sequence.ids[: len(sequence.ids) - 1].tobytes()
            if match.length < len(sequence.ids) - 1:
                if rest in pending:
                    continue
                pending.add(rest)
            ready.append((sequence, match))
        # Those that feed one token only are decode rows, and decode rows come first.
        ready.sort(key=lambda item: len(item[0].ids) - 1 - item[1].length > 0)
        return self._seat(ready)

    def _seat(self, ready: Sequence[tuple[_Sequence, Match]]) -> tuple[list[int], tuple[Stretch, ...]]:
        fed: list[int] = []
        stretches: list[Stretch] = []
        for sequence, _ in ready:
            # Seating moves rows, so the match is looked up again.
            match = self._table.longest_prefix(sequence.ids[:-1])
            keep = match.length
            sequence.row = self._table.activate(sequence.ids, match, keep)
            self._active.append(sequence)
            self._waiting.remove(sequence)
            if keep < len(sequence.ids) - 1 or stretches:
                stretches.append(Stretch(sequence.row, keep, len(sequence.ids), len(fed)))
                fed += sequence.ids[keep:].tolist()
        return fed, tuple(stretches)

    def _forward(
        self,
        tokens: list[int],
        positions: npt.NDArray[np.int64],
        fed: list[int],
        stretches: tuple[Stretch, ...],
    ) -> torch.Tensor:
        """Logits of the next token of every active row. [A, V]"""
        count = len(tokens)
        size = int(positions.max()) + 1 if count else 0
        where = torch.from_numpy(positions).to(self._device)
        mask = (torch.arange(size, device=self._device)[None] <= where[:, None])[:, None, None]
        placed = tuple(Stretch(s.row, s.start, s.stop, s.offset + count) for s in stretches)
        depths = [*positions.tolist(), *(p for s in stretches for p in range(s.start, s.stop))]
        hidden = self._model.model(
            input_ids=torch.tensor([[*tokens, *fed]], device=self._device),
            position_ids=torch.tensor([depths], device=self._device),
            use_cache=False,
            attention_plan=StepPlan(self._table, where, mask, placed),
        ).last_hidden_state[0]
        last = [*range(count), *(s.offset + s.stop - s.start - 1 for s in placed)]
        self.counters.prefilled += len(fed) - len(stretches)
        self.counters.written += len(last)
        self.counters.steps += 1
        logits: torch.Tensor = self._model.lm_head(hidden[torch.tensor(last, device=self._device)])
        return logits

    def _sample(self, logits: torch.Tensor) -> Sampled:
        return self._sampler(
            logits,
            np.array([s.request.temperature for s in self._active]),
            np.array([s.request.seed for s in self._active], np.uint64),
            np.array([len(s.ids) + s.num_written for s in self._active], np.uint64),
            [i for i, s in enumerate(self._active) if s.num_written < s.request.entropy_first_k],
        )

    def _take(self, sampled: Sampled) -> None:
        finished: list[tuple[_Sequence, Finish]] = []
        for index, sequence in enumerate(self._active):
            token = int(sampled.tokens[index])
            sequence.turn.append(token)
            sequence.logprobs.append(float(sampled.logprobs[index]))
            if index in sampled.entropies:
                value = sampled.entropies[index]
                sequence.entropies.append(Entropy(value, value))
            finish = self._finish(sequence, token)
            if finish is not None:
                finished.append((sequence, finish))
        for sequence, finish in finished:
            self._release(sequence)
            if not sequence.future.done():
                sequence.future.set_result(self._completion(sequence, finish))

    def _finish(self, sequence: _Sequence, token: int) -> Finish | None:
        if token in self._tokenizer.eos_ids:
            return Finish.EOS
        if sequence.matcher.completes(sequence.turn):
            return Finish.STOP
        return Finish.LENGTH if sequence.num_written == sequence.request.max_new_tokens else None

    def _completion(self, sequence: _Sequence, finish: Finish) -> Completion:
        count = sequence.num_written
        return Completion(
            tuple(sequence.turn[-count:]),
            tuple(sequence.logprobs),
            tuple(sequence.entropies),
            finish,
            ((self._version, count),),
        )

    def _release(self, sequence: _Sequence) -> None:
        """Park the sequence's row; the last active sequence moves into its place."""
        row = sequence.row
        self._table.park(row)
        moved = self._active.pop()
        if moved is not sequence:
            self._active[row] = moved
            moved.row = row
        sequence.row = -1
