"""A trajectory that says nothing about the policy teaches nothing: neither itself nor through its group, whatever it was paid.

Each batch is trained on twice, as it is and with more trajectories that a failure or a deadline ended, or that a judge has no
verdict on. All numbers must be the same to the last bit.
"""

import asyncio
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import build
import own_parts
from ramify.algos.corrections import ImportanceCorrection
from ramify.assemble.algorithm import build_estimator, build_objective
from ramify.config.schema_algorithm import AlgorithmSection
from ramify.core.records import Reward
from ramify.core.tree import Source, StopReason, TreeKey, make_tree
from ramify.learner.learning import AnnotationRequest
from ramify.rewards.parts import JudgePart, PartsReward, WeightedPart
from ramify.rewards.trajectory_rewards import score_tree
from ramify.synth.pairs import PairRule
from random_trees import node, random_tree, sampled

ESTIMATORS = {
    "group": {"name": "group"},
    "group without std": {"name": "group", "scale": "none"},
    "leave_subtree_out": {"name": "group", "scale": "none", "baseline": "leave_subtree_out"},
    "reinforce_pp": {"name": "reinforce_pp"},
    "reinforce_pp with group_mean": {"name": "reinforce_pp", "group_mean": True},
    "tree_grpo": {"name": "tree_grpo"},
    "node_value": {"name": "node_value"},
    "turn_level": {"name": "turn_level"},
    "file": {"name": "file", "path": own_parts.__file__, "function": "advantage"},
}
AROUND = {
    "bare": {},
    "entropy": {"entropy_advantage": {"weight": 0.3}, "entropy_bonus": 0.01},
    "kl": {"kl": {"place": "reward", "estimator": "k1", "coefficient": 0.2}},
    "kl in the loss": {"kl": {"place": "loss", "estimator": "k3", "coefficient": 0.2}},
}
LOSSES = {
    "tokens": {"loss": {"name": "clip"}},
    "sequences": {"loss": {"name": "clip"}, "aggregation": "sequence_mean"},
    "fixed": {"loss": {"name": "clip"}, "aggregation": "fixed_length", "fixed_length": 9},
    "file": {"loss": {"name": "file", "path": own_parts.__file__, "function": "clip"}},
    "gspo": {"loss": {"name": "gspo"}, "aggregation": "sequence_mean"},
}
SHARED = ["repeat", "split", "mass"]
WITHOUT_EFFECT = (StopReason.FAILED, StopReason.DEADLINE)
VALUES = st.floats(-1e6, 1e6)


@pytest.fixture(scope="module")
def models():
    """A policy and a reference model."""
    sizes = {"hidden": 16, "layers": 1, "heads": 2, "kv_heads": 1, "intermediate": 16}
    return [build.tiny_model(seed, **sizes) for seed in (0, 1)]


def learning(models, algorithm):
    section = AlgorithmSection.model_validate(algorithm)
    reference = models[1].requires_grad_(False)
    # The weights stay, so that both batches meet the same ones.
    learner = build.learner(
        models[0], build_objective(section), still=True, reference=lambda: nullcontext(reference)
    )
    return build.learning(
        learner,
        estimator=build_estimator(section),
        correction=ImportanceCorrection("sequence", "truncate", 2.0),
        request=AnnotationRequest(old="recompute", entropies=True, ref_logprobs=True),
    )


@dataclass(frozen=True)
class Paid:
    """Pays each trajectory by its leaf."""

    values: dict[str, float]

    async def score(self, trajectories):
        return [Reward(self.values[t.leaf.id], {"correct": self.values[t.leaf.id]}) for t in trajectories]


def scored(tree, values, unjudged=()):
    """The tree with its rewards, and a judge that has no verdict on the leaves `unjudged`."""
    verdicts = iter([None if t.leaf.id in unjudged else 0.0 for t in tree.trajectories])

    async def judge(problem, answer):
        return next(verdicts)

    return asyncio.run(score_tree(PartsReward(Paid(values), [WeightedPart(JudgePart(judge))]), tree))


def tree_and_values(rng):
    tree = sampled(rng, random_tree(rng, depth=3, split_turns=True, bushy=False), -3.9)
    values = rng.choice([-1.0, 0.0, 0.4, 1.1], len(tree.trajectories))
    return tree, {t.leaf.id: float(v) for t, v in zip(tree.trajectories, values, strict=True)}


