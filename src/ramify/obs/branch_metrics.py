"""Metrics of the branching rule for each step, and a summary in words for a run.

Rates and spreads cover only decisions that still had budget when it was their turn (`BranchDecision.had_budget`). Most
trees spend their budget on the first tool results; what a rule decides about later ones changes no tree.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ramify.algos.branch_rules import matched_rate
from ramify.core.tree import BranchDecision, Tree
from ramify.obs.metrics import MetricsRow

WARNING_STEPS = 20
MIN_P_STD = 0.02
MAX_UNDECIDED = 0.2


def branch_metrics(trees: Sequence[Tree]) -> dict[str, float]:
    """Return the metrics of one step by name; means are absent if no decision had budget. Entropy deltas are nats per token.

    Numbers of children: `branch/planned` (wanted, also after the budget was spent), `branch/taken` (granted) and
    `branch/by_entropy` (granted although the rule would have wanted none at an entropy delta of zero). Numbers of
    decisions: `branch/decisions` (with budget), `branch/withheld` (those of them that entropy turned against a branch) and
    `branch/after_budget` (after the budget was spent). `branch/flat` is the share of problems that had decisions but never
    any budget, because a rule that splits n by its first trajectory gave all of it to roots. `branch/matched_rate` is the
    rate at which a `random` rule is expected to be granted as many branches (see `matched_rate`).
    """
    every = [decision for tree in trees for decision in tree.decisions]
    decisions = [decision for decision in every if decision.had_budget]
    metrics = {
        "branch/planned": float(sum(decision.planned for decision in every)),
        "branch/taken": float(sum(decision.taken for decision in decisions)),
        "branch/by_entropy": float(sum(decision.taken for decision in decisions if decision.entropy_acted)),
        "branch/withheld": float(
            sum(decision.entropy_acted and not decision.planned for decision in decisions)
        ),
        "branch/decisions": float(len(decisions)),
        "branch/after_budget": float(len(every) - len(decisions)),
    }
    if every:
        flat = [bool(tree.decisions) and not any(d.had_budget for d in tree.decisions) for tree in trees]
        metrics["branch/flat"] = float(np.mean(flat))
    if decisions:
        chances, deltas = [d.probability for d in decisions], [d.entropy_delta for d in decisions]
        metrics |= {
            "branch/rate": float(np.mean([decision.planned > 0 for decision in decisions])),
            "branch/matched_rate": _matched_rate(trees, decisions),
            "branch/p_mean": float(np.mean(chances)),
            "branch/p_std": float(np.std(chances)),
            "branch/entropy_delta_mean": float(np.mean(deltas)),
            "branch/entropy_delta_std": float(np.std(deltas)),
            "branch/entropy_acted": float(np.mean([decision.entropy_acted for decision in decisions])),
            "branch/undecided": float(np.mean([decision.undecided for decision in decisions])),
        }
    return metrics


def _matched_rate(trees: Sequence[Tree], decisions: Sequence[BranchDecision]) -> float:
    sizes = Counter(
        (len(tree.decisions), max(decision.budget_left for decision in tree.decisions))
        for tree in trees
        if tree.decisions
    )
    rate = float(np.mean([decision.planned > 0 for decision in decisions]))
    children = max(1, *(decision.planned for decision in decisions))
    return matched_rate(sizes, children, sum(decision.taken for decision in decisions), rate)


@dataclass(frozen=True, slots=True)
class BranchTotals:
    """Totals of the rule over a whole run.

    Attributes:
        planned, taken, by_entropy: Children wanted (also after the budget was spent), granted, and granted because entropy
            had changed.
        decisions, withheld: Decisions with budget, and those of them that entropy turned against a branch.
        rate: Share of decisions that wanted a branch.
        probability, entropy_delta: Mean and standard deviation over all decisions; nats per token.
    """

    planned: int
    taken: int
    by_entropy: int
    decisions: int
    withheld: int
    rate: float
    probability: tuple[float, float]
    entropy_delta: tuple[float, float]


def branch_totals(history: Sequence[MetricsRow]) -> BranchTotals | None:
    """Sum up the steps of a run; None where no decision had budget."""
    rows = _rows_with(history, "rate", "p_mean", "p_std", "entropy_delta_mean", "entropy_delta_std")
    if not rows:
        return None
    counts = [_value(row, "branch/decisions") for row in rows]
    totals = {
        name: round(sum(row.get(f"branch/{name}") or 0.0 for row in history))
        for name in ("planned", "taken", "by_entropy", "decisions", "withheld")
    }

    def spread(name: str) -> tuple[float, float]:
        means, stds = (
            np.array([_value(row, f"branch/{name}_{what}") for row in rows]) for what in ("mean", "std")
        )
        mean = np.average(means, weights=counts)
        return float(mean), float(np.average(stds**2 + (means - mean) ** 2, weights=counts) ** 0.5)

    return BranchTotals(
        **totals,
        rate=_mean(rows, "branch/rate"),
        probability=spread("p"),
        entropy_delta=spread("entropy_delta"),
    )


def rate_of_control(history: Sequence[MetricsRow]) -> float | None:
    """Return the rate at which a `random` rule branches as often as a run's rule did; None if its metrics do not have it."""
    rows = _rows_with(history, "matched_rate")
    return _mean(rows, "branch/matched_rate") if rows else None


