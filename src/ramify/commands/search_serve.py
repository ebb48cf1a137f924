"""`ramify search-serve CORPUS.jsonl`: a retrieval service over a file of passages."""

import argparse
import ipaddress
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ramify.core.errors import ConfigError, MachineError

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from ramify.tools.search_service import RankedPassages

_THREADS = 8
_MAX_PORT = 65535


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("corpus", type=Path, metavar="CORPUS.jsonl", help='one {"text": ...} a line')
    parser.add_argument(
        "--index",
        type=Path,
        metavar="DIR",
        help="keep the index, or the vectors, here (CORPUS.jsonl.index or .vectors)",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    parser.add_argument(
        "--port", type=int, default=8000, help="port to listen on; 0: any that is free (8000)"
    )
    parser.add_argument(
        "--threads", type=int, default=_THREADS, help=f"searches at one time in a worker ({_THREADS})"
    )
    parser.add_argument("--workers", type=int, default=1, help="processes that answer (1)")
    parser.add_argument(
        "--dense",
        metavar="MODEL",
        help="rank by embeddings of this model of sentence-transformers, not by BM25",
    )
    parser.add_argument(
        "--query-prefix", default="", metavar="TEXT", help='stands before queries (E5: "query: ")'
    )
    parser.add_argument(
        "--passage-prefix", default="", metavar="TEXT", help='stands before passages (E5: "passage: ")'
    )


def run(options: argparse.Namespace) -> None:
    """Run the command.

    Raises:
        UserError: The passages cannot be read, or the port cannot be opened.
    """
    if not 0 <= options.port <= _MAX_PORT:
        raise ConfigError(f"--port: expected a number from 0 to {_MAX_PORT}, got {options.port}")
    for name, number in (("--threads", options.threads), ("--workers", options.workers)):
        if number < 1:
            raise ConfigError(f"{name}: expected at least 1, got {number}")
    if options.dense is None and (options.query_prefix or options.passage_prefix):
        raise ConfigError("--query-prefix, --passage-prefix: only --dense MODEL has prefixes")

    from ramify.obs.console import RunConsole
    from ramify.tools.search_service import make_app, serve, serve_with_workers

    console = RunConsole()
    with _listen(options.host, options.port) as listening:
        index = _open_passages(options, console.note)
        host, port = listening.getsockname()[:2]
        if not ipaddress.ip_address(host.partition("%")[0]).is_loopback:
            console.note(
                f"warning: {host} can be reached from other machines, and the service asks for no key"
            )
        where = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        line = f"{len(index):,} passages of {options.corpus} at {where}; Ctrl-C stops"
        if options.workers == 1:
            serve(make_app(index, options.threads), listening, lambda: console.result(line))
        else:
            del index  # the workers open their own
            worker = partial(_worker, options)
            serve_with_workers(worker, options.workers, listening, lambda: console.result(line))
        console.result("stopped")


def _worker(options: argparse.Namespace) -> "Starlette":
    from ramify.tools.search_service import make_app

    return make_app(_open_passages(options, lambda _: None), options.threads)


def _open_passages(options: argparse.Namespace, note: Callable[[str], None]) -> "RankedPassages":
    if options.dense is None:
        from ramify.tools.index_folder import open_index

        return open_index(options.corpus, options.index, note=note)
    from ramify.tools.configs import DenseSearchConfig
    from ramify.tools.search_dense import DenseSearch, load_embedder

    config = DenseSearchConfig(
        corpus=options.corpus,
        model=options.dense,
        query_prefix=options.query_prefix,
        passage_prefix=options.passage_prefix,
        index=options.index or options.corpus.with_name(f"{options.corpus.name}.vectors"),
    )
    return DenseSearch(config, load_embedder(options.dense), note)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(address[:2], family=family)
    except OSError as error:
        why = (error.strerror or str(error)).partition(" (")[0]
        raise MachineError(
            f"--host {host} --port {port}: cannot listen there ({why}). Choose another address."
        ) from None
