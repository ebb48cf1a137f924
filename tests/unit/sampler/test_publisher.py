"""Weights that reach an engine, by copy or through a folder: it computes what the learner computes, or the run ends."""

import asyncio
import errno
import threading
from contextlib import asynccontextmanager
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import build
from model_folders import write_model
from ramify.algos.sft import demonstrated
from ramify.assemble.vllm import build_vllm
from ramify.assemble.worker import build_engine_model
from ramify.chat.tokenizer import ChatTokenizer
from ramify.core.errors import EngineError
from ramify.core.rank import Rank
from ramify.core.records import Request, version_folder
from ramify.engines.configs import TrainingEngineConfig, VllmEngineConfig
from ramify.engines.local import LocalEngine
from ramify.engines.scripted import ScriptedEngine
from ramify.learner import worker
from ramify.learner.parallel import make_mesh
from ramify.learner.sharding import Sharding, shard
from ramify.modeling import plain_folder
from ramify.modeling.configs import AdapterConfig
from ramify.modeling.load import load_model
from ramify.modeling.lora import add_lora
from ramify.modeling.memory_plan import GATHERED_ONCE
from ramify.sampler import publisher, served_weights
from ramify.sampler.publisher import CopyPublisher, FolderPublisher, SharedPublisher
from ramify.sampler.served_weights import LearnerBuckets, write_weights
from random_trees import random_tree
from scripted_agents import script
from vllm_stand_in import stand_in

COPY = TrainingEngineConfig(name="local", slots=4, weights="copy")
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


@asynccontextmanager
async def engine_of(folder, model):
    engine = LocalEngine(model, ChatTokenizer(folder), num_slots=4, context_tokens=200)
    try:
        yield engine
    finally:
        await engine.close()


def publish_twice(folder, learner, copied, computes=None):
    """A first publish, a step of the learner, and a second publish, to an engine that computes with `computes`."""

    async def main():
        async with engine_of(folder, copied if computes is None else computes) as engine:
            publisher = CopyPublisher(engine, copied, learner, PROBE)
            await publisher.publish(0)
            step(learner)
            await publisher.publish(1)
            return engine.info().policy_version, await engine.score(PROBE)

    return asyncio.run(main())


def test_a_folder_that_is_being_written_is_whole_before_a_run_that_stops_goes_on(
    folder, tmp_path, monkeypatch
):
    """The run removes it next: files that come later would stay in memory (/dev/shm) for good."""
    is_cancelled, written = threading.Event(), []

    def lingers(*of):
        is_cancelled.wait(20.0)
        write_weights(*of)
        written.append(of)

    async def main():
        async with engine_of(folder, learner.model) as engine:
            publishing = FolderPublisher(engine, tmp_path, "float32", learner, PROBE)
            task = asyncio.create_task(publishing.publish(0))
            await asyncio.sleep(0.1)
            task.cancel()
            await asyncio.sleep(0.1)
            assert not task.done()
            is_cancelled.set()
            with pytest.raises(asyncio.CancelledError):
                await task

    learner = learner_of(folder)
    monkeypatch.setattr(publisher, "write_weights", lingers)
    asyncio.run(main())
    assert len(written) == 1


@pytest.mark.parametrize("lora", [False, True])
def test_after_a_step_the_copy_computes_bitwise_what_an_engine_on_the_learners_weights_does(folder, lora):
    learner = learner_of(folder, lora)
    before = learner.score(PROBE)
    copied = build_engine_model(COPY, learner.model, pytest.fail)
    version, scored = publish_twice(folder, learner, copied)
    assert version == 1
    weights = dict(copied.named_parameters())
    for name, parameter in learner.model.named_parameters():
        assert parameter.data_ptr() != weights[name].data_ptr()
        assert torch.equal(parameter, weights[name]), name
        assert not weights[name].requires_grad
    tied = learner.model.config.tie_word_embeddings
    assert (copied.lm_head.weight is copied.model.embed_tokens.weight) == tied

    async def on_the_learners():
        async with engine_of(folder, learner.model) as engine:
            await SharedPublisher(engine).publish(1)
            request = Request(PROBE[:9], 7, 40)
            async with engine_of(folder, copied) as other:
                await other.load_weights(1)
                assert await engine.generate(request) == await other.generate(request)
            return await engine.score(PROBE)

    np.testing.assert_array_equal(scored, asyncio.run(on_the_learners()))
    assert np.abs(scored - before).max() > 0.1


