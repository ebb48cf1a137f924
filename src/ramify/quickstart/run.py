"""The quick start, top to bottom: data, cold start, reinforcement learning, evaluation, report."""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from ramify import __version__
from ramify.assemble.examples import run_sft
from ramify.assemble.training import run_rl
from ramify.config.schema_examples import SftRecipe
from ramify.config.schema_train import TrainRecipe
from ramify.core.json_types import each, part, text
from ramify.core.rank import Rank
from ramify.eval.evaluation import Evaluation
from ramify.eval.statistics import Interval
from ramify.files.durable import read_record, write_record
from ramify.learner.parallel import Ranks
from ramify.obs.branch_metrics import branch_totals, entropy_warnings
from ramify.obs.console import RunConsole
from ramify.obs.metrics import MetricsRow, read_metrics
from ramify.obs.page import write_page
from ramify.quickstart.evaluations import evaluate, peak_memory_bytes
from ramify.quickstart.example import (
    Clock,
    Example,
    ExampleData,
    emptied_on_error,
    eval_recipe,
    rl_recipe,
    sft_recipe,
)
from ramify.quickstart.report import Report, quickstart_page
from ramify.runs.page import REPORT
from ramify.sandbox.levels import FIRST_GUARDED, detect_level

_PACKAGES = ("torch", "transformers", "tokenizers", "tantivy", "numpy")


@dataclass(frozen=True, slots=True)
class Evaluations:
    """All evaluations of an example: on held-out problems at temperature 1 and greedy, and on names of training if it has such.

    `memory_bytes` is the peak memory of the evaluating processes together.
    """

    sampled: Mapping[str, Evaluation]
    greedy: Mapping[str, Evaluation] | None
    train_entities: Mapping[str, Evaluation] | None
    memory_bytes: int


def run_quickstart(example: Example, out: Path, seed: int, console: RunConsole) -> Report:
    """Run the whole quick start; everything is written to `out`, report.json and report.html last.

    Raises:
        UserError: The machine cannot run it.
        RunInterruptedError: Ctrl-C.
    """
    level = detect_level()
    keeps_out = "attacks and accidents" if level >= FIRST_GUARDED else "accidents, not attacks"
    console.note(f"sandbox level {level}, against {keeps_out} (docs/sandbox.md)")
    clock = Clock()
    with console.plan(example.shares):
        with clock.phase("data"), emptied_on_error(out):
            data = example.make_data(out, seed, console)
        with clock.phase("sft"):
            sft = sft_recipe(example, out, seed, data)
            models = {"base": data.base, "sft": run_sft(sft, console, Ranks(Rank()))}
        with clock.phase("rl"):
            rl = rl_recipe(example, out, seed, models["sft"], data)
            models["rl"] = run_rl(rl, console, Ranks(Rank()))
        with clock.phase("eval"):
            evaluations = _evaluate(example, out, seed, models, data, console)
    report = _make_report(
        example, seed, clock.seconds, evaluations, (sft, rl), level, out / "eval" / "rl-sampled"
    )
    write_record(out / "report.json", report)
    write_page(out / REPORT, quickstart_page(report, out))
    return report


def run_cold_start(example: Example, out: Path, seed: int, console: RunConsole) -> Path:
    """Make the data in `out` and train the cold start; returns the model.

    Raises:
        UserError: The machine cannot run it.
        RunInterruptedError: Ctrl-C.
    """
    with emptied_on_error(out):
        data = example.make_data(out, seed, console)
    return run_sft(sft_recipe(example, out, seed, data), console, Ranks(Rank()))


