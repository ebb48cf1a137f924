"""Statistics of an evaluation: pass@k, 95 % intervals over problems, paired comparisons, agreement with a judge."""

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from types import MappingProxyType
from typing import Literal, TypeAlias

import mpmath
import numpy as np

from ramify.core.draws import stream
from ramify.core.records import Floats

NUM_RESAMPLES = 2000
_RESAMPLES_AT_ONCE = 100
_NO_SPREAD = 1e-12
"""Standard deviation of differences of shares that are equal but for rounding."""
_Z = NormalDist().inv_cdf(0.975)
_MAX_ENUMERATED = 14
_IN_BIN = 100
_DRAWS = 20_000
_DRAWS_AT_ONCE = 500
Table: TypeAlias = dict[str, float | None]

RIGHT_FROM: Mapping[str, float] = MappingProxyType(
    {"em": 1.0, "f1": 0.5, "lenient": 1.0, "acc": 1.0, "math_equal": 1.0}
)
"""The value from which a score counts as "right". The one for F1 is our choice."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over `n` problems with the bounds of its 95 % confidence interval."""

    value: float
    low: float
    high: float
    n: int


def mean_interval(per_problem: Sequence[float], seed: int) -> Interval:
    """Return the mean of a score over problems: Wilson's interval if every problem's score is 0 or 1, else the bootstrap.

    `per_problem` holds one number for each problem: its pass@k, or the mean over its attempts. `benchmarks/evaluation`
    simulates the coverage of both intervals. There must be a problem.
    """
    if set(per_problem) <= {0.0, 1.0}:
        return wilson_share(sum(per_problem), len(per_problem))
    return bootstrap_mean(per_problem, seed)


def wilson_share(successes: float, n: int) -> Interval:
    """Return the score interval of a share (Wilson 1927); its width is above 0 even if all problems are correct, or none."""
    share = successes / n
    middle = (share + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z * math.sqrt(share * (1 - share) / n + _Z**2 / (4 * n**2)) / (1 + _Z**2 / n)
    # At shares of 0 and 1 one bound equals the share, except for rounding.
    return Interval(share, max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half)), n)


def auroc_interval(value: float, positives: int, negatives: int) -> Interval:
    """Return the interval of an area under the curve from independent cases (Newcombe 2006, method 5).

    All areas within 1.96 of their own standard errors of `value`: by Hanley and McNeil's variance at the area that is tried,
    with the sizes in it replaced by their mean. So it does not break down at 1 or for few cases. At least one of each sign.
    """
    extra = (positives + negatives) / 2 - 1

    def is_far(area: float) -> bool:
        spread = 1 + extra * ((1 - area) / (2 - area) + area / (1 + area))
        return abs(area - value) > _Z * math.sqrt(area * (1 - area) * spread / (positives * negatives))

    def bound(far: float) -> float:
        # The nearest area that is too far off, by halving.
        near = value
        for _ in range(50):
            middle = (near + far) / 2
            near, far = (near, middle) if is_far(middle) else (middle, far)
        return far

    return Interval(value, bound(0.0), bound(1.0), positives + negatives)