def forgets_the_head(computes, copied):
    """The engine's head is a tensor of its own, which no copy reaches: a tied one is named only as the embedding."""
    if copied.config.tie_word_embeddings:
        computes.lm_head.weight = torch.nn.Parameter(copied.lm_head.weight.detach().clone())
    else:
        copied.lm_head = deepcopy(copied.lm_head)


def forgets_a_layer(computes, copied):
    copied.model.layers[1] = deepcopy(copied.model.layers[1])


def forgets_a_norm(computes, copied):
    copied.model.norm = deepcopy(copied.model.norm)


def shares_all_modules(model):
    """Another model of the same tensors, in which modules can be replaced."""
    memo = {id(parameter): parameter for parameter in model.parameters()}
    return deepcopy(model, memo)


@pytest.mark.parametrize("forgets", [forgets_the_head, forgets_a_layer, forgets_a_norm])
def test_a_part_that_is_forgotten_is_found(folder, forgets):
    learner = learner_of(folder)
    copied = build_engine_model(COPY, learner.model, pytest.fail)
    computes = shares_all_modules(copied)
    forgets(computes, copied)
    with pytest.raises(EngineError, match=r"^step 1: .*differ.* nats .*more than the 0\.001 ") as caught:
        publish_twice(folder, learner, copied, computes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [0.5, float("nan")])
def test_a_damaged_base_below_an_adapter_is_found(folder, value):
    learner = learner_of(folder, lora=True)
    copied = build_engine_model(COPY, learner.model, pytest.fail)
    with torch.no_grad():
        copied.model.layers[0].mlp.down_proj.base_layer.weight[3, 5] = value
    with pytest.raises(EngineError, match=r"^step 1: .*nothing was learned"):
        publish_twice(folder, learner, copied)


def test_an_engine_that_cannot_score_is_refused(folder):
    learner = learner_of(folder)
    engine = ScriptedEngine(ChatTokenizer(folder), script)
    with pytest.raises(EngineError, match="cannot score"):
        CopyPublisher(engine, learner.model, learner, PROBE)


def test_shared_weights_are_one_model(folder):
    learner = learner_of(folder)
    section = TrainingEngineConfig(name="local", slots=4)
    assert build_engine_model(section, learner.model, pytest.fail) is learner.model


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


@pytest.mark.integration
@pytest.mark.parametrize("lora", [False, True])
def test_after_each_step_the_server_computes_what_the_learner_does(folder, lora):
    learner = learner_of(folder, lora)

    async def work(publisher, engine):
        results = []
        for version in range(3):
            await publisher.publish(version)
            results.append((await engine.score(PROBE), learner.score(PROBE), engine.info().policy_version))
            step(learner, version)
        return results, [path.name for path in engine.info().weights_folder.glob("version-*")]

    with stand_in(folder) as (_, server):
        results, left = publishing(folder, server, work, learner)
    for theirs, ours, _ in results:
        np.testing.assert_allclose(theirs, ours, atol=1e-4)
    assert [version for *_, version in results] == [0, 1, 2]
    assert np.abs(results[0][0] - results[2][0]).max() > 0.05
    assert left == ["version-000002"]


@pytest.mark.integration
def test_a_hand_over_without_a_head_of_its_own_is_caught(tmp_path):
    """A server with tie_word_embeddings: the reload leaves the packed copy of the head as it was."""
    folder = write_model(tmp_path / "tied", "qwen2")
    learner = learner_of(folder)

    async def work(publisher, engine):
        await publisher.publish(0)
        step(learner)
        await publisher.publish(1)

    with stand_in(folder, keeps_tied_head=True) as (_, server), pytest.raises(EngineError) as caught:
        publishing(folder, server, work, learner)
    assert "step 1: " in str(caught.value)
    assert "nothing was learned" in str(caught.value)
    assert "tie_word_embeddings" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.integration
def test_a_full_disk_leaves_the_last_weights_and_one_line(folder, monkeypatch):
    learner = learner_of(folder)

    async def work(publisher, engine):
        await publisher.publish(0)
        before = learner.score(PROBE)
        step(learner)
        monkeypatch.setattr(plain_folder, "write_each_tensor", full)
        with pytest.raises(
            EngineError, match=r"step 1: the weights cannot be written .*No space left"
        ) as caught:
            await publisher.publish(1)
        assert "\n" not in str(caught.value)
        return before, await engine.score(PROBE), list(engine.info().weights_folder.glob("*"))

    def full(path, heads, tensor, threads):
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    with stand_in(folder) as (here, server):
        before, after, left = publishing(folder, server, work, learner)
    np.testing.assert_allclose(after, before, atol=1e-4)
    assert here.loads == 1
    assert [path.name for path in left if not path.name.startswith(".lock")] == ["version-000000"]


