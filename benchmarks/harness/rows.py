"""One measured goal, and how it is printed."""

import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


def _versions() -> dict[str, str]:
    names = ("ramify-rl", "numpy", "torch", "transformers")
    return {"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in names}}


def _machine() -> dict[str, Any]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory / 2**30, 1),
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:  # noqa: PTH123 - not a file of the disk
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


@dataclass(frozen=True, slots=True)
class Row:
    """One goal and what was measured.

    Attributes:
        row: Its name in the table of goals.
        metric: What the numbers are, with units.
        ours: Our figure (the median of `runs["ours"]` where there are several); None when it was not measured.
        peer: The other side's figure; None when the goal has no other side.
        ratio: What the target bounds.
        target: In words, with the "at least" or "at most" figure and, where there is one, the aim beyond it.
        met: Whether the "at least" (or "at most") figure is reached.
        runs: Every value of both sides, in the order of the runs.
        settings: Sizes, seeds and options of both sides; `not_measured` holds the reason when there are no figures.
        peer_versions: Packages on the other side.
        versions: Packages on our side.
        machine: Where it ran.
    """

    row: str
    metric: str
    ours: float | None
    peer: float | None
    ratio: float | None
    target: str
    met: bool
    runs: Mapping[str, Sequence[float]] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    peer_versions: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=_versions)
    machine: Mapping[str, Any] = field(default_factory=_machine)


def not_measured(row: str, metric: str, target: str, reason: str) -> Row:
    """A row without figures: not met, and the settings say why."""
    return Row(row, metric, None, None, None, target, met=False, settings={"not_measured": reason})


def emit(row: Row, as_json: bool) -> None:
    """Print a row: one JSON object on a line, or a line for people."""
    if as_json:
        fields = {key: value for key, value in asdict(row).items() if key != "peer_versions"}
        fields["versions"] = {**row.versions, **{f"peer:{k}": v for k, v in row.peer_versions.items()}}
        print(json.dumps(fields), flush=True)
        return
    verdict = "met" if row.met else "not measured" if row.ratio is None else "MISSED"
    print(f"{row.row:12} {verdict:12} {_figure(row.ratio)}   target {row.target}   {row.metric}", flush=True)
    print(f"{'':12} ours {_figure(row.ours)}, peer {_figure(row.peer)}; {_brief(row.settings)}", flush=True)


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _brief(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in settings.items())
