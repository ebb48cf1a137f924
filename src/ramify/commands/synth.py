"""`ramify synth RECIPE.toml`: data for supervised training and for RL from questions, as Tool-Star makes it."""

import argparse
from collections.abc import Mapping
from typing import Any

from ramify.commands.parser import add_output, add_recipe, notes_of, open_console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_recipe(parser)
    parser.add_argument("--resume", action="store_true", help="make the answers that run.dir still lacks")
    add_output(parser)


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    from ramify.commands.check_files import check_files, dry_run, require_dry_run
    from ramify.config.load import load_recipe
    from ramify.config.schema_synth import SynthRecipe
    from ramify.runs.run_folder import SYNTHESIS

    require_dry_run(options)
    recipe = load_recipe(SynthRecipe, options.recipe, options.overrides)
    check_files(recipe, fetch=not options.dry_run, note=notes_of(options))
    SYNTHESIS.check(recipe.run.dir, options.resume)
    if options.dry_run:
        dry_run(recipe, options)
        return
    from ramify.assemble.synthesis import run_synth
    from ramify.commands.run_listing import record_run

    console = open_console(options)
    summary = run_synth(recipe, console, resume=options.resume)
    for line in in_words(summary):
        console.result(line)
    console.note(
        f"written to {recipe.run.dir}: sft.jsonl, rl.jsonl, questions.jsonl, rejected.jsonl, summary.json"
    )
    record_run(console, recipe.run.dir, summary=summary)


def in_words(summary: Mapping[str, Any]) -> list[str]:
    """Describe the result to a user, line by line."""
    lines = []
    for stage, counts in summary["stages"].items():
        cost = f", cost {counts['cost']:.4g}" if "cost" in counts else ""
        lines.append(
            f"{stage}: {counts['answers']} answers, {counts['right']:.1%} right, {counts['calls']} calls, "
            f"{counts['tokens']['written']} tokens written{cost}"
        )
        lines += [f"{stage}: {name} {count} times" for name, count in counts.get("repairs", {}).items()]
    classes = ", ".join(f"{name} {count}" for name, count in summary["classes"].items())
    rows = sum(summary["rows"].values())
    lines.append(f"questions: {classes}")
    by_class = ", ".join(f"{name} {count}" for name, count in summary["rows"].items())
    lines.append(f"rows for SFT: {rows} ({by_class}); questions for RL: {summary['rl']}")
    if summary["rejected"]:
        reasons = ", ".join(f"{reason} {count}" for reason, count in summary["rejected"].items())
        lines.append(f"answers that gave no row: {reasons}")
    for name, count in summary["questions_without_rows"].items():
        lines.append(f"warning: class {name}: {count} questions have no row left, see rejected.jsonl")
    for what, count in (("sft.jsonl", rows), ("rl.jsonl", summary["rl"])):
        if not count:
            lines.append(f"warning: {what} is empty")
    return lines
