"""Everything that makes HTTP requests, against servers that answer in every wrong way: a typed error in one line, soon, in bounded memory.

And nothing else makes HTTP requests.
"""

import ast
import asyncio
import base64
import functools
import hashlib
import importlib
import json
import os
import time
import zlib
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ramify
from loopback import Reply, serve
from peak_memory import grows_below
from ramify.chat.tag_renderer import TagRenderer
from ramify.chat.tokenizer import ChatTokenizer
from ramify.core.errors import EngineError, UserError
from ramify.core.messages import Message, Problem, ToolCall, ToolSpec, ToolStatus
from ramify.core.records import Request
from ramify.core.tree import Node, Source, Trajectory
from ramify.engines.chat_models import OpenAIChat
from ramify.engines.openai import OpenAIEngine
from ramify.engines.openai_chat import OpenAIChatEngine
from ramify.engines.vllm.server import VllmServer
from ramify.net.client import HttpClient, HttpSettings
from ramify.net.failures import RequestFailedError
from ramify.net.hub import HubFailedError, HubSettings, fetch_snapshot
from ramify.net.hub_cache import HubRepo
from ramify.net.servers import Servers
from ramify.study.endpoint import Endpoint
from ramify.study.replayed_world import UnknownOutcomeError
from ramify.tools.configs import (
    BrightDataSearchConfig,
    BrowserConfig,
    McpConfig,
    OpenEnvConfig,
    RetrieverSearchConfig,
    SearxngSearchConfig,
    SerperSearchConfig,
)
from ramify.tools.mcp_environment import open_mcp
from ramify.tools.openenv_environment import OpenEnvEnvironment, open_openenv
from ramify.tools.pages import GuardedPages, JinaPages, Pages
from ramify.tools.python import RemoteSandbox
from ramify.tools.search_http import BrightDataSearch, RetrieverSearch, SearxngSearch, SerperSearch

pytestmark = pytest.mark.integration

SECONDS = 0.5
"""The deadline that each caller is given; retries of the hub take it three times."""
SOON = 120.0
"""Generous, as machines that run tests are busy; without a limit none of them would end."""
MOST_MEMORY = 300 * 2**20
"""For all callers together: an answer of mcp may have 64 MiB, one of the hub 32 MiB, all others less."""
TYPED = (RequestFailedError, HubFailedError, EngineError, UserError, UnknownOutcomeError, ConnectionError)
OPENENV = find_spec("websockets") is not None
SPEC = ToolSpec("act", "Acts.", {"type": "object"}, forks=True, timeout_seconds=SECONDS)
PROBLEM = Problem("p", (Message.of("user", "what ?"),), ())

OK = b"HTTP/1.1 200 OK\r\n"
JSON = OK + b"content-type: application/json\r\n"
SMALL = zlib.compressobj(9, zlib.DEFLATED, 31)
BOMB = b"".join(SMALL.compress(bytes(2**20)) for _ in range(256)) + SMALL.flush()


def once(*parts):
    return lambda stream: stream.write(b"".join(parts))


def forever(start, again, pause=0.0):
    def write(stream):
        stream.write(start)
        while True:
            stream.write(again)
            if pause:
                stream.flush()
                time.sleep(pause)

    return write


def whole(body):
    return once(JSON, b"content-length: %d\r\n\r\n" % len(body), body)


