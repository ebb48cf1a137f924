"""examples/arpo_one_file.py against the library: trajectories of the same trees get the same advantages and the same gradients."""

import importlib.util
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

import build
from ramify.algos.grpo import ClippedSurrogate, GroupRelative
from ramify.core.records import ScoredTree
from ramify.core.tree import Source
from ramify.modeling.load import load_model, save_model
from random_trees import annotated, random_tree, some_rewards

EXAMPLE = Path(__file__).parents[2] / "examples" / "arpo_one_file.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("arpo_one_file", EXAMPLE)
    module = sys.modules["arpo_one_file"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def scored():
    """Trees whose trajectories branch, with logprobs of the sampler near those of a model without opinions."""
    rng = np.random.default_rng(5)
    trees = [random_tree(rng, depth=4, contexts=False) for _ in range(6)]
    return [ScoredTree(tree, some_rewards(rng, tree)) for tree in trees]


def in_one_sequence(example, trajectory):
    ids, sampled, logprobs = [], [], []
    for node in trajectory.nodes:
        written = node.source is Source.POLICY
        ids += node.token_ids
        sampled += [written] * len(node.token_ids)
        logprobs += node.behavior_logprobs if written else [0.0] * len(node.token_ids)
    return example.Trajectory(trajectory.problem, ids, sampled, logprobs)


def test_advantages_are_those_of_the_library(example, scored):
    for each in scored:
        values = example.advantages([reward.value for reward in each.rewards])
        estimates = GroupRelative("repeat").advantages(annotated(each.tree, each.rewards), None)
        for value, estimate in zip(values, estimates, strict=True):
            assert np.allclose(estimate, value, atol=1e-9)


def test_gradients_are_those_of_the_packed_update(example, scored, tmp_path):
    save_model(build.tiny_model(seed=2), tmp_path / "model")
    stock, ours = AutoModelForCausalLM.from_pretrained(tmp_path / "model"), load_model(tmp_path / "model")
    learner = build.learner(ours, ClippedSurrogate(0.2, 0.2, None), still=True)
    learning = build.learning(learner, problems_per_minibatch=len(scored))
    _, expected = build.collect_gradients(learner, lambda: learning.update(learning.credit(scored)))
    pairs = [
        (in_one_sequence(example, trajectory), value)
        for each in scored
        for trajectory, value in zip(
            each.tree.trajectories, example.advantages([r.value for r in each.rewards]), strict=True
        )
    ]
    count = sum(sum(trajectory.sampled) for trajectory, _ in pairs)
    for start in range(0, len(pairs), 5):
        batch, values = zip(*pairs[start : start + 5], strict=True)
        example.policy_loss(stock, list(batch), list(values), count).backward()
    gradients = build.gradients_of(stock)
    assert gradients.keys() == expected.keys()
    largest = max(gradient.abs().max() for gradient in expected.values())
    assert largest > 1e-3
    for name, gradient in gradients.items():
        assert torch.allclose(gradient, expected[name], atol=1e-5 * float(largest), rtol=1e-4), name


def test_it_needs_torch_and_transformers_only_and_is_short(example):
    text = EXAMPLE.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 400
    roots = set(re.findall(r"^(?:from|import) (\w+)", text, re.MULTILINE))
    assert roots - sys.stdlib_module_names == {"torch", "transformers"}
    assert example.CLIP == 0.2
