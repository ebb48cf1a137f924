"""What an OpenEnv server may send for an observation or an error: the policy reads text, and nothing that is not for it."""

import asyncio
import json
from contextlib import suppress

import pytest

pytest.importorskip("websockets")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosed

from ramify.core.messages import ToolCall, ToolSpec, ToolStatus
from ramify.tools.configs import OpenEnvConfig
from ramify.tools.openenv_environment import OpenEnvEnvironment
from scripted_agents import problem

pytestmark = pytest.mark.integration
SPEC = ToolSpec("act", "Acts.", {"type": "object"}, True, 5.0)


def stepped(*messages):
    """The results of one step for each message that the server sends, on connections of their own."""

    async def answer(socket):
        await socket.recv()
        await socket.send(json.dumps({"type": "observation", "data": {"observation": {}}}))
        number = json.loads(await socket.recv())["data"]["number"]
        sent = messages[number]
        await socket.send(sent if isinstance(sent, str) else json.dumps(sent))
        with suppress(ConnectionClosed):
            await socket.recv()  # the client's goodbye

    async def step(environment, number):
        session = await environment.open(problem(), 1)
        try:
            return await session.call(ToolCall("c", "act", {"number": number}))
        finally:
            await session.close()

    async def main():
        async with serve(answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            environment = OpenEnvEnvironment(OpenEnvConfig(url=f"http://127.0.0.1:{port}"), SPEC)
            return await asyncio.gather(*(step(environment, number) for number in range(len(messages))))

    return asyncio.run(main())


def observed(observation, **more):
    return {"type": "observation", "data": {"observation": observation, **more}}


def refused(**data):
    return {"type": "error", "data": data}


@pytest.mark.parametrize(
    ("observation", "text"),
    [
        ({"text": "a room", "metadata": {"answer": 42}}, "a room"),
        (
            {"text": "a room", "info": {"metadata": {"answer": 42}, "doors": 2}},
            '{"text":"a room","info":{"doors":2}}',
        ),
        (
            {"rooms": [{"metadata": 42, "name": "hall"}, [{"metadata": 42}]]},
            '{"rooms":[{"name":"hall"},[{}]]}',
        ),
        ([{"metadata": 42, "name": "hall"}], '[{"name":"hall"}]'),
        (
            {"tasks": [{"done": True, "reward": 2}], "done": False, "reward": 1},
            '{"tasks":[{"done":true,"reward":2}]}',
        ),
        ("a room", '"a room"'),
        (5, "5"),
    ],
)
def test_metadata_is_for_nobody_at_any_depth(observation, text):
    (result,) = stepped(observed(observation, metadata={"answer": 42}))
    assert (result.status, result.text) == (ToolStatus.OK, text)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"errors": [{"loc": ["say", 0], "msg": "too short"}]}, "say.0: too short"),
        ({"errors": [{"loc": 5, "msg": "too short"}]}, "5: too short"),
        ({"errors": [{"loc": "say", "msg": "too short"}, {"msg": "no"}]}, "say: too short; action: no"),
        ({"errors": [{"loc": None, "msg": ["a"]}]}, "action: ['a']"),
        ({"errors": [{"loc": {"a": [1]}}]}, "{'a': [1]}: None"),
        ({"errors": [5], "message": "no"}, "no"),
        ({"errors": 5}, "the server does not say why"),
        ({"message": {"why": 5}}, "{'why': 5}"),
    ],
)
def test_an_error_of_any_form_is_told(data, text):
    (result,) = stepped(refused(**data))
    assert (result.status, result.text) == (ToolStatus.ERROR, f"The environment refused: {text}")


@pytest.mark.parametrize(
    "message",
    [
        "",
        "[",
        "5",
        "[1]",
        "{}",
        '{"type": "observation"}',
        '{"type": ["observation"], "data": {}}',
        '{"type": "observation", "data": [["a", 1]]}',
        '{"type": "observation", "data": 5}',
        '{"type": "observation", "data": {"observation": ' + "[" * 900 + "]" * 900 + "}}",
        '{"type": "observation", "data": {"observation": ' + "[" * 100_000,
        '{"type": "observation", "data": {"reward": ' + "9" * 5_000 + "}}",
    ],
)
def test_what_is_no_message_of_openenv_is_an_error_of_the_call(message):
    (result,) = stepped(message)
    assert (result.status, result.reward) == (ToolStatus.ERROR, 0.0)
    assert result.text.endswith("it answered with something that is not a message of OpenEnv")


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["metadata", "a", "loc", "msg", "done", "reward"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)
MESSAGES = st.fixed_dictionaries(
    {"type": st.sampled_from(["observation", "error"]) | ANY},
    optional={
        "data": ANY
        | st.fixed_dictionaries(
            {},
            optional=dict.fromkeys(
                ("observation", "reward", "done", "errors", "message"), ANY | st.lists(ANY)
            ),
        )
    },
)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(MESSAGES, min_size=5, max_size=10))
def test_any_message_gives_a_result(messages):
    for result in stepped(*messages):
        assert isinstance(result.status, ToolStatus)
        assert isinstance(result.text, str)
        assert isinstance(result.reward, float)
        if result.status is not ToolStatus.ERROR:
            assert '"metadata":' not in result.text