CHUNKED = b"transfer-encoding: chunked\r\n\r\n"
GZIP = b"content-encoding: gzip\r\n"
BAD = {
    "endless body": forever(JSON + CHUNKED, b"10000\r\n" + b"[" * 65536 + b"\r\n"),
    "endless body without length": forever(JSON + b"\r\n", b" " * 65536),
    "drip": forever(JSON + b"content-length: 1000\r\n\r\n", b" ", 0.1),
    "drip of the head": forever(OK, b"x", 0.1),
    "endless headers": forever(OK, b"x-more: " + b"y" * 1000 + b"\r\n"),
    "one endless header": forever(OK + b"x: ", b"y" * 1000),
    "informational answers": forever(b"", b"HTTP/1.1 103 Early Hints\r\n\r\n"),
    "gzip bomb": once(JSON, GZIP, b"content-length: %d\r\n\r\n" % len(BOMB), BOMB),
    "gzip of nothing": forever(JSON + GZIP + b"\r\n" + BOMB[:10], b"\0\0\0\xff\xff" * 10_000),
    "gzip that goes on": forever(JSON + GZIP + b"\r\n" + zlib.compress(b"{}", wbits=31), b"x" * 65536),
    "unknown encoding": once(JSON, b"content-encoding: br\r\ncontent-length: 2\r\n\r\n{}"),
    "no answer": lambda stream: time.sleep(3),
    "nothing": once(),
    "not HTTP": once(b"SSH-2.0-OpenSSH_9.2\r\n"),
    "closes in the midst": once(JSON, b'content-length: 1000\r\n\r\n{"a": '),
    "1 GB announced": once(JSON, b"content-length: 1000000000\r\n\r\n{}"),
    "length too short": once(JSON, b'content-length: 5\r\n\r\n{"action": {}}'),
    "length no number": once(JSON, b"content-length: many\r\n\r\n{}"),
    "two lengths": once(JSON, b"content-length: 2\r\ncontent-length: 3\r\n\r\n{}"),
    "bad chunks": once(JSON, CHUNKED, b"zz\r\n{}\r\n"),
    "invalid UTF-8": whole(b'{"a": "\xff\xfe"}'),
    "nesting": whole(b"[" * 100_000),
    "long number": whole(b"1" * 100_000),
    "lone surrogate": whole(b'"\\ud800"'),
    "null": whole(b"null"),
    "empty": whole(b""),
    "page": once(OK, b"content-type: text/html\r\ncontent-length: 6\r\n\r\n<html>"),
    "no content": once(b"HTTP/1.1 204 No Content\r\n\r\n"),
    "redirects": once(b"HTTP/1.1 307 Temporary Redirect\r\nlocation: ./x/\r\ncontent-length: 0\r\n\r\n"),
    "redirect to nowhere": once(b"HTTP/1.1 302 Found\r\nlocation: http://[\r\ncontent-length: 0\r\n\r\n"),
    "two redirects": once(b"HTTP/1.1 302 Found\r\nlocation: /x\r\nlocation: /y\r\ncontent-length: 0\r\n\r\n"),
    "redirect without location": once(b"HTTP/1.1 301 Moved\r\ncontent-length: 0\r\n\r\n"),
    "endless refusal": forever(b"HTTP/1.1 400 Bad Request\r\n\r\n", b"no " * 10_000),
    "error of the server": once(b"HTTP/1.1 500 Oh\r\ncontent-length: 2\r\n\r\n\xff\x1b"),
}


def client():
    return HttpClient("probe", HttpSettings(timeout_seconds=SECONDS, attempts=1, max_bytes=2**20))


async def closing(service, ask):
    try:
        return await ask
    finally:
        await service.close()


def search(make):
    def ask(url, _):
        provider = make(url)
        return closing(provider, provider.search("q", 3, None))

    return ask


def pages(make):
    def ask(url, _):
        source = Pages(make(url))
        return closing(source, source.read(f"{url}/page"))

    return ask


def chat(url, _):
    model = OpenAIChat(client(), base_url=url, model="m")
    return closing(model, model.complete([Message.of("user", "hi")], max_tokens=5, temperature=0.0))


def audit(url, _):
    service = client()
    endpoint = Endpoint(service, Servers(url), "m", None, max_tokens=5, temperature=1.0)
    return closing(service, endpoint.write_turn([Message.of("user", "hi")], (), 0))


def engine(kind):
    def ask(url, folder):
        renderer = TagRenderer(ChatTokenizer(folder))
        service = kind(
            client(), renderer, base_url=url, model="m", context_tokens=400, slots=1, note=lambda _: None
        )
        ids = renderer.render_prompt(PROBLEM, (SPEC,))
        prompt = Node("", (), None, Source.PROMPT, ids, renderer.decode(ids))
        return closing(
            service, service.generate(Request(ids, 1, 20, (), path=Trajectory(PROBLEM, (prompt,))))
        )

    return ask