def _rows_with(history: Sequence[MetricsRow], *names: str) -> list[MetricsRow]:
    """Return the rows with decisions that have these metrics; a file that was edited may lack some."""
    return [
        row
        for row in history
        if (row.get("branch/decisions") or 0.0) > 0
        and all(row.get(f"branch/{name}") is not None for name in names)
    ]


def _mean(rows: Sequence[MetricsRow], name: str) -> float:
    """Return the mean of a metric over all decisions of all steps."""
    counts = [_value(row, "branch/decisions") for row in rows]
    return float(np.average([_value(row, name) for row in rows], weights=counts))


def branch_notes(history: Sequence[MetricsRow], *, looks_at_entropy: bool) -> tuple[str, ...]:
    """Return a line on how many of a run's branches entropy decided, and one if some problems could not branch.

    Empty for a rule that does not use entropy.
    """
    if not looks_at_entropy:
        return ()
    notes = []
    totals = branch_totals(history)
    if totals is not None:
        (chance, chance_std), (delta, delta_std) = totals.probability, totals.entropy_delta
        notes.append(
            f"branching: entropy caused {totals.by_entropy:,} of {totals.taken:,} branches and prevented {totals.withheld:,} "
            f"(mean change after a result {delta:+.2f} nats a token, sd {delta_std:.2f}; branch probability {chance:.2f}, "
            f"sd {chance_std:.2f})"
        )
    flat = [value for row in history if (value := row.get("branch/flat")) is not None]
    if any(flat):
        notes.append(
            f"{np.mean(flat):.0%} of the problems could not branch (branch/flat): the first trajectory, whose entropies "
            "split n into roots and branches, called no tool, so all n started from the prompt"
        )
    return tuple(notes)


def entropy_warnings(history: Sequence[MetricsRow], *, looks_at_entropy: bool) -> tuple[str, ...]:
    """Return one line for each way in which an entropy rule has no effect.

    Uses the last 20 steps with decisions, and is empty before there are 20; but 20 steps without any decision give a line
    of their own. Empty for a rule that does not use entropy.
    """
    counts = [
        _value(row, "branch/decisions") + _value(row, "branch/after_budget")
        for row in history
        if None not in (row.get("branch/decisions"), row.get("branch/after_budget"))
    ]
    if looks_at_entropy and len(counts) >= WARNING_STEPS and not any(counts[-WARNING_STEPS:]):
        return (
            f"branching never happens: no decision in {WARNING_STEPS} steps (no tool results, a tool that cannot "
            "fork, or, with branch_at = after_probe, turns that end within probe_tokens)",
        )
    recent = _rows_with(history, "rate", "p_std", "undecided")[-WARNING_STEPS:]
    if len(recent) < WARNING_STEPS or not looks_at_entropy:
        return ()
    rates = [_value(row, "branch/rate") for row in recent]
    p_std = float(np.mean([_value(row, "branch/p_std") for row in recent]))
    warnings = []
    if p_std < MIN_P_STD:
        warnings.append(
            f"entropy is not acting: std of P is {p_std:.3f} < {MIN_P_STD} over {WARNING_STEPS} steps. "
            "Raise the rule's weight per nat"
        )
    if len(set(rates)) == 1 and rates[0] in (0.0, 1.0):
        share = "none" if rates[0] == 0.0 else "all"
        warnings.append(
            f"branching is stuck: {share} of the tool results wanted a branch over {WARNING_STEPS} steps. "
            "Check min_entropy_delta, alpha and the baseline"
        )
    undecided = float(np.mean([_value(row, "branch/undecided") for row in recent]))
    if undecided > MAX_UNDECIDED:
        warnings.append(
            f"entropy brackets are too wide: {undecided:.0%} of the decisions are open over {WARNING_STEPS} steps. "
            "Let the engine report more of the likeliest tokens"
        )
    return tuple(warnings)


def _value(row: MetricsRow, name: str) -> float:
    value = row[name]
    if value is None:
        raise ValueError(f"a row with decisions lacks {name!r}")
    return value
