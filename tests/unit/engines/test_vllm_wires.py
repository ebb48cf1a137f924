"""Weights that reach servers bucket by bucket, over real gloo: all of them, in order, of this version, or the hand-over failed."""

import asyncio
import pickle
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from vllm_engines import IDS, engine_of, plain_scores, play, request_of, write_version

import build
from loopback import as_json
from ramify.algos.sft import demonstrated
from ramify.core.errors import ConfigError, DataError, EngineError
from ramify.engines.vllm import carriers, wires
from ramify.engines.vllm.middleware.ramify_weights import (
    AbsentError,
    Delivery,
    Meeting,
    join,
    opened,
    seal,
)
from ramify.engines.vllm.weight_checks import unchanged
from ramify.engines.vllm.wires import GlooWire, NcclWire
from ramify.modeling.configs import AdapterConfig
from ramify.modeling.load import load_model
from ramify.modeling.lora import add_lora
from ramify.sampler.publisher import BucketPublisher
from ramify.sampler.served_weights import LearnerBuckets, ServedWeights
from random_trees import random_tree
from vllm_stand_in import install, stand_in

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("quick_servers")]


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch):
    """So that a small model has several."""
    monkeypatch.setattr(LearnerBuckets, "bucket_bytes", 40_000)


@pytest.fixture
def short_waits(monkeypatch):
    """As gloo waits for seconds."""
    monkeypatch.setattr(wires, "SECONDS", 2.0)
    monkeypatch.setattr(wires, "_LATER_SECONDS", 1.0)
    monkeypatch.setattr(carriers, "SECONDS", 2.0)
    monkeypatch.setattr(carriers, "_LINGER_SECONDS", 5.0)


def learner_of(folder, lora=False):
    model = load_model(folder)
    if lora:
        add_lora(model, AdapterConfig(rank=4, alpha=8), seed=0)
    return build.learner(model)


def step(learner, seed=0):
    tree = random_tree(np.random.default_rng(seed), contexts=False)
    assert learner.update([demonstrated(tree)]).outcome == "stepped"


def publishing(engine, learner, work, dtype="float32"):
    """Run `work(publisher, engine)`."""
    return play(engine, lambda e: work(BucketPublisher(e, dtype, learner, IDS), e))


def on_wire(folder, *servers, **settings):
    return engine_of(folder, *servers, hands_over=True, weights="gloo", **settings)


def equal(here, learner):
    """A server has the learner's weights bit for bit."""
    weights = ServedWeights(learner)
    state = dict(here.model.named_parameters())
    return all(torch.equal(state[name], weights.tensor(name, torch.float32)) for name in weights.shapes)


