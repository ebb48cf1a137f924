"""The quick start, top to bottom: data, cold start, reinforcement learning, evaluation, report."""

from collections.abc import Mapping
from pathlib import Path

from ramify.assemble.examples import run_sft
from ramify.assemble.training import run_rl
from ramify.core.rank import Rank
from ramify.eval.evaluation import Evaluation
from ramify.learner.parallel import Ranks
from ramify.obs.console import RunConsole
from ramify.obs.report import Report, write_report
from ramify.quickstart.clock import Clock, emptied_on_error
from ramify.quickstart.evaluations import evaluate
from ramify.quickstart.example import Example, ExampleData, eval_recipe, rl_recipe, sft_recipe
from ramify.quickstart.summary import Evaluations, make_curves, make_report, tree_to_draw
from ramify.sandbox.levels import FIRST_GUARDED, detect_level


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
    report = make_report(example, seed, clock.seconds, evaluations, (sft, rl), level)
    write_report(report, make_curves(sft.run.dir, rl.run.dir), tree_to_draw(rl.run.dir), out)
    return report


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
