"""An audit: measured effects of a run's decisions, and the rank correlation of credit and entropy with them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ramify.core.errors import ConfigError
from ramify.core.json_types import mapping, part, text, whole
from ramify.core.protocols import Json
from ramify.eval.statistics import Interval
from ramify.files.durable import LOCK, dump_line, read_record, replace_file, replace_lines
from ramify.runs.manifest import file_sha256
from ramify.study.effects import Effect, reward_range
from ramify.study.ranking import Ranking, rank_score
from ramify.study.sources import Rescoring
from ramify.study.turn_judge import JUDGE, VERDICTS

SETTINGS, EFFECTS, SUMMARY, PAGE = "settings.json", "effects.jsonl", "audit.json", "AUDIT.html"
"""Files of an audit's folder, beside the resampled trajectories."""
_MAY_CHANGE = ("decisions",)
"""Settings that may change when an audit is continued: more decisions can be added to it."""
_MAX_UNKNOWN_SHARE = 0.05
"""Share of trajectories without a reward, of ends with another one than was recorded, and of decisions without a judge's verdict,
above which the audit warns."""
_MIN_PROBLEMS = 10
"""Number of problems below which the bootstrap over problems is too narrow."""


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """The options of `ramify audit`, kept in the audit's folder.

    Attributes:
        sources: Files of trees, or of conversations.
        recipe: The recipe that grows or scores trajectories; "": that of each run.
        overrides: Keys of the recipe that are set on the command line.
        decisions: Number of decisions to audit.
        samples: Trajectories to sample on each side of a decision.
        seed: Seed of the draw of decisions.
        url: Address of the endpoint; "": the recipe's engine.
        model: Model at the endpoint.
        key_variable: Environment variable with the endpoint's key; "": it needs none.
        max_tokens: Maximum number of tokens of a turn at the endpoint.
        temperature: Sampling temperature at the endpoint.
        judge: Identity of the judge whose opinion is compared; empty: there is none.
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
    judge: Mapping[str, Json] = field(default_factory=dict)

    def begin_or_continue(self, folder: Path) -> None:
        """Begin an audit in a folder, or continue the one that it holds, with more decisions if `decisions` is larger.

        A judge can be added to an audit without one; it is a setting of the folder after `bind_judge`.

        Raises:
            ConfigError: The folder holds something else, or an audit with other settings.
        """
        path = folder / SETTINGS
        judge: Mapping[str, Json] = {}
        files = [name for name in (*self.sources, self.recipe) if Path(name).is_file()]
        settings = {key: value for key, value in asdict(self).items() if key != JUDGE}
        contents = {name: file_sha256(Path(name))[:16] for name in files}
        # A folder without samples is of a command that was refused before it sampled: the next may have other settings.
        names = [each.name for each in folder.iterdir()]
        begun = any(name not in (LOCK, SETTINGS) and not name.startswith(VERDICTS) for name in names)
        if path.exists() and begun:
            old = read_record(path, part(decisions=whole, contents=mapping(text)))
            contents = _unchanged(folder, old["contents"], contents)
            judge = _read_object(old.get(JUDGE, {}))
            for key, setting in judge.items():
                if self.judge.get(key) != setting:
                    raise ConfigError(
                        f"--out: {folder} holds opinions of a judge with {key} = {setting!r}. Name that judge, or a new folder"
                    )
            for key, value in settings.items():
                before = old.get(key)
                now = list(value) if isinstance(value, tuple) else value
                if key not in _MAY_CHANGE and before != now:
                    raise ConfigError(
                        f"--out: {folder} holds an audit with {key} = {before!r}. Name a new folder"
                    )
        elif begun:
            raise ConfigError(f"--out: {folder} holds no audit. Name a new folder")
        replace_file(path, f"{dump_line({**settings, JUDGE: judge, 'contents': contents})}\n".encode())

    def bind_files(self, folder: Path, checksums: Mapping[str, str]) -> None:
        """Have the folder refuse other contents of files that trajectories go on with, by name, from now on.

        Raises:
            ConfigError: One has changed since the folder's audit began.
        """
        record = read_record(folder / SETTINGS, part(contents=mapping(text)))
        contents = _unchanged(folder, record["contents"], checksums)
        replace_file(folder / SETTINGS, f"{dump_line({**record, 'contents': contents})}\n".encode())

    def bind_judge(self, folder: Path) -> None:
        """Have the folder refuse other judges from now on; before it has opinions of one, a mistaken judge can be corrected."""
        record = read_record(folder / SETTINGS, _read_object)
        replace_file(folder / SETTINGS, f"{dump_line({**record, JUDGE: dict(self.judge)})}\n".encode())


_read_object = part()


def _unchanged(folder: Path, before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """Return old and new checksums together; raises ConfigError if one differs."""
    if changed := [name for name, checksum in now.items() if before.get(name, checksum) != checksum]:
        raise ConfigError(
            f"--out: {changed[0]} has changed since the audit in {folder} began. Restore it, or name a new folder"
        )
    return {**before, **now}


@dataclass(frozen=True)
class Audit:
    """The measured effects of decisions, and how well credit and entropy rank them.

    Attributes:
        effects: One for each decision, in the order in which decisions were drawn.
        rescoring: The new scores of recorded trajectories; None: they keep their recorded rewards.
        limits: Sentences on how the trajectories were sampled that belong to the result.
    """

    effects: tuple[Effect, ...]
    rescoring: Rescoring | None = None
    limits: tuple[str, ...] = ()

    @cached_property
    def known(self) -> tuple[Effect, ...]:
        """The effects that have an interval."""
        return tuple(effect for effect in self.effects if effect.is_known)

    @cached_property
    def reward_bounds(self) -> tuple[float, float]:
        """The smallest and the largest reward."""
        return reward_range(self.effects)

    @cached_property
    def intervals(self) -> tuple[Interval, ...]:
        """The interval of each known effect."""
        return tuple(effect.interval(*self.reward_bounds) for effect in self.known)

    @property
    def is_sure(self) -> list[bool]:
        """For each known effect, True if its interval excludes 0."""
        return [each.low > 0 or each.high < 0 for each in self.intervals]

    @cached_property
    def rankings(self) -> tuple[Ranking, ...]:
        """Each estimator's credit, and a judge's opinion, against the effects, the highest rank correlation first."""
        names = list(dict.fromkeys(name for effect in self.known for name in effect.credits))
        ranked = [self.rank(name, [effect.credits.get(name) for effect in self.known]) for name in names]
        # A ranking without a correlation comes last: -2 is below every correlation.
        return tuple(sorted(ranked, key=lambda each: -(each.spearman.value if each.spearman else -2.0)))

    def rank(self, name: str, scores: Sequence[float | None]) -> Ranking:
        """Compare a score of each known effect's decision with the effect; a score may be None."""
        problems = [effect.problem for effect in self.known]
        return rank_score(name, scores, [each.value for each in self.intervals], self.is_sure, problems)

    @cached_property
    def entropy(self) -> Ranking:
        """The ranking of entropy against the size of the effect; `auroc`: does entropy tell effects that exclude 0?"""
        problems = [effect.problem for effect in self.known]
        scores = [effect.entropy for effect in self.known]
        sizes = [abs(each.value) for each in self.intervals]
        matters = [1.0 if sure else -1.0 for sure in self.is_sure]
        against_size = rank_score("entropy", scores, sizes, self.is_sure, problems)
        against_matters = rank_score("entropy", scores, matters, self.is_sure, problems)
        return Ranking(
            "entropy", against_size.n, against_size.spearman, against_matters.auroc, None, against_size.n_sure
        )

    @cached_property
    def ceiling(self) -> float | None:
        """The correlation of the true effects with the measured ones, sqrt(1 - noise / variance): no score can do better."""
        if len(self.known) < 2:
            return None
        variance = float(np.var([each.value for each in self.intervals], ddof=1))
        noise = float(np.mean([effect.variance for effect in self.known]))
        return float(np.sqrt(max(0.0, 1.0 - noise / variance))) if variance else None

    @cached_property
    def samples(self) -> tuple[int, int]:
        """Number of trajectories that were sampled, and number of those without a reward."""
        # By node: the side before one decision may be the side after another.
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
        """Sentences on what limits the result, first those of `limits`."""
        warnings = [*self.limits]
        if not self.known:
            warnings.append(
                "No decision has two trajectories with a reward on each side, so no effect is known."
            )
        elif self.reward_bounds[0] == self.reward_bounds[1]:
            warnings.append(
                f"All rewards are {self.reward_bounds[0]:g}: no effect can be measured, and the intervals of width 0 mean nothing."
            )
        scored = self.rescoring
        if scored is not None and scored.changed > _MAX_UNKNOWN_SHARE * scored.n:
            warnings.append(
                f"{scored.changed} of {scored.n} recorded ends get another reward than was recorded: mean {scored.mean:.3f}, "
                f"recorded {scored.recorded:.3f}. If it should be the same, the recipe has another reward or environment."
            )
        sampled, unknown = self.samples
        if unknown > _MAX_UNKNOWN_SHARE * sampled:
            warnings.append(
                f"{unknown} of {sampled} trajectories have no reward and are left out of the effects."
            )
        judged = sum(JUDGE in effect.credits for effect in self.effects)
        missing = len(self.effects) - judged if judged else 0
        if missing > _MAX_UNKNOWN_SHARE * len(self.effects):
            warnings.append(
                f"{missing} of {len(self.effects)} decisions have no verdict of the judge and are left out of its row."
            )
        problems = len({effect.problem for effect in self.known})
        if 0 < problems < _MIN_PROBLEMS:
            warnings.append(
                f"The decisions come from {problems} {'problem' if problems == 1 else 'problems'}: with fewer than {_MIN_PROBLEMS} the intervals of correlations are "
                "too narrow."
            )
        return tuple(warnings)

    def record(self) -> dict[str, Any]:
        """Return the content of audit.json: the audit without its effects."""
        return {
            "decisions": len(self.effects),
            "known": len(self.known),
            "sure": sum(self.is_sure),
            "unknown_samples": self.samples[1],
            "rewards": list(self.reward_bounds),
            "rescored": None if self.rescoring is None else asdict(self.rescoring),
            "warnings": list(self.warnings),
            "ceiling": self.ceiling,
            "estimators": [ranking_record(ranking) for ranking in self.rankings],
            "entropy": ranking_record(self.entropy),
        }

    def write(self, folder: Path) -> None:
        """Write effects.jsonl and audit.json."""
        replace_lines(
            folder / EFFECTS, [dump_line(effect.record(*self.reward_bounds)) for effect in self.effects]
        )
        replace_file(folder / SUMMARY, f"{dump_line(self.record())}\n".encode())


def ranking_record(ranking: Ranking) -> dict[str, Any]:
    """Return a ranking as JSON; an unknown bound of an interval is null."""
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
    low, high = (bound if np.isfinite(bound) else None for bound in (interval.low, interval.high))
    return {"value": interval.value, "low": low, "high": high, "n": interval.n}


HEADER = ("score", "n", "rank correlation", "AUROC of sign", "of sure effects")


def ranking_row(ranking: Ranking) -> tuple[str, ...]:
    """Return a ranking as a row of a table under `HEADER`."""
    cells = (ranking.spearman, ranking.auroc, ranking.sure)
    return (ranking.name, f"{ranking.n}", *map(interval_text, cells))


def interval_text(interval: Interval | None) -> str:
    """Return an interval as text, without bounds if they are unknown; "-" if there is none."""
    if interval is None:
        return "-"
    if not np.isfinite(interval.low):
        return f"{interval.value:.2f} (n = {interval.n})"
    return f"{interval.value:.2f} [{interval.low:.2f}, {interval.high:.2f}]"
