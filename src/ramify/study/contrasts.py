"""Compares the arms of an ablation: success on held-out problems at equal cost, in pairs of runs with the same seed."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

import numpy as np

from ramify.core.errors import DataError
from ramify.core.records import Floats
from ramify.eval.statistics import MeanDifference, holm, holm_levels, paired_t, pairs_needed
from ramify.study.arms import FLAT, RULE, YOKED
from ramify.study.lines import RunLine

AXES: Mapping[str, str] = {
    "tokens": "sampled tokens",
    "calls": "executed calls",
    "seconds": "seconds of training",
}
"""Costs at which arms are compared; the first is the endpoint, and its p-values alone are corrected for the number of contrasts."""
ENDPOINT = "tokens"
MOST_MISMATCH = 0.05
"""Share by which a yoked run's branches may differ from its pair's."""
MIXED = "mixed"
FEWEST_PAIRS = 3
"""Pairs without which there is no verdict: with two the interval is 13 standard errors wide on each side."""
DIFFERENCES = (0.005, 0.01)
"""Differences of success for which a result says how many pairs would show them."""
_LEVEL = 0.05
SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Contrast:
    """The second arm minus the first.

    Attributes:
        first, second: Names of the arms.
        areas: By axis the difference of mean success up to equal cost, with 95 % intervals.
        mixed: The difference of the mean share of mixed groups; None where a line lacks it.
        adjusted: p-value of the endpoint among all contrasts (Holm 1979).
        decided: The difference at equal sampled tokens with the interval of the step of Holm's at which it is decided on, so
            that it excludes 0 exactly where `adjusted` is below .05.
        alpha: One minus the level of that interval.
        first_alpha: That of Holm's first step.
    """

    first: str
    second: str
    areas: Mapping[str, MeanDifference]
    mixed: MeanDifference | None
    adjusted: float
    decided: MeanDifference
    alpha: float
    first_alpha: float

    @property
    def verdict(self) -> str:
        """The result in a sentence."""
        area, names = self.decided, f"{self.second} and {self.first}"
        if area.n < FEWEST_PAIRS:
            more = FEWEST_PAIRS - area.n
            return f"no verdict on {names} yet: {area.n} pairs, a verdict needs {more} more"
        if not area.sd:
            return f"no verdict on {names}: all {area.n} pairs differ by {area.value:+.4f}, so their spread is not known"
        interval = f"[{area.low:+.4f}, {area.high:+.4f}] ({1 - self.alpha:.3g})"
        if self.adjusted < _LEVEL:
            word = "better" if area.value > 0 else "worse"
            return f"{self.second} is {word} than {self.first} by {abs(area.value):.4f} {interval}, p {self.adjusted:.2g}"
        largest = max(abs(area.low), abs(area.high))
        return f"no difference between {names} beyond {largest:.4f}: {area.value:+.4f} {interval}, p {self.adjusted:.2g}"

    def pairs_for(self, difference: float) -> tuple[int, int] | None:
        """Return the pairs that would show a difference at level .05, and at Holm's first step; None without a spread."""
        sd = self.decided.sd
        if not sd:
            return None
        return pairs_needed(sd, difference, _LEVEL), pairs_needed(sd, difference, self.first_alpha)

    def blind_json(self) -> dict[str, Any]:
        """Return the contrast as a JSON object without anything that says which arm is better."""
        pairs = {f"pairs_for_{size:g}": self.pairs_for(size) for size in DIFFERENCES}
        return {
            "first": self.first,
            "second": self.second,
            "n": self.decided.n,
            "sd": self.decided.sd,
            **{name: list(needed) if needed else None for name, needed in pairs.items()},
        }

    def to_json(self) -> dict[str, Any]:
        """Return the contrast as a JSON object."""
        return {
            **self.blind_json(),
            **{axis: _difference_record(area) for axis, area in self.areas.items()},
            MIXED: None if self.mixed is None else _difference_record(self.mixed),
            "p_value_adjusted": self.adjusted,
            "decided": {**_bounds(self.decided), "level": 1 - self.alpha},
            "verdict": self.verdict,
        }


def _difference_record(area: MeanDifference) -> dict[str, Any]:
    return {**asdict(area), **_bounds(area)}


def _bounds(area: MeanDifference) -> dict[str, float | None]:
    """Return the interval as JSON, null where it is not known."""
    return {
        name: value if isfinite(value) else None for name, value in (("low", area.low), ("high", area.high))
    }


@dataclass(frozen=True, slots=True)
class BranchMatch:
    """Branches of a yoked run over a whole run beside its pair's, and how well single trees agree."""

    seed: int
    rule: float
    yoked: float
    same: float
    difference: float

    @property
    def ratio(self) -> float:
        """Branches of the yoked run over those of the rule; 1 if there are none."""
        return self.yoked / self.rule if self.rule else 1.0


