"""The middleware of vLLM servers: every route asks for the key. It runs where ramify is not installed."""

import asyncio
import importlib.util
import os
import subprocess
import sys
from importlib.metadata import Distribution
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.engines.vllm import middleware
from ramify.engines.vllm.middleware import ramify_weights

FOLDER = Path(middleware.__file__).parent
KEY = "a-key-of-these-tests"
RIGHT = (b"authorization", b"Bearer " + KEY.encode())


@pytest.fixture(scope="module")
def require_key():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAMIFY_SERVER_KEY", KEY)
        spec = importlib.util.spec_from_file_location("ramify_auth", FOLDER / "ramify_auth.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module.RequireKey


def ask(require_key, scope):
    """The messages that a client receives, and the scopes that reached the app."""
    messages, reached = [], []

    async def app(scope, receive, send):
        reached.append(scope)

    async def send(message):
        messages.append(message)

    asyncio.run(require_key(app)(scope, None, send))
    return messages, reached


headers = st.lists(
    st.tuples(
        st.sampled_from([b"authorization", b"Authorization", b"x-api-key", b"cookie", b"host"]),
        st.one_of(
            st.binary(max_size=40),
            st.sampled_from(
                [
                    KEY.encode(), b"Bearer", b"Bearer ", b"bearer " + KEY.encode(), b"Basic " + KEY.encode(),
                    b"Bearer " + KEY.encode() + b" ", b"Bearer  " + KEY.encode(), b"Bearer " + KEY[:-1].encode(),
                ]
            ),
        ),
    ),
    max_size=4,
)  # fmt: skip
scopes = st.fixed_dictionaries(
    {
        "type": st.sampled_from(["http", "websocket"]),
        "method": st.sampled_from(["GET", "POST", "OPTIONS", "HEAD", "TRACE", ""]),
        "path": st.one_of(
            st.text(max_size=30), st.sampled_from(["/health", "/collective_rpc", "/metrics", ""])
        ),
        "headers": headers,
    }
)


@settings(max_examples=150, deadline=None)
@given(scope=scopes)
def test_no_request_without_the_key_reaches_the_server(require_key, scope):
    messages, reached = ask(require_key, scope)
    assert reached == []
    if scope["type"] == "http":
        assert messages[0]["status"] == 401
        assert KEY not in str(messages)
    else:
        assert messages == [{"type": "websocket.close", "code": 1008}]
    # Two Authorization headers are no key: which of them counts would depend on the reader.
    others = [pair for pair in scope["headers"] if pair[0].lower() != b"authorization"]
    messages, reached = ask(require_key, {**scope, "headers": [*others, RIGHT]})
    assert (messages, len(reached)) == ([], 1)
    assert ask(require_key, {**scope, "headers": [*others, RIGHT, RIGHT]})[1] == []


def test_the_servers_own_start_passes(require_key):
    assert ask(require_key, {"type": "lifespan"})[1] == [{"type": "lifespan"}]


@pytest.mark.parametrize(("key", "status"), [(KEY, 0), (None, 1), ("short", 1)])
def test_it_needs_nothing_but_the_standard_library_and_a_key(key, status):
    code = (
        f"import sys; sys.path.insert(0, {str(FOLDER)!r}); import ramify_auth; print(ramify_auth.RequireKey)"
    )
    environment = {"PATH": os.environ["PATH"], **({"RAMIFY_SERVER_KEY": key} if key else {})}
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], env=environment, capture_output=True, text=True
    )
    assert done.returncode == status
    if status:
        assert done.stderr.startswith("RAMIFY_SERVER_KEY: expected a key")


def test_its_folder_shadows_no_module_of_the_server():
    modules = {path.stem for path in FOLDER.glob("*.py")}
    assert modules == {"__init__", "ramify_auth", "ramify_weights", "ramify_weights_engine"}


def test_vllm_finds_the_engine_of_weights_in_the_folder_alone():
    (package,) = Distribution.discover(name="ramify-weights", path=[str(FOLDER)])
    (plugin,) = package.entry_points
    assert (plugin.group, plugin.value) == ("vllm.general_plugins", "ramify_weights:register")
    assert callable(ramify_weights.register)
