"""Credit of recorded trees: that of the learner to the last bit, for whatever algorithm a recipe can ask for."""

import asyncio
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest

from build import learner, learning, tiny_model
from ramify.assemble.algorithm import annotation_request, build_estimator, build_objective
from ramify.assemble.recorded_credit import (
    RecordedAlgorithm,
    own_algorithm,
    shipped_algorithms,
)
from ramify.config.schema_algorithm import AlgorithmSection
from ramify.core.errors import ConfigError
from ramify.core.records import ScoredTree
from ramify.core.tree import StopReason, TreeKey, make_tree
from ramify.obs.trace import TracedTree, read_trees, write_trees
from ramify.rewards.trajectory_rewards import OverlongReward
from random_trees import random_tree, sampled, some_rewards

ALGORITHMS = {
    "soft": {},
    "hard": {"advantage": "hard"},
    "hard mass": {"advantage": "hard", "shared": "mass"},
    "split": {"shared": "split", "estimator": {"name": "group", "scale": "none"}},
    "leave_subtree_out": {"estimator": {"name": "group", "baseline": "leave_subtree_out"}, "shared": "mass"},
    "batch": {"estimator": {"name": "reinforce_pp"}, "aggregation": "sequence_mean"},
    "batch and entropies": {"estimator": {"name": "reinforce_pp", "group_mean": True}, "entropy_advantage": {"weight": 0.4}},
    "roots": {"estimator": {"name": "tree_grpo"}, "aggregation": "fixed_length", "fixed_length": 9},
    "node values": {"estimator": {"name": "node_value"}, "truncated": "mask"},
    "turns": {"estimator": {"name": "turn_level"}, "entropy_advantage": {}, "truncated": "mask"},
    "shaped": {"truncated": "shape", "overlong_margin": 9},
    "sequences": {"loss": {"name": "gspo"}, "aggregation": "sequence_mean"},
    "recomputed": {"old": "recompute", "kl": {"place": "loss", "estimator": "k3", "coefficient": 0.1}},
    "weighted": {"old": "recompute", "correction": {"level": "token", "kind": "truncate"}, "shared": "mass"},
    "weighted by sequence": {"old": "recompute", "correction": {"level": "sequence", "kind": "mask", "cap": 9.0}},
}  # fmt: skip


MAX_TOKENS = 12


def section(**table):
    return AlgorithmSection.model_validate(
        {"estimator": {"name": "group"}, "loss": {"name": "clip"}, **table}
    )


def a_step(rng, size=4):
    """Trees of a step: some leaves were cut, some do not count; the last tree was refused before the step."""
    trees = []
    for slot in range(size):
        tree = sampled(rng, random_tree(rng), -2.0)
        stops = rng.choice([StopReason.ANSWERED, StopReason.TOKENS], len(tree.nodes))
        nodes = [
            n if n.stop is None else replace(n, stop=StopReason(s))
            for n, s in zip(tree.nodes, stops, strict=True)
        ]
        tree = make_tree(tree.problem, TreeKey(3, slot), nodes)
        rewards = [
            replace(reward, counts=bool(rng.random() < 0.8), events={trajectory.policy_nodes[0].id: 0.5})
            for reward, trajectory in zip(some_rewards(rng, tree), tree.trajectories, strict=True)
        ]
        trees.append(ScoredTree(tree, tuple(rewards)))
    return trees


class RecordedReward:
    """A reward that was recorded."""

    def __init__(self, rewards):
        self.rewards = rewards

    async def score(self, trajectories):
        del trajectories
        return self.rewards


def shaped(scored):
    """The tree with the penalty for length of "shaped"."""
    reward = OverlongReward(RecordedReward(scored.rewards), MAX_TOKENS, 9)
    return ScoredTree(scored.tree, tuple(asyncio.run(reward.score(scored.tree.trajectories))))


def recorded(path, trees, trained=(), learned=()):
    """The trees as a file has them: which of them a step trained on, and the old logprobs of what was learned from.

    Their advantages are of no importance here, but which trees have some is.
    """
    old = {
        tree.tree.key: {n: tuple(a.old_logprobs.tolist()) for n, a in tree.annotations.items()}
        for tree in learned
    }
    lines = []
    for scored in trees:
        advantages = (0.0,) * len(scored.rewards) if scored in trained else None
        lines.append(TracedTree(scored.tree, scored.rewards, advantages, None, old.get(scored.tree.key, {})))
    write_trees(path, lines)
    return read_trees(path)