def sandbox(url, _):
    service = RemoteSandbox(client(), base_url=url)
    return closing(service, service.run("1", SECONDS))


def vllm(url, _):
    server = VllmServer(client(), url, vocab_size=100)
    return closing(server, server.look(None))


def openenv_schema(url, _):
    return asyncio.to_thread(open_openenv, OpenEnvConfig(url=url, timeout_seconds=SECONDS))


async def openenv_socket(url, _):
    """With the deadlines of the rollout."""
    environment = OpenEnvEnvironment(OpenEnvConfig(url=url, timeout_seconds=SECONDS), SPEC)
    try:
        async with asyncio.timeout(environment.seconds):
            session = await environment.open(PROBLEM, 1)
    except TimeoutError:
        raise ConnectionError("the rollout's deadline") from None
    except Exception as error:
        if type(error).__name__ == "RefusedError":
            raise ConnectionError(str(error)) from None
        raise
    try:
        async with asyncio.timeout(SECONDS):
            result = await session.call(ToolCall("c", "act", {}))
    except TimeoutError:
        raise ConnectionError("the rollout's deadline") from None
    finally:
        await session.close()
    assert result.status is ToolStatus.ERROR
    raise ConnectionError(result.text)


def mcp(url, _):
    return asyncio.to_thread(open_mcp, McpConfig(url=f"{url}/mcp", timeout_seconds=SECONDS))


def hub(url, folder):
    settings = HubSettings(url, folder / "cache", seconds=SECONDS)
    return asyncio.to_thread(fetch_snapshot, HubRepo("model", "org/tiny"), lambda names: names, settings)


HERE = ("127.0.0.1/32",)
CALLERS = {
    "ramify.engines.chat_models": (chat,),
    "ramify.engines.openai": (engine(OpenAIEngine),),
    "ramify.engines.openai_chat": (engine(OpenAIChatEngine),),
    "ramify.engines.vllm.server": (vllm,),
    "ramify.study.endpoint": (audit,),
    "ramify.tools.search_http": (
        search(lambda url: RetrieverSearch(client(), RetrieverSearchConfig(url=url))),
        search(lambda url: SearxngSearch(client(), SearxngSearchConfig(url=url))),
        search(lambda url: SerperSearch(client(), "k-1", SerperSearchConfig(url=url))),
        search(lambda url: BrightDataSearch(client(), "k-1", BrightDataSearchConfig(zone="z", url=url))),
    ),
    "ramify.tools.pages": (
        pages(lambda url: GuardedPages(BrowserConfig(networks=HERE, page_seconds=SECONDS))),
        pages(lambda url: JinaPages(client(), BrowserConfig(source="jina", url=f"{url}/jina"))),
    ),
    "ramify.tools.python": (sandbox,),
    "ramify.tools.openenv_environment": (openenv_schema, openenv_socket) if OPENENV else (),
    "ramify.tools.mcp_environment": (mcp,) if find_spec("mcp") else (),
    "ramify.net.hub": (hub,),
}
"""How each module asks; a function gets the server's address and a folder."""


@pytest.fixture(scope="module")
def folder(tokenizer_folder):
    for name in ("mcp", "ramify.net.mcp_http", "ramify.net.websocket", "huggingface_hub.constants"):
        with suppress(ImportError):  # what is optional; importing it is no part of a deadline
            importlib.import_module(name)
    return tokenizer_folder


async def outcomes(url, folder, callers):
    """Return for each caller its error and how long it took; they ask at the same time."""

    async def outcome(caller):
        began = time.monotonic()
        try:
            result = await asyncio.wait_for(caller(url, folder), 3 * SOON)
        except TYPED as error:
            return str(error), time.monotonic() - began
        return repr(result), None

    return await asyncio.gather(*map(outcome, callers))


def check(write, folder, callers):
    with serve(lambda request: Reply(write=write(request))) as server, grows_below(MOST_MEMORY):
        results = asyncio.run(outcomes(server.url, folder, callers))
    for caller, (message, seconds) in zip(callers, results, strict=True):
        assert seconds is not None, f"{caller} took it: {message:.200}"
        assert seconds < SOON, (caller, message)
        assert message, caller
        assert "\n" not in message, (caller, message)
        assert len(message) < 2000, (caller, message)


