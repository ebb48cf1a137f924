"""Steps on numbers that are not numbers, and on trajectories that wrote nothing."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from model_makers import tiny
from ramify.algos.aepo import StopGradientClip
from ramify.algos.credit import Weighting, credit, denominator, path_credit
from ramify.algos.grpo import ClippedSurrogate, GroupRelative
from ramify.algos.kl import EntropyBonus, KlPenalty
from ramify.algos.losses import CispoSurrogate, GppoSurrogate, GspoSurrogate, Objective
from ramify.core.records import Reward, behavior_annotations
from ramify.core.tree import Source
from ramify.learner.configs import OptimizerConfig, ScheduleConfig
from ramify.learner.pack import pack
from ramify.learner.parallel import single_process
from ramify.learner.update import Learner
from random_trees import annotated, credited, node, training, tree_of

SURROGATES = {
    "clip": ClippedSurrogate(0.2, 0.28, 3.0),
    "aepo_clip": StopGradientClip(0.2, 0.28, 3.0),
    "gppo": GppoSurrogate(0.2, 0.28),
    "cispo": CispoSurrogate(clip_low=None, clip_high=0.28),
    "gspo": GspoSurrogate(3e-4, 4e-4),
}
WEIGHTINGS = (
    Weighting(),
    Weighting("split"),
    Weighting("mass", aggregation="sequence_mean"),
    Weighting("split", "hard", "sequence_mean"),
    Weighting(aggregation="fixed_length", fixed_length=8),
)


def learner(model, surrogate, penalties=()):
    return Learner(
        single_process(model, OptimizerConfig(rate=0.01, weight_decay=0.0)),
        schedule=ScheduleConfig(),
        total_steps=10,
        objective=Objective(surrogate, penalties),
        temperature=1.0,
        max_grad_norm=1.0,
        token_budget=10_000,
    )


def tree_with_empty_leaves():
    """Four trajectories: nothing written; nothing after a result; two ordinary ones."""
    return tree_of(
        [
            node((), Source.PROMPT, [5, 6, 7]),
            node((0,), Source.POLICY, [], leaf=True),
            node((1,), Source.POLICY, [8, 9]),
            node((1, 0), Source.TOOL, [10]),
            node((1, 0, 0), Source.POLICY, [], leaf=True),
            node((1, 0, 1), Source.POLICY, [11, 12, 13], leaf=True),
            node((2,), Source.POLICY, [14], leaf=True),
        ]
    )


def step_on(tree, model, surrogate, weighting, penalties=()):
    """One update with rewards 1, 2, 3, .. and reference logprobs of -2."""
    rewards = [Reward(float(i + 1), {}) for i in range(len(tree.trajectories))]
    advantages = GroupRelative(weighting.shared).advantages(annotated(tree, rewards), ())
    notes = {
        key: replace(note, ref_logprobs=np.full(len(note.old_logprobs), -2.0))
        for key, note in behavior_annotations(tree).items()
    }
    rows = pack(
        credited([tree], [credit(training(tree, advantages), weighting)], [notes]),
        1000,
        keep_dead=bool(penalties),
    )
    objective = learner(model, surrogate, penalties)
    paths = path_credit([training(tree, advantages)], weighting) if surrogate == SURROGATES["gspo"] else None
    return objective.update_rows(rows, denominator([tree], weighting), paths)


@pytest.mark.parametrize("name", SURROGATES)
def test_logprobs_of_the_policy_that_are_no_numbers_change_nothing(name):
    model = tiny()
    with torch.no_grad():
        model.get_input_embeddings().weight[9] = float("nan")
    before = [p.detach().clone() for p in model.parameters()]
    weighting = Weighting(aggregation="sequence_mean")
    report = step_on(tree_with_empty_leaves(), model, SURROGATES[name], weighting)
    assert report.outcome == "non_finite"
    for now, then in zip(model.parameters(), before, strict=True):
        torch.testing.assert_close(now, then, rtol=0, atol=0, equal_nan=True)
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("weighting", WEIGHTINGS, ids=str)
@pytest.mark.parametrize("name", [name for name in SURROGATES if name != "gspo"])
def test_trajectories_that_wrote_nothing_count_and_train_nothing(name, weighting):
    penalties = (KlPenalty("k3", 0.1), EntropyBonus(0.1))
    report = step_on(tree_with_empty_leaves(), tiny(), SURROGATES[name], weighting, penalties)
    assert report.outcome == "stepped"
    assert report.num_written == 6
    assert np.isfinite([report.loss, report.grad_norm, *report.metrics.values()]).all()


def test_a_ratio_of_whole_trajectories_skips_those_that_wrote_nothing():
    weighting = Weighting(aggregation="sequence_mean")
    report = step_on(tree_with_empty_leaves(), tiny(), SURROGATES["gspo"], weighting)
    assert report.outcome == "stepped"
    assert 0 < report.metrics["clip_fraction"] <= 3 / 4


@pytest.mark.parametrize("weighting", WEIGHTINGS, ids=str)
def test_a_tree_in_which_nothing_was_written_is_an_empty_step(weighting):
    tree = tree_of(
        [
            node((), Source.PROMPT, [5, 6]),
            node((0,), Source.POLICY, [], leaf=True),
            node((1,), Source.POLICY, [], leaf=True),
        ]
    )
    report = step_on(tree, tiny(), SURROGATES["clip"], weighting, (EntropyBonus(0.1),))
    assert (report.outcome, report.loss, report.num_written) == ("empty", 0.0, 0)
