from dataclasses import replace

import numpy as np
import pytest
import torch
from benchmarks.harness.tiny_model import write_tiny_model
from benchmarks.update.flops import TINY
from benchmarks.update.ours import gradients_of, make_batch, make_learner, relative_difference
from benchmarks.update.trees import (
    alone,
    grafted,
    one_short_tree,
    reasoning_tree,
    sizes,
    under_prompt_of,
    with_behavior,
)

from ramify.core.tree import Source, make_tree


@pytest.fixture(scope="module")
def learner(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny_model(folder)
    return make_learner(folder)


def shortened(tree):
    """At most 40 tokens of each node."""
    nodes = [
        replace(n, token_ids=n.token_ids[:40], behavior_logprobs=n.behavior_logprobs[:40]) for n in tree.nodes
    ]
    return make_tree(tree.problem, tree.key, nodes)


def test_trees_are_those_of_the_workload_model():
    counts = [sizes([reasoning_tree(seed)]) for seed in range(150)]
    assert np.mean([c.unique for c in counts]) == pytest.approx(17.7e3 / 4, rel=0.05)
    assert np.mean([c.separate / c.unique for c in counts]) == pytest.approx(2.12, rel=0.05)
    assert np.mean([c.separate_written / c.unique_written for c in counts]) == pytest.approx(1.33, rel=0.03)
    assert np.mean([c.padded / c.unique for c in counts]) == pytest.approx(3.11, rel=0.05)


def test_the_tree_of_the_rows_is_near_the_mean():
    counts = sizes([reasoning_tree(1)])
    assert counts.unique == 4035
    assert counts.separate / counts.unique == pytest.approx(2.12, rel=0.03)
    assert counts.padded / counts.unique == pytest.approx(3.11, rel=0.03)


def test_a_grafted_tree_has_the_trajectories_of_both_under_one_prompt():
    tree, other = reasoning_tree(0), reasoning_tree(3)
    both, added = grafted(tree, other), under_prompt_of(tree, other)
    ids = [[[n.token_ids for n in t.nodes] for t in x.trajectories] for x in (tree, added, both)]
    assert ids[2] == ids[0] + ids[1]
    assert sizes([both]).unique == sizes([tree]).unique + sizes([added]).unique - len(tree.nodes[0].token_ids)


def test_trajectories_alone_have_the_tokens_of_the_trees():
    tree = reasoning_tree(3)
    chains = alone(tree)
    paths = [[n.token_ids for n in t.nodes] for t in tree.trajectories]
    assert [[n.token_ids for n in chain.nodes] for chain in chains] == paths
    assert sizes(chains).unique == sizes([tree]).separate
    assert TINY.packed(sizes(chains)) == TINY.separate(sizes([tree]))


def test_behaviour_logprobs_come_in_the_order_of_the_policy_nodes():
    tree = one_short_tree(reasoning_tree(0))
    written = sum(len(n.token_ids) for n in tree.nodes if n.source is Source.POLICY)
    numbers = np.arange(written) / 7
    filled = with_behavior(tree, numbers)
    assert [x for n in filled.nodes for x in n.behavior_logprobs] == numbers.tolist()


def test_operations_are_those_of_the_shape():
    # 4 x (2 x 256 x 256 + 2 x 256 x 128 + 3 x 256 x 1024) weights.
    assert TINY.linear == 3_932_160
    assert TINY.forward(1, 0, 0) == 2 * TINY.linear
    assert TINY.forward(0, 10, 1) == 4 * 256 * 4 * 10 + 2 * 256 * 8192


@pytest.mark.integration
def test_packed_and_alone_are_the_same_update(learner):
    batch = make_batch(
        learner, [one_short_tree(reasoning_tree(0)), shortened(reasoning_tree(0, 4))], dead=[0]
    )
    assert len(batch.rows()) == 1
    gradients = [
        gradients_of(learner, rows, batch.denominator) for rows in (batch.rows(), batch.rows_alone(1))
    ]
    (packed, ours), (plain, expected) = gradients
    assert packed.loss == pytest.approx(plain.loss, rel=1e-4)
    assert relative_difference(ours, expected) < 1e-5
    assert any(bool(gradient.any()) for gradient in expected.values())


def test_gradients_of_other_parameters_are_no_match():
    with pytest.raises(ValueError, match="names"):
        relative_difference({"a": torch.ones(1)}, {"b": torch.ones(1)})
