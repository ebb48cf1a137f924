"""States of a vLLM server: each change is verified, repeated, and ends in a restart or in one line."""

import asyncio
import time

import pytest
from vllm_engines import IDS, engine_of, play, request_of, step

from loopback import Reply, as_json, refusing, serve
from ramify.core.errors import EngineError, ServiceDownError
from ramify.core.records import Request
from ramify.engines.vllm.replica import ServerState
from vllm_stand_in import stand_in

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("quick_servers")]


REQUEST = Request((5, 9, 33, 60), 1, 4)


def sleeping_engine(folder, *servers, **section):
    return engine_of(folder, *servers, **{"hands_over": True, "sleep": True, **section})


def states(engine):
    return [replica.state for replica in engine._replicas]


def fails(request):
    return as_json({"error": {"message": "Memory usage increased after sleeping", "code": 500}}, 500)


def hangs(request):
    time.sleep(60)


def drops(request):
    return Reply(write=lambda stream: None)


def lies(request):
    """The route answers, and nothing happened."""
    return as_json({"status": "fine", "is_sleeping": None})


FAULTS = {"fails": fails, "hangs": hangs, "drops": drops, "lies": lies}


def once(here, route, fault):
    def first(request):
        del here.faults[route]
        return fault(request)

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
        play(sleeping_engine(folder, server, notes=notes), work)
    assert here.loads_asleep == 0
    assert not here.faults
    assert notes == []


@pytest.mark.usefixtures("hanging_servers")
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
        assert play(sleeping_engine(folder, server), work).token_ids
    assert here.loads == 1


@pytest.mark.usefixtures("hanging_servers")
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
        play(sleeping_engine(folder, server), work)
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
        play(sleeping_engine(folder, first, second, notes=notes), work)
    assert len(notes) == 1
    assert notes[0].endswith("; it is left out, and 1 of 2 servers go on")
    assert (good.loads, bad.loads, bad.loads_asleep) == (3, 1, 0)


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
        play(sleeping_engine(folder, server, notes=notes), work)
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
        play(sleeping_engine(folder, server), work)
    assert here.loads_asleep == 0


def test_an_engine_can_be_closed_at_the_moment_in_which_a_server_is_suspected(folder):
    """asyncio.wait_for of Python 3.11 swallows a cancellation then, and the engine used to wait for its keeper for ever."""

    async def main(rounds):
        engine = sleeping_engine(folder, server)
        await engine.generate(REQUEST)
        engine._replicas[0].suspect()
        for _ in range(rounds):
            await asyncio.sleep(0)
        async with asyncio.timeout(20):
            await engine.close()

    with stand_in(folder) as (_, server):
        for rounds in range(4):  # of the event loop
            asyncio.run(main(rounds))


def test_a_refused_key_is_told(folder, monkeypatch):
    monkeypatch.setenv("VLLM_KEY", "right-key-123")
    with stand_in(folder) as (here, server):
        here.key = "right-key-123"
        play(engine_of(folder, server, key_variable="VLLM_KEY"), lambda e: e.generate(request_of(folder)))
        with pytest.raises(ServiceDownError, match=r"engine\.key_variable: .*refuses the key .*401"):
            play(engine_of(folder, server), lambda e: e.generate(request_of(folder)))


def test_an_address_where_nothing_answers_is_given_up(folder):
    down = pytest.raises(ServiceDownError, match=r"did not come up in \d+ s .*no connection")
    with refusing() as url, down:
        play(engine_of(folder, urls=(url,), start_seconds=1.0), lambda e: e.generate(request_of(folder)))


def test_a_service_that_is_no_vllm_is_told(folder):
    says = serve(lambda request: as_json({"hello": "world"}))
    with says as server, pytest.raises(ServiceDownError, match="is this a vLLM server"):
        play(engine_of(folder, server, start_seconds=1.0), lambda e: e.generate(request_of(folder)))
