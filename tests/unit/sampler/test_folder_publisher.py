"""Weights through a folder: what the server computes is what the learner computes, or nothing is learned from it."""

import asyncio
import errno
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import build
from model_folders import write_model
from ramify.algos.sft import demonstrated
from ramify.assemble.vllm import build_vllm
from ramify.chat.tokenizer import ChatTokenizer
from ramify.core.errors import EngineError
from ramify.core.records import version_folder
from ramify.engines.configs import VllmEngineConfig
from ramify.modeling import plain_folder
from ramify.modeling.configs import AdapterConfig
from ramify.modeling.load import load_model
from ramify.modeling.lora import add_lora
from ramify.sampler.publisher import FolderPublisher, write_weights
from random_trees import random_tree
from vllm_stand_in import stand_in

pytestmark = pytest.mark.integration

PROBE = tuple(range(3, 51))


@pytest.fixture(scope="module", params=["qwen2", "llama"])
def folder(request, tmp_path_factory):
    """A model with a tied head, and one with a head of its own."""
    return write_model(tmp_path_factory.mktemp("published") / request.param, request.param)


def learner_of(folder, lora=False):
    model = load_model(folder)
    if lora:
        add_lora(model, AdapterConfig(rank=4, alpha=8), seed=0)
    return build.learner(model)


def step(learner, seed=0):
    rng = np.random.default_rng(seed)
    assert learner.update([demonstrated(random_tree(rng, contexts=False))]).outcome == "stepped"


def publishing(folder, server, work, learner):
    """Run `work` with a publisher and its engine."""

    async def main():
        section = VllmEngineConfig(name="vllm", urls=(server.url,), dtype="float32", start_seconds=5.0)
        tokenizer = ChatTokenizer(folder)
        engine = build_vllm(section, tokenizer, 200, Path("nowhere"), [].append, hands_over=True)
        try:
            publisher = FolderPublisher(engine, engine.info().weights_folder, "float32", learner, PROBE)
            return await work(publisher, engine)
        finally:
            await engine.close()

    return asyncio.run(main())


@pytest.mark.parametrize("lora", [False, True])
def test_after_each_step_the_server_computes_what_the_learner_does(folder, lora):
    learner = learner_of(folder, lora)

    async def work(publisher, engine):
        found = []
        for version in range(3):
            await publisher.publish(version)
            found.append((await engine.score(PROBE), learner.score(PROBE), engine.info().policy_version))
            step(learner, version)
        return found, [path.name for path in engine.info().weights_folder.glob("version-*")]

    with stand_in(folder) as (_, server):
        found, left = publishing(folder, server, work, learner)
    for theirs, ours, _ in found:
        np.testing.assert_allclose(theirs, ours, atol=1e-4)
    assert [version for *_, version in found] == [0, 1, 2]
    assert np.abs(found[0][0] - found[2][0]).max() > 0.05
    assert left == ["version-000002"]


def test_a_hand_over_without_a_head_of_its_own_is_caught(tmp_path):
    """A server with tie_word_embeddings: the reload leaves the packed copy of the head as it was."""
    folder = write_model(tmp_path / "tied", "qwen2")
    learner = learner_of(folder)

    async def work(publisher, engine):
        await publisher.publish(0)
        step(learner)
        await publisher.publish(1)

    with stand_in(folder, keeps_tied_head=True) as (_, server), pytest.raises(EngineError) as told:
        publishing(folder, server, work, learner)
    assert "step 1: " in str(told.value)
    assert "nothing was learned" in str(told.value)
    assert "tie_word_embeddings" in str(told.value)
    assert "\n" not in str(told.value)


def test_a_full_disk_leaves_the_last_weights_and_one_line(folder, monkeypatch):
    learner = learner_of(folder)

    async def work(publisher, engine):
        await publisher.publish(0)
        before = learner.score(PROBE)
        step(learner)
        monkeypatch.setattr(plain_folder, "write_each_tensor", full)
        with pytest.raises(
            EngineError, match=r"step 1: the weights cannot be written .*No space left"
        ) as told:
            await publisher.publish(1)
        assert "\n" not in str(told.value)
        return before, await engine.score(PROBE), list(engine.info().weights_folder.glob("*"))

    def full(path, heads, tensor):
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    with stand_in(folder) as (here, server):
        before, after, left = publishing(folder, server, work, learner)
    np.testing.assert_allclose(after, before, atol=1e-4)
    assert here.loads == 1
    assert [path.name for path in left if not path.name.startswith(".lock")] == ["version-000000"]


@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("largest", [5_000_000_000, 30_000])
def test_the_folder_holds_the_whole_model_under_its_own_names(folder, tmp_path, monkeypatch, lora, largest):
    monkeypatch.setattr(plain_folder, "FILE_BYTES", largest)
    model = load_model(folder)
    if lora:
        add_lora(model, AdapterConfig(rank=4, alpha=8), seed=0)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_B" in name:
                    parameter.normal_()
    write_weights(build.learner(model), tmp_path / "new", "float32")
    files = sorted((tmp_path / "new").glob("*.safetensors"))
    assert (len(files) > 1) == (largest < 5_000_000_000)
    found = {name: tensor for file in files for name, tensor in load_file(file).items()}
    plain = AutoModelForCausalLM.from_pretrained(folder)
    assert found.keys() == plain.state_dict().keys()
    plain.lm_head.weight = torch.nn.Parameter(plain.lm_head.weight.detach().clone())
    plain.load_state_dict(found)
    ids = torch.tensor([PROBE])
    with torch.no_grad():
        torch.testing.assert_close(plain(ids).logits, model(ids).logits, atol=2e-4, rtol=0)


def test_sixteen_bits_are_half_of_it(folder, tmp_path):
    model = load_model(folder)
    for dtype in ("float32", "bfloat16"):
        write_weights(build.learner(model), tmp_path / dtype, dtype)
    sizes = [
        sum(f.stat().st_size for f in (tmp_path / d).glob("*.safetensors")) for d in ("float32", "bfloat16")
    ]
    assert sizes[1] == pytest.approx(sizes[0] / 2, rel=0.05)
    assert version_folder(tmp_path, 3).name == "version-000003"
