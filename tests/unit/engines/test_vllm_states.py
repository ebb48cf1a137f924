"""Asleep and awake are states of a server: each change is verified, repeated, and ends in a restart or in one line."""

import asyncio
import time

import numpy as np
import pytest
import torch

import build
from loopback import Reply, as_json
from model_folders import write_model
from ramify.assemble.vllm import build_vllm
from ramify.chat.tokenizer import ChatTokenizer
from ramify.core.errors import ConfigError, EngineError
from ramify.core.records import Request, version_folder
from ramify.engines.configs import VllmEngineConfig
from ramify.engines.vllm import replica
from ramify.engines.vllm.replica import ServerState
from ramify.modeling.load import load_model
from ramify.sampler.publisher import write_weights
from vllm_stand_in import stand_in

pytestmark = pytest.mark.integration

REQUEST = Request((5, 9, 33, 60), 1, 4)
IDS = [5, 9, 33, 60, 81, 12, 7, 7, 40, 101]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("vllm") / "model", "qwen2")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(replica, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(replica, "WATCH_SECONDS", 0.1)
    monkeypatch.setattr(replica, "HEALTH_SECONDS", 1.0)
    monkeypatch.setattr("ramify.engines.vllm.engine._PAUSE_SECONDS", 0.01)


def engine_of(folder, *servers, notes=None, **section):
    settings = {
        "urls": tuple(s.url for s in servers),
        "dtype": "float32",
        "start_seconds": 20.0,
        "sleep": True,
    }
    return build_vllm(
        VllmEngineConfig(name="vllm", **{**settings, **section}),
        ChatTokenizer(folder),
        300,
        folder.parent / "run",
        [].append if notes is None else notes.append,
        hands_over=True,
    )


def play(engine, work):
    async def main():
        try:
            return await work(engine)
        finally:
            await engine.close()

    return asyncio.run(main())


async def step(engine, folder, version):
    """A step of a run up to its sleep: publish, roll out, compare; what was sampled is in hand before the sleep."""
    model = load_model(folder)
    with torch.no_grad():
        model.model.norm.weight.mul_(1 + version / 10)
    write_weights(build.learner(model), version_folder(engine.info().weights_folder, version), "float32")
    await engine.load_weights(version)
    completion = await engine.generate(REQUEST)
    assert {number for number, _ in completion.version_runs} == {version}
    with torch.no_grad():
        logprobs = torch.log_softmax(model(torch.tensor([IDS])).logits[0, :-1].float(), -1)
    expected = logprobs.gather(1, torch.tensor(IDS[1:])[:, None])[:, 0].numpy()
    np.testing.assert_allclose(await engine.score(IDS), expected, atol=1e-4)
    return completion


def states(engine):
    return [replica.state for replica in engine._replicas]


def fails(asked):
    return as_json({"error": {"message": "Memory usage increased after sleeping", "code": 500}}, 500)


def hangs(asked):
    time.sleep(3)


def drops(asked):
    return Reply(write=lambda stream: None)


def lies(asked):
    """The route answers, and nothing happened."""
    return as_json({"status": "fine", "is_sleeping": None})


FAULTS = {"fails": fails, "hangs": hangs, "drops": drops, "lies": lies}


def once(here, route, fault):
    def first(asked):
        del here.faults[route]
        return fault(asked)

    return first


CHANGES = [(route, kind) for route in ("/sleep", "/wake_up") for kind in FAULTS] + [("/is_sleeping", "lies")]


@pytest.mark.parametrize(("route", "kind"), [change for change in CHANGES if "hangs" not in change])
def test_a_change_that_fails_once_is_repeated(folder, route, kind):
    async def work(engine):
        await step(engine, folder, 1)
        if route != "/wake_up":
            here.faults[route] = once(here, route, FAULTS[kind])
        await engine.sleep()
        assert states(engine) == [ServerState.ASLEEP]
        assert here.asleep
        if route != "/sleep":
            here.faults[route] = once(here, route, FAULTS[kind])
        await step(engine, folder, 2)
        assert states(engine) == [ServerState.AWAKE]

    notes = []
    with stand_in(folder) as (here, server):
        play(engine_of(folder, server, notes=notes), work)
    assert here.loads_asleep == 0
    assert not here.faults
    assert notes == []


@pytest.mark.parametrize(("route", "kind"), [change for change in CHANGES if change[0] != "/wake_up"])
def test_a_server_that_does_not_sleep_is_lost_in_one_line_and_the_step_is_kept(folder, route, kind):
    async def work(engine):
        completion = await step(engine, folder, 1)
        here.faults[route] = FAULTS[kind]
        await engine.sleep()
        assert states(engine) == [ServerState.LOST]
        with pytest.raises(EngineError, match="does not sleep: ") as error:
            await step(engine, folder, 2)
        assert "\n" not in str(error.value)
        return completion

    with stand_in(folder) as (here, server):
        assert play(engine_of(folder, server), work).token_ids
    assert here.loads == 1


@pytest.mark.parametrize(("route", "kind"), [change for change in CHANGES if change[0] != "/sleep"])
def test_a_server_that_does_not_wake_is_lost_in_one_line_and_loads_nothing(folder, route, kind):
    async def work(engine):
        await step(engine, folder, 1)
        await engine.sleep()
        here.faults[route] = FAULTS[kind]
        with pytest.raises(EngineError, match=r"did not come back in .* s ") as error:
            await step(engine, folder, 2)
        assert "\n" not in str(error.value)
        assert states(engine) == [ServerState.LOST]

    with stand_in(folder) as (here, server):
        play(engine_of(folder, server), work)
    assert here.loads == 1


@pytest.mark.parametrize("route", ["/sleep", "/wake_up"])
def test_the_other_servers_go_on(folder, route):
    async def work(engine):
        await step(engine, folder, 1)
        bad.faults[route] = fails
        for version in (2, 3):
            await engine.sleep()
            await step(engine, folder, version)
        assert sorted(states(engine)) == [ServerState.AWAKE, ServerState.LOST]

    notes = []
    with stand_in(folder) as (good, first), stand_in(folder) as (bad, second):
        play(engine_of(folder, first, second, notes=notes), work)
    assert len(notes) == 1
    assert notes[0].endswith("; it is left out, and 1 of 2 servers go on")
    assert (good.loads, bad.loads, bad.loads_asleep) == (3, 1, 0)


@pytest.mark.parametrize("route", ["/collective_rpc", "/update_weight_version", "/resume"])
def test_a_hand_over_of_which_one_answer_is_lost_is_done_again(folder, route):
    """The server did what it was told, so its label may be right; the run used to wait for ever."""

    def acts_and_drops(asked):
        del here.faults[route]
        here.answer(asked)
        return Reply(write=lambda stream: None)

    async def work(engine):
        await step(engine, folder, 1)
        here.faults[route] = acts_and_drops
        async with asyncio.timeout(60):
            await step(engine, folder, 2)

    with stand_in(folder) as (here, server):
        play(engine_of(folder, server, sleep=False), work)
    assert not here.paused
    assert here.loads >= 2


def test_a_server_that_dies_as_it_falls_asleep_is_waited_for(folder):
    async def work(engine):
        await step(engine, folder, 1)
        here.is_dead = True
        await engine.sleep()
        assert states(engine) == [ServerState.STARTING]
        here.restart()
        await step(engine, folder, 2)

    notes = []
    with stand_in(folder) as (here, server):
        play(engine_of(folder, server, notes=notes), work)
    assert ["is down" in notes[0], "is back" in notes[1], len(notes)] == [True, True, 2]


def test_a_server_that_somebody_puts_to_sleep_gets_its_weights_again(folder):
    """Its label is still the right one, its weights are gone."""

    async def work(engine):
        await step(engine, folder, 1)
        here._sleep(None)
        replica_ = engine._replicas[0]
        replica_.suspect()
        while here.loads < 2:
            await asyncio.sleep(0.02)
        await engine._until(lambda: replica_.is_up)
        return await engine.score(IDS), await step(engine, folder, 1)

    with stand_in(folder) as (here, server):
        play(engine_of(folder, server), work)
    assert here.loads_asleep == 0


def test_a_server_without_sleep_mode_is_refused(folder):
    """vLLM answers its /sleep with 200, and keeps the memory."""
    with stand_in(folder) as (here, server):
        here.config["enable_sleep_mode"] = False
        with pytest.raises(ConfigError, match=r"engine\.sleep: .* --enable-sleep-mode"):
            play(engine_of(folder, server), lambda e: e.score(IDS))


def test_an_engine_can_be_closed_at_the_moment_in_which_a_server_is_suspected(folder):
    """asyncio.wait_for of Python 3.11 swallows a cancellation then, and the engine used to wait for its keeper for ever."""

    async def main(rounds):
        engine = engine_of(folder, server)
        await engine.generate(REQUEST)
        engine._replicas[0].suspect()
        for _ in range(rounds):
            await asyncio.sleep(0)
        async with asyncio.timeout(20):
            await engine.close()

    with stand_in(folder) as (_, server):
        for rounds in range(4):  # of the event loop
            asyncio.run(main(rounds))
