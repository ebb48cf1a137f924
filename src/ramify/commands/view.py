"""`ramify view RUN [RUN2]`: look at the trees of a run in a browser."""

import argparse
import os
import secrets
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from ramify.core.errors import ConfigError, MachineError

if TYPE_CHECKING:
    from ramify.obs.console import RunConsole
    from ramify.view.page import Bundle
    from ramify.view.payload import RunView

_MAX_PORT = 65535
_TOKEN_BYTES = 24


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "run", type=Path, metavar="RUN", help="the folder of a run, or one that holds several"
    )
    parser.add_argument("other", type=Path, nargs="?", metavar="RUN2", help="a second run, to compare")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--out", type=Path, metavar="FILE.html", help="write the page as one file")
    how.add_argument(
        "--otlp",
        type=Path,
        metavar="FILE.jsonl",
        help="write the trees as spans of OpenTelemetry (OTLP/JSON)",
    )
    how.add_argument("--serve", action="store_true", help="serve the page on this machine (the default)")
    parser.add_argument("--port", type=int, default=0, help="with --serve: the port; 0: any that is free (0)")
    parser.add_argument(
        "--redact", action="store_true", help="replace all texts of the data by their lengths"
    )


def run(options: argparse.Namespace) -> None:
    """Run the command.

    Raises:
        UserError: A folder holds no run, the file cannot be written, or the port cannot be opened.
    """
    if not 0 <= options.port <= _MAX_PORT:
        raise ConfigError(f"--port: expected a number from 0 to {_MAX_PORT}, got {options.port}")
    option, path = ("--out", options.out) if options.out is not None else ("--otlp", options.otlp)
    if path is not None and options.port:
        raise ConfigError(f"--port: has no effect with {option}. Remove it.")

    from ramify.commands.output_files import require_output
    from ramify.obs.console import RunConsole
    from ramify.view.page import Bundle, write_page
    from ramify.view.payload import RunView
    from ramify.view.safe import hide_keys
    from ramify.view.spans import write_spans

    hide_keys()
    roots = [options.run, *([] if options.other is None else [options.other])]
    if len({root.resolve() for root in roots}) < len(roots):
        raise ConfigError(f"{options.other}: is the first run. Name another one.")
    bundle = Bundle.load()
    view = RunView(roots, redact=options.redact)
    console = RunConsole()
    for note in view.left_out:
        console.note(note)
    if path is None:
        _serve(view, bundle, options.port, console)
        return
    require_output(option, path, view.files())
    if path.exists() and not path.is_file():
        raise ConfigError(f"{option} {path}: is a pipe or a device, which would be replaced. Name a file.")
    # Of a link the file that it leads to is replaced.
    target = path.resolve()
    with console.phase(f"writing {path.name}", sum(map(view.num_trees, view.sources))) as phase:
        if options.out is not None:
            size = write_page(view, target, bundle, phase.advance)
            line = f"{size / 1e6:.1f} MB, one file. Open it in a browser."
        else:
            line = f"{write_spans(view, target, phase.advance)} traces, one a trajectory."
    if view.unreadable:
        console.note(
            f"warning: trees that are left out: {len(view.unreadable)}, the first: {view.unreadable[0]}"
        )
    console.result(f"{path}: {line}")


def _serve(view: "RunView", bundle: "Bundle", port: int, console: "RunConsole") -> None:
    from ramify.tools.search_service import serve
    from ramify.view.server import make_app

    token = secrets.token_urlsafe(_TOKEN_BYTES)
    try:
        listening = socket.create_server(("127.0.0.1", port))
    except OSError as error:
        why = (error.strerror or str(error)).partition(" (")[0]
        raise MachineError(f"--port {port}: cannot listen there ({why}). Choose another port.") from None
    with listening:
        number = listening.getsockname()[1]

        def ready() -> None:
            console.result(f"http://127.0.0.1:{number}/#token={token}")
            if "SSH_CONNECTION" in os.environ:
                console.note(
                    f"from your own machine: ssh -L {number}:127.0.0.1:{number} HOST, then open that address there"
                )
            console.note("Ctrl-C stops")

        serve(make_app(view, bundle, token), listening, ready)
    console.result("stopped")
