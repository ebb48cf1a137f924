"""An audit: effects of decisions, and the scores that rank them, as one record."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ramify.core.errors import ConfigError
from ramify.core.json_types import mapping, part, text, whole
from ramify.eval.statistics import Interval
from ramify.files.durable import LOCK, dump_line, read_record, replace_file, replace_lines
from ramify.runs.manifest import file_sha256
from ramify.study.effects import Effect, reward_range
from ramify.study.ranking import Ranking, rank_score
from ramify.study.sources import Rescoring

SETTINGS, EFFECTS, SUMMARY, PAGE = "settings.json", "effects.jsonl", "audit.json", "AUDIT.html"
"""Files of an audit's folder, beside what was resampled."""
_MAY_DIFFER = ("decisions",)
_MOST_UNKNOWN = 0.05
_FEW_PROBLEMS = 10


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """The command that an audit is the result of.

    Attributes:
        sources: Files of trees, or of conversations.
        recipe: The recipe that grows or scores trajectories; "": that of each run.
        overrides: Its changed keys.
        decisions: Number of decisions.
        samples: Trajectories on each side of a decision.
        seed: Of the draw of decisions.
        url: Address of the endpoint; "": the recipe's engine.
        model: Model at the endpoint.
        key_variable: Environment variable with the endpoint's key; "": it needs none.
        max_tokens: Most tokens of a turn at the endpoint.
        temperature: Of the endpoint's sampling distribution.
    """

    sources: tuple[str, ...]
    recipe: str
    overrides: tuple[str, ...]
    decisions: int
    samples: int
    seed: int
    url: str = ""
    model: str = ""
    key_variable: str = ""
    max_tokens: int = 1024
    temperature: float = 1.0

    def take_up(self, folder: Path) -> None:
        """Begin an audit in a folder, or go on with the one that it holds, which may get more decisions.

        Raises:
            ConfigError: The folder holds something else, or an audit with other settings.
        """
        path = folder / SETTINGS
        files = [name for name in (*self.sources, self.recipe) if Path(name).is_file()]
        own, contents = asdict(self), {name: file_sha256(Path(name))[:16] for name in files}
        # A command that was refused before it sampled anything binds no other one.
        begun = any(each.name not in (LOCK, SETTINGS) for each in folder.iterdir())
        if path.exists() and begun:
            old = read_record(path, part(decisions=whole, contents=mapping(text)))
            _refuse_changed(folder, old["contents"], contents)
            for key, value in own.items():
                was = old.get(key)
                now = list(value) if isinstance(value, tuple) else value
                if key not in _MAY_DIFFER and was != now:
                    raise ConfigError(
                        f"--out: {folder} holds an audit with {key} = {was!r}. Name a new folder"
                    )
        elif begun:
            raise ConfigError(f"--out: {folder} holds no audit. Name a new folder")
        replace_file(path, f"{dump_line({**own, 'contents': contents})}\n".encode())


def _refuse_changed(folder: Path, before: Mapping[str, str], now: Mapping[str, str]) -> None:
    if changed := [name for name, checksum in now.items() if before.get(name, checksum) != checksum]:
        raise ConfigError(
            f"--out: {folder} holds an audit of another content of {changed[0]}. Put it back, or name a new folder"
        )


