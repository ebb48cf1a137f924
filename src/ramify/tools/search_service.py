"""A retrieval service over passages, with the routes of FlashRAG, Tool-Star and Search-R1.

    POST /search        {query, top_n = 10, return_score = false}      -> [document] or [[document], [score]]
    POST /batch_search  {query: [..], top_n, return_score}             -> [[document]] or [[[document]], [[score]]]
    POST /retrieve      {queries: [..], topk = 10, return_scores}      -> {"result": [[document or {document, score}]]}
    GET  /health                                                       -> {"status": "healthy", ...}

A document is {id, contents}. The three POST routes also take a `collection`, which the original services do not have.
The answer to a wrong request is a 4xx status and {"detail": text}. Clients are served in turn, query by query. When a
client disconnects, its remaining queries are dropped.
"""

import asyncio
import json
import logging
import multiprocessing
import os
import signal
import socket
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, Protocol, TypeAlias

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import Multiprocess

from ramify.core.errors import MachineError
from ramify.core.json_text import parse_object
from ramify.tools.passage_index import Ranked

MAX_BODY_BYTES = 1_000_000
MAX_QUERIES = 1024
MAX_PASSAGES = 1000
MAX_ANSWER_PASSAGES = 10_000
"""Limit for all queries of a request together, since an answer is built and sent as a whole."""
_DEFAULT_PASSAGES = 10
_DRAIN_SECONDS = 5
_WORKER_SECONDS = 60
"""A worker that does not answer for so long is replaced: as long as its imports may take on a busy machine."""
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_Body: TypeAlias = Mapping[str, Any]


class RankedPassages(Protocol):
    """Passages that can be ranked for a query, by several threads at the same time."""

    fingerprint: str
    """Hash of the bytes of the file of passages."""
    engine: str
    """What ranks them."""

    def __len__(self) -> int: ...

    def ranked(self, query: str, top_k: int, collection: str | None = None) -> tuple[Ranked, ...]:
        """Return the `top_k` best passages with their scores, best first; ties in file order."""
        ...


def make_app(index: RankedPassages, threads: int) -> Starlette:
    """Return the service; at most `threads` searches run at the same time, in threads of their own."""
    logging.getLogger("uvicorn.error").addFilter(_NotCancelled())
    service = _Service(index, threads)
    return Starlette(
        routes=[
            Route("/search", service.search, methods=["POST"]),
            Route("/batch_search", service.batch_search, methods=["POST"]),
            Route("/retrieve", service.retrieve, methods=["POST"]),
            Route("/health", service.health, methods=["GET"]),
        ],
        exception_handlers={HTTPException: _refuse, ClientDisconnect: _drop},
    )