@pytest.mark.integration
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
    tensors = {name: tensor for file in files for name, tensor in load_file(file).items()}
    plain = AutoModelForCausalLM.from_pretrained(folder)
    assert tensors.keys() == plain.state_dict().keys()
    plain.lm_head.weight = torch.nn.Parameter(plain.lm_head.weight.detach().clone())
    plain.load_state_dict(tensors)
    ids = torch.tensor([PROBE])
    with torch.no_grad():
        torch.testing.assert_close(plain(ids).logits, model(ids).logits, atol=2e-4, rtol=0)


@pytest.mark.integration
def test_sixteen_bits_are_half_of_it(folder, tmp_path):
    model = load_model(folder)
    for dtype in ("float32", "bfloat16"):
        write_weights(build.learner(model), tmp_path / dtype, dtype)
    sizes = [
        sum(f.stat().st_size for f in (tmp_path / d).glob("*.safetensors")) for d in ("float32", "bfloat16")
    ]
    assert sizes[1] == pytest.approx(sizes[0] / 2, rel=0.05)
    assert version_folder(tmp_path, 3).name == "version-000003"


@pytest.mark.integration
def test_a_reader_finds_the_folder_of_a_version_whole_while_another_one_takes_its_place(folder, tmp_path):
    """As after a preflight, whose version 0 comes again; and what killed writers left is removed."""
    new = tmp_path / "version-000000"
    for leftover in (".version-000000.part", ".version-000000.old"):
        (tmp_path / leftover).mkdir()
        (tmp_path / leftover / "model.safetensors").write_text("half")
    write_weights(build.learner(load_model(folder)), new, "float32")
    (first,) = new.glob("*.safetensors")
    expected = first.read_bytes()
    model = load_model(folder)
    with torch.no_grad():
        model.model.norm.weight.add_(1.0)
    removed, rmtree = [], served_weights.shutil.rmtree

    def remove(path, **options):
        # Nothing that a server may open goes before the new folder stands in its place.
        if path.exists():
            removed.append(path.name)
            assert new.is_dir()
        rmtree(path, **options)

    with first.open("rb") as reader, pytest.MonkeyPatch.context() as patch:
        patch.setattr(served_weights.shutil, "rmtree", remove)
        write_weights(build.learner(model), new, "float32")
        assert reader.read() == expected
    assert removed == [".version-000000.old"]
    assert first.read_bytes() != expected
    assert [path.name for path in tmp_path.iterdir()] == [new.name]


def test_split_weights_are_cast_before_ranks_send_them_and_gathered_by_buckets(folder, tmp_path, monkeypatch):
    model = load_model(folder)
    plain = {name: p.detach().bfloat16() for name, p in model.named_parameters(remove_duplicate=False)}
    gathered, calls = worker.whole, []

    def whole(tensor):
        calls.append(tensor.dtype)
        return gathered(tensor)

    try:
        shard(model, Sharding(make_mesh(Rank(), "cpu", 1), torch.bfloat16, GATHERED_ONCE))
        learner = build.learner(model)
        monkeypatch.setattr(worker, "whole", whole)
        monkeypatch.setattr(served_weights, "BUCKET_BYTES", 30_000)
        monkeypatch.setattr(LearnerBuckets, "bucket_bytes", 30_000)
        commands, each = [], learner.ranks.each
        monkeypatch.setattr(learner.ranks, "each", lambda *args: commands.append(args) or each(*args))
        write_weights(learner, tmp_path / "split", "bfloat16")
        assert 2 < len(commands) < len(plain)
        written = load_file(tmp_path / "split" / "model.safetensors")
        buckets = LearnerBuckets(learner, "bfloat16")
        travelled = {
            name: tensor
            for number, names in enumerate(buckets.buckets)
            for name, tensor in zip(names, buckets.tensors(number, on_cpu=True), strict=True)
        }
    finally:
        dist.destroy_process_group()
    assert set(calls) == {torch.bfloat16}
    for tensors in (written, travelled):
        assert tensors.keys() == plain.keys()
        assert all(torch.equal(tensors[name], plain[name]) for name in plain)
