import asyncio
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch

from model_makers import annotations_of
from ramify.algos.corrections import ImportanceCorrection
from ramify.algos.grpo import ClippedSurrogate, GroupRelative
from ramify.algos.losses import Objective
from ramify.core.errors import TrainingError
from ramify.core.records import Reward
from ramify.core.tree import Source, StopReason
from ramify.learner.annotate import AnnotationRequest
from ramify.learner.configs import OptimizerConfig, ScheduleConfig
from ramify.learner.learning import Learning
from ramify.learner.parallel import single_process
from ramify.learner.update import Learner
from ramify.modeling.tiny import make_tiny_qwen3
from ramify.rewards.trajectory_rewards import score_tree
from random_trees import annotated, node, random_tree, tree_of, with_behavior


def tiny(seed=0):
    sizes = {"vocab_size": 50, "hidden": 32, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 8}
    return make_tiny_qwen3(
        **sizes, intermediate=48, rope_theta=100.0, context=128, eos_id=1, pad_id=0, seed=seed
    )


@pytest.fixture
def model():
    return tiny()


@pytest.fixture
def trees(model):
    """Four trees, sampled by the model as far as their logprobs say."""
    rng = np.random.default_rng(0)
    grown = [random_tree(rng, depth=3) for _ in range(4)]
    found = annotations_of(
        model, grown, AnnotationRequest(old="recompute"), reference=None, temperature=1.0, token_budget=10_000
    )
    return [
        with_behavior(
            tree,
            {n.id: notes[n.id].old_logprobs if n.id in notes else [] for n in tree.nodes},
        )
        for tree, notes in zip(grown, found, strict=True)
    ]


def learning(model, **changes):
    learner = Learner(
        single_process(model, OptimizerConfig(rate=0.01, weight_decay=0.0), changes.pop("reference", None)),
        schedule=ScheduleConfig(),
        total_steps=100,
        objective=changes.pop("objective", Objective(ClippedSurrogate(0.2, 0.2, None))),
        temperature=1.0,
        max_grad_norm=1.0,
        token_budget=10_000,
    )
    parts = {
        "learner": learner,
        "estimator": GroupRelative("repeat"),
        "correction": None,
        "masks_truncated": False,
        "wanted": AnnotationRequest(),
        "problems_per_minibatch": 2,
        "minibatches": 2,
        "temperature": 1.0,
        "max_mismatch": 1e-4,
    }
    return Learning(**(parts | changes))


def rewards_of(trees, *, dead=()):
    rng = np.random.default_rng(1)
    return [
        [Reward(0.5 if i in dead else float(rng.random()), {}) for _ in tree.trajectories]
        for i, tree in enumerate(trees)
    ]


def step(run, trees, rewards):
    return run.update(run.credit([annotated(*one) for one in zip(trees, rewards, strict=True)]))


def passes(model, run, trees, rewards):
    calls = []
    handle = model.base_model.register_forward_hook(lambda *_: calls.append(1))
    reports = step(run, trees, rewards)
    handle.remove()
    return len(calls), reports


def test_nothing_is_computed_twice_and_dead_trees_not_at_all(model, trees):
    count, reports = passes(model, learning(model), trees, rewards_of(trees))
    assert count == len(reports) == 2
    fresh = tiny()
    count, reports = passes(fresh, learning(fresh), trees, rewards_of(trees, dead=(0, 1)))
    assert count == 1
    assert [report.outcome for report in reports] == ["empty", "stepped"]


def test_old_logprobs_are_recomputed_once_for_all_mini_batches(model, trees):
    far = [with_behavior(t, {n.id: [x - 0.4 for x in n.behavior_logprobs] for n in t.nodes}) for t in trees]
    run = learning(model, wanted=AnnotationRequest(old="recompute"), max_mismatch=None)
    count, reports = passes(model, run, far, rewards_of(far))
    assert count == 1 + 2
    assert reports[0].mismatch_mean == pytest.approx(0.4, abs=1e-4)
    assert reports[0].metrics["clip_fraction"] == 0
    run = learning(tiny(), max_mismatch=1.0)
    assert step(run, far, rewards_of(far))[0].metrics["clip_fraction"] > 0.2


