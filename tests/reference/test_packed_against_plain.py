import itertools
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from plain_sums import surrogate, trajectory_logprobs
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Ministral3Config,
    Ministral3ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    SeedOssConfig,
    SeedOssForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

import build
from ramify.algos.credit import Weighting, credit, denominator
from ramify.algos.grpo import ClippedSurrogate
from ramify.algos.sft import SUPERVISED, NegativeLogLikelihood
from ramify.core.tree import Cut, Source
from ramify.learner.pack import pack
from ramify.modeling.load import load_model, save_model
from random_trees import credited, random_advantages, random_tree, supervised_credit, training, with_behavior

SIZES = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
}
GROWING = {
    "rope_type": "default",
    "rope_theta": 1e4,
    "original_max_position_embeddings": 8,
    "llama_4_scaling_beta": 0.5,
}
"""Queries grow at every eighth place."""
NO_DROPOUT = {"attention_dropout": 0.0, "residual_dropout": 0.0}
ONE_LAYER_ROTATES = {"no_rope_layers": [1, 0], "pad_token_id": 0, "eos_token_id": 2}
FAMILIES = {
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES, tie_word_embeddings=True)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=16, tie_word_embeddings=False)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "ministral3": lambda: Ministral3ForCausalLM(
        Ministral3Config(**SIZES, head_dim=8, rope_parameters=GROWING)
    ),
    "seed_oss": lambda: SeedOssForCausalLM(SeedOssConfig(**SIZES, **NO_DROPOUT, head_dim=16)),
    "smollm3": lambda: SmolLM3ForCausalLM(SmolLM3Config(**SIZES, **ONE_LAYER_ROTATES)),
}
CLIP = {"low": 0.2, "high": 0.28, "dual": 3.0}
TEMPERATURE = 0.8
WEIGHTINGS = [f"{shared} {sharing}" for shared in ("repeat", "split", "mass") for sharing in ("soft", "hard")]


@pytest.fixture(scope="module", params=FAMILIES)
def models(request, tmp_path_factory):
    """The same weights as the stock implementation and as ours."""
    folder = tmp_path_factory.mktemp(request.param)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        save_model(FAMILIES[request.param](), folder)
    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager"), load_model(folder)


def seeded(weighting):
    return np.random.default_rng(64 + WEIGHTINGS.index(weighting))


def learner_for(model, loss):
    return build.learner(model, loss, still=True, temperature=TEMPERATURE, chunk_tokens=7)


def off_policy(rng, tree, stock):
    """The tree with old logprobs up to one nat off the policy's, none within 1e-3 of a clip edge."""
    policy = {}
    with torch.no_grad():
        for trajectory in tree.trajectories:
            for identifier, _, logprob in trajectory_logprobs(stock, trajectory, TEMPERATURE):
                policy.setdefault(identifier, []).append(float(logprob))
    edges = np.log([1 - CLIP["low"], 1 + CLIP["high"], CLIP["dual"]])
    old = {}
    for n in tree.nodes:
        shifts = rng.uniform(-1.2, 1.2, len(n.token_ids))
        while (near := np.abs(shifts[:, None] - edges).min(1) < 1e-3).any():
            shifts[near] = rng.uniform(-1.2, 1.2, near.sum())
        old[n.id] = np.array(policy.get(n.id, [])[: len(n.token_ids)] or shifts) - shifts
    return with_behavior(tree, old)


def captured_update(learner, rows, total):
    """An update and the gradients that it stepped with."""
    return build.collect_gradients(learner, lambda: learner.update_rows(rows, total))


def assert_close(actual, expected):
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        assert (actual[name].double() - value).norm() <= 1e-5 * value.norm(), name


@dataclass(frozen=True, eq=False)
class Plain:
    """Some trees with advantages, and what the sum over their trajectories gives."""

    trees: list
    advantages: list
    weighting: Weighting
    loss: float
    denominator: float
    gradients: dict


def grown(rng):
    """Trees of three turns and of four, with advantages."""
    trees = [random_tree(rng, depth=d, split_turns=d == 4, bushy=False) for d in (3, 4, 3)]
    return trees, [random_advantages(rng, tree) for tree in trees]


@pytest.fixture(scope="module", params=WEIGHTINGS, ids=WEIGHTINGS)
def plain(request, models):
    shared, sharing = request.param.split()
    stock, _ = models
    rng = seeded(request.param)
    trees, advantages = grown(rng)
    trees = [off_policy(rng, tree, stock) for tree in trees]
    stock.zero_grad()
    settings = {**CLIP, "temperature": TEMPERATURE}
    sums = [
        surrogate(stock, tree, a, shared, sharing, **settings)
        for tree, a in zip(trees, advantages, strict=True)
    ]
    total = sum(weight for _, weight in sums)
    loss = sum(value for value, _ in sums) / total
    loss.backward()
    return Plain(trees, advantages, Weighting(shared, sharing), loss.item(), total, build.gradients_of(stock))