class FairTurns:
    """A semaphore with `limit` slots, assigned round-robin over clients, and over each client's requests.

    So a client with one question waits for one question of each other client, not for all of them. Tasks of one event
    loop may share it.
    """

    def __init__(self, limit: int) -> None:
        self.limit = self.free = limit
        # Clients, and each client's requests, in the order of their turns.
        self._waiting: dict[Hashable, dict[Hashable, deque[asyncio.Future[None]]]] = {}

    @asynccontextmanager
    async def slot(self, client: Hashable, request: Hashable) -> AsyncIterator[None]:
        """Wait for a slot and hold it while the block runs."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, {}).setdefault(request, deque()).append(turn)
        self._assign()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it got its slot just before it was cancelled
                self._release()
            raise
        try:
            yield
        finally:
            self._release()

    def _release(self) -> None:
        self.free += 1
        self._assign()

    def _assign(self) -> None:
        while self.free and self._waiting:
            turn = self._next()
            if not turn.done():  # else the waiter was cancelled
                self.free -= 1
                turn.set_result(None)

    def _next(self) -> "asyncio.Future[None]":
        """Take the next in turn; its client and its request move to the end of their queues, or leave them when empty."""
        client, requests = next(iter(self._waiting.items()))
        request, turns = next(iter(requests.items()))
        turn = turns.popleft()
        del requests[request], self._waiting[client]
        if turns:
            requests[request] = turns
        if requests:
            self._waiting[client] = requests
        return turn


class _Service:
    def __init__(self, index: RankedPassages, threads: int) -> None:
        self._index = index
        self._turns = FairTurns(threads)
        self._threads = ThreadPoolExecutor(threads, "search")

    async def health(self, _request: Request) -> Response:
        return JSONResponse(
            {
                "status": "healthy",
                "passages": len(self._index),
                "corpus": self._index.fingerprint,
                "engine": self._index.engine,
                "retrievers": {"total": self._turns.limit, "available": self._turns.free},
            }
        )

    async def search(self, request: Request) -> Response:
        body = await _read(request)
        query = _query(body.get("query"), "query")
        (ranked,) = await self._find(request, [query], _count(body, "top_n"), body)
        if _flag(body, "return_score"):
            return await _answer([_documents(ranked), _scores(ranked)])
        return await _answer(_documents(ranked))

    async def batch_search(self, request: Request) -> Response:
        body = await _read(request)
        rankings = await self._find(request, _queries(body, "query"), _count(body, "top_n"), body)
        documents = [_documents(ranked) for ranked in rankings]
        if _flag(body, "return_score"):
            return await _answer([documents, [_scores(ranked) for ranked in rankings]])
        return await _answer(documents)

    async def retrieve(self, request: Request) -> Response:
        body = await _read(request)
        rankings = await self._find(request, _queries(body, "queries"), _count(body, "topk"), body)
        if not _flag(body, "return_scores"):
            return await _answer({"result": [_documents(ranked) for ranked in rankings]})
        scored = [
            [{"document": d, "score": s} for d, s in zip(_documents(ranked), _scores(ranked), strict=True)]
            for ranked in rankings
        ]
        return await _answer({"result": scored})

    async def _find(
        self, request: Request, queries: list[str], top_k: int, body: _Body
    ) -> Sequence[tuple[Ranked, ...]]:
        """Return the ranked passages for each query.

        Raises:
            HTTPException: The request is wrong.
            ClientDisconnect: The client has disconnected; queries that had not begun are dropped.
        """
        collection = body.get("collection")
        if collection is not None and not isinstance(collection, str):
            raise HTTPException(400, "expected 'collection' to be text")
        if len(queries) * top_k > MAX_ANSWER_PASSAGES:
            raise HTTPException(
                400,
                f"expected at most {MAX_ANSWER_PASSAGES} passages in an answer, got {len(queries)} queries of {top_k} passages",
            )

        loop = asyncio.get_running_loop()
        client = request.client.host if request.client else ""

        async def rank(query: str) -> tuple[Ranked, ...]:
            async with self._turns.slot(client, request):
                return await loop.run_in_executor(self._threads, self._index.ranked, query, top_k, collection)

        rankings = asyncio.gather(*map(rank, queries))
        disconnect = asyncio.ensure_future(_disconnect(request))
        try:
            await asyncio.wait((rankings, disconnect), return_when=asyncio.FIRST_COMPLETED)
            if not rankings.done():
                raise ClientDisconnect
            return rankings.result()
        finally:
            rankings.cancel()
            disconnect.cancel()
            await asyncio.gather(rankings, disconnect, return_exceptions=True)


async def _disconnect(request: Request) -> None:
    """Return when the client disconnects; its request must have been read completely."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _answer(content: object) -> Response:
    """Encode a response in a thread: a large answer takes a while."""
    # Piece by piece, since one long call of the JSON encoder would block all other threads.
    body = await asyncio.to_thread(lambda: "".join(_ENCODER.iterencode(content)).encode())
    return Response(body, media_type="application/json")


