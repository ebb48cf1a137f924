"""Demands on a vLLM server: it is the one of the recipe, and answers with the weights of this step."""

import asyncio
import threading
from urllib.parse import urlsplit

import numpy as np
import pytest
from vllm_engines import (
    GENERATE,
    IDS,
    answering,
    engine_of,
    plain_scores,
    play,
    request_of,
    step,
    write_version,
)

from loopback import Reply, as_json
from ramify.core.errors import ConfigError, EngineError, ServiceDownError
from ramify.core.records import version_folder
from ramify.modeling.load import load_model
from vllm_stand_in import stand_in

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("quick_servers")]


def test_new_weights_are_loaded_by_every_server_and_carry_their_version(folder):
    async def work(engine):
        model = write_version(folder, engine, 7)
        before = await engine.score(IDS)
        await engine.load_weights(7)
        done = await engine.generate(request_of(folder))
        return before, await engine.score(IDS), plain_scores(model, IDS), done

    with stand_in(folder) as (near, first), stand_in(folder) as (far, second):
        engine = engine_of(folder, first, second, hands_over=True)
        path = engine.info().weights_folder
        before, after, plain, done = play(engine, work)
    np.testing.assert_allclose(before, plain_scores(load_model(folder), IDS), atol=1e-5)
    np.testing.assert_allclose(after, plain, atol=1e-5)
    assert done.version_runs == ((7, len(done.token_ids)),)
    assert near.label == far.label != "default"
    assert near.loads == far.loads == 1
    assert not path.exists()


def test_what_servers_hold_before_the_first_hand_over_does_not_matter(folder):
    async def work(engine):
        await engine.score(IDS)
        write_version(folder, engine, 4)
        await engine.load_weights(4)
        return await engine.generate(request_of(folder))

    with stand_in(folder) as (near, first), stand_in(folder) as (far, second):
        far.label = "ramify-ffffffff-9"  # of a run that has ended
        done = play(engine_of(folder, first, second, hands_over=True), work)
        assert near.label == far.label
    assert done.version_runs == ((4, len(done.token_ids)),)


@pytest.mark.parametrize("when", ["between requests", "in a request"])
def test_a_server_that_starts_again_gets_the_weights_of_this_step_before_it_answers(folder, when):
    """Its first weights would answer with other tokens and logprobs, under the label of a fresh start."""
    notes = []

    async def work(engine):
        write_version(folder, engine, 3)
        await engine.load_weights(3)
        whole = await engine.generate(request_of(folder))
        if when == "between requests":
            here.restart()
        else:
            dies_in_the_next_request(here)
        return whole, await engine.generate(request_of(folder))

    with stand_in(folder) as (here, server):
        whole, again = play(engine_of(folder, server, hands_over=True, notes=notes), work)
    assert again == whole
    assert here.loads == 2
    assert any("is down" in note for note in notes)
    assert any("is back" in note for note in notes)


def dies_in_the_next_request(here):
    def die(request):
        here.is_dead = True
        del here.faults[GENERATE]
        threading.Timer(0.3, here.restart).start()
        return Reply(write=lambda stream: None)

    here.faults[GENERATE] = die


@pytest.mark.parametrize("route", ["/collective_rpc", "/update_weight_version", "/resume"])
def test_a_hand_over_of_which_one_answer_is_lost_is_done_again(folder, route):
    """The server did what it was told, so its label may be right; the run used to wait for ever."""

    def acts_and_drops(request):
        del here.faults[route]
        here.answer(request)
        return Reply(write=lambda stream: None)

    async def work(engine):
        await step(engine, folder, 1)
        here.faults[route] = acts_and_drops
        async with asyncio.timeout(60):
            await step(engine, folder, 2)

    with stand_in(folder) as (here, server):
        play(engine_of(folder, server, hands_over=True, start_seconds=20.0), work)
    assert not here.paused
    assert here.loads >= 2


def test_weights_of_another_run_are_not_learned_from(folder):
    async def work(engine):
        write_version(folder, engine, 1)
        await engine.load_weights(1)
        here.label = "ramify-ffffffff-1"
        await engine.generate(request_of(folder))

    with stand_in(folder) as (here, server), pytest.raises(EngineError, match="of another run"):
        play(engine_of(folder, server, hands_over=True), work)


def test_weights_that_change_in_an_evaluation_end_it(folder):
    async def work(engine):
        await engine.generate(request_of(folder))
        here.label = "7"
        await engine.generate(request_of(folder))

    with stand_in(folder) as (here, server), pytest.raises(EngineError, match="somebody else loads weights"):
        play(engine_of(folder, server), work)


def test_a_damaged_folder_ends_the_run(folder):
    async def work(engine):
        write_version(folder, engine, 1)
        file = next(version_folder(engine.info().weights_folder, 1).glob("*.safetensors"))
        file.write_bytes(file.read_bytes()[:100])
        await engine.load_weights(1)

    with stand_in(folder) as (_, server), pytest.raises(EngineError, match="did not come back"):
        play(engine_of(folder, server, hands_over=True, start_seconds=1.0), work)


