"""Row 16: the quick start's cold start with tool results masked, and with their tokens trained on as the release does.

Both runs have the same base model, demonstrations, order and number of steps. The second one exists here alone: its trees call the
results' tokens written.
"""

import io
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.harness.family import RowFunction
from benchmarks.harness.rows import Row
from ramify.algos.losses import Objective
from ramify.algos.sft import SUPERVISED, NegativeLogLikelihood, demonstrated
from ramify.assemble.examples import run_examples, run_sft
from ramify.config.schema_examples import SftRecipe
from ramify.core.rank import Rank
from ramify.core.tree import Source, Tree, TreeKey, make_tree
from ramify.learner.parallel import Ranks
from ramify.learner.report import UpdateReport
from ramify.learner.update import Learner
from ramify.obs.console import RunConsole
from ramify.obs.metrics import read_metrics
from ramify.quickstart.evaluations import evaluate
from ramify.quickstart.example import eval_recipe, sft_recipe
from ramify.quickstart.world import make_example
from ramify.train.examples import RenderedExample, RowRenderer
from ramify.train.supervised import SupervisedTask, Update

_SEEDS = (0, 1)
_TEMPERATURES = {"sampled": 1.0, "greedy": 0.0}


def with_and_without() -> Sequence[Row]:
    """Row 16: one for each way to answer."""
    masked: dict[str, list[float]] = {way: [] for way in _TEMPERATURES}
    trained: dict[str, list[float]] = {way: [] for way in _TEMPERATURES}
    intervals: dict[str, str] = {}
    shares: list[float] = []
    for seed in _SEEDS:
        with tempfile.TemporaryDirectory() as folder:
            results, share = _one_seed(Path(folder), seed)
        shares.append(share)
        for name, (value, low, high) in results.items():
            what, way = name.split()
            (masked if what == "masked" else trained)[way].append(value)
            intervals[f"seed {seed}, {name}"] = f"{value:.3f} [{low:.3f}, {high:.3f}]"
    return [
        Row(
            f"16.{way}",
            f"pass@1 {way} after 1200 steps, 500 held-out problems: results masked / results trained on",
            sum(masked[way]) / len(_SEEDS),
            sum(trained[way]) / len(_SEEDS),
            sum(masked[way]) / sum(trained[way]),
            "none: a comparison",
            True,
            {"ours": masked[way], "peer": trained[way]},
            {"seeds": _SEEDS, "intervals": intervals, "share_of_tokens_that_are_trained_if_masked": shares},
        )
        for way in _TEMPERATURES
    ]


def _one_seed(folder: Path, seed: int) -> tuple[dict[str, tuple[float, float, float]], float]:
    """pass@1 with its interval by "masked sampled", and the share of tokens that masked demonstrations train on."""
    console, example = RunConsole(io.StringIO()), make_example(1, smoke=False)
    data = example.make_data(folder, seed, console)
    models = {}
    recipes = {}
    for what in ("masked", "unmasked"):
        recipe = sft_recipe(example, folder, seed, data)
        recipe = recipe.model_copy(update={"run": replace(recipe.run, dir=folder / what)})
        models[what] = (run_sft if what == "masked" else _run_unmasked)(recipe, console, Ranks(Rank()))
        for way, temperature in _TEMPERATURES.items():
            out = folder / "eval" / f"{what}-{way}"
            recipes[f"{what} {way}"] = eval_recipe(
                example, out, seed, models[what], data.test, data.passages, temperature
            )
    evaluations, _ = evaluate(recipes, console)
    steps = read_metrics(folder / "masked" / "metrics.jsonl")
    written, unique = (sum(row[f"tokens/{kind}"] or 0.0 for row in steps) for kind in ("written", "unique"))
    passed = {name: evaluation.pass_at(1) for name, evaluation in evaluations.items()}
    return {
        name: (interval.value, interval.low, interval.high) for name, interval in passed.items()
    }, written / unique


def _run_unmasked(recipe: SftRecipe, console: RunConsole, ranks: Ranks) -> Path:
    """`run_sft`, but for the trees."""
    return run_examples(recipe, console, _task, ranks)


def _task(rows: RowRenderer, examples: Sequence[RenderedExample]) -> SupervisedTask:
    def make_update(learner: Learner) -> Update:
        def update(indices: Sequence[int], step: int) -> UpdateReport:
            trees = [rows.trees(examples[index], TreeKey(step, slot)) for slot, index in enumerate(indices)]
            return learner.update([demonstrated(_unmasked(tree)) for (tree,) in trees])

        return update

    objective = Objective(NegativeLogLikelihood(), weighting=SUPERVISED)
    return SupervisedTask("SFT", len(examples), objective, make_update, lambda _: {})


def _unmasked(tree: Tree) -> Tree:
    """The tree with results that the policy is said to have written."""
    nodes = [
        replace(node, source=Source.POLICY, behavior_logprobs=(0.0,) * len(node.token_ids))
        if node.source is Source.TOOL
        else node
        for node in tree.nodes
    ]
    return make_tree(tree.problem, tree.key, nodes)


ROWS: Mapping[str, RowFunction] = {"16": with_and_without}
