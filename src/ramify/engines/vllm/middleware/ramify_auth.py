"""An ASGI middleware for vLLM servers: every route asks for the key, those that vLLM's own key leaves open too.

It runs in the server's Python, which has no ramify, so it imports nothing but the standard library. Start the server with this
file's folder on PYTHONPATH, `--middleware ramify_auth.RequireKey`, and the key in RAMIFY_SERVER_KEY. Requests carry it as
`Authorization: Bearer KEY`.
"""

import hmac
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

_MIN_KEY_BYTES = 16
_KEY = os.environ.get("RAMIFY_SERVER_KEY", "").strip().encode()
# Starlette builds middleware at the first request, so a check there would let the server start without a key.
if len(_KEY) < _MIN_KEY_BYTES:
    raise SystemExit(
        f"RAMIFY_SERVER_KEY: expected a key of at least {_MIN_KEY_BYTES} characters. Set it in the server's environment."
    )


class RequireKey:
    """Refuse every HTTP request and websocket that does not carry the key."""

    def __init__(self, app: App) -> None:
        """Guard `app`."""
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass a request with the key on to the app; answer any other with 401."""
        # "lifespan" is the server's own start and end; no client can send it.
        if scope["type"] == "lifespan" or _has_key(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            headers = [(b"content-type", b"application/json"), (b"www-authenticate", b"Bearer")]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": b'{"error": "Unauthorized"}'})


def _has_key(scope: Message) -> bool:
    """Return True if the request has one Authorization header, and it holds the key."""
    values = [bytes(value) for name, value in scope.get("headers", ()) if name.lower() == b"authorization"]
    return len(values) == 1 and hmac.compare_digest(values[0], b"Bearer " + _KEY)
