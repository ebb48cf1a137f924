"""The page as one file: bundle and data inlined, trees in gzipped blocks, no network and no script but the bundle's."""

import base64
import gzip
import hashlib
import html
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from ramify.core.errors import ConfigError, MachineError
from ramify.files.durable import replacing
from ramify.view.payload import RunView
from ramify.view.safe import dump

BLOCK_BYTES = 1 << 20
"""JSON of a block, about."""
MAX_WITH_CREDITS = 40 << 20
"""Bytes of traces up to which a page has the credit of every algorithm, and not only of the run's own. It stays below 20 MB then."""
MAX_PAGE = 256 << 20
"""Bytes that a browser still opens."""
_STYLE = re.compile(r'<link[^>]*href="bundle\.css"[^>]*>')
_SCRIPT = re.compile(r'<script[^>]*src="bundle\.js"[^>]*></script>')


@dataclass(frozen=True, slots=True)
class Bundle:
    """The page without data: its HTML, its script and its style."""

    html: str
    script: str
    style: str

    @classmethod
    def load(cls) -> "Bundle":
        """Read the bundle of this package.

        Raises:
            MachineError: The package was installed without it.
        """
        folder = resources.files("ramify.view") / "bundle"
        try:
            return cls(
                *(
                    (folder / name).read_text(encoding="utf-8")
                    for name in ("index.html", "bundle.js", "bundle.css")
                )
            )
        except OSError:
            raise MachineError(
                f"{folder}: the page is missing from this installation. Install ramify-rl again."
            ) from None


def write_page(view: RunView, path: Path, bundle: Bundle, advance: Callable[[], None]) -> int:
    """Write the page as a whole or not at all; returns its bytes. `advance` is called after each tree.

    The view's `unreadable` then has the trees that are left out.

    Raises:
        ConfigError: It would be larger than a browser opens.
    """
    indexes = [view.index(key) for key in view.sources]
    traces = sum(source.path.stat().st_size for source in view.sources.values())
    size = 0
    with replacing(path) as file:
        for piece in _pieces(view, bundle, indexes, traces <= MAX_WITH_CREDITS, advance):
            size += file.write(piece)
            if size > MAX_PAGE:
                raise ConfigError(
                    f"--out {path}: the page would have more than {MAX_PAGE >> 20} MiB. Use --serve, or name the folder "
                    "of a smaller run."
                )
    return size


def _pieces(
    view: RunView, bundle: Bundle, indexes: Sequence[object], with_credits: bool, advance: Callable[[], None]
) -> Iterator[bytes]:
    # After the indexes, which say what is left out of damaged traces.
    run = view.run() | {"live": False}
    before, after = _frame(bundle, run["title"])
    yield before.encode()
    yield _block(b'type="application/json" id="run"', dump(run))
    yield _block(b'type="application/json" id="index"', dump(indexes))
    for key in view.sources:
        source = html.escape(key).encode("ascii", "xmlcharrefreplace")
        for first, block in _blocks(view, key, with_credits, advance):
            packed = base64.b64encode(gzip.compress(block, 6, mtime=0))
            yield _block(
                b'type="application/octet-stream" data-source="%b" data-first="%d"' % (source, first), packed
            )
    yield after.encode()


def _block(attributes: bytes, content: bytes) -> bytes:
    return b"<script %b>%b</script>\n" % (attributes, content)


def _blocks(
    view: RunView, key: str, with_credits: bool, advance: Callable[[], None]
) -> Iterator[tuple[int, bytes]]:
    trees: list[bytes] = []
    first = size = 0
    for value in view.readable_trees(key, advance, with_credits=with_credits):
        tree = dump(value)
        if trees and size + len(tree) > BLOCK_BYTES:
            yield first, b"[%b]" % b",".join(trees)
            trees, first, size = [], value["row"], 0
        trees.append(tree)
        size += len(tree)
    if trees:
        yield first, b"[%b]" % b",".join(trees)


def _frame(bundle: Bundle, title: str) -> tuple[str, str]:
    """Return the page before and after its data."""
    script, style = bundle.script.replace("\r\n", "\n"), bundle.style.replace("\r\n", "\n")
    if "</script" in script.lower() or "<!--" in script or "</style" in style.lower():
        raise ValueError("the bundle holds the end of a script or style element")
    rules = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{rules}">\n'
        '<meta name="referrer" content="no-referrer">'
    )
    page = bundle.html.replace('<meta charset="utf-8">', f'<meta charset="utf-8">\n{head}', 1)
    page = re.sub("<title>.*?</title>", lambda _: f"<title>{html.escape(title)}</title>", page, count=1)
    page = _STYLE.sub(lambda _: f"<style>{style}</style>", page, count=1)
    page = _SCRIPT.sub("", page, count=1)
    before, end, after = page.rpartition("</body>")
    # Behind the data, which it reads as soon as it runs.
    return before, f"<script>{script}</script>\n{end}{after}"


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
