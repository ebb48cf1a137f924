"""Extracts the text of untrusted documents, in a process of its own that may hang, crash or run out of memory.

The process imports the readers once and forks for each document, so that no document leaves anything behind for the next.
"""

import codecs
import contextlib
import io
import logging
import re
from collections.abc import Iterator
from typing import Any, Final

import charset_normalizer
import lxml.etree
import lxml.html
import pypdf
import trafilatura

from ramify.runtime.limited_process import serve

MAX_PDF_PAGES: Final = 200
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
    """Return title ("" if there is none) and text of a document; at most `max_chars` characters of text.

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
    """Return title and main text of a page; all its visible text if no main text is found."""
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
    """Return the text of the first pages, up to `max_chars`; broken pages are skipped."""
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


def _answer(request: dict[str, Any], body: bytes) -> dict[str, str]:
    try:
        title, text = read_document(request["kind"], request["charset"], body, request["max_chars"])
    except UnreadableError as error:
        return {"failed": str(error)}
    return {"title": title, "text": text}


if __name__ == "__main__":
    logging.disable()
    serve(_answer, forks=True)
