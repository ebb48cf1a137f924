import asyncio
import contextlib
import io
import os
import sys
import zlib
from functools import partial
from pathlib import Path

import pypdf
import pytest

from processes import children, wait_until
from ramify.net.failures import FailureKind, RequestFailedError
from ramify.runtime.call_clock import CallClock, on_clock
from ramify.tools.document_worker import UnreadableError, read_document
from ramify.tools.documents import DocumentReader, charset_of, kind_of

pytestmark = pytest.mark.integration

ARTICLE = " ".join(f"Sentence number {i} tells of Laru, a harbour town in the north." for i in range(40))


def page(body, head=""):
    return f"<!doctype html><html><head><title>Laru</title>{head}</head><body>{body}</body></html>"


def pdf(*pages, filters=b"", streams=None):
    """A PDF by hand: one stream of text a page; `streams` are used as they are."""
    contents = streams or [b"BT /F1 12 Tf 72 720 Td (" + text.encode() + b") Tj ET" for text in pages]
    kids = b" ".join(b"%d 0 R" % (4 + 2 * i) for i in range(len(contents)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [" + kids + b"] /Count %d >>" % len(contents),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for i, stream in enumerate(contents):
        objects.append(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents %d 0 R"
            b" /Resources << /Font << /F1 3 0 R >> >> >>" % (5 + 2 * i)
        )
        objects.append(b"<< /Length %d %s >>\nstream\n" % (len(stream), filters) + stream + b"\nendstream")
    out = io.BytesIO(b"%PDF-1.4\n")
    out.seek(0, io.SEEK_END)
    offsets = []
    for number, body in enumerate(objects, 1):
        offsets.append(out.tell())
        out.write(b"%d 0 obj\n" % number + body + b"\nendobj\n")
    start = out.tell()
    out.write(b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1))
    out.writelines(b"%010d 00000 n \n" % offset for offset in offsets)
    out.write(b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, start))
    return out.getvalue()


def html(markup, charset="", max_chars=50_000):
    return read_document("html", charset, markup if isinstance(markup, bytes) else markup.encode(), max_chars)


def text_or_failure(kind, body):
    try:
        return read_document(kind, "", body, 1000)[1]
    except UnreadableError as error:
        return str(error)


def read(jobs, **settings):
    """Read documents with one reader; return each text or kind of failure, in order."""

    async def main():
        reader = DocumentReader(**settings)
        outcomes = []
        try:
            for kind, body in jobs:
                try:
                    outcomes.append(await reader.read(kind, "", body))
                except RequestFailedError as error:
                    outcomes.append(error.kind)
        finally:
            await reader.close()
            await reader.close()
        return outcomes

    return asyncio.run(main())


def test_a_page_is_its_title_and_main_text():
    title, text = html(
        page(
            f"<nav>Home About Login</nav><article><h1>Laru</h1><p>{ARTICLE}</p></article><script>x()</script>"
        )
    )
    assert title == "Laru"
    assert "Sentence number 39 tells of Laru" in text
    assert "x()" not in text


def test_a_very_long_page_gives_all_that_is_visible():
    _, text = html(
        page(f"<nav>Home</nav><p>Bado</p>31<br>end<style>.a{{}}</style><script>{'x' * 2_000_000}</script>")
    )
    assert text.split() == ["Home", "Bado", "31", "end"]


@pytest.mark.parametrize(
    "markup",
    [
        "<p>Laru <b>town",
        "<html><body><p>Laru</div></p></table>town",
        "Laru town",
        "<<<p>>Laru</p <p>town",
        "\x00<p>Laru\x00 town",
    ],
)
def test_broken_markup_is_read_as_far_as_it_goes(markup):
    _, text = html(markup)
    assert "Laru" in text
    assert "town" in text
    assert "\x00" not in text


@pytest.mark.parametrize("markup", [b"", b"   ", b"<!-- only a comment -->", b"<!doctype html>"])
def test_empty_markup_is_typed_or_empty(markup):
    assert text_or_failure("html", markup) in ("", "no HTML can be read from it")


@pytest.mark.parametrize(
    ("encoding", "declared", "meta"),
    [
        ("utf-8", "", ""),
        ("utf-8", "utf-8", ""),
        ("cp1252", "iso-8859-1", ""),
        ("cp1252", "", '<meta charset="windows-1252">'),
        ("cp1252", "", '<meta http-equiv="Content-Type" content="text/html; charset=latin1">'),
        ("utf-16", "", ""),
        ("utf-8-sig", "iso-8859-1", ""),
        ("utf-8", "no-such-charset", ""),
        ("utf-8", "zlib_codec", ""),
        ("utf-8", "ascii\x00", ""),
    ],
)
def test_charsets_are_found(encoding, declared, meta):
    text = "Müller café naïve “quoted” Straße. " * 30
    assert text.strip()[:200] in html(page(f"<p>{text}</p>", meta).encode(encoding), declared)[1]


def test_a_page_in_gb2312_is_read_as_its_superset():
    text = "拉鲁市的市长是镕巴多。" * 30
    assert text in html(page(f"<p>{text}</p>").encode("gb18030"), "gb2312")[1]


def test_one_broken_character_leaves_a_page_in_utf_8():
    body = page(f"<p>{'Müller '.encode().decode() * 200}</p>").encode() + b"\xff"
    assert "Müller Müller" in html(body, "utf-8")[1]


