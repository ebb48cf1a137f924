"""The self-critic loop of Tool-Star (arXiv 2505.16410, section 3.4): RL, then DPO on pairs of the policy's own answers, in turn.

RUN/recipe.toml  manifest.json  cycle-01/{rl, trees.jsonl, pairs.jsonl, dpo, model, done.json}  cycle-02/...

Each phase is a run of its own in its folder, and goes on from where it was interrupted. A cycle is done once it has done.json.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ramify.chat.tokenizer import ChatTokenizer
from ramify.core.errors import DataError
from ramify.core.json_types import Reader, count, mapping, number, optional, part, record, text
from ramify.core.records import ScoredTree
from ramify.files.durable import read_record, write_record
from ramify.modeling.lora_merge import write_merged
from ramify.modeling.model_config import is_adapter_folder
from ramify.modeling.model_path import cycle_model
from ramify.obs.charts import Chart, Line, line_chart
from ramify.obs.console import RunConsole
from ramify.obs.metrics import curve, read_metrics
from ramify.obs.page import Cell, Page, Section, Table
from ramify.obs.trace import each_tree
from ramify.runs.page import origin_sections
from ramify.synth.pairs import PairRule, choose_pairs, pair_rows, write_pairs

DONE = "done.json"
RL, DPO, SAMPLING = "rl", "dpo", "sampling"
"""Folders of a cycle's phases."""

_READ_PAIRS: Reader[dict[str, Any]] = record(dict, pairs=count, questions=mapping(count), line=text)


class Phases(Protocol):
    """The phases of a cycle. Each is a run in a folder of its own, and goes on if that folder is there."""

    def train(self, cycle: "Cycle") -> Path:
        """Train the cycle's start by RL; returns the last checkpoint."""
        ...

    def sample(self, cycle: "Cycle", policy: Path, path: Path) -> None:
        """Grow trees with the policy as it is now, and record them in a file."""
        ...

    def prefer(self, cycle: "Cycle", policy: Path, pairs: Path, count: int) -> Path:
        """Train the policy by DPO on a file of `count` pairs; returns the last checkpoint."""
        ...


@dataclass(frozen=True, slots=True)
class SelfCritic:
    """A loop of `cycles` cycles in a folder, and what a question gives at most to the pairs of a cycle.

    With `merges`, DPO trains an adapter, which is merged into the model before the next cycle.
    """

    folder: Path
    cycles: int
    rule: PairRule
    merges: bool

    def run(self, model: Path, phases: Phases, console: RunConsole) -> Path:
        """Run all cycles that are not done, beginning with `model`; returns the folder of the last model.

        Raises:
            UserError: The data, the machine or a folder is wrong.
            RunInterruptedError: Ctrl-C or SIGTERM; the state was saved.
            TrainingError: Training cannot go on; the message says why.
        """
        for index in range(1, self.cycles + 1):
            cycle = Cycle(self, index, self.folder / f"cycle-{index:02d}", model)
            if not (cycle.folder / DONE).exists():
                console.note(f"cycle {index} of {self.cycles}, from {model}")
                cycle.run(phases, console)
            model = cycle.model
        return model


@dataclass(frozen=True, slots=True)
class Cycle:
    """One cycle: its loop, its number from 1, its folder, and the model that it begins with."""

    loop: SelfCritic
    number: int
    folder: Path
    start: Path

    def run(self, phases: Phases, console: RunConsole) -> None:
        """Run the phases that are not done, and write done.json."""
        policy = phases.train(self)
        pairs, summary = self.folder / "pairs.jsonl", self.folder / "pairs.json"
        if not summary.exists():
            trees = self.folder / "trees.jsonl"
            phases.sample(self, policy, trees)
            counts = self._write_pairs(trees, policy, pairs)
            write_record(summary, counts)
        counts = read_record(summary, _READ_PAIRS)
        console.note(f"cycle {self.number}: {counts['line']}")
        done: dict[str, Any] = {"cycle": self.number, "rl": _reward(self.folder / RL), "pairs": counts}
        model = policy
        if counts["pairs"]:
            model = phases.prefer(self, policy, pairs, counts["pairs"])
            done["dpo"] = _preferences(self.folder / DPO)
            if is_adapter_folder(model) and self.loop.merges:
                model = write_merged(model, self.folder / "model")
        else:
            console.note(f"cycle {self.number}: no pair, so there is no DPO in it")
        done["model"] = str(model.relative_to(self.folder))
        write_record(self.folder / DONE, done)

    @property
    def model(self) -> Path:
        """The model of a cycle that is done."""
        return cycle_model(self.folder / DONE)

    def _write_pairs(self, trees: Path, policy: Path, path: Path) -> dict[str, Any]:
        decode = ChatTokenizer(policy).decode
        chosen = choose_pairs(_named(trees), self.loop.rule, decode)
        write_pairs(path, pair_rows(_named(trees), chosen, decode))
        return {
            "pairs": chosen.count,
            "questions": dict(sorted(chosen.questions.items())),
            "line": chosen.line(),
        }