@pytest.mark.parametrize("budget", [60, 10_000])
def test_loss_and_every_gradient_equal_the_sum_over_trajectories(models, plain, budget):
    learner = learner_for(models[1], ClippedSurrogate(CLIP["low"], CLIP["high"], CLIP["dual"]))
    credits = [
        credit(training(tree, a), plain.weighting)
        for tree, a in zip(plain.trees, plain.advantages, strict=True)
    ]
    rows = pack(credited(plain.trees, credits), budget)
    assert (len(rows) == 1) == (budget == 10_000)
    report, caught = captured_update(learner, rows, plain.denominator)
    assert denominator(plain.trees, plain.weighting) == pytest.approx(plain.denominator, rel=1e-12)
    assert report.loss == pytest.approx(plain.loss, rel=1e-5)
    assert_close(caught, plain.gradients)
    assert 0.1 < report.metrics["clip_fraction"] < 0.9
    assert report.mismatch_max > 0.5


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_the_trees_branch_split_turns_open_contexts_and_mix_signs_on_shared_tokens(weighting):
    trees, advantages = grown(seeded(weighting))
    for tree, own in zip(trees, advantages, strict=True):
        credits = credit(training(tree, own), Weighting()).values()
        assert any(((c.s_plus > 0) & (c.s_minus < 0)).any() for c in credits)
        assert max(len(children) for children in tree.children.values()) > 1
    trajectories = [t for tree in trees for t in tree.trajectories]
    assert {type(n.context) for t in trajectories for n in t.nodes} == {str, Cut}
    assert "fresh" in {n.context for t in trajectories for n in t.nodes}
    assert max(sum(n.source is Source.TOOL for n in t.nodes) for t in trajectories) == 3
    assert any(
        upper.source is lower.source is Source.POLICY
        for t in trajectories
        for upper, lower in itertools.pairwise(t.nodes)
    )


def test_supervised_loss_is_the_mean_over_written_tokens(models):
    stock, ours = models
    rng = np.random.default_rng(8)
    chains = [random_tree(rng, depth=2) for _ in range(3)]
    credits = [supervised_credit(tree) for tree in chains]
    stock.zero_grad()
    once = {}
    for t, tree in enumerate(chains):
        for trajectory in tree.trajectories:
            for identifier, i, logprob in trajectory_logprobs(stock, trajectory, TEMPERATURE):
                once[t, identifier, i] = logprob
    loss = -sum(once.values()) / len(once)
    loss.backward()
    learner = learner_for(ours, NegativeLogLikelihood())
    report, caught = captured_update(
        learner, pack(credited(chains, credits), 100), denominator(chains, SUPERVISED)
    )
    assert report.loss == pytest.approx(loss.item(), rel=1e-5)
    assert report.metrics["nll"] == pytest.approx(loss.item(), rel=1e-5)
    assert_close(caught, build.gradients_of(stock))


def test_logprobs_of_rows_are_those_of_the_trajectories(models):
    stock, ours = models
    rng = np.random.default_rng(4)
    tree = random_tree(rng, depth=4)
    rows = pack(credited([tree], [supervised_credit(tree)]), 1000)
    learner = learner_for(ours, NegativeLogLikelihood())
    expected = {}
    with torch.no_grad():
        for trajectory in tree.trajectories:
            for identifier, i, logprob in trajectory_logprobs(stock, trajectory, TEMPERATURE):
                expected[identifier, i] = float(logprob)
    order = [(span.node, i) for span in rows[0].spans for i in range(span.stop - span.start)]
    assert len(order) == len(expected)
    assert learner.logprobs(rows)[0] == pytest.approx([expected[key] for key in order], abs=1e-5)


def test_dead_trees_change_the_denominator_and_nothing_else(models):
    _, ours = models
    rng = np.random.default_rng(5)
    live, dead = random_tree(rng), random_tree(rng)
    credits = [
        credit(training(live, random_advantages(rng, live)), Weighting()),
        credit(training(dead, [np.zeros(t.num_written) for t in dead.trajectories]), Weighting()),
    ]
    assert (
        pack(credited([live, dead], credits), 1000)[0].token_ids.shape
        == pack(credited([live], credits[:1]), 1000)[0].token_ids.shape
    )
    learner = learner_for(ours, ClippedSurrogate(0.2, 0.2, None))
    both, half = denominator([live, dead], Weighting()), denominator([live], Weighting())
    alone = learner.update_rows(pack(credited([live], credits[:1]), 1000), half)
    together = learner.update_rows(pack(credited([live, dead], credits), 1000), both)
    assert together.loss * both == pytest.approx(alone.loss * half, rel=1e-6)
