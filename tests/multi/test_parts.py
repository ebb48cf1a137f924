"""Ranks that read only their own part of the weights have the same bits as those that read all of them, and less memory."""

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from safetensors.torch import load_file, save_file
from transformers import Qwen2Config, Qwen2ForCausalLM

from ramify.assemble.worker import WorkerPlan
from ramify.core.errors import DataError
from ramify.core.rank import Rank
from ramify.learner.sharding import gathered, whole
from ramify.modeling.configs import TrainedModelConfig
from ramify.modeling.load import load_model, save_model
from ramify.modeling.memory_plan import Layout
from ramify.modeling.numerics import set_numerics
from watched import ADAMW, SIZES, write_tiny

IDS = torch.arange(1, 20)[None]


class PrivateMemory(threading.Thread):
    """Watches how much this process holds that is no file's."""

    def __init__(self):
        super().__init__(daemon=True)
        self.ended, self.most = False, 0
        self.before = self._now()

    def _now(self):
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

    def run(self):
        while not self.ended:
            self.most = max(self.most, self._now() - self.before)
            time.sleep(0.002)


def start(number, size, folder, scratch, compares, results):
    """Start a rank by layer; rank 0 compares weights and what they compute with those of one process."""
    set_numerics(1, deterministic=False)
    dist.init_process_group("gloo", init_method=f"file://{scratch}/meet", rank=number, world_size=size)
    section = TrainedModelConfig(path=folder, device="cpu")
    plan = WorkerPlan(section, folder, 20, 0, ADAMW, with_reference=compares, layout=Layout("by_layer"))
    if not compares:  # what a first model loads of libraries counts as no memory of the second
        tiny = Path(folder) / "tiny"
        replace(plan, model=replace(section, path=tiny), source=tiny)(Rank(number, size, number, size))
    memory = PrivateMemory()
    memory.start()
    try:
        worker = plan(Rank(number, size, local=number, local_size=size))
    except DataError as error:
        results[number] = str(error)
        return
    memory.ended = True
    results[number] = memory.most
    if compares:
        with worker._reference() as frozen:
            assert not any(parameter.requires_grad for parameter in frozen.parameters())
            compare(frozen, folder)
        compare(worker.model, folder)
        with torch.no_grad():
            for parameter in worker.model.parameters():
                parameter.zero_()
        worker.load_weights(folder)
        compare(worker.model, folder)


def compare(model, folder):
    expected = load_model(folder)
    parameters = dict(model.named_parameters())
    assert parameters.keys() == dict(expected.named_parameters()).keys()
    for name, parameter in expected.named_parameters():
        assert torch.equal(whole(parameters[name].detach()), parameter), name
    with torch.no_grad(), gathered(model):
        hidden = model.base_forward(input_ids=IDS).last_hidden_state
        assert torch.equal(hidden, expected.base_model(input_ids=IDS).last_hidden_state)


def started(size, folder, scratch, compares=True):
    with mp.Manager() as manager:
        results = manager.dict()
        arguments = (size, folder, scratch, compares, results)
        mp.start_processes(start, arguments, size, start_method="spawn")
        return [results[number] for number in range(size)]


@pytest.mark.parametrize(("size", "tied"), [(2, True), (3, False)])
def test_every_bit_is_that_of_one_process(size, tied, tmp_path):
    write_tiny(tmp_path / "model", 3, tied=tied)
    assert all(isinstance(each, int) for each in started(size, tmp_path / "model", tmp_path))


def test_damage_in_the_part_of_one_rank_is_told_by_all(tmp_path):
    write_tiny(tmp_path, 3)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][-1, 0] = torch.nan
    tensors["model.layers.0.self_attn.q_proj.weight"].zero_()
    tensors["model.layers.0.self_attn.v_proj.weight"][:4].zero_()
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    first, second = started(2, tmp_path, tmp_path)
    assert first == second
    assert "up_proj.weight holds NaN or infinity" in first
    assert "q_proj.weight is all zeros" in first
    assert "v_proj" not in first


def test_a_rank_holds_its_own_part_and_no_more(tmp_path):
    write_tiny(tmp_path / "tiny", 3)
    sizes = {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 24}
    model = Qwen2ForCausalLM(Qwen2Config(**{**SIZES, **sizes}))
    # As models are published: in 16 bits, which ranks keep in 32.
    save_model(model.bfloat16(), tmp_path)
    nbytes = 4 * sum(parameter.numel() for parameter in model.parameters())
    assert nbytes > 200 * 2**20
    for grown in started(2, tmp_path, tmp_path, compares=False):
        assert grown < 0.75 * nbytes, f"{grown / nbytes:.2f} of the weights"
