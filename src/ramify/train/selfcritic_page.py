"""The page of a self-critic loop: the reward of each cycle's RL, and the loss and accuracy of its DPO."""

from pathlib import Path
from typing import Any

from ramify.core.errors import DataError
from ramify.core.json_types import mapping, number, optional, part, text
from ramify.files.durable import read_record
from ramify.obs.charts import Chart, Line, line_chart
from ramify.obs.metrics import curve, read_metrics
from ramify.obs.page import Cell, Page, Section, Table
from ramify.runs.page import origin_sections
from ramify.train.selfcritic import DONE, DPO, RL

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
