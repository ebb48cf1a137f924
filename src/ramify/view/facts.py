"""What a run's own records say about it: recipe, manifest, summary and metrics, as far as they can be read."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ramify.chat.token_texts import FOLDER
from ramify.config.load import read_toml
from ramify.core.errors import ConfigError, DataError
from ramify.core.json_types import FieldError, number, part
from ramify.eval.compare import compare_evaluations
from ramify.files.durable import read_record
from ramify.obs.metrics import MetricsRow, curve, read_metrics
from ramify.obs.token_counts import PriceConfig
from ramify.runs.manifest import MANIFEST
from ramify.view.folders import RunPlace, is_file

MAX_POINTS = 400
"""Points of a curve; of a longer one every second, third, ... is left out."""
_MOST_NAMES = 20
_LOGS = ("metrics.jsonl", "evals.jsonl")


@dataclass(frozen=True)
class RunFacts:
    """The records of a run.

    Attributes:
        run: The run.
        recipe, manifest, summary: Its files as tables; empty if one is missing or damaged.
    """

    run: RunPlace
    recipe: Mapping[str, Any]
    manifest: Mapping[str, Any]
    summary: Mapping[str, Any]

    @classmethod
    def read(cls, run: RunPlace) -> "RunFacts":
        """Read the records of a run."""
        recipe: Mapping[str, Any] = {}
        if is_file(run.recipe):
            with suppress(ConfigError):
                recipe = read_toml(run.recipe)
        return cls(run, recipe, _table(run.folder / MANIFEST), _table(run.folder / "summary.json"))

    @cached_property
    def rule(self) -> str:
        """The name of the reward; "" if it is not known."""
        return _text(self.recipe, "reward", "name")

    @cached_property
    def price(self) -> PriceConfig | None:
        """The price of tokens, if the recipe has one."""
        table = self.recipe.get("price")
        with suppress(ValidationError):
            return PriceConfig(**table) if isinstance(table, dict) else None
        return None

    @cached_property
    def tokenizer(self) -> Path | None:
        """The folder of the run's tokenizer: its own copy, else that of its model if it is on this machine."""
        model = _text(self.recipe, "model", "path")
        folders = [self.run.folder / FOLDER, *([Path(model)] if model else [])]
        return next((folder for folder in folders if (folder / "tokenizer.json").is_file()), None)

    def about(self) -> Iterator[tuple[str, str]]:
        """Yield labels and texts for the head of the page."""
        yield "Kind", self.run.kind
        yield "Folder", f"{self.run.folder.absolute()}"
        named = (
            ("Model", "model", "path"),
            ("Data", "data", "test" if self.run.kind == "evaluation" else "train"),
            ("Reward", "reward", "name"),
            ("Branching", "rollout", "branching", "name"),
            ("Estimator", "algorithm", "estimator", "name"),
            ("Loss", "algorithm", "loss", "name"),
        )
        for label, *path in named:
            if text := _text(self.recipe, *path):
                yield label, text
        yield from self._scores()
        sessions = self.manifest.get("made_with")
        session = sessions[-1] if isinstance(sessions, list) and sessions else {}
        for label, *path in (
            ("ramify", "packages", "ramify"),
            ("Commit", "commit"),
            ("Device", "device"),
        ):
            if text := _text(session, *path):
                yield label, text

    def in_one_line(self) -> str:
        """Return the kind, the model and the scores, for a page of several runs."""
        texts = [
            f"{label} {text}" for label, text in self.about() if label == "Model" or label.startswith("pass@")
        ]
        return ", ".join((self.run.kind, *texts))

    def _scores(self) -> Iterator[tuple[str, str]]:
        scores = self.summary.get("pass_at")
        for k, at in scores.items() if isinstance(scores, dict) else ():
            with suppress(FieldError):
                low, value, high = (100 * number(_READ_SCORE(at)[name]) for name in ("low", "value", "high"))
                yield f"pass@{k}", f"{value:.1f} % [{low:.1f}, {high:.1f}]"
        cost = self.summary.get("cost")
        for name, value in cost.items() if isinstance(cost, dict) else ():
            with suppress(FieldError):
                yield f"Cost, {name.replace('_', ' ')}", f"{number(value):.6g}"
        notes = self.summary.get("notes")
        for note in notes if isinstance(notes, list) else ():
            yield "Note", f"{note}"

    def series(self, note: Callable[[str], None]) -> dict[str, list[tuple[float, float]]]:
        """Return the curves of all metrics; `note` gets a sentence about a log that cannot be read."""
        curves: dict[str, list[tuple[float, float]]] = {}
        for name in _LOGS:
            path = self.run.folder / name
            if not is_file(path):
                continue
            try:
                rows = read_metrics(path)
            except DataError as error:
                note(f"{error}. Its curves are left out.")
                continue
            names = dict.fromkeys(key for row in rows for key in row)
            curves |= {key: _thinned(rows, key) for key in names if key not in ("step", "time")}
        return {name: points for name, points in curves.items() if points}


def flips_of(runs: Sequence[RunPlace]) -> Iterator[tuple[str, str]]:
    """Yield labels and texts that compare two finished evaluations of the same problems; nothing for other runs."""
    if [run.kind for run in runs] != ["evaluation", "evaluation"]:
        return
    try:
        comparison = compare_evaluations(runs[0].folder, runs[1].folder, "correct")
    except DataError as error:
        yield "Not compared", f"{error}"
        return
    if (change := comparison.difference) is not None:
        yield "Second minus first", f"correct {change.value:+.3f} [{change.low:+.3f}, {change.high:+.3f}]"
    for label, is_better in (("Right in the second only", True), ("Right in the first only", False)):
        names = [flip.problem for flip in comparison.flips if flip.is_better is is_better]
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        yield label, f"{len(names)} problems{': ' if names else ''}{', '.join(names[:_MOST_NAMES])}{more}"


def _thinned(rows: Sequence[MetricsRow], name: str) -> list[tuple[float, float]]:
    points = curve(rows, name)
    every = max(1, -(-len(points) // MAX_POINTS))
    # The last one stays.
    return list(points[(len(points) - 1) % every :: every])


def _table(path: Path) -> Mapping[str, Any]:
    if is_file(path):
        with suppress(DataError):
            return read_record(path, part())
    return {}


def _text(table: object, *path: str) -> str:
    """Return the text at a path of keys; a list is joined, and anything else is ""."""
    for name in path:
        table = table.get(name) if isinstance(table, Mapping) else None
    if isinstance(table, list):
        return ", ".join(map(str, table))
    return table if isinstance(table, str) else ""


_READ_SCORE = part(low=number, value=number, high=number)