def test_the_mismatch_is_looked_at_until_the_weights_change(model, trees):
    far = [with_behavior(t, {n.id: [x - 0.4 for x in n.behavior_logprobs] for n in t.nodes}) for t in trees]
    with pytest.raises(TrainingError, match=r"differ from the learner's by 0\.4 nats"):
        step(learning(model), far, rewards_of(far))
    with pytest.raises(TrainingError, match=r"differ from the learner's by 0\.4 nats"):
        step(learning(model), far, rewards_of(far, dead=(0, 1)))
    mixed = [*trees[:2], *far[2:]]
    reports = step(learning(model), mixed, rewards_of(mixed))
    assert [report.outcome for report in reports] == ["stepped", "stepped"]
    assert reports[1].mismatch_mean > 0.3


def test_the_reference_model_is_asked_only_where_something_reads_it(model, trees):
    reference = tiny(1)
    calls = []
    reference.base_model.register_forward_hook(lambda *_: calls.append(1))

    @contextmanager
    def opened():
        yield reference

    step(learning(model, reference=opened), trees, rewards_of(trees))
    assert not calls
    step(
        learning(tiny(), reference=opened, wanted=AnnotationRequest(ref_logprobs=True)),
        trees,
        rewards_of(trees),
    )
    assert len(calls) == 1


def test_what_importance_weights_did_is_reported(model, trees):
    far = [with_behavior(t, {n.id: [x - 0.4 for x in n.behavior_logprobs] for n in t.nodes}) for t in trees]
    wanted = {"wanted": AnnotationRequest(old="recompute"), "max_mismatch": None}
    truncate = ImportanceCorrection("token", "truncate", 1.2, None)
    report = step(learning(model, correction=truncate, **wanted), far, rewards_of(far))[0]
    assert report.metrics["weight_mean"] == pytest.approx(1.2)
    assert report.metrics["weight_bounded"] == 1
    mask = ImportanceCorrection("token", "mask", 2.0, None)
    report = step(learning(tiny(), correction=mask, **wanted), far, rewards_of(far))[0]
    assert report.metrics["weight_mean"] == pytest.approx(np.exp(0.4), rel=1e-4)
    assert report.metrics["weight_bounded"] == 0
    mask = ImportanceCorrection("token", "mask", 1.2, None)
    reports = step(learning(tiny(), correction=mask, **wanted), far, rewards_of(far))
    assert [r.outcome for r in reports] == ["empty", "empty"]
    assert reports[0].metrics["weight_bounded"] == 1


def test_masked_trajectories_carry_no_loss(model, trees):
    cut = [
        replace(t, nodes=tuple(replace(n, stop=n.stop and type(n.stop).TOKENS) for n in t.nodes))
        for t in trees
    ]
    assert all(t.stop.truncated for tree in cut for t in tree.trajectories)
    reports = step(learning(model, masks_truncated=True), cut, rewards_of(cut))
    assert [report.outcome for report in reports] == ["empty", "empty"]
    assert [r.outcome for r in step(learning(model), cut, rewards_of(cut))] == ["stepped", "stepped"]


def group_of(*ends):
    """A flat group whose trajectories are right, wrong, or in a world that failed, scored as a run scores them."""
    roots = [
        replace(
            node((i,), Source.POLICY, [5 + i, 7], leaf=True),
            stop=StopReason.FAILED if end == "failed" else StopReason.ANSWERED,
        )
        for i, end in enumerate(ends)
    ]

    class ByEnd:
        async def score(self, trajectories):
            return [Reward(float(end == "right"), {}) for end in ends]

    return asyncio.run(score_tree(ByEnd(), tree_of([node((), Source.PROMPT, [5]), *roots])))


