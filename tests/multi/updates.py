"""Optimizer steps of every kind, the same on any number of ranks."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

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
from random_trees import (
    credited,
    node,
    random_tree,
    sampled,
    some_rewards,
    supervised_credit,
    tree_of,
)
from watched import MUON, Made

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


def all_steps(ranks, folders, dtype):
    """A step of each kind, by name."""
    made = Made(folders["policy"], dtype, reference=folders["reference"])
    found = {}
    for number in BATCHES:
        found[f"batch {number}"] = reinforced(ranks, made, "arpo", number)
    for name in LOSSES:
        found[name] = reinforced(ranks, made, name, 7)
    found["arpo, kl"] = reinforced(
        ranks, made, "arpo", 7, ['algorithm.kl={coefficient=0.1, place="loss", estimator="k3"}']
    )
    found["sft"] = demonstrations(ranks, made)
    found["dpo"] = pairs(ranks, made)
    for name, dealt in DEALT.items():
        found[name] = by_hand(ranks, made, dealt)
    found["untied"] = reinforced(ranks, replace(made, folder=folders["untied"]), "arpo", 7)
    found["lora"] = reinforced(ranks, replace(made, lora=True), "grpo", 7)
    found["lora, dpo"] = pairs(ranks, replace(made, lora=True))
    found["muon"] = reinforced(ranks, replace(made, optimizer=MUON), "arpo", 7)
    found["stages"] = reinforced(ranks, made, "arpo", 7, token_budget=20)
    found["copies"] = reinforced(ranks, replace(made, copies=ranks.rank.size), "arpo", 7)
    layered = replace(made, gather="by_layer")
    for name in ("arpo", "gspo", "grpo_tis"):
        found[f"{name} by layer"] = reinforced(ranks, layered, name, 7)
    found["stages by layer"] = reinforced(ranks, layered, "arpo", 7, token_budget=20)
    for gather in ("once", "by_layer"):
        again = replace(made, gather=gather, recompute=True)
        found[f"layers computed again, {gather}"] = reinforced(ranks, again, "arpo", 7, token_budget=60)
    found["in the machine's memory"] = reinforced(ranks, replace(made, offload=True), "grpo", 7)
    found["dpo by layer"] = pairs(ranks, layered)
    found["untied by layer"] = reinforced(
        ranks, replace(layered, folder=folders["untied"]), "arpo", 7, token_budget=60
    )
    return found


def annotations(ranks, folders):
    """Old logprobs, entropies and reference logprobs of some trees."""
    learner = learner_of(
        ranks, Made(folders["policy"], reference=folders["reference"]), NegativeLogLikelihood()
    )
    trees, rewards = batch(7, learner.model.config.vocab_size)
    scored = [ScoredTree(*one) for one in zip(trees, rewards, strict=True)]
    wanted = AnnotationRequest(old="recompute", entropies=True, ref_logprobs=True)
    return [tree.annotations for tree in annotate(learner, scored, wanted, temperature=0.8)]


def reinforced(ranks, made, recipe, number, changes=(), token_budget=10_000):
    """A step of a recipe's algorithm on four trees."""
    small = ["model.device=cpu", "model.dtype=float32", f"model.path={made.folder}", "engine={name='local'}"]
    if "entropy_advantage" in (RECIPES / f"{recipe}_reasoning_7b.toml").read_text():
        small.append("algorithm.entropy_advantage.source=behavior")
    sizes = ["learner.problems_per_minibatch=4", "rollout.problems_per_step=4"]
    path = RECIPES / f"{recipe}_reasoning_7b.toml"
    recipe = load_recipe(TrainRecipe, path, [*small, *sizes, *changes])
    # The logprobs of random trees are not the model's.
    loose = recipe.algorithm.model_copy(update={"max_mismatch": 1e9, "max_mismatch_kl": 1e9})
    recipe = recipe.model_copy(update={"algorithm": loose})
    learner = learner_of(ranks, made, build_objective(recipe.algorithm), token_budget)
    learning = build_learning(recipe, learner, 1)
    trees, rewards = batch(number, learner.model.config.vocab_size)
    learned = learning.credit([ScoredTree(*one) for one in zip(trees, rewards, strict=True)])
    (report,) = learning.update(learned)
    return stepped(ranks, report)


def demonstrations(ranks, made):
    learner = learner_of(ranks, made, NegativeLogLikelihood())
    return stepped(ranks, learner.update([demonstrated(chain(number)) for number in range(5)]))


def pairs(ranks, made):
    learner = learner_of(ranks, made, DpoLoss(0.1))
    return stepped(ranks, prefer(learner, [pair(number) for number in range(3)]))


DEALT = {
    "3 rows against 1": lambda rows, size: [rows[:3], rows[3:], *[()] * (size - 2)],
    "all rows against none": lambda rows, size: [(), rows, *[()] * (size - 2)],
}


def by_hand(ranks, made, dealt):
    """A step on four rows that are not dealt evenly."""
    learner = learner_of(ranks, made, Objective(ClippedSurrogate(0.2, 0.28, None)), token_budget=40)
    trees = [credited_tree(number) for number in range(4)]
    rows = tree_rows(trees, 40, keep_dead=False, share_prefixes=True)
    assert len(rows) == 4
    given = [tuple(rows)] if ranks.rank.size == 1 else [tuple(part) for part in dealt(rows, ranks.rank.size)]
    return stepped(ranks, learner._update(Shares(tuple(given), 1.0), 100.0, None, None, None))


def credited_tree(number):
    tree = random_tree(np.random.default_rng(number), contexts=False)
    return credited([tree], [supervised_credit(tree)])[0]


def learner_of(ranks, made, objective, token_budget=10_000):
    ranks.build(made)
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
    return tree_of(
        [
            node((), Source.PROMPT, [3, 4]),
            node((0,), Source.POLICY, chosen, leaf=True),
            node((1,), Source.POLICY, rejected, leaf=True),
        ]
    )


def difference(one, other):
    """The norm of the difference of two sets of gradients, over the norm of the first."""
    assert one.keys() == other.keys()
    total = sum(float((value**2).sum()) for value in one.values())
    apart = sum(float(((value - other[name]) ** 2).sum()) for name, value in one.items())
    return (apart / total) ** 0.5


def close(one, other, bound):
    """Whether all numbers of two reports agree."""
    return torch.allclose(torch.tensor(one.loss), torch.tensor(other.loss), rtol=bound, atol=bound)
