"""A vLLM server gone bad: each answer is refused in one line, or is as good as a valid one. RAMIFY_WRONG_ANSWERS=500 draws more."""

import asyncio
import math
import os
import random
import sys
from collections import Counter

import numpy as np
import pytest
from vllm_engines import GENERATE, answering, engine_of, play, request_of

from loopback import Reply, as_json
from ramify.core.errors import EngineError, RamifyError
from ramify.core.records import Request
from vllm_stand_in import sent, stand_in
from wrong_answers import wrong

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("quick_servers")]


WRONG = {
    "no ids": (answering(token_ids=None), "expected token_ids"),
    "no logprobs": (answering(logprobs=None), "expected a logprob for each of 1 tokens, got 0"),
    "other tokens": (
        answering(logprobs={"content": [{"token_id": 41, "logprob": -1.0}]}),
        "expected a logprob for each",
    ),
    "no number": (
        answering(logprobs={"content": [{"token_id": 40, "logprob": None}]}),
        "expected a logprob that is a number",
    ),
    "no versions": (answering(weight_versions=None), "expected weight_versions"),
    "half a prompt": (answering(prompt_tokens_less=2), r"it read \d+ tokens of a prompt of"),
    "no choices": (
        lambda request: as_json({"usage": {"prompt_tokens": len(request.json()["token_ids"])}}),
        "choices",
    ),
    "no json": (lambda request: Reply(body=b"<html>"), "expected JSON"),
    "refused": (lambda request: as_json({"error": {"message": "Token id 900 is out"}}, 400), "Token id 900"),
    "no route": (lambda request: as_json({"detail": "Not Found"}, 404), "--enable-scale-out"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_an_answer_that_is_not_as_vllm_writes_it_ends_the_run_in_one_line(folder, kind):
    fault, expected = WRONG[kind]
    with stand_in(folder) as (here, server):
        here.faults[GENERATE] = fault
        with pytest.raises(EngineError, match=expected) as failed:
            play(engine_of(folder, server), lambda e: e.generate(request_of(folder)))
    assert "\n" not in str(failed.value)


# drawn at random


CAMPAIGN = int(os.environ.get("RAMIFY_WRONG_ANSWERS", "48"))


ROUTES = (
    *("/health", "/version", "/v1/models", "/server_info", "/weight_info", "/tokenize", "/is_sleeping"),
    *(
        "/pause",
        "/resume",
        "/collective_rpc",
        "/reset_prefix_cache",
        "/update_weight_version",
        "/sleep",
        "/wake_up",
    ),
)


VOCAB = 606


@pytest.fixture(scope="module")
def server(folder):
    with stand_in(folder) as pair:
        yield pair


def failing_engine(folder, server, **section):
    return engine_of(folder, server, start_seconds=0.5, request_seconds=5.0, **section)


def tried(engine, work):
    """Return what `work` does; a typed error of one short line otherwise. Anything else is a failure of the test."""

    async def main():
        try:
            async with asyncio.timeout(100):
                return await work(engine)
        finally:
            await engine.close()

    try:
        return asyncio.run(main())
    except RamifyError as error:
        line = str(error)
        assert "\n" not in line
        assert line.isprintable()
        assert len(line) < 700
        return error


def assert_sound(completion, request):
    size = len(completion.token_ids)
    assert 1 <= size <= request.max_new_tokens
    assert all(type(i) is int and 0 <= i < VOCAB for i in completion.token_ids)
    assert len(completion.logprobs) == size
    assert all(type(p) is float and -9999 < p <= 0 for p in completion.logprobs)
    assert len(completion.entropies) == min(size, request.entropy_first_k)
    assert all(0 <= e.lower <= e.upper <= math.log(VOCAB) + 0.1 for e in completion.entropies)
    assert all(count > 0 for _, count in completion.version_runs)
    assert sum(count for _, count in completion.version_runs) == size


def spoiled(here, route, draw):
    """Answer with a changed copy of what the server itself would."""

    def fault(request):
        del here.faults[route]
        reply = here.answer(request)
        here.faults[route] = fault
        return wrong(draw, reply)

    here.faults[route] = fault


@pytest.mark.parametrize("block", range(4))
def test_a_wrong_answer_to_a_request_is_refused_or_as_good_as_a_valid_one(folder, server, block):
    here, loopback = server
    outcomes = Counter()
    for number in range(block, CAMPAIGN, 4):
        draw = random.Random(f"generate {number}")
        ids = tuple(draw.randrange(VOCAB) for _ in range(draw.randint(2, 30)))
        request = Request(
            ids, number, draw.randint(1, 12), ("</search>",), entropy_first_k=draw.randint(0, 4)
        )
        spoiled(here, GENERATE, draw)
        before = len(sent(loopback, GENERATE))
        if draw.random() < 0.75:
            result = tried(failing_engine(folder, loopback), lambda e, request=request: e.generate(request))
            if not isinstance(result, RamifyError):
                assert_sound(result, request)
        else:
            result = tried(failing_engine(folder, loopback), lambda e, ids=ids: e.score(ids))
            if not isinstance(result, RamifyError):
                assert result.shape == (len(ids) - 1,)
                assert np.isfinite(result).all()
                assert (result <= 0).all()
        # Ids that a server made up never go back to it.
        bodies = sent(loopback, GENERATE)[before:]
        assert all(type(i) is int and 0 <= i < VOCAB for body in bodies for i in body["token_ids"])
        outcomes[type(result).__name__] += 1
        here.restart()
    here.faults.clear()
    sys.stderr.write(f"{dict(outcomes)}\n")
    assert outcomes["EngineError"]


def test_a_wrong_answer_of_another_route_is_one_line_or_does_no_harm(folder, server):
    here, loopback = server
    outcomes = Counter()

    async def step(engine):
        path = engine.info().weights_folder
        (path / "version-000001").mkdir()
        await engine.load_weights(1)
        done = await engine.generate(Request((5, 9, 33), 1, 4))
        await engine.sleep()
        return done

    for number in range(CAMPAIGN // 3):
        draw = random.Random(f"route {number}")
        route = ROUTES[number % len(ROUTES)]
        # The stand-in reads weights; which ones is no matter here.
        here.faults["/collective_rpc"] = lambda request: loaded(here)
        if route == "/collective_rpc":
            here.faults[route] = lambda request, draw=draw: wrong(draw, loaded(here))
        else:
            spoiled(here, route, draw)
        result = tried(failing_engine(folder, loopback, hands_over=True, sleep=True), step)
        outcomes[route, type(result).__name__] += 1
        here.faults.clear()
        here.restart()
    sys.stderr.write(f"{dict(outcomes)}\n")


def loaded(here):
    here.loads += 1
    return as_json({"results": [None]})