def bootstrap_mean(per_problem: Sequence[float], seed: int) -> Interval:
    """Return the expanded percentile bootstrap of a mean over problems (Hesterberg 2015, section 4.1), from 2,000 resamples.

    Attempts at one problem are not independent, so whole problems are resampled. With few problems, plain percentiles
    give too narrow an interval: their spread lacks the factor sqrt(n / (n - 1)), and they correspond to normal
    quantiles instead of Student's t. The expanded percentiles correct both. One problem, or equal scores, give a width
    of 0.
    """
    values = np.asarray(per_problem, np.float64)
    n = len(values)
    generator = np.random.default_rng(stream("bootstrap", seed))
    means = np.concatenate(
        [
            values[generator.integers(n, size=(_RESAMPLES_AT_ONCE, n))].mean(axis=1)
            for _ in range(NUM_RESAMPLES // _RESAMPLES_AT_ONCE)
        ]
    )
    tail = NormalDist().cdf(-math.sqrt(n / (n - 1)) * _student_t(n - 1)) if n > 1 else 0.025
    low, high = np.quantile(means, [tail, 1 - tail])
    return Interval(float(values.mean()), float(low), float(high), n)


@functools.cache
def _student_t(degrees: int, alpha: float = 0.05) -> float:
    """Return the 1 - alpha / 2 quantile of Student's t."""
    # Student's quantile is above the normal one; with few degrees of freedom by far.
    least = NormalDist().inv_cdf(1 - alpha / 2)
    most = 2 * least
    while _t_tails(most, degrees) > alpha:
        least, most = most, 2 * most
    return float(mpmath.findroot(lambda t: _t_tails(t, degrees) - alpha, (least, most), solver="ridder"))


def _t_tails(t: mpmath.mpf | float, degrees: int) -> mpmath.mpf:
    """Return the probability that Student's t is at least as far from 0 as `t`."""
    return mpmath.betainc(degrees / 2, 0.5, 0, degrees / (degrees + t * t), regularized=True)


@dataclass(frozen=True, slots=True)
class MeanDifference:
    """The mean of differences of n pairs.

    Attributes:
        value, low, high: The mean and its t interval, of 95 % unless another level was asked for; its bounds are infinite where the
            differences have no spread.
        sd: Standard deviation of the differences.
        p_value: Of the paired t test (Student 1908), two-sided.
        n: Number of pairs.
    """

    value: float
    low: float
    high: float
    sd: float
    p_value: float
    n: int


def paired_t(differences: Sequence[float], alpha: float = 0.05) -> MeanDifference:
    """Return the mean of the differences of pairs of runs, which a t interval suits: a few numbers, each a mean of many.

    The level of the interval is 1 - alpha. Equal differences say nothing about the spread of others: their p-value is 1.

    Raises:
        ValueError: There are fewer than two.
    """
    n = len(differences)
    if n < 2:
        raise ValueError(f"a t interval needs at least 2 pairs, got {n}")
    mean, sd = float(np.mean(differences)), float(np.std(differences, ddof=1))
    if sd < _NO_SPREAD:
        return MeanDifference(mean, -math.inf, math.inf, 0.0, 1.0, n)
    error = sd / math.sqrt(n)
    half = _student_t(n - 1, alpha) * error
    return MeanDifference(
        mean, mean - half, mean + half, sd, float(_t_tails(mpmath.mpf(mean / error), n - 1)), n
    )


def pairs_needed(sd: float, difference: float, alpha: float = 0.05, power: float = 0.8) -> int:
    """Return the pairs with which the paired t test of level `alpha` detects a difference (Guenther 1981): at least two."""
    level, chance = NormalDist().inv_cdf(1 - alpha / 2), NormalDist().inv_cdf(power)
    return max(2, math.ceil((level + chance) ** 2 * (sd / difference) ** 2 + level**2 / 2))


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Return the probability that at least one of k samples, drawn without replacement from n with c correct, is correct.

    1 - C(n - c, k) / C(n, k), computed as a product without overflow or cancellation (Chen et al. 2021,
    arXiv 2107.03374, equation 1).

    Raises:
        ValueError: Not 1 <= k <= n.
    """
    if not 1 <= k <= num_samples:
        raise ValueError(
            f"pass@{k} needs at least {max(k, 1)} samples a problem and k >= 1; got {num_samples}"
        )
    all_wrong = 1.0
    for drawn in range(k):
        all_wrong *= max(num_samples - num_correct - drawn, 0) / (num_samples - drawn)
    return 1.0 - all_wrong


@dataclass(frozen=True, slots=True)
class Difference:
    """Second minus first, a mean over problems.

    Attributes:
        first, second: Means over the n problems.
        value, low, high: Their difference and its 95 % bootstrap interval, from resampling pairs of scores.
        p_value: Two-sided p-value of the hypothesis that the two scores of each problem are exchangeable.
        method: "mcnemar" (exact; used if all nonzero differences have the same size, as with single attempts),
            "permutation" (exact, all signs) or "permutation_sampled" (20,000 random draws of the signs).
        n: Number of problems.
        better, worse: Number of problems on which the second is better, worse.
    """

    first: float
    second: float
    value: float
    low: float
    high: float
    p_value: float
    method: Literal["mcnemar", "permutation", "permutation_sampled"]
    n: int
    better: int
    worse: int


def paired_difference(first: Sequence[float], second: Sequence[float], seed: int) -> Difference:
    """Compare two lists of scores of the same problems, in the same order.

    Uses McNemar's test (1947) in its exact, binomial form where it applies, else Fisher's sign-flip test.
    """
    left, right = np.asarray(first, np.float64), np.asarray(second, np.float64)
    differences = right - left
    interval = bootstrap_mean(differences.tolist(), seed)
    low, high = interval.low, interval.high
    # 2/3 - 1/3 and 1 - 2/3 differ in the last bit.
    if high - low < _NO_SPREAD:
        # Equal differences on n problems say little about the other problems (Wilson's bound for 0 of n).
        most = wilson_share(0, len(differences)).high
        # Scores are shares, except rewards, which may differ by more than 1.
        low, high = max(low - most, min(low, -1.0)), min(high + most, max(high, 1.0))
    # 1e-12: means of the same attempts in another order may differ in the last bit.
    moved = differences[np.abs(differences) > 1e-12]
    better, worse = int((moved > 0).sum()), int((moved < 0).sum())
    p_value, method = _test(moved, better, seed)
    return Difference(
        float(left.mean()),
        float(right.mean()),
        interval.value,
        low,
        high,
        p_value,
        method,
        len(left),
        better,
        worse,
    )


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Adjust the p-values of several comparisons to control the family-wise error rate (Holm 1979)."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return tuple(adjusted)


def holm_levels(p_values: Sequence[float], alpha: float = 0.05) -> tuple[float, ...]:
    """Return for each comparison the alpha of the step at which `holm` decides on it, among k comparisons alpha / k to alpha.

    A comparison that is not rejected gets that of the step at which the procedure stopped. So the interval at 1 - alpha excludes 0
    exactly where the adjusted p-value is below `alpha` (Strassburger and Bretz 2008).
    """
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    levels, step = [0.0] * len(p_values), 0
    for rank, index in enumerate(order):
        # Once a comparison is not rejected, the step stays.
        step = rank if p_values[order[step]] * (len(p_values) - step) < alpha else step
        levels[index] = alpha / (len(p_values) - step)
    return tuple(levels)


def _test(
    moved: Floats, better: int, seed: int
) -> tuple[float, Literal["mcnemar", "permutation", "permutation_sampled"]]:
    sizes = np.abs(moved)
    if not len(moved) or np.allclose(sizes, sizes[0], rtol=1e-9, atol=0):
        return _binomial(min(better, len(moved) - better), len(moved)), "mcnemar"
    observed = abs(float(moved.sum())) * (1 - 1e-12)
    if len(moved) <= _MAX_ENUMERATED:
        signs = np.array(list(itertools.product((-1.0, 1.0), repeat=len(moved))))
        return float((np.abs(signs @ sizes) >= observed).mean()), "permutation"
    generator = np.random.default_rng(stream("sign flips", seed))
    extreme = 0
    for _ in range(_DRAWS // _DRAWS_AT_ONCE):
        signs = generator.integers(2, size=(_DRAWS_AT_ONCE, len(moved))) * 2.0 - 1.0
        extreme += int((np.abs(signs @ sizes) >= observed).sum())
    # The observed signs count as one of the draws, so that no p-value is 0.
    return (extreme + 1) / (_DRAWS + 1), "permutation_sampled"


def _binomial(fewer: int, n: int) -> float:
    """Return the probability of at most `fewer` or at least n - `fewer` heads among n fair coins."""
    tail = sum(math.comb(n, count) for count in range(fewer + 1))
    return min(1.0, float(2 * tail / 2**n))


def calibration_error(confidences: Sequence[float], right: Sequence[bool]) -> float:
    """Return the root mean square calibration error: bins of 100 answers in the order of their confidence, as HLE's and BrowseComp's
    graders have it (Hendrycks and others, arXiv 1812.04606); a last bin of fewer joins the one before."""
    order = np.argsort(np.asarray(confidences), kind="stable")
    stated, correct = np.asarray(confidences)[order], np.asarray(right, float)[order]
    edges = [*range(0, max(1, len(stated) // _IN_BIN) * _IN_BIN, _IN_BIN), len(stated)]
    squares = [
        (high - low) * float(stated[low:high].mean() - correct[low:high].mean()) ** 2
        for low, high in itertools.pairwise(edges)
    ]
    return math.sqrt(sum(squares) / len(stated))


def judge_agreement(parts: Sequence[Mapping[str, float]]) -> dict[str, Table]:
    """Return for each score that some answer has the 2 x 2 table of its verdicts and the judge's, for a summary.

    Answers without a verdict are in no cell. `rate` is the share on which both agree; None if the table is empty.

    Args:
        parts: The scores of each answer by name; an answer without "judge" got no verdict.
    """
    return {
        name: _table([answer for answer in parts if name in answer], name, edge)
        for name, edge in RIGHT_FROM.items()
        if any(name in answer for answer in parts)
    }


def kappa(both_right: int, judge_only: int, score_only: int, both_wrong: int) -> float | None:
    """Return Cohen's kappa: 1 is full agreement, 0 agreement by chance; None if chance alone would agree on everything."""
    n = both_right + judge_only + score_only + both_wrong
    judge, score = both_right + judge_only, both_right + score_only
    chance = (judge * score + (n - judge) * (n - score)) / n**2 if n else 1.0
    return None if chance == 1.0 else ((both_right + both_wrong) / n - chance) / (1.0 - chance)


def _table(answers: Sequence[Mapping[str, float]], name: str, edge: float) -> Table:
    both = [(answer["judge"] >= 0.5, answer[name] >= edge) for answer in answers if "judge" in answer]
    cells = [both.count(cell) for cell in ((True, True), (True, False), (False, True), (False, False))]
    return {
        "right_from": edge,
        "n": len(both),
        "without_verdict": len(answers) - len(both),
        **dict(zip(("both_right", "judge_only", "score_only", "both_wrong"), cells, strict=True)),
        "rate": (cells[0] + cells[3]) / len(both) if both else None,
        "kappa": kappa(*cells),
    }
