"""A real HTTP server, on loopback or on a Unix socket, whose answers a test writes down."""

import json
import socket as sockets
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import ThreadingUnixStreamServer
from typing import Any


@dataclass(frozen=True)
class HttpRequest:
    """A request as it came in."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Reply:
    """What is sent back. `write` takes the place of headers and body, and gets the raw stream."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    write: Callable[[Any], None] | None = None


def as_json(value: object, status: int = 200, **headers: str) -> Reply:
    return Reply(status, json.dumps(value).encode(), {"content-type": "application/json", **headers})


@dataclass
class Loopback:
    """The server: its address, and its requests so far."""

    url: str
    requests: list[HttpRequest] = field(default_factory=list)


@contextmanager
def refusing() -> Iterator[str]:
    """The address of a port that refuses connections; while the block runs nobody else can have it."""
    with sockets.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


@contextmanager
def serve(
    answer: Callable[[HttpRequest], Reply], port: int = 0, socket: Path | None = None
) -> Iterator[Loopback]:
    """Serve until the block ends; `answer` runs in a thread for each connection.

    Port 0 is any that is free. With `socket` the server listens there.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments: object) -> None:
            pass

        def _serve(self) -> None:
            length = int(self.headers.get("content-length", 0))
            request = HttpRequest(
                self.command,
                self.path,
                {name.lower(): value for name, value in self.headers.items()},
                self.rfile.read(length),
            )
            here.requests.append(request)
            reply = answer(request)
            if reply.write is not None:
                self.close_connection = True
                with suppress(OSError):
                    reply.write(self.wfile)
                return
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(reply.body)))
            self.end_headers()
            if request.method != "HEAD":
                self.wfile.write(reply.body)

        do_GET = do_HEAD = do_POST = do_PUT = _serve

    class Server(ThreadingHTTPServer):
        request_queue_size = 128

        def handle_error(self, *arguments: object) -> None:
            """A client that goes away early is no fault of a test."""

    class SocketServer(ThreadingUnixStreamServer):
        request_queue_size = 128
        daemon_threads = True
        handle_error = Server.handle_error

    server = Server(("127.0.0.1", port), Handler) if socket is None else SocketServer(str(socket), Handler)
    here = Loopback("http://server" if socket else f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield here
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
