from itertools import pairwise

import pytest
import torch
from benchmarks.update.ours import Batch
from benchmarks.update.tau2 import LEAVES, TURNS, tau2_tree
from benchmarks.update.tree_attention import ATTENTIONS
from benchmarks.update.tree_side import Layout, fastest_layout, layouts
from benchmarks.update.trees import sizes

from ramify.algos.grpo import GroupRelative
from ramify.core.records import NO_ANNOTATIONS, AnnotatedTree, Reward, TrainingTree, behavior_annotations
from ramify.core.tree import Source

CU_Q, PATHS = (0, 3, 5, 6, 10), ((0, 1, 2), (0, 1, 2, 3, 4), (0, 1, 2, 5), (6, 7, 8, 9))
"""A root of three tokens with two branches, and another root."""


def plan(attention):
    kv_index = torch.tensor([position for path in PATHS for position in path])
    ends = [sum(len(path) for path in PATHS[:count]) for count in range(len(PATHS) + 1)]
    return ATTENTIONS[attention].of(CU_Q, ends, kv_index)


def states():
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(1, heads, 10, 8, dtype=torch.float32, generator=generator, requires_grad=True)
        for heads in (4, 2, 2)
    ]


def one_by_one(query, key, value, scaling):
    """Each token alone against the tokens of its path up to itself."""
    outputs = []
    for (start, stop), path in zip(pairwise(CU_Q), PATHS, strict=True):
        for position in range(start, stop):
            visible = list(path[: path.index(position) + 1])
            keys, values = (x[0][:, visible].repeat_interleave(2, 0) for x in (key, value))
            scores = torch.einsum("hd,hkd->hk", query[0, :, position], keys) * scaling
            outputs.append(torch.einsum("hk,hkd->hd", scores.softmax(-1), values))
    return torch.stack(outputs)[None]


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_attention_is_that_of_each_token_over_its_own_path(attention):
    inputs, expected_inputs = states(), states()
    values = plan(attention)(*inputs, 0.3)
    expected = one_by_one(*expected_inputs, 0.3)
    assert torch.allclose(values, expected, atol=1e-6)
    weights = torch.arange(values.numel(), dtype=torch.float32).view_as(values).cos()
    (values * weights).sum().backward()
    (expected * weights).sum().backward()
    for ours, theirs in zip(inputs, expected_inputs, strict=True):
        assert torch.allclose(ours.grad, theirs.grad, atol=1e-5)


def batch_of(tree):
    rewards = tuple(Reward(float(position % 2), {}) for position in range(len(tree.trajectories)))
    advantages = GroupRelative("repeat").advantages(AnnotatedTree(tree, rewards, NO_ANNOTATIONS), ())
    return Batch([TrainingTree(tree, behavior_annotations(tree), advantages)])


def test_rows_of_the_peer_hold_the_longest_trajectory_and_at_most_everything():
    tree = tau2_tree(0, leaves=3, turns=2)
    counts = sizes([tree])
    longest, everything = counts.padded // 3, counts.separate
    values = layouts(batch_of(tree))
    assert values == tuple(Layout(a, n) for a in ATTENTIONS for n in (longest, 2 * longest, everything))
    assert len(layouts(batch_of(tree), "cuda")) == 3


class ScriptedPeer:
    """Seconds by layout and round; the peer is asked to pack before each update."""

    def __init__(self, seconds):
        self.seconds, self.packed = {name: iter(values) for name, values in seconds.items()}, ""

    def ask(self, question):
        if question["do"] == "pack":
            self.packed = question["attention"]
            return {"computed": [1]}
        return {"cpu_seconds": next(self.seconds[self.packed])}


def test_the_fastest_layout_is_that_of_the_better_of_two_rounds():
    peer = ScriptedPeer({"a": (3.0, 5.0), "b": (9.0, 2.0)})
    choices = (Layout("a", 1), Layout("b", 1))
    assert fastest_layout(peer, choices) == (choices[1], {str(choices[0]): 3.0, str(choices[1]): 2.0})


def test_a_tau2_tree_has_its_leaves_and_turns():
    tree = tau2_tree(4)
    assert len(tree.trajectories) == LEAVES
    for trajectory in tree.trajectories:
        prompt, *nodes = trajectory.nodes
        assert prompt.source is Source.PROMPT
        assert [n.source for n in nodes] == [Source.POLICY, Source.TOOL] * (TURNS - 1) + [Source.POLICY]
    assert tau2_tree(4) == tree
    counts = sizes([tree])
    assert (counts.unique, counts.separate) == (4307, 17110)
