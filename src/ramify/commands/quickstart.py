"""`ramify quickstart`: a world, a tokenizer, a tiny model, a cold start, ARPO with real tools, a report."""

import argparse
from pathlib import Path

from ramify.core.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument(
        "--out", type=Path, default=Path("runs/quickstart"), help="a new folder for the results"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the model, the training data and all draws")
    parser.add_argument("--smoke", action="store_true", help="in miniature: does it run at all?")


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    out: Path = options.out
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"--out: {out} exists and is not empty; name a new folder")
    from ramify.obs.console import RunConsole
    from ramify.train.quickstart.run import run_quickstart
    from ramify.train.quickstart.sizes import FULL, SMOKE

    console = RunConsole()
    report = run_quickstart(out, options.seed, SMOKE if options.smoke else FULL, console)
    for stage, found in report["pass_at_1"].items():
        low, high = found["ci95"]
        console.note(
            f"pass@1 {stage:4}  {found['value']:.3f}  95 % [{low:.3f}, {high:.3f}]  n = {found['n']}"
        )
    console.note(f"report: {out / 'report.html'}")
