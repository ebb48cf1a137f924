"""Extracts the text of untrusted documents, in a process of its own that may hang, crash or run out of memory.

This is a program, run by its path; it imports nothing from ramify. It imports its readers once and forks for each
document, so that no document leaves anything behind for the next one. The first line on standard input is a seccomp
filter in base64, possibly empty, which each fork applies to itself. After that, a request is a line of JSON followed by
the document, and an answer on standard output is a line of JSON.
"""

import base64
import codecs
import contextlib
import ctypes
import io
import json
import logging
import os
import re
import resource
import sys
from collections.abc import Iterator
from typing import Any, Final

import charset_normalizer
import lxml.etree
import lxml.html
import pypdf
import trafilatura

MAX_PDF_PAGES: Final = 200
_MAX_MEMORY_BYTES: Final = 2 << 30
_PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _SECCOMP_MODE_FILTER = 4, 22, 38, 2
_GUESSED_BYTES: Final = 65_536
_BROKEN_SHARE: Final = 0.01
_EXTRACTED_CHARS: Final = 2_000_000
"""For a longer page we take all its visible text, since finding the main text would take too long."""
_BOMS: Final = (
    (codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"),
)  # fmt: skip
_META_CHARSET: Final = re.compile(rb"<meta[^>]{0,300}?charset\s*=\s*[\"']?\s*([\w:.-]{1,40})", re.IGNORECASE)
# The encodings that browsers use for these names (WHATWG Encoding).
_READ_AS: Final = {
    "gb2312": "gb18030", "gbk": "gb18030", "iso-8859-1": "cp1252", "latin1": "cp1252", "us-ascii": "cp1252",
    "ascii": "cp1252", "iso-8859-9": "cp1254", "shift_jis": "cp932", "shift-jis": "cp932", "x-sjis": "cp932",
    "euc-kr": "cp949", "ks_c_5601-1987": "cp949",
}  # fmt: skip
_INVISIBLE: Final = ("script", "style", "noscript", "template", "head", "svg", "iframe", "object", "select")
_BLOCKS: Final = (
    "p", "div", "li", "tr", "br", "h1", "h2", "h3", "h4", "h5", "h6", "td", "th", "dt", "dd", "pre", "section", "article",
)  # fmt: skip
_CONTROL: Final = re.compile(r"[^\S\n ]+|[\x00-\x08\x0e-\x1f\x7f-\x9f]")
_BLANKS: Final = re.compile(r" {2,}")
_EMPTY_LINES: Final = re.compile(r" ?\n[ \n]*\n ?")


class UnreadableError(Exception):
    """The document is broken, or its kind has no text."""


def read_document(kind: str, charset: str, body: bytes, max_chars: int) -> tuple[str, str]:
    """Title ("" if there is none) and text of a document; at most `max_chars` characters of text.

    Args:
        kind: "html", "pdf" or "plain".
        charset: The charset that the server named; "" if none.
        body: The document.
        max_chars: Most characters of text.

    Raises:
        UnreadableError: The document is broken.
    """
    match kind:
        case "html":
            title, text = _html(_decode(body, charset))
        case "pdf":
            title, text = "", _pdf(body, max_chars)
        case _:
            title, text = "", _decode(body, charset)
    return " ".join(_clean(title).split())[:300], _clean(text)[:max_chars].rstrip()


def _decode(body: bytes, declared: str) -> str:
    """Decode bytes. Tried in turn: byte order mark, the server's charset, the page's own, UTF-8, a guess."""
    for mark, encoding in _BOMS:
        if body.startswith(mark):
            return body.decode(encoding, "replace")
    named = [_READ_AS.get(name, name) for name in (*_declared(declared, body), "utf-8")]
    for encoding in named:
        with contextlib.suppress(LookupError, ValueError):
            return body.decode(encoding)
    # A page with a few broken characters still has the encoding that it declares.
    for encoding in named:
        with contextlib.suppress(LookupError, ValueError):
            text = body.decode(encoding, "replace")
            if text.count("\ufffd") <= _BROKEN_SHARE * len(text):
                return text
    guess = charset_normalizer.from_bytes(body[:_GUESSED_BYTES]).best()
    return body.decode(guess.encoding if guess is not None else "utf-8", "replace")


def _declared(declared: str, body: bytes) -> Iterator[str]:
    if declared:
        yield declared.strip().lower()
    if (meta := _META_CHARSET.search(body[:4096])) is not None:
        yield meta[1].decode("ascii", "replace").lower()


def _html(markup: str) -> tuple[str, str]:
    """Title and main text of a page; all its visible text if no main text is found."""
    parser = lxml.html.HTMLParser(remove_comments=True, remove_pis=True, encoding="utf-8")
    try:
        tree = lxml.html.document_fromstring(markup.encode("utf-8", "replace"), parser=parser)
    except (lxml.etree.LxmlError, ValueError):
        raise UnreadableError("no HTML can be read from it") from None
    title = tree.findtext(".//title") or ""
    if len(markup) <= _EXTRACTED_CHARS:
        # trafilatura gets the markup, since it would change our tree. It raises all sorts of errors on some markup.
        with contextlib.suppress(Exception):
            if text := trafilatura.extract(
                markup, include_comments=False, include_tables=True, favor_recall=True
            ):
                return title, text
    return title, _visible(tree)


def _visible(tree: Any) -> str:  # noqa: ANN401 - lxml has no types
    lxml.etree.strip_elements(tree, *_INVISIBLE, with_tail=False)
    parts: list[str] = []
    for event, element in lxml.etree.iterwalk(tree, events=("start", "end")):
        if element.tag in _BLOCKS:
            parts.append("\n")
        parts.append((element.text if event == "start" else element.tail) or "")
    return "".join(parts)


def _pdf(body: bytes, max_chars: int) -> str:
    """Text of the first pages, up to `max_chars`; broken pages are skipped."""
    pages: list[str] = []
    length = 0
    try:
        reader = pypdf.PdfReader(io.BytesIO(body))
        count = min(len(reader.pages), MAX_PDF_PAGES)
    except Exception as error:  # noqa: BLE001 - pypdf raises all sorts of errors on broken files
        raise UnreadableError(f"no PDF can be read from it ({type(error).__name__})") from None
    for index in range(count):
        with contextlib.suppress(Exception):
            pages.append(reader.pages[index].extract_text())
            length += len(pages[-1])
        if length >= max_chars:
            break
    return "\n\n".join(pages)


def _clean(text: str) -> str:
    """Remove control characters, lone surrogates, and runs of blanks and empty lines."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").encode("utf-8", "replace").decode("utf-8")
    text = _BLANKS.sub(" ", _CONTROL.sub(" ", text))
    return _EMPTY_LINES.sub("\n\n", text).strip()


def _answer(request: dict[str, Any], body: bytes) -> bytes:
    try:
        title, text = read_document(request["kind"], request["charset"], body, request["max_chars"])
    except UnreadableError as error:
        return json.dumps({"failed": str(error)}).encode()
    return json.dumps({"title": title, "text": text}).encode()


def _limit(cpu_seconds: int) -> None:
    for what, most in (
        (resource.RLIMIT_AS, _MAX_MEMORY_BYTES),
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        # Not every system has every limit; the parent enforces a timeout as well.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(what, (most, most))


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def _confine(instructions: bytes) -> None:
    """Cut this process off from the worker's pipes, and allow it only the system calls of the filter.

    On a kernel without seccomp there is no filter.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(null, descriptor)
    if instructions:
        prctl = ctypes.CDLL(None).prctl
        prctl.argtypes = [ctypes.c_int, *4 * [ctypes.c_ulong]]
        program = _Program(len(instructions) // 8, instructions)
        prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(program), 0, 0)


def _in_child(instructions: bytes, request: dict[str, Any], body: bytes) -> bytes:
    """The answer of a forked process; a typed failure if it gives none."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            _limit(request["cpu_seconds"])
            _confine(instructions)
            with open(writing, "wb") as pipe:  # noqa: PTH123 - a descriptor, not a path
                pipe.write(_answer(request, body))
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with open(reading, "rb") as pipe:  # noqa: PTH123
        answer = pipe.read()
    _, ended = os.waitpid(child, 0)
    if ended != 0:
        return json.dumps({"failed": "reading it took too much time or memory", "spent": True}).encode()
    return answer


def main() -> None:
    """Answer requests until standard input ends."""
    logging.disable()
    if sys.platform == "linux":
        # No other program of this user may trace this process and so forge a page's text.
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    instructions = base64.b64decode(sys.stdin.buffer.readline())
    while line := sys.stdin.buffer.readline():
        request = json.loads(line)
        body = sys.stdin.buffer.read(request["size"])
        sys.stdout.buffer.write(_in_child(instructions, request, body) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