@pytest.fixture(scope="module")
def policy():
    return learner(tiny_model(), reference=lambda: nullcontext(tiny_model(1)))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_credit_is_the_learners_to_the_last_bit(tmp_path, policy, name):
    rng = np.random.default_rng(sum(map(ord, name)))
    algorithm = section(**ALGORITHMS[name])
    trees = a_step(rng)
    if algorithm.overlong_margin is not None:
        trees = [shaped(scored) for scored in trees]
    trained = trees[:-1]
    applied = learning(
        policy,
        estimator=build_estimator(algorithm),
        correction=algorithm.correction,
        masks_truncated=algorithm.truncated == "mask",
        request=annotation_request(algorithm),
    )
    objective = build_objective(algorithm)
    learned = applied.credit(trained)
    by_learner = {tree.tree.key: tree for tree in learned}
    traced = recorded(tmp_path / "t.jsonl", trees, trained, learned if algorithm.old == "recompute" else ())
    step = RecordedAlgorithm(name, algorithm, MAX_TOKENS).credit(traced)
    assert step.denominator == objective.denominator(list(by_learner.values()))
    assert step.trees[-1] is None
    for scored, own in zip(trees, step.trees, strict=True):
        tree = by_learner.get(scored.tree.key)
        assert (own is None) == (tree is None)
        if own is None:
            continue
        for trajectory, advantages in zip(tree.tree.trajectories, tree.advantages, strict=True):
            assert np.array_equal(own.advantages[trajectory.leaf.id], advantages)
        credit = objective.credit(tree).credit
        assert own.nodes.keys() == credit.keys()
        for node, numbers in credit.items():
            for part in ("s_plus", "s_minus", "weight", "num_paths"):
                assert np.array_equal(getattr(own.nodes[node], part), getattr(numbers, part))
        for node, numbers in own.record().items():
            if name == "soft":
                together = np.array(numbers["s_plus"]) + numbers["s_minus"]
                assert np.allclose(np.array(numbers["advantage"]) * numbers["weight"], together)
            assert len(numbers["advantage"]) == len(tree.tree.by_id[node].token_ids)
    assert any(own and any(node.s_plus.any() for node in own.nodes.values()) for own in step.trees)


@pytest.mark.parametrize(
    ("name", "whole"), [("hard mass", False), ("turns", True), ("batch", True), ("split", False)]
)
def test_only_an_algorithm_of_the_whole_batch_needs_the_whole_step(tmp_path, name, whole):
    trees = recorded(tmp_path / "t.jsonl", a_step(np.random.default_rng(5)))
    algorithm = RecordedAlgorithm(name, section(**ALGORITHMS[name]))
    together = algorithm.credit(trees).trees[0].record()
    alone = algorithm.credit(trees[:1]).trees[0].record()
    assert algorithm.needs_whole_step is whole
    assert (alone == together) is not whole


OBSTACLES = {
    "kl": {"kl": {"place": "reward", "estimator": "k1", "coefficient": 0.1}},
    "entropy_advantage": {"entropy_advantage": {"source": "annotate"}},
    "correction": {"old": "recompute", "correction": {"level": "token", "kind": "truncate"}},
    "estimator": {"estimator": {"name": "file", "path": __file__, "function": "section"}},
    "overlong_margin": {"truncated": "shape", "overlong_margin": 4},
}


@pytest.mark.parametrize("key", OBSTACLES)
def test_an_algorithm_that_a_trace_cannot_give_is_refused_by_its_key(tmp_path, key):
    trees = recorded(tmp_path / "t.jsonl", a_step(np.random.default_rng(6)))
    algorithm = RecordedAlgorithm("mine", section(**OBSTACLES[key]))
    assert algorithm.obstacle(trees).startswith(f"algorithm.{key}: ")
    with pytest.raises(ConfigError, match=f"^mine: algorithm.{key}: "):
        algorithm.credit(trees)


def test_entropies_that_the_trace_lacks_are_an_obstacle(tmp_path):
    trees = a_step(np.random.default_rng(7), 1)
    bare = [replace(n, token_entropies=()) for n in trees[0].tree.nodes]
    lacking = [ScoredTree(make_tree(trees[0].tree.problem, trees[0].tree.key, bare), trees[0].rewards)]
    algorithm = RecordedAlgorithm("mine", section(entropy_advantage={}))
    assert algorithm.obstacle(recorded(tmp_path / "a.jsonl", trees)) == ""
    assert "lacks entropies" in algorithm.obstacle(recorded(tmp_path / "b.jsonl", lacking))


def test_the_penalty_for_length_is_that_of_the_algorithm_and_not_of_the_run(tmp_path):
    (plain,) = a_step(np.random.default_rng(1), 1)
    plain = ScoredTree(plain.tree, tuple(replace(r, counts=True) for r in plain.rewards))
    penalised = shaped(plain)
    assert len({reward.parts["overlong"] for reward in penalised.rewards}) > 2
    without = recorded(tmp_path / "without.jsonl", [plain])
    with_it = recorded(tmp_path / "with.jsonl", [penalised])
    shape = RecordedAlgorithm("shape", section(truncated="shape", overlong_margin=9), MAX_TOKENS)
    none = RecordedAlgorithm("none", section())

    def advantages(algorithm, trees):
        return np.concatenate(list(algorithm.credit(trees).trees[0].advantages.values()))

    assert np.allclose(advantages(shape, without), advantages(shape, with_it), atol=1e-12)
    assert np.allclose(advantages(none, without), advantages(none, with_it), atol=1e-12)
    assert not np.allclose(advantages(none, without), advantages(shape, without))


def test_shipped_algorithms_are_all_different(tmp_path):
    trees = recorded(tmp_path / "t.jsonl", a_step(np.random.default_rng(9)))
    algorithms = shipped_algorithms(max_tokens=64)
    assert len({algorithm.name for algorithm in algorithms}) == len(algorithms) > 10
    assert all(a.section != b.section for a in algorithms for b in algorithms if a is not b)
    computed = [algorithm for algorithm in algorithms if not algorithm.obstacle(trees)]
    assert len(computed) > 8
    for algorithm in computed:
        assert algorithm.credit(trees).denominator > 0
    assert own_algorithm(tmp_path / "t.jsonl") is None