@dataclass(frozen=True)
class Audit:
    """Effects, and how scores of the decisions rank them.

    Attributes:
        effects: One for each decision, in the order of their draw.
        rescoring: Of recorded ends; None: they have the rewards that were recorded.
    """

    effects: tuple[Effect, ...]
    rescoring: Rescoring | None = None

    @cached_property
    def known(self) -> tuple[Effect, ...]:
        """Those that have an interval."""
        return tuple(effect for effect in self.effects if effect.is_known)

    @cached_property
    def ends(self) -> tuple[float, float]:
        """The least and the greatest reward."""
        return reward_range(self.effects)

    @cached_property
    def intervals(self) -> tuple[Interval, ...]:
        """The known effects with their intervals."""
        return tuple(effect.interval(*self.ends) for effect in self.known)

    @property
    def is_sure(self) -> list[bool]:
        """True for each known effect whose interval excludes 0."""
        return [each.low > 0 or each.high < 0 for each in self.intervals]

    @cached_property
    def rankings(self) -> tuple[Ranking, ...]:
        """Each estimator's credit against the effects, the highest rank correlation first."""
        names = list(dict.fromkeys(name for effect in self.known for name in effect.credits))
        ranked = [self.rank(name, [effect.credits.get(name) for effect in self.known]) for name in names]
        return tuple(sorted(ranked, key=lambda each: -(each.spearman.value if each.spearman else -2.0)))

    def rank(self, name: str, scores: Sequence[float | None]) -> Ranking:
        """Compare a score of the known effects' decisions with the effects."""
        problems = [f"{effect.trace} {effect.problem}" for effect in self.known]
        return rank_score(name, scores, [each.value for each in self.intervals], self.is_sure, problems)

    @cached_property
    def entropy(self) -> Ranking:
        """Entropy at the decision against the size of the effect; `auroc` is that of effects whose interval excludes 0."""
        problems = [f"{effect.trace} {effect.problem}" for effect in self.known]
        scores = [effect.entropy for effect in self.known]
        sizes = [abs(each.value) for each in self.intervals]
        matters = [1.0 if sure else -1.0 for sure in self.is_sure]
        size = rank_score("entropy", scores, sizes, self.is_sure, problems)
        about = rank_score("entropy", scores, matters, self.is_sure, problems)
        return Ranking("entropy", size.n, size.spearman, about.auroc, None, size.n_sure)

    @cached_property
    def ceiling(self) -> float | None:
        """The correlation that the true effects would have with the measured ones, at most: sqrt(1 - noise / variance)."""
        if len(self.known) < 2:
            return None
        variance = float(np.var([each.value for each in self.intervals], ddof=1))
        noise = float(np.mean([effect.variance for effect in self.known]))
        return float(np.sqrt(max(0.0, 1.0 - noise / variance))) if variance else None

    @cached_property
    def samples(self) -> tuple[int, int]:
        """Number of trajectories that were sampled, and of those of them without a reward."""
        sides = {
            (effect.trace, effect.row, side.node): side
            for effect in self.effects
            for side in (effect.before, effect.after)
            if side is not None
        }
        unknown = sum(side.unknown for side in sides.values())
        return unknown + sum(len(side.rewards) for side in sides.values()), unknown

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """Sentences on what limits the result."""
        warnings = []
        if not self.known:
            warnings.append(
                "No decision has two trajectories with a reward on each side, so no effect is known."
            )
        elif self.ends[0] == self.ends[1]:
            warnings.append(
                f"All rewards are {self.ends[0]:g}: no effect can be seen, and the intervals of width 0 say nothing."
            )
        sampled, unknown = self.samples
        if unknown > _MOST_UNKNOWN * sampled:
            warnings.append(
                f"{unknown} of {sampled} trajectories have no reward, so the effects are those of the others."
            )
        problems = len({(effect.trace, effect.problem) for effect in self.known})
        if 0 < problems < _FEW_PROBLEMS:
            warnings.append(
                f"The decisions are of {problems} problems: with fewer than {_FEW_PROBLEMS} the intervals of correlation and AUROC "
                "are too narrow."
            )
        return tuple(warnings)

    def record(self) -> dict[str, Any]:
        """Return the audit without its effects, as JSON."""
        return {
            "decisions": len(self.effects),
            "known": len(self.known),
            "sure": sum(self.is_sure),
            "unknown_samples": self.samples[1],
            "rewards": list(self.ends),
            "rescored": None if self.rescoring is None else asdict(self.rescoring),
            "warnings": list(self.warnings),
            "ceiling": self.ceiling,
            "estimators": [ranking_record(ranking) for ranking in self.rankings],
            "entropy": ranking_record(self.entropy),
        }

    def write(self, folder: Path) -> None:
        """Write effects.jsonl and audit.json."""
        replace_lines(folder / EFFECTS, [dump_line(effect.record(*self.ends)) for effect in self.effects])
        replace_file(folder / SUMMARY, f"{dump_line(self.record())}\n".encode())


def ranking_record(ranking: Ranking) -> dict[str, Any]:
    """Return a ranking as JSON; an end of an interval that is not known is null."""
    return {
        "name": ranking.name,
        "n": ranking.n,
        "sure": ranking.n_sure,
        **{
            name: _interval_record(getattr(ranking, field))
            for name, field in (("spearman", "spearman"), ("auroc", "auroc"), ("auroc_sure", "sure"))
        },
    }


def _interval_record(interval: Interval | None) -> dict[str, Any] | None:
    if interval is None:
        return None
    low, high = (end if np.isfinite(end) else None for end in (interval.low, interval.high))
    return {"value": interval.value, "low": low, "high": high, "n": interval.n}


HEADER = ("score", "n", "rank correlation", "AUROC of sign", "of sure effects")


def ranking_row(ranking: Ranking) -> tuple[str, ...]:
    """Return a ranking as a row of a table under `HEADER`."""
    cells = (ranking.spearman, ranking.auroc, ranking.sure)
    return (ranking.name, f"{ranking.n}", *map(interval_text, cells))


def interval_text(interval: Interval | None) -> str:
    """Return an interval as text; "-" if there is none."""
    if interval is None:
        return "-"
    if not np.isfinite(interval.low):
        return f"{interval.value:.2f} (n = {interval.n})"
    return f"{interval.value:.2f} [{interval.low:.2f}, {interval.high:.2f}]"
