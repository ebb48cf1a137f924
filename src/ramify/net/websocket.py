"""WebSockets, with a limit on the size of a message. Needs websockets (`pip install 'ramify-rl[openenv]'`)."""

from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection, connect

from ramify.core.errors import MachineError
from ramify.net.connections import trusted

_MOST_WAITING = 4


async def open_websocket(url: str, max_bytes: int) -> ClientConnection:
    """Return a new connection. It has no deadlines: whoever opens it or waits for a message limits the time.

    Args:
        url: An http or https address.
        max_bytes: Limit for a message, over all its frames; a larger one ends the connection.

    Raises:
        ConnectionError: The connection failed; the message is one line.
    """
    parts = urlsplit(url)
    is_secure = parts.scheme == "https"
    address = parts._replace(scheme="wss" if is_secure else "ws").geturl()
    try:
        # Pings keep proxies from ending an idle connection; a server that is too busy to answer them is not dropped. Few
        # frames wait to be read, since each may be as large as a message.
        return await connect(
            address,
            compression=None,
            open_timeout=None,
            ping_timeout=None,
            max_size=max_bytes,
            max_queue=_MOST_WAITING,
            ssl=trusted(by_environment=True) if is_secure else None,
        )
    except MachineError:  # certificates
        raise
    # The library follows redirects itself, and lets out whatever reading a bad one raises.
    except Exception as error:  # noqa: BLE001
        message = " ".join(str(error).split())
        raise ConnectionError(f"{address}: {type(error).__name__}: {message}".rstrip(": ")) from None
