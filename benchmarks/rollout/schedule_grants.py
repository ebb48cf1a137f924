"""Row 4.grants: what it costs that a tree does not depend on who was fast."""

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.rows import Row
from benchmarks.harness.tiny_model import write_tiny_tokenizer
from benchmarks.rollout.schedule_books import FirstComeBook, QuotaBook
from benchmarks.rollout.schedule_engine import CapacityEngine, EmptyEngine
from benchmarks.rollout.schedule_runs import (
    COIN,
    PROBE,
    Batch,
    M,
    N,
    VirtualRollout,
    coin,
    describe,
    grow_ours,
)
from benchmarks.rollout.schedule_workload import DEEPSEARCH, REASONING, Script, Waits
from ramify.algos.branch_aepo import BalancedBrancher
from ramify.core.protocols import Brancher
from ramify.rollout.branch_budget import BranchBudget

_PROBLEMS = 16
_PERMUTATIONS = 10
_BOOKS: Mapping[str, type[BranchBudget]] = {
    "logical": BranchBudget,
    "first": FirstComeBook,
    "quota": QuotaBook,
}


def cost_of_logical_time() -> Sequence[Row]:
    """Return the row."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_tiny_tokenizer(folder, 0)
        reasoning, deepsearch = (Script(folder, work) for work in (REASONING, DEEPSEARCH))
        cases = {
            "reasoning": _compare(reasoning, coin()),
            "deepsearch": _compare(deepsearch, coin()),
            "reasoning, balanced": _compare(reasoning, _balanced()),
        }
    worst = max(cases, key=lambda case: _slowdown(cases[case]))
    one_tree = all(case["logical"]["one_tree"] == _PROBLEMS for case in cases.values())
    ratio = _slowdown(cases[worst])
    return [
        Row(
            "4.grants",
            "seconds until a tree is whole, on an engine without load: grants in logical time / first come",
            cases[worst]["logical"]["tree_seconds"],
            cases[worst]["first"]["tree_seconds"],
            ratio,
            "at most 1.05, and one tree whatever the latencies",
            ratio <= 1.05 and one_tree,
            settings={
                "worst_case": worst,
                "cases": cases,
                "problems": _PROBLEMS,
                "latency_permutations": _PERMUTATIONS,
                "rules": f"coin {COIN}, n {N}, m {M}; balanced (AEPO), m by its split; probe {PROBE} tokens",
                **describe(),
            },
        )
    ]


def _slowdown(case: Mapping[str, Mapping[str, float]]) -> float:
    return case["logical"]["tree_seconds"] / case["first"]["tree_seconds"]


def _balanced() -> Brancher:
    return BalancedBrancher(
        alpha=COIN, gamma=0.335, slope=0.05, tau=None, budget_beta=0.84, children=1, probe_tokens=PROBE
    )


def _compare(script: Script, rule: Brancher) -> dict[str, dict[str, Any]]:
    problems = script.problems(0, _PROBLEMS)
    batches = [Batch(script, problems, Waits(seed, hanging=False)) for seed in range(_PERMUTATIONS)]
    return {name: _figures(batches, rule, book) for name, book in _BOOKS.items()}


def _figures(batches: Sequence[Batch], rule: Brancher, book: type[BranchBudget]) -> dict[str, Any]:
    unloaded = [grow_ours(batch, EmptyEngine, rule, book) for batch in batches]
    loaded = [grow_ours(batch, CapacityEngine, rule, book) for batch in batches]
    waits = np.concatenate([grown.waits for grown in loaded])
    return {
        "tree_seconds": statistics.mean(second for grown in unloaded for second in grown.tree_seconds),
        "batch_seconds_under_load": statistics.mean(grown.done.seconds for grown in loaded),
        "branches_a_tree": statistics.mean(len(grown.waits) / _PROBLEMS for grown in loaded),
        "immediate": float(np.mean(waits == 0)),
        "wait_mean_s": float(waits.mean()),
        "wait_p95_s": float(np.quantile(waits, 0.95)),
        "one_tree": _unchanged([*unloaded, *loaded]),
    }


def _unchanged(runs: Sequence[VirtualRollout]) -> int:
    """Count the problems whose tree is the same in all runs."""
    return sum(
        all(grown.trees[index].nodes == runs[0].trees[index].nodes for grown in runs)
        for index in range(_PROBLEMS)
    )