@pytest.mark.parametrize("declared", ["utf-7", "unicode_escape", "utf-8", ""])
def test_no_text_holds_half_a_surrogate_pair(declared):
    body = b"\\ud800 +2AA- plain text " + "\ud800".encode("utf-8", "surrogatepass")
    for kind in ("html", "plain"):
        _, text = read_document(kind, declared, body, 1000)
        assert text.encode()


def test_plain_text_is_cut_and_cleaned():
    assert read_document("plain", "", b"a\r\n\r\n\r\n\r\nb\t\tc   d\x07\x1b[31m", 50)[1] == "a\n\nb c d [31m"
    assert read_document("plain", "", b"x" * 99, 10)[1] == "x" * 10


def test_pdf_pages_are_read_up_to_the_limit():
    body = pdf(*(f"Page {i} tells of Laru." for i in range(30)))
    assert "Page 29 tells of Laru." in read_document("pdf", "", body, 10_000)[1]
    assert len(read_document("pdf", "", body, 100)[1]) <= 100


def test_a_pdf_that_pypdf_wrote_has_no_text():
    writer, out = pypdf.PdfWriter(), io.BytesIO()
    writer.add_blank_page(100, 100)
    writer.write(out)
    assert read_document("pdf", "", out.getvalue(), 100) == ("", "")


@pytest.mark.parametrize(
    "body", [b"%PDF-1.4", b"%PDF-1.7\nrubbish\n%%EOF", b"%PDF-1.4\n" + os.urandom(2000), pdf("Laru")[:200]]
)
def test_a_broken_pdf_is_typed_or_empty(body):
    assert text_or_failure("pdf", body).split(" (")[0] in ("", "no PDF can be read from it")


def test_kinds_and_charsets():
    assert kind_of("text/html; charset=x", b"<p>") == "html"
    assert kind_of("", b"<p>") == "html"
    assert kind_of("application/octet-stream", b"%PDF-1.4") == "pdf"
    assert kind_of("text/html", b"\r\n \t%PDF-1.4") == "pdf"
    assert kind_of("application/ld+json", b"{}") == kind_of("TEXT/CSV", b"") == "plain"
    for wrong in ("image/png", "application/zip", "video/mp4", "application/octet-stream"):
        with pytest.raises(RequestFailedError) as refused:
            kind_of(wrong, b"\x89PNG")
        assert refused.value.kind is FailureKind.MALFORMED
    assert charset_of('text/html; Charset="GBK"; x=y') == "GBK"
    assert charset_of("text/html") == charset_of("text/html; charset") == ""


def test_the_reader_serves_many_in_its_processes():
    async def main():
        reader = DocumentReader(processes=2)
        try:
            return await asyncio.gather(*(reader.read("plain", "", b"text %d" % i) for i in range(20)))
        finally:
            await reader.close()

    assert [document.text for document in asyncio.run(main())] == [f"text {i}" for i in range(20)]


def test_a_reader_serves_two_event_loops():
    reader = DocumentReader()
    assert [asyncio.run(reader.read("plain", "", b"x")).text for _ in range(2)] == ["x", "x"]
    asyncio.run(reader.close())


def test_bombs_end_in_typed_failures_and_the_next_document_is_read():
    bomb = pdf(
        streams=[zlib.compress(zlib.compress(b"\x00" * 200_000_000, 9), 9)],
        filters=b"/Filter [/FlateDecode /FlateDecode]",
    )
    text = b"BT /F1 12 Tf 72 720 Td " + b"(a) Tj " * 3_000_000 + b"ET"
    slow = pdf(streams=[zlib.compress(text)], filters=b"/Filter /FlateDecode")
    deep = b"<div>" * 500_000
    outcomes = read(
        [("pdf", bomb), ("pdf", slow), ("html", deep), ("plain", b"fine")], seconds=1.0, processes=1
    )
    assert outcomes[1] in (FailureKind.TOO_LARGE, FailureKind.TIMEOUT)
    assert all(isinstance(bad, FailureKind) or bad.text == "" for bad in (outcomes[0], outcomes[2]))
    assert outcomes[3].text == "fine"


def test_a_broken_document_is_typed():
    assert read([("pdf", b"%PDF-1.4 no"), ("plain", b"x")])[0] is FailureKind.MALFORMED


@pytest.mark.skipif(sys.platform != "linux", reason="the filter is Linux'")
def test_a_document_is_read_behind_the_filter():
    busy = page("<p>" + "<b>word</b> " * 400_000 + "</p>").encode()

    async def main():
        reader = DocumentReader(processes=1)
        try:
            reading = asyncio.create_task(reader.read("html", "", busy))
            kinds = await asyncio.to_thread(
                wait_until, lambda: [kind for pid in children() for kind in filters(pid) if kind != "0"]
            )
            await reading
            return kinds
        finally:
            await reader.close()

    assert asyncio.run(main()) == ["2"]


def filters(worker):
    """Kind of seccomp filter of each fork of a process."""
    with contextlib.suppress(OSError):  # it has ended
        for fork in children(worker):
            status = Path(f"/proc/{fork}/status").read_text()
            yield next(line.split()[1] for line in status.splitlines() if line.startswith("Seccomp:"))


def test_the_wait_for_a_process_is_time_in_a_queue():
    async def main():
        reader = DocumentReader(processes=1)
        clocks = [CallClock(asyncio.get_running_loop().time) for _ in range(3)]
        readings = (on_clock(clock, partial(reader.read, "plain", "", b"x")) for clock in clocks)
        try:
            await asyncio.gather(*map(asyncio.create_task, readings))
        finally:
            await reader.close()
        return [clock.queued for clock in clocks]

    first, *later = asyncio.run(main())
    assert first < min(later)