def with_others(rng, tree, values, paid: Sequence[float]):
    """The tree with as many more trajectories as there are numbers in `paid`, and what they are paid."""
    nodes, values, unjudged = list(tree.nodes), dict(values), []
    for value in paid:
        beside = [n for n in nodes if n.source is not Source.POLICY]
        above = beside[rng.integers(len(beside))]
        path = (*above.path, sum(n.parent == above.id for n in nodes))
        if above.stop is None and rng.random() < 0.5:
            more = [
                node(path, Source.POLICY, rng.integers(2, 50, 3)),
                node((*path, 0), Source.TOOL, rng.integers(2, 50, 2)),
                node((*path, 0, 0), Source.POLICY, rng.integers(2, 50, rng.integers(0, 3)), leaf=True),
            ]
        else:
            more = [node(path, Source.POLICY, rng.integers(2, 50, rng.integers(0, 4)), leaf=True)]
        stop = [*WITHOUT_EFFECT, StopReason.ANSWERED][rng.integers(3)]
        more[-1] = replace(more[-1], stop=stop)
        if stop is StopReason.ANSWERED:
            unjudged.append(more[-1].id)
        nodes += [
            replace(n, token_entropies=(0.5,) * len(n.token_ids)) if n.source is Source.POLICY else n
            for n in more
        ]
        values[more[-1].id] = value
    return make_tree(tree.problem, tree.key, nodes), values, unjudged


def gradients(run, trees):
    """All gradients of an optimizer step in every bit, and its report."""
    reports, caught = build.collect_gradients(run.learner, lambda: run.update(trees))
    bits = [gradient.numpy().tobytes() for gradient in caught.values()]
    return bits, [(report.outcome, report.loss) for report in reports]


@pytest.mark.parametrize("name", ESTIMATORS)
@settings(max_examples=6, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    shared=st.sampled_from(SHARED),
    around=st.sampled_from(list(AROUND)),
    loss=st.sampled_from(list(LOSSES)),
    paid=st.lists(VALUES, min_size=1, max_size=3),
)
def test_what_does_not_count_changes_no_advantage_and_no_gradient(
    models, name, seed, shared, around, loss, paid
):
    if loss == "gspo":
        # It takes what gives each trajectory one advantage.
        assume(name in ("group", "group without std", "tree_grpo") and shared != "split" and around == "bare")
    algorithm = {"estimator": ESTIMATORS[name], "shared": shared, **LOSSES[loss], **AROUND[around]}
    run, rng = learning(models, algorithm), np.random.default_rng(seed)
    plain = [tree_and_values(rng) for _ in range(2)]
    others = [with_others(rng, tree, values, paid) for tree, values in plain]
    # A problem of which nothing counts is as if it had not been asked.
    lost, nothing = tree_and_values(rng)
    lost = make_tree(
        lost.problem,
        TreeKey(0, 9),
        [n if n.stop is None else replace(n, stop=StopReason.FAILED) for n in lost.nodes],
    )
    expected = run.credit([scored(*each) for each in plain])
    other = run.credit([*(scored(*each) for each in others), scored(lost, nothing)])
    assert len(expected) == len(other) == 2
    for own, same in zip(expected, other, strict=True):
        assert [t.leaf.id for t in same.tree.trajectories] == [t.leaf.id for t in own.tree.trajectories]
        for a, b in zip(own.advantages, same.advantages, strict=True):
            assert a.tolist() == b.tolist()
    assert gradients(run, other) == gradients(run, expected)


@pytest.mark.parametrize("stop", StopReason)
def test_training_and_synthesis_agree_on_which_ends_count(models, stop):
    run = learning(models, {"estimator": ESTIMATORS["group"], **LOSSES["tokens"]})
    nodes = [node((), Source.PROMPT, [5]), node((0,), Source.POLICY, [3], leaf=True)]
    tree = make_tree(
        random_tree(np.random.default_rng(0)).problem,
        TreeKey(0, 0),
        [*nodes, replace(node((1,), Source.POLICY, [4], leaf=True), stop=stop)],
    )
    graded = scored(tree, {"0": 1.0, "1": 0.0})
    _, pairs = PairRule(per_question=1, max_tokens=9).choose(graded)
    (trained,) = run.credit([graded])
    assert bool(pairs) == (len(trained.tree.trajectories) == 2) == (stop not in WITHOUT_EFFECT)
