"""Optimizer steps of every kind, the same on any number of ranks."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ramify.algos.dpo import DpoLoss
from ramify.algos.grpo import ClippedSurrogate
from ramify.algos.losses import Objective
from ramify.algos.sft import NegativeLogLikelihood, demonstrated
from ramify.assemble.algorithm import build_learning, build_objective
from ramify.config.load import load_recipe
from ramify.config.schema_train import TrainRecipe
from ramify.core.records import ScoredTree
from ramify.core.tree import Source
from ramify.learner.configs import ScheduleConfig
from ramify.learner.deal import Shares
from ramify.learner.learning import AnnotationRequest, annotate
from ramify.learner.pack import tree_rows
from ramify.learner.update import Learner
from ramify.train.supervised import prefer
from random_trees import credited, node, random_tree, sampled, some_rewards, supervised_credit, tree_of
from watched import MUON, WorkerPlan

RECIPES = Path(__file__).parents[2] / "recipes"
LOSSES = (
    "aepo_paper", "aepo", "arpo_hard", "arpo", "arpo_unbiased", "cispo", "dapo", "dr_grpo", "gppo", "grpo",
    "grpo_tis", "gspo", "node_value", "reinforce_pp", "rloo", "tree_grpo",
)  # fmt: skip
BATCHES = range(10)


@dataclass(frozen=True)
class Step:
    """What an optimizer step measured, and its whole gradients."""

    report: object
    gradients: dict
    weights: dict


def everything(ranks, folders, dtypes):
    """The steps of each kind in each type, and annotations."""
    return {dtype: all_steps(ranks, folders, dtype) for dtype in dtypes}, annotations(ranks, folders)


def all_steps(ranks, folders, dtype):
    """A step of each kind, by name."""
    plan = WorkerPlan(folders["policy"], dtype, reference=folders["reference"])
    steps = {}
    for number in BATCHES:
        steps[f"batch {number}"] = reinforced(ranks, plan, "arpo", number)
    for name in LOSSES:
        steps[name] = reinforced(ranks, plan, name, 7)
    steps["arpo, kl"] = reinforced(
        ranks, plan, "arpo", 7, ['algorithm.kl={coefficient=0.1, place="loss", estimator="k3"}']
    )
    steps["sft"] = demonstrations(ranks, plan)
    steps["dpo"] = pairs(ranks, plan)
    for name, dealt in DEALT.items():
        steps[name] = by_hand(ranks, plan, dealt)
    steps["untied"] = reinforced(ranks, replace(plan, folder=folders["untied"]), "arpo", 7)
    steps["lora"] = reinforced(ranks, replace(plan, lora=True), "grpo", 7)
    steps["lora, dpo"] = pairs(ranks, replace(plan, lora=True))
    steps["muon"] = reinforced(ranks, replace(plan, optimizer=MUON), "arpo", 7)
    steps["stages"] = reinforced(ranks, plan, "arpo", 7, token_budget=20)
    steps["copies"] = reinforced(ranks, replace(plan, copies=ranks.rank.size), "arpo", 7)
    layered = replace(plan, gather="by_layer")
    for name in ("arpo", "gspo", "grpo_tis"):
        steps[f"{name} by layer"] = reinforced(ranks, layered, name, 7)
    steps["stages by layer"] = reinforced(ranks, layered, "arpo", 7, token_budget=20)
    for gather in ("once", "by_layer"):
        again = replace(plan, gather=gather, recompute=True)
        steps[f"layers computed again, {gather}"] = reinforced(ranks, again, "arpo", 7, token_budget=60)
    steps["in the machine's memory"] = reinforced(ranks, replace(plan, offload=True), "grpo", 7)
    steps["dpo by layer"] = pairs(ranks, layered)
    steps["untied by layer"] = reinforced(
        ranks, replace(layered, folder=folders["untied"]), "arpo", 7, token_budget=60
    )
    return steps


def annotations(ranks, folders):
    """Old logprobs, entropies and reference logprobs of some trees."""
    learner = learner_of(
        ranks, WorkerPlan(folders["policy"], reference=folders["reference"]), NegativeLogLikelihood()
    )
    trees, rewards = batch(7, learner.model.config.vocab_size)
    scored = [ScoredTree(*pair) for pair in zip(trees, rewards, strict=True)]
    wanted = AnnotationRequest(old="recompute", entropies=True, ref_logprobs=True)
    return [tree.annotations for tree in annotate(learner, scored, wanted, temperature=0.8)]


def reinforced(ranks, plan, recipe, number, changes=(), token_budget=10_000):
    """A step of a recipe's algorithm on four trees."""
    small = ["model.device=cpu", "model.dtype=float32", f"model.path={plan.folder}", "engine={name='local'}"]
    if "entropy_advantage" in (RECIPES / f"{recipe}_reasoning_7b.toml").read_text():
        small.append("algorithm.entropy_advantage.source=behavior")
    sizes = ["learner.problems_per_minibatch=4", "rollout.problems_per_step=4"]
    path = RECIPES / f"{recipe}_reasoning_7b.toml"
    recipe = load_recipe(TrainRecipe, path, [*small, *sizes, *changes])
    # The logprobs of random trees are not the model's.
    loose = recipe.algorithm.model_copy(update={"max_mismatch": 1e9, "max_mismatch_kl": 1e9})
    recipe = recipe.model_copy(update={"algorithm": loose})
    learner = learner_of(ranks, plan, build_objective(recipe.algorithm), token_budget)
    learning = build_learning(recipe, learner, 1)
    trees, rewards = batch(number, learner.model.config.vocab_size)
    learned = learning.credit([ScoredTree(*pair) for pair in zip(trees, rewards, strict=True)])
    (report,) = learning.update(learned)
    return stepped(ranks, report)


