"""`python -m benchmarks.branching.signal RECIPE [-s KEY=VALUE] [--resamples 100]`: how much signal a gradient has with each rule.

A policy stays as it is, and the gradient of one step on the same problems is computed again and again with other random streams. The
signal-to-noise ratio is |E g|^2 / tr Var g (U-statistics, standard error by the jackknife), also for 1,000 sampled tokens. `oracle`
and the recipe's rule each have a matched control, which takes as many branches of each problem in each resample at results drawn by
chance. A world in which the oracle's ratio is not 15 % above its control's cannot show that any rule helps (docs/study.md).
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.harness.threads import pin_threads

ARMS = ("flat", "rule", "yoked to rule", "oracle", "yoked to oracle")


def main() -> None:
    """Measure every arm and print it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.branching.signal")
    parser.add_argument("recipe", type=Path, help="a recipe of ramify train whose model is there")
    parser.add_argument("-s", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--resamples", type=int, default=100)
    parser.add_argument("--arms", default=",".join(ARMS), help="in this order; a control after its pair")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    options = parser.parse_args()
    pin_threads()
    from benchmarks.branching.gradients import Signal, measure

    signals: dict[str, Signal] = {}
    for signal in measure(options.recipe, options.overrides, options.resamples, options.arms.split(",")):
        signals[signal.arm] = signal
        pair = signals.get(signal.arm.partition(" to ")[2])
        figures: dict[str, Any] = {
            **asdict(signal),
            "per_1000": signal.per_1000,
            "pair_over_control": None if pair is None else pair.per_1000 / signal.per_1000,
        }
        if options.json:
            print(
                json.dumps({**figures, "resamples": options.resamples, "recipe": str(options.recipe)}),
                flush=True,
            )
            continue
        line = "  ".join(f"{key} {value:.4g}" for key, value in figures.items() if isinstance(value, float))
        print(f"{signal.arm:16} {line}", flush=True)


if __name__ == "__main__":
    main()