@pytest.mark.parametrize("name", BAD)
def test_every_caller_ends_with_its_error(name, folder):
    check(lambda _: BAD[name], folder, [caller for callers in CALLERS.values() for caller in callers])


TEXTS = st.sampled_from(
    [b"", b"{}", b"[]", b'{"action": {"properties": {}}}', b'{"result": [[]]}', b'{"sha": 1, "siblings": 2}', b"\xff\xfe", b"<p>",
     b'{"choices": [{"message": {"content": 5}}]}', b'{"organic": [{"link": 3}]}', b'{"results": [[]]}', b"NaN", b"1e999",
     b'{"run_result": {"stdout": [], "status": null}}', b'{"jsonrpc": "2.0", "id": 0, "result": {}}', b"data: {}\n\n"]
)  # fmt: skip
PIECES = st.one_of(
    TEXTS,
    st.binary(max_size=40),
    st.sampled_from([b"\r\n", b"\r\n\r\n", b"0\r\n\r\n", b"5\r\nhello\r\n", zlib.compress(b"{}", wbits=31)]),
)
HEADERS = st.sampled_from(
    [b"content-type: application/json", b"content-type: text/event-stream", b"content-type: \xff", b"content-encoding: gzip",
     b"content-encoding: deflate", b"content-length: 3", b"content-length: -1", b"content-length: 99999999999",
     b"transfer-encoding: chunked", b"transfer-encoding: gzip, chunked", b"location: /x", b"location: //[", b"location: \xff",
     b"location: file:///etc/passwd", b"retry-after: 1e9", b"retry-after: -5", b"mcp-session-id: \x01", b"connection: upgrade",
     b"x-error-code: GatedRepo", b"set-cookie: a=b", b"no colon", b" : "]
)  # fmt: skip
STATUSES = st.sampled_from(
    [100, 101, 199, 200, 202, 204, 206, 226, 300, 304, 307, 308, 400, 401, 404, 416, 429, 500, 599, 999]
)


@settings(
    max_examples=int(os.environ.get("RAMIFY_HTTP_EXAMPLES", "8")),
    deadline=None,
)
@given(
    status=STATUSES,
    headers=st.lists(HEADERS, max_size=4),
    pieces=st.lists(PIECES, max_size=4),
    times=st.integers(1, 30),
)
def test_drawn_answers_raise_nothing_else(status, headers, pieces, times, folder):
    """A caller may take what it can read, so only errors, time and memory are checked."""
    head = b"HTTP/1.1 %d X\r\n" % status + b"".join(header + b"\r\n" for header in headers) + b"\r\n"
    callers = [caller for callers in CALLERS.values() for caller in callers]
    write = once(head, b"".join(pieces) * times)
    with serve(lambda _: Reply(write=write)) as server, grows_below(MOST_MEMORY):
        results = asyncio.run(outcomes(server.url, folder, callers))
    for caller, (message, seconds) in zip(callers, results, strict=True):
        assert seconds is None or (seconds < SOON and "\n" not in message), (caller, message)


FRAME = b"\x81\x7e\xff\xff" + b"[" * 65535
OBSERVATION = json.dumps({"type": "observation", "data": {"observation": {"text": "x"}}}).encode()
RESET = b"\x81" + bytes([len(OBSERVATION)]) + OBSERVATION
SOCKETS = {
    "endless message": forever(b"\x01\x7e\xff\xff" + b"x" * 65535, b"\x00\x7e\xff\xff" + b"x" * 65535),
    "endless messages": forever(b"", FRAME),
    "1 EB announced": once(b"\x81\x7f\x0f" + bytes(7) + b"x" * 100),
    "drip": forever(b"\x81\x7d", b"x", 0.1),
    "masked": once(b"\x81\x82\0\0\0\0{}"),
    "invalid UTF-8": once(b"\x81\x02\xff\xfe"),
    "nesting": once(FRAME),
    "binary": once(b"\x82\x02{}"),
    "closes": once(b"\x88\x02\x03\xe8"),
    "pings": forever(b"", b"\x89\x01x" * 1000),
    "resets, then is silent": lambda stream: (stream.write(RESET), stream.flush(), time.sleep(2)),
    "resets, then floods": forever(RESET, b"\x00\x7e\xff\xff" + b"x" * 65535),
    "resets, then an endless message": forever(
        RESET + b"\x01\x7e\xff\xff" + b"x" * 65535, b"\x00\x7e\xff\xff" + b"x" * 65535
    ),
    "resets, then garbage": once(RESET, FRAME),
}


