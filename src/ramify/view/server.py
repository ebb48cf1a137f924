"""The server of `ramify view`: loopback only, read only, and nothing of a run without the token that its address carries.

    GET /  /bundle.js  /bundle.css                                 the page, without data
    GET /api/run  /api/index?source=ID  /api/tree?source=ID&row=N  values of `payload`; the token in the header x-ramify-token
    GET /api/search?q=TEXT  /api/credit?source=ID&row=N&algorithm=NAME  /api/problem?id=ID

A page of somebody else cannot use it: the token is needed, other names than loopback's in the Host header are refused (DNS
rebinding), and the rules of the page's own content forbid every other origin.
"""

import hashlib
import hmac
import ipaddress
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ramify.core.errors import UserError
from ramify.net.secrets import shown
from ramify.view.page import Bundle
from ramify.view.payload import NotThereError, RunView
from ramify.view.safe import dump

_HEADERS: Mapping[str, str] = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    ),
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
_MAX_QUERY = 1000


def make_app(view: RunView, bundle: Bundle, token: str) -> Starlette:
    """Return the server's application."""
    doors = _Doors(view)
    static = (
        ("/", bundle.html, "text/html"),
        ("/bundle.js", bundle.script, "text/javascript"),
        ("/bundle.css", bundle.style, "text/css"),
    )
    routes = [Route(path, _static(text.encode(), kind)) for path, text, kind in static]
    routes += [
        Route(f"/api/{name}", _door(answer))
        for name, answer in (
            ("run", doors.run),
            ("index", doors.index),
            ("tree", doors.tree),
            ("search", doors.search),
            ("credit", doors.credit),
            ("problem", doors.problem),
        )
    ]
    return Starlette(routes=routes, middleware=[Middleware(_Guard, token=token.encode())])


class _Guard:
    """Refuses requests that do not come from the page, and puts the security headers on every answer."""

    def __init__(self, app: ASGIApp, token: bytes) -> None:
        self._app, self._token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = dict(scope["headers"])

        async def send_safely(message: Any) -> None:  # noqa: ANN401 - a message of ASGI
            if message["type"] == "http.response.start":
                safe = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", ()), *safe]}
            await send(message)

        app = self._app
        if not _is_loopback(headers.get(b"host", b"")):
            app = Response("This server answers to 127.0.0.1 and localhost only.\n", 403)
        elif scope["path"].startswith("/api/") and not hmac.compare_digest(
            headers.get(b"x-ramify-token", b""), self._token
        ):
            app = Response("Open the whole address that ramify view printed: it has the token.\n", 403)
        await app(scope, receive, send_safely)


def _is_loopback(host: bytes) -> bool:
    """Return True for a Host header of this machine; a port forwarded by ssh may have any number."""
    name, _, port = host.decode("latin-1").rpartition(":")
    if not port.isdigit():
        name = f"{name}:{port}" if name else port
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False


class _Doors:
    """The answers, each as JSON with a tag that changes with the files that it was made from; they run in threads."""

    def __init__(self, view: RunView) -> None:
        self._view = view
        self._run: tuple[str, bytes] = ("", b"")

    def run(self, query: Mapping[str, str], known: str) -> "_Answer":
        del query
        tag = _tag(self._view.state())
        if tag == known and tag == self._run[0]:
            return _Answer(tag, None)
        if tag != self._run[0]:
            # The tag of before: the page asks again for what a run at work has written meanwhile.
            self._run = (tag, dump(self._view.run()))
        return _Answer(*self._run)

    def index(self, query: Mapping[str, str], known: str) -> "_Answer":
        source = _text(query, "source")
        tag = _tag(self._view.index_files(source))
        return _Answer(tag, None if tag == known else dump(self._view.index(source)))

    def tree(self, query: Mapping[str, str], known: str) -> "_Answer":
        del known
        return _Answer("", dump(self._view.tree(_text(query, "source"), _row(query))))

    def search(self, query: Mapping[str, str], known: str) -> "_Answer":
        del known
        return _Answer("", dump(self._view.search(_text(query, "q"))))

    def credit(self, query: Mapping[str, str], known: str) -> "_Answer":
        del known
        value = self._view.credit(_text(query, "source"), _row(query), _text(query, "algorithm"))
        return _Answer("", dump(value))

    def problem(self, query: Mapping[str, str], known: str) -> "_Answer":
        del known
        return _Answer("", dump(self._view.problem(_text(query, "id"))))


class _Answer:
    """JSON, or None where the page has it already, and its tag; "" for no tag."""

    def __init__(self, tag: str, content: bytes | None) -> None:
        self.tag, self.content = tag, content


def _door(answer: Callable[[Mapping[str, str], str], _Answer]) -> Callable[[Request], Any]:
    async def respond(request: Request) -> Response:
        try:
            known = request.headers.get("if-none-match", "").strip('"')
            result = await run_in_threadpool(answer, request.query_params, known)
        except NotThereError as error:
            return Response(shown(f"{error}"), 404)
        except UserError as error:
            return Response(shown(f"{error}"), 422)
        headers = {"etag": f'"{result.tag}"'} if result.tag else {}
        if result.content is None:
            return Response(status_code=304, headers=headers)
        return Response(result.content, headers=headers, media_type="application/json")

    return respond


def _static(content: bytes, kind: str) -> Callable[[Request], Any]:
    async def respond(request: Request) -> Response:
        del request
        return Response(content, media_type=kind)

    return respond


def _text(query: Mapping[str, str], name: str) -> str:
    text = query.get(name, "")
    if not text or len(text) > _MAX_QUERY:
        raise NotThereError(f"{name}: expected 1 to {_MAX_QUERY} characters.")
    return text


def _row(query: Mapping[str, str]) -> int:
    row = query.get("row", "")
    if not row.isdecimal() or len(row) > 15:
        raise NotThereError("row: expected the number of a tree.")
    return int(row)


def _tag(state: Iterable[Path | bool]) -> str:
    """Return a tag of files as they are now, and of what else is true."""
    digest = hashlib.blake2b(digest_size=12)
    for path in state:
        if isinstance(path, bool):
            digest.update(b"1" if path else b"0")
            continue
        try:
            about = path.stat()
        except OSError:
            continue
        digest.update(
            f"{path} {about.st_ino} {about.st_size} {about.st_mtime_ns};".encode("utf-8", "surrogateescape")
        )
    return digest.hexdigest()