async def _read(request: Request) -> _Body:
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        if len(content) > MAX_BODY_BYTES:
            raise HTTPException(413, f"expected at most {MAX_BODY_BYTES} bytes")
    try:
        return parse_object(bytes(content))
    except ValueError as error:
        raise HTTPException(400, str(error)) from None


def _query(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise HTTPException(400, f"expected '{name}' to be text")
    if not value.strip():
        raise HTTPException(400, f"expected text in '{name}', got none")
    return value


def _queries(body: _Body, name: str) -> list[str]:
    values = body.get(name)
    if not isinstance(values, list) or not 0 < len(values) <= MAX_QUERIES:
        raise HTTPException(400, f"expected '{name}' to be a list of 1 to {MAX_QUERIES} queries")
    return [_query(value, name) for value in values]


def _count(body: _Body, name: str) -> int:
    value = body.get(name)
    if value is None:
        return _DEFAULT_PASSAGES
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_PASSAGES:
        raise HTTPException(400, f"expected '{name}' to be a whole number from 1 to {MAX_PASSAGES}")
    return value


def _flag(body: _Body, name: str) -> bool:
    value = body.get(name, False)
    if not isinstance(value, bool):
        raise HTTPException(400, f"expected '{name}' to be true or false")
    return value


def _documents(ranked: tuple[Ranked, ...]) -> list[dict[str, str]]:
    return [{"id": passage.id, "contents": passage.text} for _, passage in ranked]


def _scores(ranked: tuple[Ranked, ...]) -> list[float]:
    return [score for score, _ in ranked]


async def _refuse(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"detail": error.detail}, error.status_code, error.headers)


async def _drop(_request: Request, _error: Exception) -> Response:
    """Return a response that nobody reads: the client disconnected during its request."""
    return Response(status_code=400)


class _NotCancelled(logging.Filter):
    """At shutdown uvicorn logs how many requests it cancels; this drops its traceback for each of them."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


class _Server(uvicorn.Server):
    """A uvicorn server that leaves signals alone; uvicorn itself would raise them again at the end."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def server_settings(app: Callable[..., Any], workers: int = 1) -> uvicorn.Config:
    """Return uvicorn's settings. With several workers each calls `app`, which can be pickled, for its own application."""
    return uvicorn.Config(
        app,
        workers=workers,
        factory=workers > 1,
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=_DRAIN_SECONDS,
        timeout_worker_healthcheck=_WORKER_SECONDS,
    )


def serve(app: Starlette, listening: socket.socket, ready: Callable[[], None]) -> None:
    """Answer requests until SIGINT or SIGTERM; then finish the requests in progress, for five seconds at most.

    Args:
        app: The result of `make_app`.
        listening: A bound socket.
        ready: Called once signal handlers are installed, before the first request is answered.
    """
    server = _Server(server_settings(app))

    def stop() -> None:
        server.force_exit = server.should_exit
        server.should_exit = True

    async def run() -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop)
        ready()
        await server.serve(sockets=[listening])

    asyncio.run(run())


def serve_with_workers(
    app: Callable[[], Starlette], workers: int, listening: socket.socket, ready: Callable[[], None]
) -> None:
    """Serve from several processes that accept from one socket; otherwise as `serve`. A worker that dies is replaced.

    Args:
        app: Called in each worker; it and its arguments are pickled.
        workers: Number of processes.
        listening: A bound socket.
        ready: Called before the workers start. Until one has its application, connections wait.

    Raises:
        MachineError: A worker could not start.
    """
    supervisor = Multiprocess(server_settings(partial(_worker_app, app), workers), [listening])
    ready()
    supervisor.run()
    if any(process.exitcode == STARTUP_FAILURE for process in supervisor.processes):
        raise MachineError("a worker could not start. Its reason stands above.")


def _worker_app(app: Callable[[], Starlette]) -> Starlette:
    # Without this a worker would go on listening after its parent was killed.
    threading.Thread(target=_end_with_parent, daemon=True).start()
    return app()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
