"""Ranks that read only their own part of the weights have the same bits as those that read all of them."""

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file

from group_of_processes import on_ranks
from ramify.assemble.worker import WorkerPlan
from ramify.core.errors import DataError
from ramify.core.rank import Rank
from ramify.learner.sharding import gathered, whole
from ramify.modeling.configs import TrainedModelConfig
from ramify.modeling.load import load_model
from ramify.modeling.memory_plan import Layout
from ramify.modeling.numerics import set_numerics
from watched import ADAMW, write_tiny

IDS = torch.arange(1, 20)[None]


def start(number, folder):
    """Start a rank by layer, and compare its weights and what they compute with those of one process; returns the error."""
    set_numerics(1, deterministic=False)
    size = dist.get_world_size()
    section = TrainedModelConfig(path=folder, device="cpu")
    plan = WorkerPlan(section, folder, 20, 0, ADAMW, with_reference=True, layout=Layout("by_layer"))
    try:
        worker = plan(Rank(number, size, local=number, local_size=size))
    except DataError as error:
        return str(error)
    with worker._reference() as frozen:
        assert not any(parameter.requires_grad for parameter in frozen.parameters())
        compare(frozen, folder)
    compare(worker.model, folder)
    with torch.no_grad():
        for parameter in worker.model.parameters():
            parameter.zero_()
    worker.load_weights(folder)
    compare(worker.model, folder)
    return ""


def compare(model, folder):
    expected = load_model(folder)
    parameters = dict(model.named_parameters())
    assert parameters.keys() == dict(expected.named_parameters()).keys()
    for name, parameter in expected.named_parameters():
        assert torch.equal(whole(parameters[name].detach()), parameter), name
    with torch.no_grad(), gathered(model):
        hidden = model.base_forward(input_ids=IDS).last_hidden_state
        assert torch.equal(hidden, expected.base_model(input_ids=IDS).last_hidden_state)


@pytest.mark.parametrize(("size", "tied"), [(2, True), (3, False)])
def test_every_bit_is_that_of_one_process(size, tied, tmp_path):
    write_tiny(tmp_path / "model", 3, tied=tied)
    (tmp_path / "scratch").mkdir()
    assert on_ranks(size, start, tmp_path / "scratch", tmp_path / "model") == [""] * size


def test_damage_in_the_part_of_one_rank_is_told_by_all(tmp_path):
    model, scratch = tmp_path / "model", tmp_path / "scratch"
    scratch.mkdir()
    write_tiny(model, 3)
    tensors = load_file(model / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][-1, 0] = torch.nan
    tensors["model.layers.0.self_attn.q_proj.weight"].zero_()
    tensors["model.layers.0.self_attn.v_proj.weight"][:4].zero_()
    save_file(tensors, model / "model.safetensors", {"format": "pt"})
    first, second = on_ranks(2, start, scratch, model)
    assert first == second
    assert "up_proj.weight holds NaN or infinity" in first
    assert "q_proj.weight is all zeros" in first
    assert "v_proj" not in first
