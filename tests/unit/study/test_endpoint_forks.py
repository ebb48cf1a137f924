"""Resampling at an endpoint: few trajectories are under way at a time, and what is done is kept whatever happens to the others."""

import asyncio
import json

import pytest

from loopback import as_json, serve
from ramify.assemble.services import http_client
from ramify.core.errors import ServiceDownError
from ramify.core.records import Reward
from ramify.net.configs import HttpConfig
from ramify.net.servers import Servers
from ramify.obs.console import RunConsole
from ramify.study.conversations import read_conversations
from ramify.study.endpoint import Endpoint
from ramify.study.endpoint_forks import AT_ONCE, EndpointForks

pytestmark = pytest.mark.integration
SAMPLES, DOWN_AFTER = 200, 100


class CountingWorld:
    """A world without tools that counts the trajectories that are under way."""

    def __init__(self):
        self.open_now = self.most = 0

    def tools(self, problem):
        return []

    async def open(self, problem):
        self.open_now += 1
        self.most = max(self.most, self.open_now)
        return CountingSession(self)


class CountingSession:
    def __init__(self, world):
        self.world = world

    async def step(self, node):
        return None

    async def ended(self, trajectory):
        return 0.0

    async def close(self):
        self.world.open_now -= 1


class OddReward:
    """Fails at one answer, is not finite for another."""

    async def score(self, trajectories):
        answer = trajectories[0].leaf.text
        return [Reward({"good": 1.0, "odd": float("nan")}.get(answer) or int(answer), {})]


def answer_with(texts):
    sent = []

    def answer(request):
        sent.append(request)
        text = texts(len(sent))
        return (
            as_json({}, 401)
            if text is None
            else as_json({"choices": [{"message": {"content": text}, "finish_reason": "stop"}]})
        )

    answer.sent = sent
    return answer


def grow(folder, url, world):
    path = folder / "rows.jsonl"
    path.write_text(json.dumps({"prompt": "which ?", "completion": "1", "reward": 1}) + "\n")
    run = read_conversations(path)

    async def fill():
        client = http_client("endpoint", HttpConfig(timeout_seconds=30.0))
        endpoint = Endpoint(client, Servers(url), "m", None, 5, 1.0)
        forks = EndpointForks(run, world, endpoint, OddReward(), folder / "samples-1.jsonl")
        try:
            with RunConsole(quiet=True).phase("audit", SAMPLES) as phase:
                await forks.grow([(0, "")], SAMPLES, phase)
        finally:
            await client.close()
        return forks

    return asyncio.run(fill())


def test_few_trajectories_are_under_way_at_a_time_and_none_that_is_done_is_lost(tmp_path):
    world, samples = CountingWorld(), tmp_path / "samples-1.jsonl"
    down = answer_with(lambda number: None if number > DOWN_AFTER else "good")
    with serve(down) as server, pytest.raises(ServiceDownError):
        grow(tmp_path, server.url, world)
    done = samples.read_text().splitlines()
    assert 0 < len(done) <= DOWN_AFTER
    assert (world.most, world.open_now) == (AT_ONCE, 0)
    up = answer_with(lambda number: "bad" if number == 1 else "odd" if number == 2 else "good")
    with serve(up) as server:
        forks = grow(tmp_path, server.url, world)
    assert samples.read_text().splitlines()[: len(done)] == done
    assert len(up.sent) == SAMPLES - len(done)
    (side,) = forks.sides([(0, "")]).values()
    assert (len(side.rewards), side.unknown) == (SAMPLES - 2, 2)
    assert sorted(forks.reasons()) == [
        "the reward failed: the reward: ValueError: invalid literal for int() with base 10: 'bad'",
        "the reward is nan",
    ]