@pytest.mark.parametrize("lora", [False, True])
def test_after_each_step_two_servers_have_the_learners_weights_bit_for_bit(folder, monkeypatch, lora):
    learner = learner_of(folder, lora)

    def refuse(*_):
        raise AssertionError("a pickle")

    async def work(publisher, engine):
        for version in range(3):
            await publisher.publish(version)
            assert equal(near, learner)
            assert equal(far, learner)
            done = await engine.generate(request_of(folder))
            assert done.version_runs == ((version, len(done.token_ids)),)
            step(learner, version)

    for name in ("load", "loads", "dump", "dumps", "Pickler", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    with stand_in(folder) as (near, first), stand_in(folder) as (far, second):
        publishing(on_wire(folder, first, second), learner, work)
    assert near.loads == far.loads == 3
    assert near.label == far.label


def fails_once(monkeypatch, fault):
    """Have the second message of the first hand-over go wrong."""
    send, messages = GlooWire._broadcast, []

    def broadcast(wire, message):
        messages.append(message)
        send(wire, fault(messages, message) if len(messages) == 2 else message)

    monkeypatch.setattr(GlooWire, "_broadcast", broadcast)


def damaged(_, message):
    message[11] ^= 1
    return message


def left_out(messages, message):
    """The one after it, which has as many bytes, comes in its place."""
    later = message.clone()
    later[-40] += 1
    return later


@pytest.mark.parametrize("fault", [damaged, left_out])
def test_a_bucket_that_is_damaged_or_missing_is_refused_and_all_are_sent_again(folder, monkeypatch, fault):
    learner, notes = learner_of(folder), []

    async def work(publisher, engine):
        await publisher.publish(1)
        return await engine.score(IDS)

    fails_once(monkeypatch, fault)
    with stand_in(folder) as (here, server):
        step(learner)
        scores = publishing(on_wire(folder, server, notes=notes), learner, work)
        assert equal(here, learner)
    np.testing.assert_allclose(scores, plain_scores(learner.model, IDS), atol=1e-5)
    assert here.loads == 1
    assert not any("down" in note for note in notes)


def test_of_two_servers_one_dies_in_the_middle_and_both_end_with_the_new_weights(folder):
    learner, notes = learner_of(folder), []

    def dies(tensors):
        dying.is_dead = True
        dying._take = type(dying)._take.__get__(dying)
        raise RuntimeError("killed")

    async def work(publisher, engine):
        await publisher.publish(0)
        step(learner)
        dying._take = dies
        hand_over = asyncio.create_task(publisher.publish(1))
        while not (hand_over.done() or any("is down" in note for note in notes)):
            await asyncio.sleep(0.01)
        dying.restart()
        await hand_over
        return await engine.score(IDS)

    with stand_in(folder) as (near, first), stand_in(folder) as (dying, second):
        publishing(on_wire(folder, first, second, notes=notes), learner, work)
        assert equal(near, learner)
        assert equal(dying, learner)
        assert near.label == dying.label
    downs = [note for note in notes if "is down" in note]
    assert len(downs) == 1
    assert second.url in downs[0]


def test_a_server_that_keeps_an_old_tensor_is_caught_by_its_own_checksums(folder):
    """It says that it has taken all, and no logprob has moved by what the probe allows."""
    learner = learner_of(folder)

    async def work(publisher, engine):
        await publisher.publish(0)
        here.forgets = {"model.layers.0.mlp.down_proj.weight"}
        with torch.no_grad():
            for parameter in learner.model.parameters():
                parameter.add_(1e-7)
        await publisher.publish(1)

    with stand_in(folder) as (here, server), pytest.raises(EngineError) as caught:
        publishing(on_wire(folder, server, start_seconds=1.0), learner, work)
    assert "still has its old model.layers.0.mlp.down_proj.weight after a hand-over" in str(caught.value)


def test_joint_parameters_and_parts_of_several_workers_count_as_vllm_keeps_them():
    layer = "model.layers.0.self_attn"
    before = {f"tp{n}:{layer}.qkv_proj.weight": "a" for n in (0, 1)} | {"tp0:model.norm.weight": "n"}
    after = {**before, f"tp1:{layer}.qkv_proj.weight": "b"}
    assert unchanged(before, after, {f"{layer}.k_proj.weight"}) == []
    assert unchanged(before, before, {f"{layer}.k_proj.weight"}) == [f"{layer}.qkv_proj.weight"]
    assert unchanged(before, after, {"model.norm.weight", "vision.weight"}) == ["model.norm.weight"]
    assert unchanged(before, before, {f"{layer}.o_proj.weight"}) == []


def test_a_server_that_is_back_gets_weights_only_while_the_learner_still_has_them(folder):
    learner = learner_of(folder)
    weights = LearnerBuckets(learner, "float32")
    assert len(weights.buckets) > 2
    taken = weights.tensors(0, on_cpu=True)
    before = [tensor.clone() for tensor in taken]
    step(learner)
    assert weights.tensors(0, on_cpu=True) is None
    assert all(torch.equal(tensor, old) for tensor, old in zip(taken, before, strict=True))
    weights.take_current()
    assert weights.tensors(0, on_cpu=True) is not None


def test_a_hand_over_that_is_cancelled_ends_after_the_thread_that_sends(folder, monkeypatch):
    """Afterwards a run that was stopped saves the learner's weights, and frees the wire."""
    learner, send = learner_of(folder), GlooWire.send
    sent, cancelled, ended = (threading.Event() for _ in range(3))

    def lingers(wire, weights):
        digests = send(wire, weights)
        sent.set()
        cancelled.wait(60.0)
        ended.set()
        return digests

    async def work(publisher, _):
        hand_over = asyncio.create_task(publisher.publish(0))
        while here.loads == 0 or not sent.is_set():
            await asyncio.sleep(0.01)
        hand_over.cancel()
        await asyncio.wait([hand_over], timeout=0.2)
        assert not hand_over.done()
        cancelled.set()
        with pytest.raises(asyncio.CancelledError):
            await hand_over
        assert ended.is_set()
        assert not here.paused

    monkeypatch.setattr(GlooWire, "send", lingers)
    with stand_in(folder) as (here, server):
        publishing(on_wire(folder, server), learner, work)


@pytest.mark.usefixtures("short_waits", "hanging_servers")
def test_a_server_that_hangs_delays_a_hand_over_by_the_limit_alone(folder):
    learner, hung = learner_of(folder), threading.Event()

    def hangs(_):
        hung.wait(200.0)

    async def work(publisher, _):
        await publisher.publish(0)
        step(learner)
        far.faults |= dict.fromkeys(("/shutdown_weight_transfer_engine", "/health"), hangs)
        near.faults["/pause"] = lambda _: (
            as_json({"detail": "once"}, 500) if near.faults.pop("/pause") else None
        )
        began = time.monotonic()
        await publisher.publish(1)
        hung.set()
        # The other server may wait for gloo's own limit; no other limit of the engine is below a minute.
        assert time.monotonic() - began < 55.0
        assert equal(near, learner)

    with stand_in(folder) as (near, first), stand_in(folder) as (far, second):
        publishing(on_wire(folder, first, second, start_seconds=1.0), learner, work)


@pytest.mark.usefixtures("short_waits")
def test_a_server_that_never_comes_to_a_meeting_is_named_and_started_again_by_its_user(folder):
    """gloo alone would wait in a call that nothing ends."""
    learner, notes, hung = learner_of(folder), [], threading.Event()

    def hangs(_):
        hung.wait(60.0)

    async def work(publisher, _):
        far.faults["/init_weight_transfer_engine"] = hangs
        await publisher.publish(0)
        hung.set()
        assert equal(near, learner)
        assert not near.paused

    with stand_in(folder) as (near, first), stand_in(folder) as (far, second):
        engine = on_wire(folder, first, second, notes=notes, start_seconds=1.0)
        publishing(engine, learner, work)
    downs = [note for note in notes if "is down" in note]
    assert "a hand-over that failed. Start it again" in downs[0], notes
    # The other one gets a pass of its own.
    assert all(second.url in down for down in downs), notes


def test_processes_that_do_not_come_are_named_by_their_ranks(tmp_path):
    store = Meeting(str(tmp_path / "meeting"), 0, 3, 0.2)
    with pytest.raises(AbsentError, match=r"processes 1, 2 did not come within 0\.2 s"):
        join(store, 0)
    with pytest.raises(RuntimeError, match="is over"):
        join(replace(store, seconds=60.0), 0, lambda: True)
    # Nobody opens the meeting.
    with pytest.raises(AbsentError, match=r"processes 0 did not come within 0\.2 s"):
        join(replace(store, path=str(tmp_path / "another")), 1)


def test_a_server_that_comes_to_a_meeting_after_its_end_is_free_at_once(tmp_path):
    """In gloo it would wait for processes that have left."""
    meeting = Meeting(str(tmp_path / "meeting"), 0, 3, 60.0)
    with ThreadPoolExecutor(1) as early:
        first = early.submit(join, meeting, 1)
        with pytest.raises(AbsentError):
            join(replace(meeting, seconds=0.2), 0)
        with pytest.raises(RuntimeError, match="the learner has left it"):
            first.result(10.0)
    with pytest.raises(RuntimeError, match="the learner has left it"):
        join(meeting, 2)


def test_a_meeting_whose_folder_is_gone_holds_nobody(tmp_path):
    """FileStore would wait for it for five minutes, and no other thread of the process would run."""
    meeting = Meeting(str(tmp_path / "gone" / "meeting"), 0, 2, 60.0)
    with pytest.raises(RuntimeError, match="its folder is gone"):
        join(meeting, 1)


@pytest.mark.usefixtures("short_waits")
@pytest.mark.parametrize("weights", ["folder", "gloo"])
@pytest.mark.parametrize("path", ["/pause", "/resume"])
def test_every_request_of_a_hand_over_has_a_limit_of_its_own(folder, monkeypatch, weights, path):
    """`engine.request_seconds` is half an hour, for answers of many tokens."""
    learner, hung = learner_of(folder), threading.Event()
    monkeypatch.setattr("ramify.engines.vllm.server.CHANGE_SECONDS", 2.0)
    here_faults = {path: lambda _: hung.wait(60.0)}

    async def work(engine):
        here.faults |= here_faults
        if weights == "folder":
            write_version(folder, engine, 1)
            await engine.load_weights(1)
        else:
            await BucketPublisher(engine, "float32", learner, IDS).publish(1)

    with stand_in(folder) as (here, server):
        engine = engine_of(folder, server, hands_over=True, weights=weights, start_seconds=1.0)
        with pytest.raises(EngineError, match=rf"{path} does not answer within 2 s"):
            play(engine, work)
        hung.set()


def test_a_weight_that_is_not_finite_ends_the_run_and_reaches_no_server(folder):
    learner = learner_of(folder)
    with torch.no_grad():
        learner.model.get_parameter("model.norm.weight")[0] = float("nan")
    with stand_in(folder) as (here, server):
        with pytest.raises(DataError, match=r"model\.norm\.weight holds NaN or infinity"):
            publishing(on_wire(folder, server), learner, lambda publisher, _: publisher.publish(0))
        assert here.loads == 0


def test_a_server_of_another_process_takes_them_too(folder, tmp_path, monkeypatch):
    path, _ = install(tmp_path / "packages")
    monkeypatch.setenv("PYTHONPATH", path)
    learner = learner_of(folder)
    step(learner)

    async def work(publisher, engine):
        await publisher.publish(1)
        return await engine.score(IDS)

    settings = {"launch": True, "python": Path(sys.executable), "start_seconds": 240.0}
    scores = publishing(on_wire(folder, run=tmp_path / "run", **settings), learner, work)
    np.testing.assert_allclose(scores, plain_scores(learner.model, IDS), atol=1e-5)


def test_a_message_of_another_hand_over_is_no_message_of_this_one():
    tensors = [torch.arange(6.0).view(2, 3).bfloat16(), torch.ones(5).bfloat16()]
    about = {
        "dtype": "bfloat16",
        "names": ["a", "b"],
        "shapes": [[2, 3], [5]],
        "buckets": [2],
        "key": "ab" * 32,
    }
    delivery = Delivery(label="run-1", **about)
    part = next(delivery.parts())
    message, digests = seal(delivery, 0, tensors)
    assert [torch.equal(t, u) for t, (_, u) in zip(tensors, opened(delivery, 0, part, message), strict=True)]
    assert len(set(digests)) == 2
    for other in (
        Delivery(label="run-2", **about),
        Delivery(label="run-1", **{**about, "key": "ba" * 32}),
        Delivery(label="run-1", **{**about, "names": ["a"] * 3, "shapes": [[1]] * 3, "buckets": [2, 1]}),
    ):
        with pytest.raises(ValueError, match="damaged, or of another hand-over"):
            opened(other, 0, part, message)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"urls": ("http://node-7:8000",), "weights": "gloo"}, "reaches this machine alone"),
        ({"launch": True, "urls": (), "weights": "nccl", "sleep": True}, "sleep = true is to prevent"),
        ({"launch": True, "urls": (), "weights": "gloo", "weights_dir": "w"}, "weights_dir: has no effect"),
    ],
)
def test_ways_that_do_not_fit_the_servers_are_refused(folder, settings, expected):
    with pytest.raises((ConfigError, ValueError), match=expected):
        engine_of(folder, hands_over=True, **settings)


