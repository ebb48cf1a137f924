"""`python -m benchmarks.branching.marked RUN [RUN ..]`: does a rule branch where the world says that a result is ambiguous?

Over the decisions of a run's recorded trees that still had branch budget: the share behind results that the world marks
(`ToolResult.ambiguous`), the same share among those that were branched at, and how well the entropy delta tells one kind from the other
(AUROC, .5: not at all). In a world that marks results, a rule that finds them has a larger share among its branches than its yoked
control (docs/study.md).
"""

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from ramify.obs.trace import each_tree
from ramify.runs.recorded_trees import trace_files
from ramify.study.ranking import auroc


@dataclass(frozen=True)
class BranchPlaces:
    """Where a run branched. `marked` is the share of marked results among the decisions, `marked_branched` that among those taken."""

    run: str
    decisions: int
    branched: int
    marked: float
    marked_branched: float
    auroc: float


def measure(run: Path) -> BranchPlaces:
    """Count a run's decisions."""
    rows = []
    for path in trace_files(run):
        for traced in each_tree(path):
            tree = traced.tree
            for decision in tree.decisions:
                if decision.had_budget:
                    is_marked = any(result.ambiguous for result in tree.by_id[decision.node].results)
                    rows.append((is_marked, decision.taken > 0, decision.entropy_delta))
    if not any(is_marked for is_marked, _, _ in rows):
        raise SystemExit(
            f"{run}: no branch decision behind a marked result. Name a run that branches in a world that marks some."
        )
    marked, branched, delta = (np.array(column, dtype=np.float64) for column in zip(*rows, strict=True))
    return BranchPlaces(
        str(run),
        len(rows),
        int(branched.sum()),
        float(marked.mean()),
        float(marked[branched > 0].mean()),
        auroc(delta, 2 * marked - 1),
    )


def main() -> None:
    """Measure every run and print it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.branching.marked")
    parser.add_argument("runs", nargs="+", type=Path, help="folders of runs with trees")
    for run in parser.parse_args().runs:
        print(json.dumps(asdict(measure(run))), flush=True)


if __name__ == "__main__":
    main()
