"""The agents that the engine rows run: the tiny model, zero-latency tools, turns and results of given sizes."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from benchmarks.harness.threads import NUM_THREADS
from benchmarks.rollout.scripted_policy import ForcedSampler, InstantTool, ScriptedPolicy, TurnOf
from benchmarks.rollout.texts import Texts
from benchmarks.rollout.workload import Workload, results, turn_tokens
from ramify.chat.tags import RESULT_CLOSE
from ramify.core.protocols import Brancher, Event, Tool
from ramify.core.records import Request
from ramify.core.tree import Source, Tree
from ramify.engines.local import EngineCounters, LocalEngine
from ramify.modeling.load import load_model
from ramify.rollout.configs import RolloutLimits
from ramify.rollout.grow import grow_trees
from ramify.rollout.settings import AgentParts
from ramify.rollout.tool_set import ToolSet


class NoEvents:
    """Implements `core.protocols.EventSink`."""

    def emit(self, event: Event) -> None:
        """Forget it."""


@dataclass(frozen=True, slots=True)
class TimedRollout:
    """One rollout: how long it took, by the clock and of the processor; its trees; what the engine did."""

    seconds: float
    cpu_seconds: float
    trees: tuple[Tree, ...]
    counters: EngineCounters

    def tokens(self, *sources: Source) -> int:
        """Unique tokens of these sources."""
        return sum(len(n.token_ids) for tree in self.trees for n in tree.nodes if n.source in sources)


class FlatTurns:
    """The turns of a workload: trajectory i is recognised by the first word that it wrote."""

    def __init__(self, texts: Texts, workload: Workload) -> None:
        self._close = texts.tokenizer.encode(RESULT_CLOSE)[0]
        self._prompt = workload.prompt
        self._first = {texts.tokenizer.encode(f" {word}")[0]: i for i, word in enumerate(texts.words[:500])}
        self._started = 0
        self._turns: list[list[tuple[int, ...]]] = []
        self._results: dict[str, str] = {}
        for index, sizes in enumerate(workload.turns):
            queries = [texts.words[index * len(sizes) + turn] for turn in range(len(sizes) - 1)]
            self._turns.append(
                [texts.turn(size, query, index) for size, query in zip(sizes, [*queries, None], strict=True)]
            )
            for query, size in zip(queries, workload.results[index], strict=True):
                self._results[query] = texts.result(size)

    def turn(self, request: Request) -> Sequence[int]:
        """The turn that begins after the request's context."""
        written = request.token_ids[self._prompt :]
        if written:
            return self._turns[self._first[written[0]]][written.count(self._close)]
        self._started += 1
        return self._turns[(self._started - 1) % len(self._turns)][0]

    def result(self, query: str) -> str:
        """The text that a tool answers."""
        return self._results[query]


class TreeTurns:
    """Turns for trees whose shape is not known beforehand: sizes are drawn from the request's seed."""

    def __init__(self, texts: Texts, turns: int) -> None:
        self._texts = texts
        self._close = texts.tokenizer.encode(RESULT_CLOSE)[0]
        self._last = turns - 1

    def turn(self, request: Request) -> Sequence[int]:
        """The turn that begins after the request's context."""
        depth = request.token_ids.count(self._close)
        word = request.seed % 500
        query = self._texts.words[word] if depth < self._last else None
        return self._texts.turn(turn_tokens(request.seed), query, word)

    def result(self, query: str) -> str:
        """The text that a tool answers."""
        generator = np.random.default_rng(self._texts.words.index(query))
        return self._texts.result(results(generator, 1)[0])


class Agent:
    """Grows trees on one engine again and again, as the steps of a training run do."""

    def __init__(
        self,
        folder: Path,
        turns: FlatTurns | TreeTurns,
        brancher: Brancher,
        n: int,
        slots: int,
        longest: int,
        tool: Tool | None = None,
    ) -> None:
        """Open the model.

        Args:
            folder: Of the model.
            turns: What the policy writes, and what an instant tool answers.
            brancher: Where trees branch.
            n: Trajectories of a tree.
            slots: Of the engine.
            longest: Tokens of the longest trajectory.
            tool: In place of the instant one.
        """
        torch.set_num_threads(NUM_THREADS)
        self.texts = Texts(folder)
        self.model = load_model(folder)
        sampler = ForcedSampler()
        self._engine = LocalEngine(
            self.model, self.texts.tokenizer, num_slots=slots, context_tokens=longest, sampler=sampler
        )
        turn_of: TurnOf = turns.turn
        self._parts = AgentParts(
            engine=ScriptedPolicy(self._engine, sampler, turn_of),
            renderer=self.texts.renderer,
            environment=ToolSet({"search": tool or InstantTool(turns.result)}),
            brancher=brancher,
            limits=RolloutLimits(n=n, max_tokens=longest, max_calls=64),
            events=NoEvents(),
            run_seed=0,
            slots=slots,
        )
        self._runner = asyncio.Runner()
        self._step = 0

    def grow(self, prompts: Sequence[int]) -> TimedRollout:
        """One tree for each prompt, from weights that have just changed."""
        self._step += 1
        before = replace(self._engine.counters)
        problems = [self.texts.problem(f"p{index}", size) for index, size in enumerate(prompts)]
        started, cpu_started = time.perf_counter(), time.process_time()
        self._runner.run(self._parts.engine.load_weights(self._step))
        # Every run draws the same numbers, so that runs differ in time only.
        trees = self._runner.run(grow_trees(self._parts, problems, 0))
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
        done = self._engine.counters
        counters = EngineCounters(
            done.prefilled - before.prefilled, done.written - before.written, done.steps - before.steps
        )
        return TimedRollout(seconds, cpu_seconds, trees, counters)

    def close(self) -> None:
        """Stop the engine."""
        self._runner.run(self._parts.engine.close())
        self._runner.close()
