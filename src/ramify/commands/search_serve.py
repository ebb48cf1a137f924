"""`ramify search-serve CORPUS.jsonl`: a retrieval service over a file of passages."""

import argparse
import ipaddress
import socket
from pathlib import Path

from ramify.core.errors import ConfigError, MachineError

_THREADS = 8
_MAX_PORT = 65535


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("corpus", type=Path, metavar="CORPUS.jsonl", help='one {"text": ...} a line')
    parser.add_argument("--index", type=Path, metavar="DIR", help="keep the index here (CORPUS.jsonl.index)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    parser.add_argument(
        "--port", type=int, default=8000, help="port to listen on; 0: any that is free (8000)"
    )
    parser.add_argument("--threads", type=int, default=_THREADS, help=f"searches at one time ({_THREADS})")


def run(options: argparse.Namespace) -> None:
    """Run the command.

    Raises:
        UserError: The passages cannot be read, or the port cannot be opened.
    """
    if not 0 <= options.port <= _MAX_PORT:
        raise ConfigError(f"--port: expected a number from 0 to {_MAX_PORT}, got {options.port}")
    if options.threads < 1:
        raise ConfigError(f"--threads: expected at least 1, got {options.threads}")

    from ramify.obs.console import RunConsole
    from ramify.tools.index_folder import open_index
    from ramify.tools.search_service import make_app, serve

    console = RunConsole()
    with _listen(options.host, options.port) as listening:
        index = open_index(options.corpus, options.index, note=console.note)
        host, port = listening.getsockname()[:2]
        if not ipaddress.ip_address(host.partition("%")[0]).is_loopback:
            console.note(
                f"warning: {host} can be reached from other machines, and the service asks for no key"
            )
        where = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        serve(
            make_app(index, options.threads),
            listening,
            lambda: console.result(f"{len(index):,} passages of {options.corpus} at {where}; Ctrl-C stops"),
        )
        console.result("stopped")


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(address[:2], family=family)
    except OSError as error:
        why = (error.strerror or str(error)).partition(" (")[0]
        raise MachineError(f"--host {host} --port {port}: cannot listen there ({why})") from None
