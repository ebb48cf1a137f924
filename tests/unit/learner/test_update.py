from dataclasses import replace

import numpy as np
import pytest
import torch

import build
from ramify.algos.aepo import StopGradientClip
from ramify.algos.credit import Weighting, credit, denominator, path_credit
from ramify.algos.grpo import ClippedSurrogate, GroupRelative
from ramify.algos.kl import EntropyBonus, KlPenalty
from ramify.algos.losses import CispoSurrogate, GppoSurrogate, GspoSurrogate, Objective
from ramify.algos.sft import NegativeLogLikelihood
from ramify.core.errors import DataError, TrainingError
from ramify.core.records import Reward, behavior_annotations
from ramify.core.tree import Source
from ramify.learner.configs import ScheduleConfig
from ramify.learner.pack import pack
from ramify.learner.update import MAX_SKIPPED_IN_A_ROW
from random_trees import (
    annotated,
    credited,
    node,
    random_advantages,
    random_tree,
    supervised_credit,
    training,
    tree_of,
    with_behavior,
)

SURROGATE = ClippedSurrogate(0.2, 0.2, 3.0)


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()]).clone()


def on_policy(model, seed=0):
    """A tree whose behavior logprobs are the model's own, its credit and its rows."""
    rng = np.random.default_rng(seed)
    tree = random_tree(rng, contexts=False)
    learner = build.learner(model, SURROGATE)
    (logprobs,) = learner.logprobs(pack(credited([tree], [supervised_credit(tree)]), 1000))
    written = [n for n in tree.nodes if n.source is Source.POLICY]
    cuts = np.cumsum([len(n.token_ids) for n in written])[:-1]
    tree = with_behavior(
        tree, {n.id: part for n, part in zip(written, np.split(logprobs, cuts), strict=True)}
    )
    credits = credit(training(tree, random_advantages(rng, tree)), Weighting())
    return pack(credited([tree], [credits]), 1000), denominator([tree], Weighting())


def test_on_policy_nothing_is_clipped_and_there_is_no_mismatch():
    model = build.tiny_model()
    rows, total = on_policy(model)
    report = build.learner(model, SURROGATE).update_rows(rows, total)
    assert report.outcome == "stepped"
    assert report.mismatch_max < 1e-5
    assert report.metrics["clip_fraction"] == 0
    assert 0 < report.entropy < np.log(50)
    assert report.num_written == len(rows[0].written)
    assert report.num_tokens == len(rows[0].token_ids)
    signed = (rows[0].s_plus + rows[0].s_minus).sum()
    assert report.loss == pytest.approx(-signed / total, rel=1e-5)


def test_second_update_on_the_same_rows_is_off_policy():
    model = build.tiny_model()
    rows, total = on_policy(model)
    learner = build.learner(model, SURROGATE)
    reports = [learner.update_rows(rows, total) for _ in range(8)]
    assert reports[-1].mismatch_mean > 0.01
    assert reports[-1].loss < reports[0].loss
    assert reports[-1].metrics["clip_fraction"] > 0


def test_a_share_of_clipped_credit_counts_a_token_once_for_each_of_its_trajectories():
    model = build.tiny_model()
    rows, total = on_policy(model)
    (row,) = rows
    assert row.num_paths.max() > 1
    credit = row.s_plus - row.s_minus + row.num_paths
    off = replace(row, old_logprobs=row.old_logprobs - 0.4, s_plus=credit, s_minus=0 * credit)
    report = build.learner(model, SURROGATE).update_rows((off,), total)
    assert report.metrics["clip_fraction"] == pytest.approx(1.0)


def test_gradients_are_clipped_to_the_norm():
    model = build.tiny_model()
    rows, total = on_policy(model)
    norms = []
    for bound in (1e9, 1e-3):
        learner = build.learner(build.tiny_model(), SURROGATE, max_grad_norm=bound)
        learner.optimizers._optimizers[0].register_step_pre_hook(
            lambda *_, used=learner: norms.append(
                torch.nn.utils.get_total_norm(p.grad for p in used.model.parameters())
            )
        )
        report = learner.update_rows(rows, total)
    assert norms[0].item() == pytest.approx(report.grad_norm, rel=1e-5)
    assert norms[1].item() == pytest.approx(1e-3, rel=1e-3)


def test_no_rows_no_step_but_the_schedule_goes_on():
    model = build.tiny_model()
    before = weights(model)
    learner = build.learner(model, SURROGATE, schedule=ScheduleConfig(warmup_steps=4))
    assert learner.update_rows((), 10.0).outcome == "empty"
    assert torch.equal(before, weights(model))
    assert learner.update_rows((), 10.0).lr_factor == 0.5