def _named(trees: Path) -> Iterator[tuple[str, ScoredTree]]:
    return ((trees.name, traced) for traced in each_tree(trees))


def _reward(run: Path) -> dict[str, float | None]:
    """Return the mean reward in the first and in the last step of a run."""
    rows = read_metrics(run / "metrics.jsonl")
    return {"first": rows[0].get("reward/mean"), "last": rows[-1].get("reward/mean")} if rows else {}


def _preferences(run: Path) -> dict[str, float | None]:
    """Return the loss, and the share of pairs whose chosen side the policy prefers more than its start did, in the last step of a run."""
    rows = read_metrics(run / "metrics.jsonl")
    names = ("loss", "accuracy", "margin")
    return {"steps": float(len(rows)), **{name: rows[-1].get(name) for name in names}} if rows else {}


_CHARTS = (
    (RL, "RL: mean reward", "reward/mean", "reward", None),
    (RL, "RL: success in training", "reward/part/correct", "share", (0.0, 1.0)),
    (DPO, "DPO: loss", "loss", "nats", None),
    (DPO, "DPO: pairs won", "accuracy", "share of pairs", (0.0, 1.0)),
)
_COLOURS = 5


def selfcritic_page(folder: Path) -> Page:
    """Return the page of a loop, of as many cycles as there are.

    Raises:
        DataError: No step has been written yet, or a file cannot be read.
    """
    cycles = sorted(path for path in folder.glob("cycle-*") if path.is_dir())
    charts = [_chart(cycles, *described) for described in _CHARTS]
    drawn = [chart for chart in charts if chart.body is not None]
    if not drawn:
        raise DataError(f"{folder}: nothing to report yet. No step has been written.")
    header = (
        "cycle",
        "mean reward, first step",
        "last step",
        "pairs",
        "DPO: loss",
        "accuracy",
        "pages of its phases",
    )
    table = Table("", header, [_row(cycle) for cycle in cycles])
    sections = (Section("Cycles", charts=drawn, tables=(table,)), *origin_sections(folder, "selfcritic"))
    return Page(
        f"Self-critic: {folder.absolute().name}",
        f"{folder}; cycles of RL and DPO: {len(cycles)}",
        (),
        sections,
    )


def _chart(
    cycles: list[Path], phase: str, title: str, metric: str, unit: str, span: tuple[float, float] | None
) -> Chart:
    lines = []
    for index, cycle in enumerate(cycles):
        path = cycle / phase / "metrics.jsonl"
        if path.is_file():
            lines.append(Line(cycle.name, curve(read_metrics(path), metric), index % _COLOURS))
    return line_chart(title, lines, "step", unit, span)


def _row(cycle: Path) -> list[Cell]:
    pages = ", ".join(f"{cycle.name}/{phase}/report.html" for phase in (RL, DPO) if (cycle / phase).is_dir())
    path = cycle / DONE
    if not path.is_file():
        return [cycle.name, None, None, "not done yet", None, None, pages]
    done = read_record(path, _read_done)
    rl, dpo = done["rl"], done["dpo"]
    return [
        cycle.name,
        rl.get("first"),
        rl.get("last"),
        done["pairs"]["line"],
        dpo.get("loss"),
        dpo.get("accuracy"),
        pages,
    ]


def _read_done(value: Any) -> dict[str, Any]:  # noqa: ANN401 - any JSON value
    """Read a cycle's done.json; a cycle without pairs had no DPO."""
    measured = mapping(optional(number))
    whole = {"dpo": {}, **value} if isinstance(value, dict) else value
    return part(rl=measured, pairs=part(line=text), dpo=measured)(whole)