@pytest.mark.skipif(not OPENENV, reason="websockets is not installed")
@pytest.mark.parametrize("name", SOCKETS)
def test_a_socket_ends_with_its_error(name, folder):
    def write(request):
        def upgraded(stream):
            key = request.headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
            accept = base64.b64encode(hashlib.sha1(key.encode()).digest())
            stream.write(
                b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
                b"sec-websocket-accept: " + accept + b"\r\n\r\n"
            )
            stream.flush()
            SOCKETS[name](stream)

        return upgraded

    check(write, folder, [openenv_socket])


LIBRARIES = {
    "aiohttp": {"ramify.net.connections"},
    "httpx": {"ramify.net.connections", "ramify.net.addresses"},  # parses addresses, and reads certificates
    "urllib.request": {"ramify.net.connections"},  # reads the environment's proxies
    "httpx2": {"ramify.net.mcp_http"},  # a bridge from mcp's client to our transport
    "websockets": {
        "ramify.net.websocket",
        "ramify.tools.openenv_environment",
    },  # the second catches what it raises
    # Both read its settings, the first uploads with it.
    "huggingface_hub": {"ramify.net.hub", "ramify.net.hub_cache"},
    "mcp.client.streamable_http": {"ramify.tools.mcp_environment"},
}
"""Which modules may import what could make requests."""
NEVER = {
    "requests", "urllib3", "httpcore", "h11", "pycurl", "http.client", "hf_xet", "xmlrpc", "ftplib",
    "smtplib", "datasets", "openai",
}  # fmt: skip
ASKING = {
    "ramify.net.client": ("HttpClient", "get_once"),
    "ramify.net.hub": ("fetch_snapshot",),
    "ramify.net.websocket": ("open_websocket",),
    "ramify.net.mcp_http": ("limited_client",),
}
BUILDERS = {
    "ramify.assemble.services",
    "ramify.assemble.vllm",
    # They ask through ramify.net.hub alone.
    "ramify.modeling.model_path",
    "ramify.data.tables",
    "ramify.tools.search_dense",
}


@functools.cache
def imports():
    """(module, imported module, imported name) for every import in the package, wherever it stands."""
    return tuple(_imports(Path(ramify.__file__).parent))


def _imports(top):
    for file in sorted(top.rglob("*.py")):
        module = ".".join(("ramify", *file.relative_to(top).with_suffix("").parts))
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                yield from ((module, alias.name, "") for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield from ((module, node.module, alias.name) for alias in node.names)


def test_nothing_else_makes_requests():
    importers = {library: set() for library in LIBRARIES}
    for module, imported, name in imports():
        for library in (*LIBRARIES, *NEVER):
            if f"{imported}.{name}.".startswith(f"{library}."):
                importers.setdefault(library, set()).add(module)
    assert importers == LIBRARIES


def test_libraries_that_can_fetch_models_are_kept_from_it():
    """`from_pretrained` and its like ask the hub unless they are told not to; a class alone asks nobody."""
    top = Path(ramify.__file__).parent
    calls = [
        (file.name, node)
        for file in top.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("from_pretrained", "SentenceTransformer")
    ]
    assert len(calls) >= 5
    for name, node in calls:
        first = node.args[0] if node.args else None
        if isinstance(first, ast.Constant) and first.value is None:
            continue
        assert any(
            keyword.arg == "local_files_only" and ast.unparse(keyword.value) == "True"
            for keyword in node.keywords
        ), f"{name}:{node.lineno}"


def test_every_caller_is_tested_here():
    askers = {module for module, imported, name in imports() if name in ASKING.get(imported, ())}
    assert askers - BUILDERS == set(CALLERS)
