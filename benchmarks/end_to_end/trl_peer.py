"""The peer of rows 9: whole steps of TRL's `GRPOTrainer.train()` with a tool, playing the token script of row 3.

A step is what lies between the trainer's callbacks: generation and tools until nobody calls, rewards, loss, backward,
optimizer. The tool is a coroutine, which TRL awaits where it can; it ends after the seconds that the step's draws give it.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
import trl
from datasets import Dataset
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from benchmarks.harness.answer import answer_lines
from benchmarks.rollout.trl_peer import TrlSide

_SIDE: "TrlSteps | None" = None


class _Stopwatch(TrainerCallback):
    """Seconds of the last step, by the clock and of the processor."""

    def __init__(self) -> None:
        self.seconds = self.cpu_seconds = 0.0
        self._started = self._cpu_started = 0.0

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Start."""
        del args, state, control
        self._started, self._cpu_started = time.perf_counter(), time.process_time()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Stop."""
        del args, state, control
        self.seconds = time.perf_counter() - self._started
        self.cpu_seconds = time.process_time() - self._cpu_started


class TrlSteps(TrlSide):
    """A trainer that takes whole steps."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - JSON
        """Build it as row 3 does, with this many trajectories in a forward pass of the update."""
        self.seconds: dict[str, float] = {}
        super().__init__(**options)
        count = len(self.workload["turns"])
        self.trainer.train_dataset = Dataset.from_list([{"prompt": self.prompt}] * count)
        self.trainer.args.max_steps = 1
        self._watch = _Stopwatch()
        self.trainer.add_callback(self._watch)
        self._written = 0
        generate = self.trainer._generate

        def counted(*arguments: object, **more: object) -> Any:  # noqa: ANN401 - TRL's tuple
            self.turn, self.active = 0, list(range(count))
            generated = generate(*arguments, **more)
            self._written = sum(map(sum, generated[2]))
            return generated

        self.trainer._generate = counted

    def step(self, waits: list[list[list[float]]] | None) -> dict[str, float]:
        """One step; a call waits as its first issue does."""
        self.seconds = {}
        for index, sizes in enumerate(self.workload["turns"]):
            for turn, issues in enumerate([] if waits is None else waits[index]):
                self.seconds[self.words[index * len(sizes) + turn]] = issues[0]
        self.trainer.train()
        return {
            "seconds": self._watch.seconds,
            "cpu_seconds": self._watch.cpu_seconds,
            "written": self._written,
        }

    def _tool(self) -> Callable[[str], Any]:
        async def search(query: str) -> str:
            """Search.

            Args:
                query: Words.
            """
            if query in self.seconds:
                await asyncio.sleep(self.seconds[query])
            return self.results[query]

        return search


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """Build the trainer when the question holds a workload, else take a step."""
    global _SIDE
    if "workload" in question:
        _SIDE = TrlSteps(**{**question, "folder": Path(question["folder"])})
        names = {"trl": trl, "transformers": transformers, "torch": torch}
        return {"versions": {name: module.__version__ for name, module in names.items()}}
    assert _SIDE is not None
    return _SIDE.step(question["waits"])


if __name__ == "__main__":
    answer_lines(answer)
