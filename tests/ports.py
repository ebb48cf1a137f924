"""Ports of servers that are told on which one to listen."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def held_port() -> Iterator[int]:
    """A port that nobody else gets until the block ends; a server that sets SO_REUSEADDR may listen there, again and again."""
    with socket.socket() as held:
        # Linux lets several sockets with this option have a port as long as one of them alone listens.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def takes_connections(port: int) -> bool:
    """Return True if somebody listens on a port of loopback."""
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True