def test_non_finite_steps_are_skipped_and_ten_in_a_row_end_the_run():
    model = build.tiny_model()
    rows, total = on_policy(model)
    broken = (replace(rows[0], s_plus=np.full_like(rows[0].s_plus, np.inf)),)
    before = weights(model)
    learner = build.learner(model, SURROGATE)
    for _ in range(MAX_SKIPPED_IN_A_ROW - 1):
        assert learner.update_rows(broken, total).outcome == "non_finite"
    assert torch.equal(before, weights(model))
    assert all(p.grad is None for p in model.parameters())
    assert learner.update_rows(rows, total).outcome == "stepped"
    assert not torch.equal(before, weights(model))
    for _ in range(MAX_SKIPPED_IN_A_ROW - 1):
        learner.update_rows(broken, total)
    with pytest.raises(TrainingError, match="not finite in 10 optimizer steps in a row"):
        learner.update_rows(broken, total)


def test_a_learner_that_somebody_else_watches_goes_on_however_often_a_step_is_not_finite():
    model = build.tiny_model()
    rows, total = on_policy(model)
    broken = (replace(rows[0], s_plus=np.full_like(rows[0].s_plus, np.inf)),)
    learner = build.learner(model, SURROGATE, max_skipped_in_a_row=None)
    for _ in range(MAX_SKIPPED_IN_A_ROW + 2):
        assert learner.update_rows(broken, total).outcome == "non_finite"
    assert learner.skipped_in_a_row == MAX_SKIPPED_IN_A_ROW + 2


def test_temperature_divides_the_logits():
    model = build.tiny_model()
    tree = tree_of([node((), Source.PROMPT, [2, 3]), node((0,), Source.POLICY, [7, 8], leaf=True)])
    rows = pack(credited([tree], [supervised_credit(tree)]), 100)
    with torch.no_grad():
        logits = model(torch.tensor([[2, 3, 7, 8]]), use_cache=False).logits[0, 1:3]
    for temperature in (1.0, 0.5):
        (logprobs,) = build.learner(model, SURROGATE, temperature=temperature).logprobs(rows)
        expected = torch.log_softmax(logits / temperature, -1)[[0, 1], [7, 8]]
        assert logprobs == pytest.approx(expected.numpy(), abs=1e-5)


def test_mismatch_is_told_and_its_kl_has_a_limit():
    """The estimate is the mean of r - 1 - d over ratios r = e^d; half of the tokens are off by 0.4."""
    model = build.tiny_model()
    rows, total = on_policy(model)
    written = len(rows[0].written)
    shift = np.where(np.arange(written) % 2, 0.4, 0.0)
    off = [replace(rows[0], behavior_logprobs=rows[0].behavior_logprobs - shift), *rows[1:]]
    count = sum(len(row.written) for row in rows)
    expected = (np.exp(0.4) - 1.4) * (shift > 0).sum() / count
    report = build.learner(model, SURROGATE).update_rows(off, total, max_kl=expected * 1.1)
    assert report.mismatch_kl == pytest.approx(expected, rel=1e-3)
    assert report.mismatch_p99 == pytest.approx(0.4, abs=1e-4)
    with pytest.raises(TrainingError, match=r"KL .* more than algorithm\.max_mismatch_kl = 0\.001"):
        build.learner(model, SURROGATE).update_rows(off, total, max_kl=1e-3)


def test_a_mismatch_above_the_limit_stops_before_the_step():
    model = build.tiny_model()
    rows, total = on_policy(model)
    off = (replace(rows[0], behavior_logprobs=rows[0].behavior_logprobs - 0.3),)
    before = weights(model)
    with pytest.raises(TrainingError, match=r"by 0\.3 nats a token .*max_mismatch = 0\.0001"):
        build.learner(model, SURROGATE).update_rows(off, total, max_mismatch=1e-4)
    assert torch.equal(before, weights(model))
    report = build.learner(model, SURROGATE).update_rows(off, total, max_mismatch=0.31)
    assert report.mismatch_mean == pytest.approx(0.3, abs=1e-5)


