"""The local engine: continuous batching over slots, in this process, with the learner's own weights.

One step of the model serves every active sequence: decoding sequences feed their last token, newly admitted ones feed
the part of their context that no slot holds. A request that continues an earlier one finds its tokens in a slot and
feeds only the new ones. A branch copies the slot of its parent up to the branch.

Steps run in a thread of the engine's own, so that a slow step delays neither tools nor deadlines. While the thread runs,
it owns the slots and the sequences in them. New and cancelled requests wait meanwhile in lists that the event loop owns,
and take effect between two steps.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, partial

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel

from ramify.chat.stops import StopMatcher
from ramify.chat.tokenizer import ChatTokenizer
from ramify.core.closing import LiveCount
from ramify.core.errors import ConfigError, EngineError
from ramify.core.records import Completion, EngineInfo, Finish, Floats, Request
from ramify.core.tree import Entropy
from ramify.engines.model_step import ModelStep, cache_dtype, cache_shape
from ramify.engines.sampling import RowFilters, SampledTokens, Sampler, sample
from ramify.engines.served_logprobs import TOLERANCE, TOLERANCE_16_BITS
from ramify.engines.slots import DecodeRows, Match, PrefillChunk, SlotTable, group_rows
from ramify.modeling.model_config import fits_slots

_TURNS_AFTER_AN_END = 8
"""Iterations of the event loop between a step that ended sequences and the next step."""


@dataclass(eq=False, slots=True)
class _Sequence:
    """A request and its state in the engine."""

    request: Request
    ids: npt.NDArray[np.int32]
    future: "asyncio.Future[Completion]"
    turn: list[int]
    filters: RowFilters | None = None
    matcher: StopMatcher | None = None
    row: int = -1
    ended: bool = False
    logprobs: list[float] = field(default_factory=list)
    entropies: list[Entropy] = field(default_factory=list)

    @property
    def num_written(self) -> int:
        return len(self.logprobs)


@dataclass
class EngineCounters:
    """What the engine has done: tokens fed as new context, tokens generated, steps of the model."""

    prefilled: int = 0
    written: int = 0
    steps: int = 0


class LocalEngine:
    """Implements `core.protocols.Engine` on a transformers model loaded with `modeling.load`."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: ChatTokenizer,
        *,
        num_slots: int,
        context_tokens: int,
        live: LiveCount | None = None,
        entropy_top_k: int | None = None,
        sampler: Sampler = sample,
    ) -> None:
        """Use `model` without copying it; the learner may share it.

        Args:
            model: The model; each `load_weights` takes its weights as they are then.
            tokenizer: Finds stop strings and the end of a turn.
            num_slots: Sequences that can be active at once; released contexts use the other slots.
            context_tokens: Length of the longest sequence.
            live: In deterministic mode, the number of living trajectories: the engine steps only when all of
                them wait for it, and admits requests in the order of priorities.
            entropy_top_k: Report entropy brackets from this many of the most likely tokens, as served models
                do; None: report exact entropies.
            sampler: Chooses tokens; replays and benchmarks use one that plays a script.

        Raises:
            ConfigError: The model is of another family, or has layers other than full attention.
        """
        if not fits_slots(model.config):
            raise ConfigError(
                f'engine.name: "local" does not compute the layers of this {model.config.model_type}; use another engine or '
                "another model (docs/models.md)"
            )
        self._tokenizer = tokenizer
        self._vocab_size: int = model.config.vocab_size
        shape = cache_shape(model, num_slots, context_tokens)
        self._table = SlotTable(shape, cache_dtype(model), model.device)
        self._tolerance = TOLERANCE if model.dtype == torch.float32 else TOLERANCE_16_BITS
        self._model_step = ModelStep(model, self._table)
        self._live = live
        self._entropy_top_k = entropy_top_k
        self._sampler = sampler
        self._version = 0
        self._closed = False
        self._thread = ThreadPoolExecutor(1, "ramify-engine")
        # Owned by the event loop:
        self._open: set[_Sequence] = set()
        self._arrived: deque[_Sequence] = deque()
        self._given_up: deque[_Sequence] = deque()
        self._driver: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        # Owned by the thread while it steps:
        self._matcher = cache(partial(StopMatcher, tokenizer.token_bytes))
        self._waiting: list[_Sequence] = []
        self._active: dict[int, _Sequence] = {}
        self._decode: DecodeRows | None = None
        self.counters = EngineCounters()
        if live is not None:
            live.watch(self._changed.set)

    async def generate(self, request: Request) -> Completion:
        """Continue the request's ids; cancelling frees the slot at once.

        Raises:
            EngineError: The request does not fit into the context or asks for no tokens, or the engine is closed.
        """
        self._check(request)
        start = len(request.token_ids) - request.stop_context
        sequence = _Sequence(
            request,
            np.array(request.token_ids, np.int32),
            asyncio.get_running_loop().create_future(),
            list(request.token_ids[start:]),
        )
        self._open.add(sequence)
        self._arrived.append(sequence)
        self._changed.set()
        if self._driver is None or self._driver.done():
            self._driver = asyncio.create_task(self._drive())
        try:
            return await sequence.future
        finally:
            self._give_up(sequence)

    async def score(self, token_ids: Sequence[int]) -> Floats:
        """Return the logprob of each token after the first, between two steps; slots and what they hold stay. [T] -> [T - 1]

        Raises:
            EngineError: Fewer than two tokens, more than the context, or other ids than the model's; the engine is closed.
        """
        ids, most = np.array(token_ids, np.int64), self._table.shape.context_tokens
        if self._closed:
            raise EngineError("the engine is closed: make a new one to score tokens")
        if not 2 <= len(ids) <= most or ids.min() < 0 or ids.max() >= self._vocab_size:
            raise EngineError(
                f"expected 2 to {most} token ids from 0 to {self._vocab_size - 1} to score, got {len(ids)}"
            )
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._model_step.score, ids.astype(np.int32))

    async def load_weights(self, version: int) -> None:
        """Use the model's current weights and drop cached keys and values.

        Raises:
            EngineError: Sequences are active.
        """
        written = sum(sequence.row >= 0 for sequence in self._open)
        if written:
            raise EngineError(
                f"weights of version {version} came while {written} sequences were being written; "
                "finish or cancel them first"
            )
        # A step may still be running for sequences that were cancelled.
        await asyncio.get_running_loop().run_in_executor(self._thread, self._use_weights, version)

    def _use_weights(self, version: int) -> None:
        self._settle()
        self._table.clear()
        self._model_step.weights_changed()
        self._version = version

    async def sleep(self) -> None:
        """Do nothing: the learner's process has the memory anyway."""

    def info(self) -> EngineInfo:
        """Return the engine's capabilities."""
        shape = self._table.shape
        return EngineInfo(
            "local",
            self._vocab_size,
            shape.context_tokens,
            shape.num_slots,
            self._entropy_top_k is None,
            self._version,
            self._tokenizer.fingerprint,
            logprob_tolerance=self._tolerance,
        )

    async def close(self) -> None:
        """Stop generating and free the slots' memory; pending requests get an EngineError."""
        self._closed = True
        self._changed.set()
        if self._driver is not None:
            await asyncio.gather(self._driver, return_exceptions=True)
        await asyncio.to_thread(self._free)

    def _free(self) -> None:
        self._thread.shutdown()
        self._model_step.forget()
        self._table.free()

    def _check(self, request: Request) -> None:
        size, limit = len(request.token_ids), self._table.shape.context_tokens
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

    def _give_up(self, sequence: _Sequence) -> None:
        """Drop a sequence whose caller is gone; if it has not ended, its slot is freed before the next step."""
        self._open.discard(sequence)
        if not sequence.ended:
            self._given_up.append(sequence)
            self._changed.set()

    async def _drive(self) -> None:
        """Step until no sequence is left. A failure reaches every caller."""
        loop = asyncio.get_running_loop()
        error: Exception = EngineError("the engine was closed")
        try:
            while self._open and not self._closed:
                if self._live is not None and len(self._open) < self._live.value:
                    self._changed.clear()
                    await self._changed.wait()
                    continue
                for sequence, completion in await loop.run_in_executor(self._thread, self._steps):
                    if not sequence.future.done():
                        sequence.future.set_result(completion)
                # Trajectories whose tools answer at once come back before the next step instead of some steps later.
                for _ in range(_TURNS_AFTER_AN_END):
                    await asyncio.sleep(0)
        except Exception as raised:  # noqa: BLE001 - whoever waits gets it
            error = raised
        finally:
            for sequence in self._open:
                if not sequence.future.done():
                    sequence.future.set_exception(error)

    def _steps(self) -> "list[tuple[_Sequence, Completion]]":
        """Step the model until sequences end, and return these; none if the engine is closed or no caller is left."""
        while not self._closed:
            self._settle()
            if not self._waiting and not self._active:
                break
            if ended := self._step():
                return ended
        return []

    def _settle(self) -> None:
        """Take in the requests that came or were cancelled since the last step."""
        # Another thread fills both lists meanwhile; taking one element at a time misses none.
        while self._arrived:
            sequence = self._arrived.popleft()
            sequence.matcher = self._matcher(sequence.request.stops)
            self._waiting.append(sequence)
        while self._given_up:
            sequence = self._given_up.popleft()
            if sequence.row >= 0:
                self._release(sequence)
            elif sequence in self._waiting:
                self._waiting.remove(sequence)

    @torch.inference_mode()
    def _step(self) -> "list[tuple[_Sequence, Completion]]":
        """Take one step of the model for all sequences that can continue; returns those that it ended."""
        chunks = self._admit()
        fresh = {chunk.row for chunk in chunks}
        if self._decode is None and len(fresh) < len(self._active):
            rows = np.array([row for row in self._active if row not in fresh], np.int64)
            if self._table.on_cpu_in_float32:
                self._decode = group_rows(rows, self._table.tokens, self._table.lengths)
            else:
                self._decode = DecodeRows(np.sort(rows), ())
        decode = self._decode
        writers = [self._active[row] for row in decode.rows.tolist()] if decode is not None else []
        tokens = np.array([s.turn[-1] if s.num_written else s.ids[-1] for s in writers], np.int64)
        logits = self._model_step(decode, tokens, chunks)
        self.counters.prefilled += sum(chunk.size - 1 for chunk in chunks)
        self.counters.written += len(self._active)
        self.counters.steps += 1
        if fresh:
            writers += [self._active[chunk.row] for chunk in chunks]
            self._decode = None
        return self._take(writers, self._sample(writers, logits))

    def _admit(self) -> list[PrefillChunk]:
        """Give rows to waiting requests; returns the contexts to feed (of requests that feed more than one token)."""
        if not self._waiting:
            return []
        # Attempts at one problem have equal priorities; sorting by seed too keeps the order of arrival out of it.
        self._waiting.sort(key=lambda sequence: (sequence.request.priority, sequence.request.seed))
        ready: list[_Sequence] = []
        matches: list[Match] = []
        pending: set[bytes] = set()
        free = self._table.num_free
        for sequence in self._waiting:
            if len(ready) == free:
                break
            # A request whose context is being computed in this step waits one step and then copies it.
            context = sequence.ids[:-1]
            match = self._table.longest_prefix(context)
            if match.length < len(context):
                if context.tobytes() in pending:
                    continue
                pending.add(context.tobytes())
            ready.append(sequence)
            matches.append(match)
        chunks: list[PrefillChunk] = []
        allocated = self._table.allocate([sequence.ids for sequence in ready], matches)
        for sequence, slot in zip(ready, allocated, strict=True):
            sequence.row = slot.row
            sequence.filters = self._row_filters(sequence)
            self._active[slot.row] = sequence
            self._waiting.remove(sequence)
            if slot.length < len(sequence.ids) - 1:
                chunks.append(PrefillChunk(slot.row, slot.length, len(sequence.ids)))
            self._decode = None
        return chunks

    def _row_filters(self, sequence: _Sequence) -> RowFilters | None:
        filters = sequence.request.filters
        if not filters.acts:
            return None
        if filters.repetition_penalty == 1:
            return RowFilters(filters)
        device = self._table.keys.device
        in_context = torch.zeros(self._vocab_size, dtype=torch.bool, device=device)
        in_context[torch.from_numpy(sequence.ids.astype(np.int64)).to(device)] = True
        return RowFilters(filters, in_context)

    def _sample(self, writers: list[_Sequence], logits: torch.Tensor) -> SampledTokens:
        return self._sampler(
            logits,
            np.array([s.request.temperature for s in writers]),
            [s.filters for s in writers],
            np.array([s.request.seed for s in writers], np.uint64),
            np.array([len(s.ids) + s.num_written for s in writers], np.uint64),
            [i for i, s in enumerate(writers) if s.num_written < s.request.entropy_first_k],
            self._entropy_top_k,
        )

    def _take(self, writers: list[_Sequence], sampled: SampledTokens) -> "list[tuple[_Sequence, Completion]]":
        ended = []
        for index, value in sampled.entropies.items():
            writers[index].entropies.append(value)
        pairs = zip(sampled.tokens.tolist(), sampled.logprobs.tolist(), strict=True)
        for sequence, (token, logprob) in zip(writers, pairs, strict=True):
            sequence.turn.append(token)
            sequence.logprobs.append(logprob)
            if sequence.filters is not None and sequence.filters.in_context is not None:
                sequence.filters.in_context[token] = True
            finish = self._finish(sequence, token)
            if finish is not None:
                sequence.ended = True
                self._release(sequence)
                ended.append((sequence, self._completion(sequence, finish)))
        return ended

    def _finish(self, sequence: _Sequence, token: int) -> Finish | None:
        if token in self._tokenizer.eos_ids:
            return Finish.EOS
        assert sequence.matcher is not None
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
        """Release the sequence's row."""
        self._table.release(sequence.row)
        del self._active[sequence.row]
        sequence.row = -1
        self._decode = None
