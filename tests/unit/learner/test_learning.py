import asyncio
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch

import build
from ramify.algos.corrections import ImportanceCorrection
from ramify.algos.grpo import ClippedSurrogate, GroupRelative
from ramify.algos.sft import NegativeLogLikelihood
from ramify.core.errors import TrainingError
from ramify.core.records import Reward
from ramify.core.tree import Source, StopReason
from ramify.learner.learning import AnnotationRequest, annotate
from ramify.learner.pack import pack
from ramify.rewards.trajectory_rewards import score_tree
from random_trees import annotated, credited, node, random_tree, supervised_credit, tree_of, with_behavior


def annotations_of(model, trees, wanted, *, reference=None, temperature=1.0, token_budget=10_000):
    """The annotations of each tree, of one pass."""
    learner = build.learner(model, reference=reference, token_budget=token_budget)
    results = annotate(learner, [annotated(tree) for tree in trees], wanted, temperature=temperature)
    return [tree.annotations for tree in results]


@pytest.fixture
def model():
    return build.tiny_model()


@pytest.fixture
def trees(model):
    """Four trees, sampled by the model as far as their logprobs say."""
    rng = np.random.default_rng(0)
    grown = [random_tree(rng, depth=3) for _ in range(4)]
    notes_by_tree = annotations_of(
        model, grown, AnnotationRequest(old="recompute"), reference=None, temperature=1.0, token_budget=10_000
    )
    return [
        with_behavior(
            tree,
            {n.id: notes[n.id].old_logprobs if n.id in notes else [] for n in tree.nodes},
        )
        for tree, notes in zip(grown, notes_by_tree, strict=True)
    ]


def learning(model, **changes):
    loss = ClippedSurrogate(0.2, 0.2, None)
    learner = build.learner(model, loss, reference=changes.pop("reference", None))
    defaults = {"problems_per_minibatch": 2, "minibatches": 2, "max_mismatch": 1e-4}
    return build.learning(learner, **(defaults | changes))


def rewards_of(trees, *, dead=()):
    rng = np.random.default_rng(1)
    return [
        [Reward(0.5 if i in dead else float(rng.random()), {}) for _ in tree.trajectories]
        for i, tree in enumerate(trees)
    ]


def step(run, trees, rewards):
    return run.update(run.credit([annotated(*pair) for pair in zip(trees, rewards, strict=True)]))


def passes(model, run, trees, rewards):
    calls = []
    handle = model.base_model.register_forward_hook(lambda *_: calls.append(1))
    reports = step(run, trees, rewards)
    handle.remove()
    return len(calls), reports


def test_nothing_is_computed_twice_and_dead_trees_not_at_all(model, trees):
    count, reports = passes(model, learning(model), trees, rewards_of(trees))
    assert count == len(reports) == 2
    fresh = build.tiny_model()
    count, reports = passes(fresh, learning(fresh), trees, rewards_of(trees, dead=(0, 1)))
    assert count == 1
    assert [report.outcome for report in reports] == ["empty", "stepped"]


def test_old_logprobs_are_recomputed_once_for_all_mini_batches(model, trees):
    far = [with_behavior(t, {n.id: [x - 0.4 for x in n.behavior_logprobs] for n in t.nodes}) for t in trees]
    run = learning(model, request=AnnotationRequest(old="recompute"), max_mismatch=None)
    count, reports = passes(model, run, far, rewards_of(far))
    assert count == 1 + 2
    assert reports[0].mismatch_mean == pytest.approx(0.4, abs=1e-4)
    assert reports[0].metrics["clip_fraction"] == 0
    run = learning(build.tiny_model(), max_mismatch=1.0)
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
    reports = step(learning(build.tiny_model(), max_mismatch=None, max_kl=1e-3), mixed, rewards_of(mixed))
    assert [report.outcome for report in reports] == ["stepped", "stepped"]
    assert reports[1].mismatch_kl > 0.05


def test_the_reference_model_is_asked_only_where_something_reads_it(model, trees):
    reference = build.tiny_model(1)
    calls = []
    reference.base_model.register_forward_hook(lambda *_: calls.append(1))

    @contextmanager
    def opened():
        yield reference

    step(learning(model, reference=opened), trees, rewards_of(trees))
    assert not calls
    step(
        learning(build.tiny_model(), reference=opened, request=AnnotationRequest(ref_logprobs=True)),
        trees,
        rewards_of(trees),
    )
    assert len(calls) == 1


def test_what_importance_weights_did_is_reported(model, trees):
    far = [with_behavior(t, {n.id: [x - 0.4 for x in n.behavior_logprobs] for n in t.nodes}) for t in trees]
    wanted = {"request": AnnotationRequest(old="recompute"), "max_mismatch": None}
    truncate = ImportanceCorrection("token", "truncate", 1.2, None)
    report = step(learning(model, correction=truncate, **wanted), far, rewards_of(far))[0]
    assert report.metrics["weight_mean"] == pytest.approx(1.2)
    assert report.metrics["weight_bounded"] == 1
    mask = ImportanceCorrection("token", "mask", 2.0, None)
    report = step(learning(build.tiny_model(), correction=mask, **wanted), far, rewards_of(far))[0]
    assert report.metrics["weight_mean"] == pytest.approx(np.exp(0.4), rel=1e-4)
    assert report.metrics["weight_bounded"] == 0
    mask = ImportanceCorrection("token", "mask", 1.2, None)
    reports = step(learning(build.tiny_model(), correction=mask, **wanted), far, rewards_of(far))
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
    model = build.tiny_model()
    run = learning(model, max_mismatch=None, request=AnnotationRequest(old="recompute"))
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
    sums = []
    for size in (4, 2):
        run = learning(build.tiny_model(), problems_per_minibatch=size)
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
        sums.append(sum(g * n for g, n in zip(caught, sizes, strict=True)))
    assert (sums[0] - sums[1]).norm() < 1e-5 * sums[0].norm()


