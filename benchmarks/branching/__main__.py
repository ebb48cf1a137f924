"""`python -m benchmarks.branching [--run runs/quickstart] [--json]`: needs a folder that `make quickstart` wrote."""

import argparse
from dataclasses import asdict
from pathlib import Path

from benchmarks.harness.rows import Row, emit, not_measured
from benchmarks.harness.threads import pin_threads

METRIC = "std of P over the decisions (settings: what else was measured)"
ACTS, BLIND = ">= 0.02, below which a run warns", "0: it does not look at entropy"
LINE = "{:20} {:>7} {:>6} {:>9} {:>10} {:>6} {:>6} {:>6} {:>10}"
HEAD = ("rule", "m", "roots", "branches", "decisions", "rate", "std P", "acted", "undecided")


def main() -> None:
    """Measure every rule and print it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.branching")
    parser.add_argument("--run", type=Path, default=Path("runs/quickstart"), help="folder of a quick start")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    options = parser.parse_args()
    if not (options.run / "sft").is_dir():
        reason = f"no quick start in {options.run}: make quickstart, or --run FOLDER"
        emit(not_measured("branching", METRIC, ACTS, reason), options.json)
        return
    pin_threads()
    from benchmarks.branching.measure import BATCH, NUM_PROBLEMS, TOP_K, N, measure

    if not options.json:
        print(
            f"{NUM_PROBLEMS} problems in batches of {BATCH}, n = {N}; undecided with the top {TOP_K} tokens\n"
        )
        print(LINE.format(*HEAD))
    for result in measure(options.run):
        if options.json:
            blind = result.rule in ("none", "random")
            target, met = (BLIND, result.p_std == 0) if blind else (ACTS, result.p_std >= 0.02)
            sizes = {"problems": NUM_PROBLEMS, "batch": BATCH, "n": N, "top_k": TOP_K}
            row = f"branching.{result.rule}"
            emit(
                Row(
                    row,
                    METRIC,
                    result.p_std,
                    None,
                    result.p_std,
                    target,
                    met,
                    settings={**asdict(result), **sizes},
                ),
                True,
            )
            continue
        low, high = result.first_roots
        print(
            LINE.format(
                result.rule,
                str(low) if low == high else f"{low}-{high}",
                f"{result.roots:.1f}",
                f"{result.branches:.1f}",
                result.decisions,
                *(f"{value:.3f}" for value in (result.rate, result.p_std, result.acted, result.undecided)),
            ),
            flush=True,
        )


main()