def test_the_effective_sample_size_counts_whole_trajectories():
    """Two trajectories whose weights pi / mu are e^x and 1: (e^x + 1)^2 / (e^2x + 1) / 2."""
    model = build.tiny_model()
    tree = tree_of(
        [
            node((), Source.PROMPT, [2, 3]),
            node((0,), Source.POLICY, [7, 8], leaf=True),
            node((1,), Source.POLICY, [9], leaf=True),
        ]
    )
    credits = supervised_credit(tree)
    learner = build.learner(model, NegativeLogLikelihood())
    (row,) = pack(credited([tree], [credits]), 100)
    (logprobs,) = learner.logprobs([row])
    shifted = replace(row, behavior_logprobs=logprobs - np.array([0.5, 0.25, 0.0]))
    whole = build.learner(build.tiny_model(), NegativeLogLikelihood()).update_rows([shifted], 3.0)
    x = 0.75
    assert whole.mismatch_ess == pytest.approx((np.exp(x) + 1) ** 2 / (np.exp(2 * x) + 1) / 2, rel=1e-4)
    exact = replace(row, behavior_logprobs=logprobs)
    assert learner.update_rows([exact], 3.0).mismatch_ess == pytest.approx(1.0, abs=1e-6)


def test_a_tree_in_stages_takes_the_same_step():
    reports, stepped = [], []
    for budget in (1000, 12):
        model = build.tiny_model()
        rng = np.random.default_rng(4)
        tree = random_tree(rng, depth=4)
        credits = credit(training(tree, random_advantages(rng, tree)), Weighting())
        rows = pack(credited([tree], [credits]), budget)
        reports.append(build.learner(model, SURROGATE).update_rows(rows, denominator([tree], Weighting())))
        stepped.append(weights(model))
    whole, split = reports
    assert split.num_repeated == whole.num_repeated == 0
    assert split.num_tokens == whole.num_tokens
    assert split.num_written == whole.num_written
    assert split.loss == pytest.approx(whole.loss, rel=1e-5)
    assert split.grad_norm == pytest.approx(whole.grad_norm, rel=1e-4)
    assert split.mismatch_ess == pytest.approx(whole.mismatch_ess, rel=1e-5)
    assert (stepped[0] - stepped[1]).abs().max() < 2e-4


def test_a_context_longer_than_the_models_is_refused():
    tree = tree_of([node((), Source.PROMPT, [2] * 100), node((0,), Source.POLICY, [7] * 29, leaf=True)])
    model = build.tiny_model()
    before = weights(model)
    with pytest.raises(DataError, match="a context of 129 tokens is longer than the model's 128"):
        build.learner(model, SURROGATE).update_rows(
            pack(credited([tree], [supervised_credit(tree)]), 100), 29.0
        )
    assert torch.equal(before, weights(model))


def test_a_forward_pass_that_gives_no_numbers_is_skipped_and_not_taken_for_a_mismatch():
    model = build.tiny_model()
    rows, total = on_policy(model)
    with torch.no_grad():
        model.get_output_embeddings().weight[3, 0] = torch.nan
    report = build.learner(model, SURROGATE).update_rows(rows, total, max_mismatch=1e-4)
    assert report.outcome == "non_finite"


def test_scores_are_those_of_a_plain_pass():
    model = build.tiny_model()
    learner = build.learner(model, SURROGATE, temperature=0.7)
    ids = [3, 9, 33, 48, 1, 12, 7, 7, 40]
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0, :-1]
    plain = torch.log_softmax(logits, -1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    np.testing.assert_allclose(learner.score(ids), plain.numpy(), atol=1e-5, rtol=0)


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
    learner = build.learner(model, Objective(surrogate, penalties))
    paths = path_credit([training(tree, advantages)], weighting) if surrogate == SURROGATES["gspo"] else None
    return learner.update_rows(rows, denominator([tree], weighting), paths)


@pytest.mark.parametrize("name", SURROGATES)
def test_logprobs_of_the_policy_that_are_no_numbers_change_nothing(name):
    model = build.tiny_model()
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
    report = step_on(tree_with_empty_leaves(), build.tiny_model(), SURROGATES[name], weighting, penalties)
    assert report.outcome == "stepped"
    assert report.num_written == 6
    assert np.isfinite([report.loss, report.grad_norm, *report.metrics.values()]).all()


def test_a_ratio_of_whole_trajectories_skips_those_that_wrote_nothing():
    weighting = Weighting(aggregation="sequence_mean")
    report = step_on(tree_with_empty_leaves(), build.tiny_model(), SURROGATES["gspo"], weighting)
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
    report = step_on(tree, build.tiny_model(), SURROGATES["clip"], weighting, (EntropyBonus(0.1),))
    assert (report.outcome, report.loss, report.num_written) == ("empty", 0.0, 0)
