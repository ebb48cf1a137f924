"""Weights over gloo into a real vLLM: bit for bit those of the learner, whole or not at all, and again after a kill."""

import json
import os
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from real_servers import CONTEXT, FLAGS, play

import build
from model_folders import write_model
from ramify.assemble.vllm import build_vllm
from ramify.chat.tokenizer import ChatTokenizer
from ramify.core.records import Request
from ramify.engines.configs import VllmEngineConfig
from ramify.engines.vllm.nccl import NcclCommunicator
from ramify.engines.vllm.wires import GlooWire, NcclWire
from ramify.modeling.load import load_model
from ramify.sampler.publisher import BucketPublisher
from ramify.sampler.served_weights import LearnerBuckets, write_weights

pytestmark = pytest.mark.timeout(1500)

IDS = tuple(range(20, 84))


def moved(learner, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in learner.model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 1e-3)


def test_a_real_server_has_the_learners_weights_or_refuses_them(taught, vllm_python, tmp_path, monkeypatch):
    monkeypatch.setattr(LearnerBuckets, "bucket_bytes", 100_000)
    learner, notes = build.learner(load_model(taught)), []
    section = VllmEngineConfig(
        name="vllm",
        launch=True,
        weights="gloo",
        python=vllm_python,
        flags=FLAGS,
        dtype="float32",
        start_seconds=900.0,
    )
    engine = build_vllm(
        section, ChatTokenizer(taught), CONTEXT, tmp_path / "run", notes.append, hands_over=True
    )
    replica, send, messages = engine._replicas[0], GlooWire._broadcast, []

    def damaging(wire, message):
        messages.append(message)
        if len(messages) == 2:
            message[7] ^= 1
        send(wire, message)

    def killing(wire, message):
        messages.append(message)
        if len(messages) == 2:
            os.killpg(replica.process._running.pid, signal.SIGKILL)
        send(wire, message)

    async def work(engine):
        publisher = BucketPublisher(engine, "float32", learner, IDS)
        await publisher.publish(0)
        moved(learner, 1)
        await publisher.publish(1)
        scores, sums = await engine.score(IDS), await replica.server.weight_checksums(300.0)
        # vLLM's own way of the same weights into the same server.
        write_weights(learner, tmp_path / "folder", "float32")
        await replica.server.load(tmp_path / "folder", replica.label, 300.0)
        assert await replica.server.weight_checksums(300.0) == sums
        np.testing.assert_array_equal(await engine.score(IDS), scores)
        for version, fault in ((2, damaging), (3, killing)):
            moved(learner, version)
            messages.clear()
            monkeypatch.setattr(GlooWire, "_broadcast", fault)
            await publisher.publish(version)  # its probe compares
            assert len(messages) > len(publisher._weights.buckets)
            done = await engine.generate(Request(IDS, 1, 4))
            assert {number for number, _ in done.version_runs} == {version}

    play(engine, work)
    log = Path(replica.process.log).read_text()
    assert "bucket 1 is damaged, or of another hand-over" in log
    assert sum("is back after" in note for note in notes) == 1


READ = """
import json, sys
from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferInitInfo, NCCLWeightTransferUpdateInfo
meeting, about = json.load(sys.stdin)
info, update = NCCLWeightTransferInitInfo(**meeting), NCCLWeightTransferUpdateInfo(**about)
print(info.nccl_unique_id_bytes == bytes(range(128)), info.packed_buffer_size_bytes, len(update.names))
"""


def test_vllms_own_engine_understands_what_servers_are_sent_for_nccl(vllm_python, tmp_path):
    """As far as a machine without GPUs can tell."""

    class WithoutLibrary(NcclCommunicator):
        """Opens no library: what is read here goes out before anything joins."""

        def __init__(self, group, size, seconds):
            super().__init__(group, size, seconds, lambda: None)

        @staticmethod
        def new_id():
            return bytes(range(128))

    weights = LearnerBuckets(build.learner(load_model(write_model(tmp_path / "model", "qwen2"))), "bfloat16")
    wire = NcclWire(WithoutLibrary)
    sent = json.dumps([wire.meet(weights, [1], 2)[0], wire.announce(weights, "run-1")])
    done = subprocess.run(
        [vllm_python, "-c", READ], input=sent, text=True, capture_output=True, timeout=300, check=False
    )
    assert done.stdout.splitlines()[-1:] == [f"True {2**28} {len(weights.shapes)}"], done.stderr
