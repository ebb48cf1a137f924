"""Our whole step: trajectories from the local engine with tools, rewards, advantages, and an optimizer step of the same model."""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.end_to_end.latencies import DEADLINE_SECONDS, HEDGE_SECONDS
from benchmarks.rollout.agents import Agent, FlatTurns
from benchmarks.rollout.texts import Texts
from benchmarks.rollout.workload import Workload
from benchmarks.update.ours import learner_of
from ramify.algos.branch_rules import FlatBrancher
from ramify.algos.grpo import GroupRelative
from ramify.core.messages import Problem, ToolCall, ToolResult, ToolSpec, ToolStatus
from ramify.core.records import Reward, ScoredTree, TrainingTree
from ramify.core.tree import Source
from ramify.learner.learning import AnnotationRequest, annotate

_PROBE = 20
_SPEC = ToolSpec(
    "search",
    "look up",
    {"type": "object", "required": ["query"]},
    forks=True,
    timeout_seconds=DEADLINE_SECONDS,
    hedge_seconds=HEDGE_SECONDS,
)


@dataclass(slots=True)
class WaitingTool:
    """A search that takes as long as its query's call does in this step. It has no state: its session is itself.

    Attributes:
        turns: Its answers.
        seconds: Of each issue of a call, by query; without them it answers at once.
    """

    turns: FlatTurns
    seconds: Mapping[str, list[float]] = field(default_factory=dict)
    spec: ToolSpec = _SPEC
    issued: Counter[str] = field(default_factory=Counter)

    async def open(self, problem: Problem) -> "WaitingTool":
        """Nothing is held."""
        del problem
        return self

    async def call(self, call: ToolCall) -> ToolResult:
        """The answer, after the latency of this issue of the call."""
        query = str(call.arguments["query"])
        number = self.issued[query]
        self.issued[query] += 1
        if query in self.seconds:
            await asyncio.sleep(self.seconds[query][number])
        return ToolResult(call.id, ToolStatus.OK, self.turns.result(query))

    async def fork(self) -> "WaitingTool":
        """Nothing is copied."""
        return self

    async def close(self) -> None:
        """Nothing is held."""


class OurSteps:
    """Steps of one group, flat: the same trajectories as the peer's."""

    def __init__(self, folder: Path, workload: Workload) -> None:
        """Open the model, for the engine and the learner alike."""
        self._workload, self._texts = workload, Texts(folder)
        turns = FlatTurns(self._texts, workload)
        self._tool = WaitingTool(turns)
        n = len(workload.turns)
        self._agent = Agent(
            folder, turns, FlatBrancher(probe_tokens=_PROBE), n, n, workload.longest + 1, self._tool
        )
        self._learner = learner_of(self._agent.model)
        self._estimator = GroupRelative("repeat")

    def step(self, waits: list[list[list[float]]] | None = None) -> Mapping[str, float]:
        """Seconds of one step, by the clock and of the processor, the part of the rollout, and the tokens written."""
        words = self._texts.words
        self._tool.issued.clear()
        self._tool.seconds = {
            words[index * len(sizes) + turn]: seconds
            for index, sizes in enumerate(self._workload.turns)
            for turn, seconds in enumerate([] if waits is None else waits[index])
        }
        started, cpu_started = time.perf_counter(), time.process_time()
        grown = self._agent.grow([self._workload.prompt])
        scored = [
            ScoredTree(tree, tuple(Reward(float(i % 2), {}) for i in range(len(tree.trajectories))))
            for tree in grown.trees
        ]
        annotated = annotate(self._learner, scored, AnnotationRequest(), temperature=1.0)
        self._learner.update(
            [
                TrainingTree(tree.tree, tree.annotations, self._estimator.advantages(tree, ()))
                for tree in annotated
            ]
        )
        return {
            "seconds": time.perf_counter() - started,
            "cpu_seconds": time.process_time() - cpu_started,
            "rollout": grown.seconds,
            "written": grown.tokens(Source.POLICY),
        }

    def close(self) -> None:
        """Stop the engine."""
        self._agent.close()