def demonstrations(ranks, plan):
    learner = learner_of(ranks, plan, NegativeLogLikelihood())
    return stepped(ranks, learner.update([demonstrated(chain(number)) for number in range(5)]))


def pairs(ranks, plan):
    learner = learner_of(ranks, plan, DpoLoss(0.1))
    return stepped(ranks, prefer(learner, [pair(number) for number in range(3)]))


DEALT = {
    "3 rows against 1": lambda rows, size: [rows[:3], rows[3:], *[()] * (size - 2)],
    "all rows against none": lambda rows, size: [(), rows, *[()] * (size - 2)],
}


def by_hand(ranks, plan, dealt):
    """A step on four rows that are not dealt evenly."""
    learner = learner_of(ranks, plan, Objective(ClippedSurrogate(0.2, 0.28, None)), token_budget=40)
    trees = [credited_tree(number) for number in range(4)]
    rows = tree_rows(trees, 40, keep_dead=False, share_prefixes=True)
    assert len(rows) == 4
    parts = [tuple(rows)] if ranks.rank.size == 1 else [tuple(part) for part in dealt(rows, ranks.rank.size)]
    return stepped(ranks, learner._update(Shares(tuple(parts), 1.0), 100.0, None, None, None))


def credited_tree(number):
    tree = random_tree(np.random.default_rng(number), contexts=False)
    return credited([tree], [supervised_credit(tree)])[0]


def learner_of(ranks, plan, objective, token_budget=10_000):
    ranks.build(plan)
    return Learner(
        ranks,
        schedule=ScheduleConfig(),
        total_steps=10,
        objective=objective if isinstance(objective, Objective) else Objective(objective),
        temperature=1.0,
        max_grad_norm=1.0,
        token_budget=token_budget,
    )


def stepped(ranks, report):
    assert report.outcome == "stepped", report
    gradients, weights = ranks.all("gradients_of_step")[0], ranks.all("weights")[0]
    return Step(replace(report, unevenness=1.0), gradients, weights)


def batch(number, vocabulary):
    """Four trees with rewritten contexts and split turns, and their rewards."""
    rng = np.random.default_rng(number)
    typical = -np.log(vocabulary)
    trees = [sampled(rng, random_tree(rng, split_turns=True, contexts="fresh"), typical) for _ in range(4)]
    return trees, [some_rewards(rng, tree) for tree in trees]


def chain(number):
    written = np.random.default_rng(number).integers(2, 30, 3 + 2 * number)
    return tree_of([node((), Source.PROMPT, [3, 4]), node((0,), Source.POLICY, written, leaf=True)])


def pair(number):
    rng = np.random.default_rng(number)
    chosen, rejected = rng.integers(2, 30, 4 + number), rng.integers(2, 30, 3)
    sides = [node((i,), Source.POLICY, tokens, leaf=True) for i, tokens in enumerate((chosen, rejected))]
    return tree_of([node((), Source.PROMPT, [3, 4]), *sides])


def difference(step, reference):
    """The norm of the difference of two sets of gradients, over the norm of the first."""
    assert step.keys() == reference.keys()
    total = sum(float((value**2).sum()) for value in step.values())
    apart = sum(float(((value - reference[name]) ** 2).sum()) for name, value in step.items())
    return (apart / total) ** 0.5