@dataclass(frozen=True, slots=True)
class AblationResult:
    """The result of an ablation, from its lines.

    Attributes:
        arms: Their runs by name of the arm, in the order of their seeds; only seeds that every arm has.
        areas: By axis and arm the mean success of each seed up to that seed's budget.
        budgets: By axis the budget of each seed: the cost of its cheapest arm.
        contrasts: Pairs of arms; empty with fewer than two seeds.
        matches: Of each yoked run.
        warnings: Sentences on what limits the result.
    """

    arms: Mapping[str, tuple[RunLine, ...]]
    areas: Mapping[str, Mapping[str, tuple[float, ...]]]
    budgets: Mapping[str, tuple[float, ...]]
    contrasts: tuple[Contrast, ...]
    matches: tuple[BranchMatch, ...]
    warnings: tuple[str, ...]

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds that every arm has."""
        return tuple(line.seed for line in next(iter(self.arms.values()), ()))

    def to_json(self) -> dict[str, Any]:
        """Return the result as a JSON object."""
        return {
            "seeds": list(self.seeds),
            "arms": {
                name: {
                    "branching": lines[0].branching if lines else None,
                    "success": [line.column("success")[-1] for line in lines],
                    **{axis: [line.column(axis)[-1] for line in lines] for axis in AXES},
                    "areas": {axis: list(self.areas[axis][name]) for axis in AXES},
                    MIXED: [line.mean_mixed for line in lines],
                }
                for name, lines in self.arms.items()
            },
            "budgets": {axis: list(budgets) for axis, budgets in self.budgets.items()},
            "contrasts": [contrast.to_json() for contrast in self.contrasts],
            "branches": [{**asdict(match), "ratio": match.ratio} for match in self.matches],
            "warnings": list(self.warnings),
        }


def compare_arms(lines: Sequence[RunLine], names: Sequence[str]) -> AblationResult:
    """Compare the arms of these names over the seeds that all of them have.

    Raises:
        DataError: Runs of a seed were made from different files, so that they are no pair; or an arm has two rules.
    """
    lines = [line for line in lines if line.arm in names]
    _refuse_other_inputs(lines)
    _refuse_other_rules(lines)
    by_arm = {name: {line.seed: line for line in lines if line.arm == name} for name in names}
    seeds = sorted(set.intersection(*(set(runs) for runs in by_arm.values()))) if by_arm else []
    arms = {name: tuple(runs[seed] for seed in seeds) for name, runs in by_arm.items()}
    budgets = {
        axis: tuple(
            min(runs[index].column(axis)[-1] for runs in arms.values()) for index in range(len(seeds))
        )
        for axis in AXES
    }
    areas = {
        axis: {
            name: tuple(
                mean_success(line, axis, budget) for line, budget in zip(runs, budgets[axis], strict=True)
            )
            for name, runs in arms.items()
        }
        for axis in AXES
    }
    matches = tuple(
        BranchMatch(
            yoked.seed,
            sum(rule.branches),
            sum(yoked.branches),
            yoked.match.same / max(1, yoked.match.trees),
            yoked.match.difference,
        )
        for rule, yoked in zip(arms.get(RULE, ()), arms.get(YOKED, ()), strict=False)
        if yoked.match is not None
    )
    contrasts = _contrasts(areas, arms) if len(seeds) > 1 else ()
    warnings = (*_warnings(lines, seeds, matches), *_arm_warnings(lines, arms, contrasts))
    if 0 in budgets["calls"]:
        warnings = (
            *warnings,
            "A run executed no call, so at equal calls its seed has the success of the start.",
        )
    return AblationResult(arms, areas, budgets, contrasts, matches, warnings)


def arm_names(lines: Sequence[RunLine]) -> list[str]:
    """Return the names of the arms of some runs, the usual ones first."""
    names = dict.fromkeys(line.arm for line in lines)
    return sorted(
        names, key=lambda name: (FLAT, YOKED, RULE).index(name) if name in (FLAT, YOKED, RULE) else 3
    )


def mean_success(line: RunLine, axis: str, budget: float) -> float:
    """Return the area under the curve of success from no cost up to the budget, over the budget; the success at the start if it is 0."""
    costs, success = np.array(line.column(axis)), np.array(line.column("success"))
    if budget <= 0:
        return float(success[0])
    inside = costs < budget
    xs = np.append(costs[inside], budget)
    ys = np.append(success[inside], success_at(line, axis, budget))
    return float(np.trapezoid(ys, xs)) / budget


def success_at(line: RunLine, axis: str, cost: float | Floats) -> Floats:
    """Return the success when a cost was reached first. Steps that cost nothing follow at the same cost, and what they taught counts behind it."""
    costs, success = np.array(line.column(axis)), np.array(line.column("success"))
    first = np.minimum(np.searchsorted(costs, cost), len(costs) - 1)
    # Of several points at a cost `interp` takes the last one, from which the next piece of the curve rises.
    reached: Floats = np.where(costs[first] == cost, success[first], np.interp(cost, costs, success))
    return reached


def _refuse_other_inputs(lines: Sequence[RunLine]) -> None:
    """Raise DataError if two runs of a seed name the same files with different content."""
    first: dict[tuple[int, str], tuple[str, str]] = {}
    for line in lines:
        for key, checksum in line.shared_inputs.items():
            other, before = first.setdefault((line.seed, key), (line.name, checksum))
            if before != checksum:
                raise DataError(
                    f"{other} and {line.name} were made from different content of {key}, so they are no pair. "
                    "Leave one of them out, or train it again in a folder of its own."
                )


def _refuse_other_rules(lines: Sequence[RunLine]) -> None:
    """Raise DataError if two runs of an arm have different rules."""
    first: dict[str, RunLine] = {}
    for line in lines:
        before = first.setdefault(line.arm, line)
        if line.branching != before.branching:
            raise DataError(
                f"{before.name} and {line.name} have different rules, so they are no arm. Leave one of them out."
            )


def _contrasts(
    areas: Mapping[str, Mapping[str, Sequence[float]]], arms: Mapping[str, Sequence[RunLine]]
) -> tuple[Contrast, ...]:
    base = YOKED if YOKED in arms else FLAT
    pairs = [(base, RULE)] if RULE in arms and base in arms else []
    pairs += [(FLAT, YOKED)] if base == YOKED and FLAT in arms else []
    pairs += [(base, name) for name in arms if name not in (FLAT, YOKED, RULE) and base in arms]
    differences = [
        {axis: _paired(by_arm[first], by_arm[second]) for axis, by_arm in areas.items()}
        for first, second in pairs
    ]
    p_values = [difference[ENDPOINT].p_value for difference in differences]
    return tuple(
        Contrast(
            first,
            second,
            difference,
            _paired_mixed(arms[first], arms[second]),
            adjusted,
            _paired(areas[ENDPOINT][first], areas[ENDPOINT][second], alpha),
            alpha,
            _LEVEL / len(pairs),
        )
        for (first, second), difference, adjusted, alpha in zip(
            pairs, differences, holm(p_values), holm_levels(p_values, _LEVEL), strict=True
        )
    )


def _paired(first: Sequence[float], second: Sequence[float], alpha: float = _LEVEL) -> MeanDifference:
    return paired_t([b - a for a, b in zip(first, second, strict=True)], alpha)


def _paired_mixed(first: Sequence[RunLine], second: Sequence[RunLine]) -> MeanDifference | None:
    """Return the difference of the mean shares of mixed groups; None where a run does not say it."""
    shares = [(before.mean_mixed, after.mean_mixed) for before, after in zip(first, second, strict=True)]
    differences = [after - before for before, after in shares if before is not None and after is not None]
    return paired_t(differences) if len(differences) == len(shares) else None


def _warnings(lines: Sequence[RunLine], seeds: Sequence[int], matches: Sequence[BranchMatch]) -> list[str]:
    warnings = []
    if len(seeds) < 2:
        warnings.append(f"seeds that are finished in every arm: {len(seeds)}; an interval needs at least 2.")
    if lines and len({success for line in lines for success in line.column("success")}) == 1:
        warnings.append(
            "Success never changed in any run: nothing was learned, so there is nothing to compare."
        )
    if off := [match for match in matches if abs(match.ratio - 1) > MOST_MISMATCH]:
        worst = max(off, key=lambda match: abs(match.ratio - 1))
        warnings.append(
            f"{len(off)} of {len(matches)} yoked runs have more than {MOST_MISMATCH:.0%} more or fewer branches than their rule "
            f"(seed {worst.seed}: {worst.yoked:.0f} for {worst.rule:.0f}), so their contrasts compare numbers of branches too."
        )
    if len({bool(line.inputs) for line in lines}) > 1:
        warnings.append("Some lines do not say what files their runs were made from, so it was not compared.")
    if len(commits := {line.commit for line in lines}) > 1:
        warnings.append(f"The runs were made by {len(commits)} commits.")
    return warnings


def _arm_warnings(
    lines: Sequence[RunLine], arms: Mapping[str, Sequence[RunLine]], contrasts: Sequence[Contrast]
) -> list[str]:
    warnings = []
    used = [line for runs in arms.values() for line in runs]
    if used and (left := [line for line in lines if line.arm in arms and line not in used]):
        warnings.append(
            f"{len(left)} runs are left out, such as {left[0].name}: not every arm has a run of their seeds. Train those that are "
            "missing, or compare fewer arms (--arms)."
        )
    if len(used) > len(arms) and not contrasts:
        warnings.append("No arms are compared: that needs flat or yoked, and another one.")
    for name, runs in arms.items():
        if name != FLAT and runs and not any(sum(line.branches) for line in runs):
            warnings.append(f"{name} took no branch in any run, so it was flat sampling.")
    return warnings