def learned_from(*groups):
    """Advantages, reports, and the weights after learning from these groups."""
    model = tiny()
    run = learning(model, max_mismatch=None, wanted=AnnotationRequest(old="recompute"))
    trees = run.credit(groups)
    reports = run.update(trees)
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    return [[a.tolist() for a in tree.advantages] for tree in trees], reports, weights


def test_a_world_that_failed_teaches_nothing_to_a_group_that_is_all_right():
    advantages, (report,), weights = learned_from(group_of("right", "right", "right", "failed"))
    assert advantages == [[[0.0, 0.0]] * 3]
    assert (report.outcome, report.grad_norm) == ("empty", 0.0)
    assert torch.equal(weights, learned_from()[2])


def test_a_group_with_a_failed_world_trains_like_the_group_without_it():
    advantages, (report,), weights = learned_from(group_of("right", "wrong", "failed"))
    wanted, (other,), expected = learned_from(group_of("right", "wrong"))
    assert advantages == wanted
    assert (report.loss, report.grad_norm) == (other.loss, other.grad_norm)
    assert report.grad_norm > 0.01
    assert torch.equal(weights, expected)


@pytest.mark.parametrize("ends", [("failed", "failed"), ("failed", "right"), ("wrong", "failed")])
def test_fewer_than_two_that_count_teach_nothing(ends):
    advantages, reports, weights = learned_from(group_of(*ends))
    assert advantages == [[[0.0, 0.0]]] * (len(set(ends)) - 1)
    assert [report.outcome for report in reports] == ["empty"] * len(advantages)
    assert torch.equal(weights, learned_from()[2])


def test_mini_batches_hold_whole_trees_and_their_own_denominators(model, trees):
    """At rate 0 the two halves' gradients, times their denominators, add up to that of all four trees."""
    found = []
    for size in (4, 2):
        run = learning(tiny(), problems_per_minibatch=size)
        caught = []
        run.learner.optimizers._optimizers[0].register_step_pre_hook(
            lambda *_, m=run.learner.model, c=caught: c.append(
                torch.cat([p.grad.flatten().clone() for p in m.parameters()])
            )
        )
        for group in run.learner.optimizers._optimizers[0].param_groups:
            group["lr"] = 0.0
        run.learner.optimizers._rates = [(g, 0.0) for g, _ in run.learner.optimizers._rates]
        run.learner._max_grad_norm = 1e9
        step(run, trees, rewards_of(trees))
        sizes = [
            sum(t.num_written for tree in trees[i : i + size] for t in tree.trajectories)
            for i in range(0, 4, size)
        ]
        found.append(sum(g * n for g, n in zip(caught, sizes, strict=True)))
    assert (found[0] - found[1]).norm() < 1e-5 * found[0].norm()


def test_the_schedule_goes_by_steps_of_the_run(model, trees):
    run = learning(model)
    step(run, trees[:2], rewards_of(trees[:2]))
    assert run.learner.step == 1
    run.end_step(1)
    assert run.learner.step == 2
    run.end_step(2)
    assert run.learner.step == 4


def test_after_a_step_that_was_not_taken_the_next_is_checked_too(model, trees):
    """The weights are still those that sampled."""
    far = [
        with_behavior(t, {n.id: [x - 0.4 for x in n.behavior_logprobs] for n in t.nodes}) for t in trees[2:]
    ]
    rewards = rewards_of(trees)
    for group in rewards[:2]:
        group[:] = [Reward(3e38 * each.value, {}) for each in group]
    run = learning(model, estimator=GroupRelative("repeat", scale="none"))
    with pytest.raises(TrainingError, match="differ from the learner's"):
        step(run, [*trees[:2], *far], rewards)
    assert run.learner.skipped_in_a_row == 1