class Loop:
    """A group of NCCL as its library has it, over gloo: the messages are real, the library is not there."""

    groups: ClassVar = []

    @staticmethod
    def new_id():
        return bytes(range(128))

    def __init__(self, group, size, seconds):
        self.sent, self.aborted = [], False
        assert seconds == wires.SECONDS
        Loop.groups.append((group, size, self))

    def join(self):
        pass

    def broadcast(self, tensor):
        self.sent.append(tensor.clone())

    def abort(self):
        self.aborted = True


def test_over_nccl_servers_are_told_what_vllm_asks_for_and_buckets_are_cut_as_vllm_cuts_them(folder):
    learner = learner_of(folder)
    weights = LearnerBuckets(learner, "bfloat16")
    wire = NcclWire(Loop)
    first, second = wire.meet(weights, [1, 3], 4)
    assert {**first, "rank_offset": 3} == second
    assert first["packed_buffer_size_bytes"] == 40_000
    wire.join()
    about = wire.announce(weights, "run-1")
    assert about["names"] == list(weights.shapes)
    wire.send(weights)
    group, size, communicator = Loop.groups[-1]
    assert (group, size) == (bytes(range(128)), 4)
    # The rule of vLLM's packed_nccl_broadcast_consumer.
    sizes, expected = [2 * int(np.prod(shape)) for shape in about["shapes"]], [0]
    for number in sizes:
        if expected[-1] > first["packed_buffer_size_bytes"]:
            expected.append(0)
        expected[-1] += number
    assert [message.numel() for message in communicator.sent] == expected
    whole = torch.cat(communicator.sent).view(torch.bfloat16)
    served = ServedWeights(learner)
    plain = torch.cat([served.tensor(name, torch.bfloat16).flatten() for name in about["names"]])
    assert torch.equal(whole, plain)
    wire.stop()
    assert communicator.aborted


@pytest.mark.parametrize("servers", [1, 2])
def test_a_server_with_old_weights_is_caught_within_any_tolerance(folder, servers):
    """As in bfloat16, where a nat passes: it takes the label and loads nothing, and has no route for checksums."""
    learner = learner_of(folder)

    async def work(publisher, engine):
        engine._info = replace(engine.info(), logprob_tolerance=100.0)
        await publisher.publish(0)
        old.forgets = set(dict(old.model.named_parameters()))
        step(learner)
        await publisher.publish(1)

    with ExitStack() as stack:
        running = [stack.enter_context(stand_in(folder)) for _ in range(servers)]
        old = running[-1][0]
        old.faults["/weight_checker"] = lambda _: as_json({"detail": "Not Found"}, 404)
        with pytest.raises(EngineError, match="has old weights"):
            publishing(on_wire(folder, *(server for _, server in running)), learner, work)