def test_a_request_in_flight_goes_on_with_the_new_weights_and_says_which_wrote_what(folder):
    """The stand-in writes a request under one label; vLLM tells of both, as here."""

    async def work(engine):
        write_version(folder, engine, 1)
        await engine.load_weights(1)
        first = here.label
        write_version(folder, engine, 2)
        await engine.load_weights(2)
        spans = [{"version": first, "start": 0, "end": 2}, {"version": here.label, "start": 2, "end": 3}]
        content = [{"token_id": t, "logprob": -1.0, "top_logprobs": []} for t in (40, 41, 42)]
        here.faults[GENERATE] = answering(
            token_ids=[40, 41, 42], logprobs={"content": content}, weight_versions=spans
        )
        return await engine.generate(request_of(folder, max_new_tokens=3))

    with stand_in(folder) as (here, server):
        done = play(engine_of(folder, server, hands_over=True), work)
    assert done.version_runs == ((1, 2), (2, 1))


def other_tokenizer(here):
    here.faults["/tokenize"] = lambda request: as_json({"tokens": [1, 2, 3]})


def change(**config):
    return lambda here: here.config.update(config)


def has_attribute(name, value):
    return lambda here: setattr(here, name, value)


UNFIT = {
    "tokenizer": (other_tokenizer, "has another tokenizer than model.path"),
    "dtype": (
        change(dtype="torch.bfloat16"),
        "engine.dtype: .* computes in bfloat16, the recipe says float32",
    ),
    "raw logprobs": (change(logprobs_mode="raw_logprobs"), "--logprobs-mode processed_logprobs"),
    "few logprobs": (change(max_logprobs=5), "--max-logprobs 21"),
    "short context": (has_attribute("context", 200), "takes 200 tokens, prompt and response may have 300"),
    "no dev mode": (has_attribute("dev_mode", False), "VLLM_SERVER_DEV_MODE=1"),
}


@pytest.mark.parametrize("kind", UNFIT)
def test_a_server_that_does_not_fit_the_recipe_is_refused(folder, kind):
    spoil, expected = UNFIT[kind]
    with stand_in(folder) as (here, server):
        spoil(here)
        with pytest.raises(ConfigError, match=expected) as failed:
            play(engine_of(folder, server, hands_over=True), lambda e: e.generate(request_of(folder)))
    assert "\n" not in str(failed.value)


def test_a_server_without_sleep_mode_is_refused(folder):
    """vLLM answers its /sleep with 200, and keeps the memory."""
    with stand_in(folder) as (here, server):
        here.config["enable_sleep_mode"] = False
        with pytest.raises(ConfigError, match=r"engine\.sleep: .* --enable-sleep-mode"):
            play(engine_of(folder, server, hands_over=True, sleep=True), lambda e: e.score(IDS))


def test_a_server_of_another_model_is_refused(folder):
    with stand_in(folder) as (_, server), pytest.raises(ConfigError, match="serves 'model', not 'other'"):
        play(engine_of(folder, server, model="other"), lambda e: e.generate(request_of(folder)))


def test_another_release_is_a_note(folder):
    notes = []
    with stand_in(folder) as (here, server):
        here.version = "0.41.1"
        play(engine_of(folder, server, notes=notes), lambda e: e.generate(request_of(folder)))
    assert notes == [f"engine 'vllm': {server.url} is vLLM 0.41.1; ramify is tested with 0.32"]


@pytest.mark.parametrize("state", ["paused", "asleep"])
def test_a_server_that_a_killed_run_left_asleep_is_woken_for_new_weights(folder, state):
    """Weights are not loaded into one that sleeps, and requests do not wait in one that is paused."""

    async def work(engine):
        write_version(folder, engine, 1)
        await engine.load_weights(1)
        return await engine.generate(request_of(folder))

    with stand_in(folder) as (here, server):
        setattr(here, state, True)
        done = play(engine_of(folder, server, hands_over=True), work)
        assert (here.paused, here.asleep, here.loads_asleep) == (False, False, 0)
    assert {version for version, _ in done.version_runs} == {1}


@pytest.mark.parametrize("state", ["paused", "asleep"])
def test_without_new_weights_a_server_that_sleeps_is_told(folder, state):
    with stand_in(folder) as (here, server):
        setattr(here, state, True)
        with pytest.raises(ServiceDownError, match=r"sleeps, or was paused: .*Start it again"):
            play(engine_of(folder, server, start_seconds=0.5), lambda e: e.generate(request_of(folder)))
        assert getattr(here, state)


@pytest.mark.parametrize("section", [{"sleep": True}, {"weights": "gloo"}, {"weights_dir": "w"}])
def test_a_rollout_takes_the_recipe_of_training_and_leaves_its_servers_as_they_are(folder, section):
    with stand_in(folder) as (_, server):
        engine = engine_of(folder, server, **section)
        assert (engine.info().shares_gpus, engine.info().weights_folder) == (False, None)
        play(engine, lambda e: e.generate(request_of(folder)))
        assert not {"/sleep", "/wake_up", "/pause"} & {urlsplit(r.path).path for r in server.requests}


def test_nccl_that_ranks_keep_on_loopback_is_no_way_to_another_machine(folder, monkeypatch):
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "lo")
    with pytest.raises(
        ConfigError, match=r"engine\.weights: ranks of one machine .* http://node-7:8000 is on another"
    ):
        engine_of(folder, urls=("http://node-7:8000",), weights="nccl", hands_over=True)
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth0")
    assert engine_of(folder, urls=("http://node-7:8000",), weights="nccl", hands_over=True).takes_buckets
