"""Routed experts, layers of several kinds and decoders of larger models: two processes compute the step of one, both ways to gather."""

from dataclasses import replace

import pytest
import updates

from family_models import write_family
from many_ranks import with_ranks
from ramify.modeling.load import save_model, saved_state
from ramify.modeling.tensor_files import weights_checksum
from watched import WorkerPlan

FAMILIES = ("qwen3_moe", "olmo3", "gemma3", "gemma4")


def steps_of(ranks, folder, scratch):
    """A step each way, and the checksum of what is saved after the last one."""
    plan = WorkerPlan(folder)
    ways = {"once": plan, "by layer, again": replace(plan, gather="by_layer", recompute=True)}
    steps = {name: updates.reinforced(ranks, way, "arpo", 7, token_budget=60) for name, way in ways.items()}
    steps["sft"] = updates.demonstrations(ranks, plan)
    learner = updates.learner_of(ranks, plan, updates.NegativeLogLikelihood())
    save_model(learner.model, scratch, tensors=saved_state(learner.model, learner.whole_parameter))
    return steps, weights_checksum(scratch)


@pytest.mark.parametrize("family", FAMILIES)
def test_two_processes_take_the_steps_of_one_and_save_the_same_files(family, tmp_path):
    folder = str(write_family(tmp_path / "model", family))
    expected, alone = with_ranks(1, steps_of, None, folder, tmp_path / "one")
    actual, both = with_ranks(2, steps_of, tmp_path, folder, tmp_path / "two")
    assert alone == both == weights_checksum(tmp_path / "model")
    for name, step in expected.items():
        assert updates.difference(step.gradients, actual[name].gradients) <= 5e-6, name
        assert updates.difference(step.weights, actual[name].weights) <= 1e-5, name
        loss = step.report.loss
        assert actual[name].report.loss == pytest.approx(loss, rel=1e-4, abs=1e-7), name
    first, last = (expected[name].gradients for name in ("once", "by layer, again"))
    assert updates.difference(first, last) <= 5e-6
