"""Row 3c: what a tool call takes while the engine computes steps that are long, as those of a large model are."""

import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness.rows import Row
from benchmarks.harness.tiny_model import write_tiny_model
from benchmarks.rollout.scripted_policy import ForcedSampler, ScriptedPolicy
from benchmarks.rollout.texts import Texts
from ramify.algos.branch_rules import FlatBrancher
from ramify.chat.tag_renderer import TagRenderer
from ramify.chat.tags import RESULT_CLOSE
from ramify.core.protocols import Event
from ramify.core.records import Request
from ramify.engines.local import LocalEngine
from ramify.engines.sampling import SampledTokens
from ramify.modeling.load import load_model
from ramify.rollout.configs import RolloutLimits
from ramify.rollout.grow import grow_trees
from ramify.rollout.settings import AgentParts
from ramify.rollout.tool_set import ToolSet
from ramify.runtime.agent_loop import agent_loop
from ramify.runtime.call_clock import EventLoopLag
from ramify.sandbox.pool import open_sandbox
from ramify.tools.configs import PythonConfig
from ramify.tools.python import PythonTool

_STEP_SECONDS = 0.5
_TRAJECTORIES = 64
_MOST_SECONDS = 0.05
_CALLS = 2


class BusySampler(ForcedSampler):
    """Computes for a while in every step: products of matrices, on as many threads as torch has."""

    def __init__(self, step_seconds: float) -> None:
        super().__init__()
        self._step_seconds = step_seconds

    def __call__(self, *arguments: Any, **named: Any) -> SampledTokens:  # noqa: ANN401 - those of a sampler
        """See `ForcedSampler`."""
        sampled = super().__call__(*arguments, **named)
        ends, matrix = time.perf_counter() + self._step_seconds, torch.ones(512, 512)
        while time.perf_counter() < ends:
            matrix = torch.tanh(matrix @ matrix)
        return sampled


@dataclass(frozen=True, slots=True)
class SlowRollout:
    """The calls of a rollout, how long they took themselves and in queues, and what the event loop lost."""

    calls: tuple[Event, ...]
    held_up: EventLoopLag
    seconds: float

    @property
    def own_seconds(self) -> list[float]:
        """Return the seconds of each call."""
        return [call.seconds for call in self.calls]

    @property
    def statuses(self) -> dict[str, int]:
        """Count the calls by status."""
        return dict(Counter(str(call.fields["status"]) for call in self.calls))


class _ToolEvents:
    """Implements `core.protocols.EventSink`."""

    def __init__(self) -> None:
        self.calls: list[Event] = []

    def emit(self, event: Event) -> None:
        """Keep the event of a call."""
        if event.kind.startswith("tool/"):
            self.calls.append(event)


def roll_out(trajectories: int, step_seconds: float) -> SlowRollout:
    """Trajectories that each call a program of one `print` twice, on an engine that needs so long for a step."""
    events, sandbox = _ToolEvents(), open_sandbox(0)
    tool = PythonTool(sandbox, PythonConfig(timeout_seconds=5.0))
    with tempfile.TemporaryDirectory() as name:
        write_tiny_model(Path(name))
        texts = Texts(Path(name))
        renderer = TagRenderer(texts.tokenizer)
        closing = texts.tokenizer.encode(RESULT_CLOSE)[0]

        def turn_of(request: Request) -> Sequence[int]:
            # Turns of different lengths, so that calls come at different steps.
            filler = "".join(f" {texts.words[(request.seed + i) % 500]}" for i in range(3 + request.seed % 6))
            if request.token_ids.count(closing) < _CALLS:
                return texts.tokenizer.encode(f"{filler}<python> print({request.seed % 7}) </python>")
            return texts.tokenizer.encode(f"{filler}<answer> {texts.words[0]} </answer>")

        sampler = BusySampler(step_seconds)
        engine = LocalEngine(
            load_model(Path(name)),
            texts.tokenizer,
            num_slots=trajectories,
            context_tokens=500,
            sampler=sampler,
        )
    agent = AgentParts(
        engine=ScriptedPolicy(engine, sampler, turn_of),
        renderer=renderer,
        environment=ToolSet({"python": tool}),
        brancher=FlatBrancher(probe_tokens=0),
        limits=RolloutLimits(n=trajectories, max_tokens=400, max_calls=_CALLS),
        events=events,
        run_seed=0,
        slots=trajectories,
    )
    with agent_loop() as loop:
        loop.run(sandbox.run("1", 5.0))  # its first process is started now
        loop.delays.take()
        began = time.perf_counter()
        loop.run(grow_trees(agent, [texts.problem("p", 60)], 0))
        seconds, held_up = time.perf_counter() - began, loop.delays.take()
        loop.run(engine.close())
        loop.run(sandbox.close())
    return SlowRollout(tuple(events.calls), held_up, seconds)


def calls_beside_long_steps() -> Sequence[Row]:
    """Row 3c."""
    done = roll_out(_TRAJECTORIES, _STEP_SECONDS)
    middle = statistics.median(done.own_seconds)
    met = middle <= _MOST_SECONDS and set(done.statuses) == {"ok"}
    return [
        Row(
            "3c",
            f"s of a call of one print, median, while the engine's steps take {_STEP_SECONDS:g} s; the ratio is ours",
            middle,
            None,
            middle,
            f"at most {_MOST_SECONDS:g} s, and every call ok",
            met,
            {"ours": done.own_seconds},
            {
                "trajectories": _TRAJECTORIES,
                "statuses": done.statuses,
                "queued_seconds_median": statistics.median(c.fields["queued_seconds"] for c in done.calls),
                "queued_seconds_max": max(c.fields["queued_seconds"] for c in done.calls),
                "loop_held_up_seconds": {"all": done.held_up.seconds, "longest": done.held_up.longest},
                "rollout_seconds": done.seconds,
            },
        )
    ]


ROWS = {"3c": calls_beside_long_steps}
