"""Compares the arms of an ablation: success on held-out problems at equal cost, in pairs of runs with the same seed."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ramify.eval.statistics import MeanDifference, holm, paired_t, pairs_needed
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
_LEVEL = 0.05
SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Contrast:
    """The second arm minus the first.

    Attributes:
        first, second: Names of the arms.
        areas: By axis the difference of mean success up to equal cost.
        adjusted: p-value of the endpoint among all contrasts (Holm 1979).
    """

    first: str
    second: str
    areas: Mapping[str, MeanDifference]
    adjusted: float

    @property
    def endpoint(self) -> MeanDifference:
        """The difference at equal sampled tokens."""
        return self.areas[ENDPOINT]

    @property
    def verdict(self) -> str:
        """The result in a sentence."""
        area = self.endpoint
        interval = f"[{area.low:+.4f}, {area.high:+.4f}]"
        if self.adjusted < _LEVEL:
            word = "better" if area.value > 0 else "worse"
            return f"{self.second} is {word} than {self.first} by {abs(area.value):.4f} {interval}, p {self.adjusted:.2g}"
        largest = max(abs(area.low), abs(area.high))
        return (
            f"no difference between {self.second} and {self.first} beyond {largest:.4f}: {area.value:+.4f} {interval}, "
            f"p {self.adjusted:.2g}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the contrast as a JSON object."""
        return {
            "first": self.first,
            "second": self.second,
            **{axis: asdict(area) for axis, area in self.areas.items()},
            "p_value_adjusted": self.adjusted,
            "pairs_for_0.01": pairs_needed(self.endpoint.sd, 0.01),
            "verdict": self.verdict,
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
                }
                for name, lines in self.arms.items()
            },
            "budgets": {axis: list(budgets) for axis, budgets in self.budgets.items()},
            "contrasts": [contrast.to_json() for contrast in self.contrasts],
            "branches": [{**asdict(match), "ratio": match.ratio} for match in self.matches],
            "warnings": list(self.warnings),
        }


def compare_arms(lines: Sequence[RunLine], names: Sequence[str]) -> AblationResult:
    """Compare the arms of these names over the seeds that all of them have."""
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
    contrasts = _contrasts(areas, names) if len(seeds) > 1 else ()
    return AblationResult(arms, areas, budgets, contrasts, matches, tuple(_warnings(lines, seeds, matches)))


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
    ys = np.append(success[inside], np.interp(budget, costs, success))
    return float(np.trapezoid(ys, xs)) / budget


def _contrasts(
    areas: Mapping[str, Mapping[str, Sequence[float]]], names: Sequence[str]
) -> tuple[Contrast, ...]:
    base = YOKED if YOKED in names else FLAT
    pairs = [(base, RULE)] if RULE in names and base in names else []
    pairs += [(FLAT, YOKED)] if base == YOKED and FLAT in names else []
    pairs += [(base, name) for name in names if name not in (FLAT, YOKED, RULE) and base in names]
    differences = [
        {
            axis: paired_t([b - a for a, b in zip(arms[first], arms[second], strict=True)])
            for axis, arms in areas.items()
        }
        for first, second in pairs
    ]
    adjusted = holm([difference[ENDPOINT].p_value for difference in differences])
    return tuple(
        Contrast(*pair, difference, p)
        for pair, difference, p in zip(pairs, differences, adjusted, strict=True)
    )


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
    if len(commits := {line.commit for line in lines}) > 1:
        warnings.append(f"The runs were made by {len(commits)} commits.")
    return warnings
