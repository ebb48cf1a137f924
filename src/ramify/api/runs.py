"""`Run`: the folder of a finished or running training run."""

from functools import cached_property
from pathlib import Path
from typing import Any

from ramify.api.tables import require, short
from ramify.api.trees import Tree, Trees
from ramify.api.views import Spell, Table, html_table
from ramify.config.load import read_toml
from ramify.core.errors import ConfigError, RamifyError
from ramify.files.durable import RECIPE
from ramify.obs.metrics import read_metrics
from ramify.obs.trace import read_trees
from ramify.runs.checkpoint_files import checkpoint_folder, latest_checkpoint, read_state
from ramify.runs.run_folder import RunFolder

_SHOWN = ("step", "reward/mean", "reward/part/correct", "update/loss", "update/grad_norm", "branch/taken")


class Run:
    """A run's folder: its metrics, its trees, its checkpoints.

    Attributes:
        dir: The folder.
    """

    def __init__(self, folder: str | Path) -> None:
        """Open a folder.

        Raises:
            ConfigError: It is no run's.
        """
        require(folder, (str, Path), "open_run: expected the folder of a run")
        self.dir = Path(folder)
        if not (self.dir / RECIPE).is_file():
            raise ConfigError(f"{self.dir}: expected the folder of a run, {self.dir / RECIPE} is missing")
        self._folder = RunFolder(self.dir)

    @property
    def recipe(self) -> str:
        """The recipe as TOML, with every default."""
        return (self.dir / RECIPE).read_text(encoding="utf-8")

    @property
    def metrics(self) -> Table:
        """A row for each step; `run.metrics.column("reward/mean")` is a curve."""
        return _rows(self.dir / "metrics.jsonl")

    @property
    def evaluations(self) -> Table:
        """A row for each evaluation during training."""
        return _rows(self.dir / "evals.jsonl")

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps that have trees."""
        return tuple(
            sorted(int(path.stem) for path in (self.dir / "trees").glob("*.jsonl") if path.stem.isdigit())
        )

    def trees(self, step: int) -> Trees:
        """Return the trees of a step, with their rewards.

        Raises:
            DataError: The run has no such step, or its file cannot be read.
        """
        require(step, int, "run.trees: expected a number of a step")
        recorded = read_trees(self._folder.trees(step))
        temperature = float(self._table.get("rollout", {}).get("temperature", 1.0))
        has_learned = any(each.advantages is not None for each in recorded)
        return Trees(
            Tree(
                each.tree,
                each.rewards,
                spell=self._spell,
                temperature=temperature,
                is_learned=each.advantages is not None or not has_learned,
            )
            for each in recorded
        )

    @property
    def checkpoint(self) -> Path | None:
        """The last checkpoint; None before there is one."""
        return latest_checkpoint(self.dir)

    @property
    def best(self) -> Path | None:
        """The checkpoint with the best score, by evaluations or rewards; the last one where none is ranked."""
        last = self.checkpoint
        if last is None:
            return None
        ranking = read_state(last, "").get("loop", {}).get("ranking", [])
        ranked = [checkpoint_folder(self.dir, each["step"]) for each in ranking]
        return next((path for path in ranked if path.is_dir()), last)

    def __repr__(self) -> str:
        metrics = self.metrics
        last = metrics[-1] if metrics else {}
        reward = last.get("reward/mean")
        shown = "" if reward is None else f", reward/mean {reward:.3g}"
        return short(f"Run({str(self.dir)!r}, {len(metrics)} steps{shown})")

    def _repr_html_(self) -> str:
        rows = self.metrics
        columns = [name for name in _SHOWN if rows and name in rows[-1]]
        return html_table(columns, [{name: row.get(name) for name in columns} for row in rows])

    @cached_property
    def _table(self) -> dict[str, Any]:
        return read_toml(self.dir / RECIPE)

    @cached_property
    def _spell(self) -> Spell | None:
        """The decoder of the run's tokenizer; None if neither a copy of it nor its model is here."""
        from ramify.chat.token_texts import run_tokenizer
        from ramify.chat.tokenizer import ChatTokenizer

        try:
            own = run_tokenizer(self.dir)
            return (own or ChatTokenizer(self.checkpoint or Path(self._table["model"]["path"]))).decode
        except (RamifyError, KeyError):
            return None


def open_run(folder: str | Path) -> Run:
    """Open the folder of a run.

    Raises:
        ConfigError: It is no run's.
    """
    return Run(folder)


def _rows(path: Path) -> Table:
    return Table(read_metrics(path) if path.is_file() else ())