def _evaluate(
    example: Example,
    out: Path,
    seed: int,
    models: Mapping[str, Path],
    data: ExampleData,
    console: RunConsole,
) -> Evaluations:
    stages = {"sampled": ("base", "sft", "rl"), "greedy": ("sft", "rl"), "seen": ("sft", "rl")}
    settings = {"sampled": (data.test, 1.0)}
    if example.greedy:
        settings["greedy"] = (data.test, 0.0)
    if data.train_entities is not None:
        settings["seen"] = (data.train_entities, 1.0)
    recipes = {
        f"{stage} {what}": eval_recipe(
            example, out / "eval" / f"{stage}-{what}", seed, models[stage], test, data.passages, temperature
        )
        for what, (test, temperature) in settings.items()
        for stage in stages[what]
    }
    results, memory = evaluate(recipes, console)

    def by_stage(what: str) -> dict[str, Evaluation] | None:
        return {stage: results[f"{stage} {what}"] for stage in stages[what]} if what in settings else None

    sampled = by_stage("sampled")
    assert sampled is not None
    return Evaluations(
        sampled=sampled, greedy=by_stage("greedy"), train_entities=by_stage("seen"), memory_bytes=memory
    )


def _make_report(
    example: Example,
    seed: int,
    seconds: Mapping[str, float],
    evaluations: Evaluations,
    recipes: tuple[SftRecipe, TrainRecipe],
    sandbox_level: int,
    eval_folder: Path,
) -> Report:
    """Put the report together; `eval_folder` is that of the last model's evaluation."""
    sft, rl = recipes
    rows = read_metrics(rl.run.dir / "metrics.jsonl")
    sampled = evaluations.sampled
    return {
        "seed": seed,
        "options": example.options,
        "base": example.base,
        "seconds": seconds,
        "pass_at_1": _estimates(sampled),
        "by_kind": {
            kind: _estimates({stage: whole.of("kind", kind) for stage, whole in sampled.items()})
            for kind in sampled["base"].values("kind")
        },
        "greedy": _pass_at_1(evaluations.greedy),
        "train_entities": _pass_at_1(evaluations.train_entities),
        "tool_calls_per_answer": {stage: sampled[stage].calls_per_attempt for stage in ("sft", "rl")},
        "branches": _branches(rows),
        "steps": {"sft": len(read_metrics(sft.run.dir / "metrics.jsonl")), "rl": len(rows)},
        "peak_memory_bytes": peak_memory_bytes() + evaluations.memory_bytes,
        "config": {"sft": sft.model_dump(mode="json"), "rl": rl.model_dump(mode="json")},
        "versions": versions(),
        "sandbox_level": sandbox_level,
        "warnings": entropy_warnings(rows, looks_at_entropy=rl.rollout.branching.looks_at_entropy),
        "notes": read_record(eval_folder / "summary.json", part(notes=each(text)))["notes"],
    }


def versions() -> dict[str, str]:
    """Return the versions of Python, ramify and the packages that figures depend on."""
    return {
        "python": platform.python_version(),
        "ramify": __version__,
        **{name: metadata.version(name) for name in _PACKAGES},
    }


def estimate(interval: Interval) -> dict[str, Any]:
    """Return an interval in the form of a report."""
    return {"value": interval.value, "ci95": (interval.low, interval.high), "n": interval.n}


def _estimates(evaluations: Mapping[str, Evaluation]) -> dict[str, Any]:
    return {stage: estimate(evaluation.pass_at(1)) for stage, evaluation in evaluations.items()}


def _pass_at_1(evaluations: Mapping[str, Evaluation] | None) -> dict[str, float] | None:
    if evaluations is None:
        return None
    return {stage: evaluation.pass_at(1).value for stage, evaluation in evaluations.items()}


def _branches(rows: Sequence[MetricsRow]) -> dict[str, Any]:
    totals = branch_totals(rows)
    if totals is None:
        return {"planned": 0, "taken": 0, "by_entropy": 0, "rate": None, "p_std": None}
    return {
        "planned": totals.planned,
        "taken": totals.taken,
        "by_entropy": totals.by_entropy,
        "rate": totals.rate,
        "p_std": totals.probability[1],
    }
