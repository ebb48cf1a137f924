"""Weights in float32 that compute in bfloat16: the gradients of two steps from a trained model point where those of float32 do."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import updates

from many_ranks import with_ranks
from ramify.algos.sft import NegativeLogLikelihood, demonstrated
from ramify.core.rank import Rank
from ramify.learner.parallel import Ranks
from ramify.modeling.load import save_model
from watched import WorkerPlan, write_tiny

LOWEST_COSINE = 0.99
"""Of the angle between the gradients; measured here: 0.998."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A model after twenty steps on five demonstrations."""
    folder = tmp_path_factory.mktemp("trained")
    write_tiny(folder / "start", 3)
    write_tiny(folder / "reference", 4)
    ranks = Ranks(Rank())
    learner = updates.learner_of(ranks, WorkerPlan(str(folder / "start")), NegativeLogLikelihood())
    for _ in range(20):
        learner.update([demonstrated(updates.chain(number)) for number in range(5)])
    save_model(learner.model, folder / "trained")
    return WorkerPlan(str(folder / "trained"), reference=str(folder / "reference"))


def four_steps(ranks, plan, name):
    """Updates of a recipe's algorithm on two batches, of all weights and of an adapter."""
    plans = (plan, replace(plan, lora=True))
    return [updates.reinforced(ranks, each, name, number) for each in plans for number in (3, 4)]


def cosine(ours, reference):
    a, b = (
        np.concatenate([step.gradients[name].ravel() for name in ours.gradients])
        for step in (ours, reference)
    )
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


@pytest.fixture(scope="module")
def expected(trained):
    return with_ranks(1, four_steps, None, trained, "grpo")


@pytest.mark.parametrize("size", [1, 2])
def test_gradients_point_where_those_of_float32_do(trained, expected, size, tmp_path):
    actual = with_ranks(size, four_steps, tmp_path, replace(trained, dtype=torch.bfloat16), "grpo")
    for ours, theirs in zip(actual, expected, strict=True):
        assert LOWEST_COSINE <= cosine(theirs, ours) < 1 - 1e-7
        assert ours.report.loss == pytest.approx(theirs.report.loss, abs=0.01)
        assert ours.report.mismatch_mean == pytest.approx(theirs.report.mismatch_mean, abs=0.02)


@pytest.mark.parametrize("gather", ["once", "by_layer"])
def test_weights_stay_in_float32_and_move_by_less_than_bfloat16_can_tell(trained, gather):
    ranks = Ranks(Rank())
    plan = replace(trained, dtype=torch.bfloat16, gather=gather)
    updates.reinforced(ranks, plan, "grpo", 3)
    parameters = dict(ranks.worker.model.named_parameters())
    assert {parameter.dtype for parameter in parameters.values()} == {torch.float32}
    states = ranks.worker.optimizers.state_tensors()
    assert {tensor.dtype for tensor in states.values()} == {torch.float32}
    whole = [p.full_tensor() for p in parameters.values()]
    assert any((tensor != tensor.bfloat16().float()).any() for tensor in whole)