def test_the_schedule_goes_by_steps_of_the_run(model, trees):
    run = learning(model)
    step(run, trees[:2], rewards_of(trees[:2]))
    assert run.learner.step == 1
    run.end_step(1)
    assert run.learner.step == 2
    run.end_step(2)
    assert run.learner.step == 4


SETTINGS = {"temperature": 0.8, "token_budget": 10_000}


def forest(count=3):
    rng = np.random.default_rng(0)
    return [random_tree(rng, depth=3) for _ in range(count)]


def tree_with_an_empty_leaf():
    return tree_of(
        [
            node((), Source.PROMPT, [5]),
            node((0,), Source.POLICY, [1, 2]),
            node((0, 0), Source.TOOL, [9]),
            node((0, 0, 0), Source.POLICY, [3], leaf=True),
            node((0, 0, 1), Source.POLICY, [], leaf=True),
        ]
    )


def counted(model):
    calls = []
    model.base_model.register_forward_hook(lambda *_: calls.append(1))
    return calls


@contextmanager
def opened(model):
    yield model


@pytest.mark.parametrize("budget", [20, 10_000])
def test_notes_are_the_learners_logprobs_of_each_node_however_rows_are_cut(budget):
    model, trees = build.tiny_model(), forest()
    notes = annotations_of(
        model,
        trees,
        AnnotationRequest(old="recompute", entropies=True),
        reference=None,
        temperature=0.8,
        token_budget=budget,
    )
    learner = build.learner(model, NegativeLogLikelihood(), temperature=0.8)
    for tree, by_node in zip(trees, notes, strict=True):
        assert by_node.keys() == {n.id for n in tree.nodes if n.source is Source.POLICY}
        (row,) = pack(credited([tree], [supervised_credit(tree)]), 10_000)
        (logprobs,) = learner.logprobs([row])
        for span in row.spans:
            note = by_node[span.node]
            assert note.old_logprobs == pytest.approx(logprobs[span.start : span.stop], abs=1e-5)
            assert len(note.entropies) == len(note.old_logprobs)
            assert ((note.entropies > 0) & (note.entropies <= np.log(50) + 1e-6)).all()
            assert note.ref_logprobs is None


def test_what_is_not_wanted_is_not_computed():
    model, reference = build.tiny_model(0), build.tiny_model(1)
    ours, theirs = counted(model), counted(reference)
    both = AnnotationRequest(old="recompute", entropies=True, ref_logprobs=True)
    for wanted, passes in (
        (AnnotationRequest(old="recompute"), (1, 0)),
        (AnnotationRequest(entropies=True), (1, 0)),
        (AnnotationRequest(ref_logprobs=True), (0, 1)),
        (both, (1, 1)),
    ):
        ours.clear()
        theirs.clear()
        annotations_of(model, forest(), wanted, reference=lambda: opened(reference), **SETTINGS)
        assert (len(ours), len(theirs)) == passes


@pytest.mark.parametrize("more", [{}, {"entropies": True}, {"entropies": True, "ref_logprobs": True}])
def test_the_old_logprobs_are_those_that_were_asked_for_whatever_else_a_pass_finds(more):
    model, trees = build.tiny_model(), [tree_with_an_empty_leaf(), *forest(1)]
    trees = [with_behavior(t, {n.id: [-7.0] * len(n.token_ids) for n in t.nodes}) for t in trees]
    for old in ("behavior", "recompute"):
        wanted = AnnotationRequest(old, **more)
        notes = annotations_of(
            model, trees, wanted, reference=lambda: opened(build.tiny_model(1)), **SETTINGS
        )
        for tree, by_node in zip(trees, notes, strict=True):
            policy = [node for node in tree.nodes if node.source is Source.POLICY]
            assert [len(by_node[node.id].old_logprobs) for node in policy] == [
                len(n.token_ids) for n in policy
            ]
            old_logprobs = np.concatenate([by_node[node.id].old_logprobs for node in policy])
            assert (old_logprobs == -7.0).all() if old == "behavior" else (old_logprobs != -7.0).all()
        rows = pack(credited(trees, [supervised_credit(tree) for tree in trees], notes), 10_000)
        assert all((row.behavior_logprobs == -7.0).all() for row in rows)
        assert all((row.old_logprobs == -7.0).all() == (old == "behavior") for row in rows)


def test_reference_logprobs_are_the_reference_models():
    model, reference, trees = build.tiny_model(0), build.tiny_model(1), forest(1)
    wanted = AnnotationRequest(old="recompute", ref_logprobs=True)
    (notes,) = annotations_of(model, trees, wanted, reference=lambda: opened(reference), **SETTINGS)
    (own,) = annotations_of(reference, trees, AnnotationRequest(old="recompute"), reference=None, **SETTINGS)
    for key, note in notes.items():
        assert note.ref_logprobs.tolist() == own[key].old_logprobs.tolist()
        assert note.old_logprobs.tolist() != note.ref_logprobs.tolist()
    with pytest.raises(ValueError, match="need a reference model"):
        annotations_of(model, trees, wanted, reference=None, **SETTINGS)


def test_a_pass_leaves_no_gradient_behind():
    model = build.tiny_model()
    annotations_of(model, forest(1), AnnotationRequest(old="recompute"), reference=None, **SETTINGS)
    assert all(p.grad is None for p in model.parameters())
    assert torch.is_grad_enabled()


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
