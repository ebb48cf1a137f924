"""What the agents of the schedule rows write and wait for: both sides draw it from the same names.

A turn depends on its place in the tree, a tool's answer and latency on the problem and on the id of the call, so
whoever grows the same tree does the same work.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from types import MappingProxyType

import numpy as np

from benchmarks.rollout.texts import Texts
from ramify.chat.tag_renderer import TagRenderer
from ramify.chat.tags import RESULT_CLOSE, RESULT_OPEN
from ramify.chat.tokenizer import ChatTokenizer
from ramify.core.draws import stream, uniform
from ramify.core.messages import Problem, ToolResult, ToolSpec, ToolStatus
from ramify.core.records import Request

MAX_CALLS = 3
_SEARCH, _PYTHON = "search", "python"
_FILLER = 500  # words of the vocabulary that fill texts


@dataclass(frozen=True, slots=True)
class LogNormal:
    """A log-normal distribution, clipped."""

    median: float
    sigma: float
    least: float
    most: float

    def draw(self, generator: np.random.Generator) -> float:
        """One value."""
        return float(np.clip(generator.lognormal(np.log(self.median), self.sigma), self.least, self.most))


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds of a call that answers, and how likely one hangs."""

    seconds: LogNormal
    hangs: float


LATENCIES: Mapping[str, Latency] = MappingProxyType(
    {
        _SEARCH: Latency(LogNormal(1.2, 0.8, 0.3, 8.0), 0.005),
        _PYTHON: Latency(LogNormal(0.15, 0.9, 0.05, 2.0), 0.003),
    }
)
_RESULTS = {_SEARCH: LogNormal(450, 0.45, 150, 1000), _PYTHON: LogNormal(80, 0.9, 10, 600)}


@dataclass(frozen=True, slots=True)
class Workload:
    """Sizes in tokens, and how likely a turn calls.

    Attributes:
        prompt: Of a problem.
        turn: Of a turn of the policy.
        results: Of a tool result, by tool.
        calls: How likely the turn after 0, 1, 2 results calls; the one after three answers.
        python: The share of calls that go to Python.
        max_tokens: Of a trajectory after its prompt.
    """

    name: str
    prompt: LogNormal
    turn: LogNormal
    results: Mapping[str, LogNormal]
    calls: tuple[float, ...]
    python: float
    max_tokens: int


REASONING = Workload(
    "reasoning",
    LogNormal(800, 0.35, 500, 1500),
    LogNormal(250, 0.40, 120, 700),
    _RESULTS,
    (0.95, 0.70, 0.50),
    0.5,
    4096,
)
DEEPSEARCH = Workload(
    "deepsearch",
    LogNormal(900, 0.35, 500, 1900),
    LogNormal(280, 0.40, 120, 800),
    {**_RESULTS, _SEARCH: LogNormal(600, 0.40, 300, 1000)},
    (0.99, 0.92, 0.82),
    0.05,
    6192,
)


class _RememberingRenderer(TagRenderer):
    """Encodes equal results once: every batch is rolled out several times."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        super().__init__(tokenizer)
        self._known = lru_cache(4096)(self._encoded)

    def render_results(
        self, results: Sequence[ToolResult], tools: Sequence[ToolSpec], names: Sequence[str] = ()
    ) -> tuple[int, ...]:
        """See `TagRenderer.render_results`, which reads the texts only."""
        del names
        return self._known(tuple(tools), *(result.text for result in results))

    def _encoded(self, tools: tuple[ToolSpec, ...], *texts: str) -> tuple[int, ...]:
        return super().render_results([ToolResult("", ToolStatus.OK, text) for text in texts], tools)


class Script:
    """A workload in the words of a tokenizer."""

    def __init__(self, folder: Path, workload: Workload) -> None:
        self._texts = Texts(folder)
        self.tokenizer = self._texts.tokenizer
        self.renderer = _RememberingRenderer(self.tokenizer)
        self.workload = workload
        self._close = self.tokenizer.encode(RESULT_CLOSE)[0]
        self._wrapping = len(self.tokenizer.encode(RESULT_OPEN)) + len(self.tokenizer.encode(RESULT_CLOSE))
        self._fill = self.tokenizer.encode(self._words(_FILLER)) * 2
        # A turn is asked for again when it goes on after its probe.
        self._turn = cache(self._written)

    def problems(self, seed: int, count: int) -> list[Problem]:
        """A batch; `seed` names it."""
        return [
            self._texts.problem(f"b{seed}p{index}", int(self.workload.prompt.draw(_generator(seed, index))))
            for index in range(count)
        ]

    def turn(self, request: Request) -> tuple[int, ...]:
        """The turn that the request is in."""
        return self._turn(request.seed, request.token_ids.count(self._close))

    def result(self, tool: str, problem: Problem, call: str) -> str:
        """Write the result of a tool."""
        size = self.workload.results[tool].draw(_generator(problem.id, call, "result"))
        return self._words(max(1, int(size) - self._wrapping))

    def _written(self, seed: int, depth: int) -> tuple[int, ...]:
        asks, which = uniform(seed, 0), uniform(seed, 1)
        word = self._texts.words[seed % _FILLER]
        if depth < MAX_CALLS and asks < self.workload.calls[depth]:
            tool = _PYTHON if which < self.workload.python else _SEARCH
            end = f"<{tool}> {word} </{tool}>"
        else:
            end = f"<answer> {word} </answer>"
        closing = self.tokenizer.encode(end)
        size = int(self.workload.turn.draw(np.random.default_rng(seed))) - len(closing)
        first = seed % _FILLER
        return self._fill[first : first + size] + closing

    def _words(self, count: int) -> str:
        return "".join(f" {self._texts.words[index % _FILLER]}" for index in range(count))


@dataclass(frozen=True, slots=True)
class Waits:
    """How long calls take; `seed` permutes the latencies and changes nothing else."""

    seed: int
    hanging: bool

    def seconds(self, tool: str, problem: Problem, call: str, issue: int) -> float | None:
        """Seconds until the `issue`-th time that this call is made answers; None: it hangs."""
        latency = LATENCIES[tool]
        generator = _generator(self.seed, problem.id, call, issue)
        seconds = latency.seconds.draw(generator)
        return None if self.hanging and generator.random() < latency.hangs else seconds


def _generator(*name: str | int) -> np.random.Generator:
    return np.random.default_rng(stream(*name))
