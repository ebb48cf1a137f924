"""DPO (arXiv 2305.18290, equation 7), SimPO (2405.14734, equation 6) and ORPO (2403.07691, equation 7) as plain loops over pairs, against the packed learner."""

import copy
from contextlib import contextmanager

import numpy as np
import pytest
import torch

import build
from ramify.algos.dpo import DpoLoss, OrpoLoss, SimPoLoss, pair
from ramify.core.tree import Source
from ramify.modeling.configs import AdapterConfig
from ramify.modeling.lora import adapters_off, add_lora
from ramify.train.supervised import prefer
from random_trees import node, tree_of

BETA = 0.3
PRECISION = 1e-6
"""The models are float64, but transformers normalises hidden states in float32."""


def tiny(seed):
    return build.tiny_model(seed, weight_std=0.2).double()


def draw_pair(rng, shared_turns):
    """Two chains of up to three turns that part behind `shared_turns` turns with their results."""
    above = [rng.integers(2, 50, rng.integers(1, 6)) for _ in range(1 + 2 * shared_turns)]

    def chain():
        own = [rng.integers(2, 50, rng.integers(1, 7)) for _ in range(2 * rng.integers(0, 3) + 1)]
        parts = [*above, *own]
        sources = [Source.PROMPT, *(Source.POLICY if i % 2 else Source.TOOL for i in range(1, len(parts)))]
        return tree_of(
            [
                node((0,) * i, source, tokens, leaf=i == len(parts) - 1)
                for i, (source, tokens) in enumerate(zip(sources, parts, strict=True))
            ]
        )

    return pair(chain(), chain())


def path_sum(model, trajectory):
    """Sum over the written tokens of ln pi(y_t | y_<t), as a forward pass of the trajectory alone gives it."""
    (segment,) = trajectory.segments
    ids = torch.tensor([segment.token_ids])
    logprobs = torch.log_softmax(model(ids, use_cache=False).logits[0, :-1], -1)
    total = torch.zeros((), dtype=torch.float64)
    for position, written in enumerate(segment.written):
        if written:
            total = total + logprobs[position - 1, segment.token_ids[position]]
    return total


def plain(model, reference, trees):
    """Mean over pairs of -ln sigma(beta (h(chosen) - h(rejected))), h = ln pi - ln pi_ref of a side; the margins."""
    loss = torch.zeros((), dtype=torch.float64)
    margins = []
    for tree in trees:
        chosen, rejected = tree.trajectories
        with torch.no_grad():
            anchor = path_sum(reference, chosen) - path_sum(reference, rejected)
        margin = BETA * (path_sum(model, chosen) - path_sum(model, rejected) - anchor)
        margins.append(margin.item())
        loss = loss - torch.nn.functional.logsigmoid(margin)
    return loss / len(trees), margins


def learner_for(model, reference, budget):
    return build.learner(model, DpoLoss(BETA), still=True, reference=reference, token_budget=budget)


def update(learner, trees):
    """An update and the gradients that it stepped with."""
    return build.collect_gradients(learner, lambda: prefer(learner, trees))


@pytest.fixture
def trees():
    rng = np.random.default_rng(0)
    return [draw_pair(rng, turns) for turns in (0, 1, 0, 2)]


@pytest.mark.parametrize("budget", [1, 40, 10_000])
def test_loss_and_gradients_equal_those_of_plain_loops_however_pairs_are_split(trees, budget):
    model, reference = tiny(0), tiny(1)
    stock = copy.deepcopy(model)
    expected, margins = plain(stock, reference, trees)
    expected.backward()

    @contextmanager
    def opened():
        yield reference

    report, caught = update(learner_for(model, opened, budget), trees)
    assert report.loss == pytest.approx(expected.item(), rel=PRECISION)
    assert report.metrics["margin"] == pytest.approx(np.mean(margins), rel=PRECISION)
    assert report.metrics["accuracy"] == np.mean([margin > 0 for margin in margins])
    assert report.num_repeated == 0
    for name, value in build.gradients_of(stock).items():
        assert (caught[name] - value).norm() <= PRECISION * value.norm(), name


def plain_without_reference(model, trees, name):
    """Mean over pairs of SimPO's loss with the margin 0.2, or of ORPO's."""
    losses = []
    for tree in trees:
        chosen, rejected = (path_sum(model, side) / side.num_written for side in tree.trajectories)
        if name == "simpo":
            losses.append(-torch.nn.functional.logsigmoid(BETA * chosen - BETA * rejected - 0.2))
        else:
            log_odds = [mean - torch.log(1 - torch.exp(mean)) for mean in (chosen, rejected)]
            losses.append(-chosen - BETA * torch.nn.functional.logsigmoid(log_odds[0] - log_odds[1]))
    return torch.stack(losses).mean()


@pytest.mark.parametrize(("name", "loss"), [("simpo", SimPoLoss(BETA, 0.2)), ("orpo", OrpoLoss(BETA))])
def test_losses_without_a_reference_equal_plain_loops(trees, name, loss):
    model = tiny(0)
    stock = copy.deepcopy(model)
    expected = plain_without_reference(stock, trees, name)
    expected.backward()
    learner = build.learner(model, loss, still=True, token_budget=40)
    report, caught = build.collect_gradients(learner, lambda: prefer(learner, trees, with_reference=False))
    assert report.loss == pytest.approx(expected.item(), rel=PRECISION)
    for key, value in build.gradients_of(stock).items():
        assert (caught[key] - value).norm() <= PRECISION * value.norm(), key


def test_under_lora_the_reference_is_the_base(trees):
    model = tiny(0)
    base = copy.deepcopy(model)
    add_lora(model, AdapterConfig(rank=2, alpha=4.0), seed=0)
    model.double()

    @contextmanager
    def opened():
        with adapters_off(model):
            yield model

    learner = learner_for(model, opened, 40)
    first, _ = update(learner, trees)
    assert first.loss == pytest.approx(np.log(2), rel=PRECISION)
    assert first.metrics["margin"] == pytest.approx(0.0, abs=PRECISION)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_B." in name:
                parameter.normal_(0.0, 0.1, generator=torch.Generator().manual_seed(len(name)))
    report, caught = update(learner, trees)
    model.zero_grad()
    expected, _ = plain(model, base, trees)
    expected.backward()
    assert report.loss == pytest.approx(expected.item(), rel=PRECISION)
    assert report.loss != pytest.approx(np.log(2), rel=1e-3)
    assert caught.keys() == build.gradients_of(model).keys()
    for name, value in build.gradients_of(model).items():
        assert (caught[name] - value).norm() <= PRECISION * value.norm(), name
