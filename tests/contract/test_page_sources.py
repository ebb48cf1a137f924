"""Page sources against servers that answer in every way that a server can."""

import asyncio
import time

import pytest

from kept_answers import KeptAnswers
from loopback import Reply, as_json, serve
from ramify.core.errors import ServiceDownError
from ramify.net.client import HttpClient, HttpSettings
from ramify.net.failures import FailureKind, RequestFailedError
from ramify.tools.configs import BrowserConfig
from ramify.tools.documents import Document
from ramify.tools.pages import READS_TO_STOP, GuardedPages, JinaPages, Pages, fault_of

pytestmark = pytest.mark.integration

HERE = ("127.0.0.1/32",)
TEXT = " ".join(f"Sentence number {i} tells of Laru, a harbour town in the north." for i in range(30))
PAGE = f"<html><head><title>Laru</title></head><body><article><p>{TEXT}</p></article></body></html>".encode()
HTML = {"content-type": "text/html; charset=utf-8"}


def fetch(answer, path="/", networks=HERE, **settings):
    """Return a source's document or error, and the requests of the server."""
    with serve(answer) as server:

        async def main():
            source = GuardedPages(BrowserConfig(networks=networks, **{"page_seconds": 60.0, **settings}))
            try:
                return await source.read(server.url + path)
            except RequestFailedError as error:
                return error
            finally:
                await source.close()
                await source.close()

        return asyncio.run(main()), server.requests


def drip(stream):
    stream.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\n\r\n")
    for _ in range(100):
        stream.write(b"<")
        stream.flush()
        time.sleep(0.1)


def endless_body(stream):
    stream.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\n\r\n")
    while True:
        stream.write(b"<p>more" * 1000)


def moved(to, status=302):
    return Reply(status, headers={"location": to})


def test_a_page_is_fetched_and_read():
    document, requests = fetch(lambda _: Reply(200, PAGE, HTML), "/town?a=1#part")
    assert document.title == "Laru"
    assert "Sentence number 29" in document.text
    (request,) = requests
    assert request.path == "/town?a=1"
    assert request.headers["user-agent"] == "Mozilla/5.0 (compatible; ramify)"
    assert "cookie" not in request.headers


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, "refused"),
        (403, "refused"),
        (404, "client"),
        (410, "client"),
        (429, "too_many"),
        (500, "server"),
        (503, "server"),
    ],
)
def test_statuses_are_typed(status, kind):
    failed, requests = fetch(lambda _: Reply(status, b"sorry", {"retry-after": "0"}))
    assert (failed.kind, failed.status) == (kind, status)
    assert len(requests) == (2 if failed.kind.retriable else 1)


@pytest.mark.parametrize(
    ("write", "seconds", "kind"), [(drip, 2.0, "timeout"), (endless_body, 60.0, "too_large")]
)
def test_a_page_without_an_end_ends_at_the_limits_of_the_recipe(write, seconds, kind):
    failed, _ = fetch(lambda _: Reply(write=write), page_seconds=seconds, max_bytes=100_000)
    assert failed.kind == kind


@pytest.mark.parametrize(
    "content_type", ["image/png", "video/mp4", "application/zip", "application/octet-stream"]
)
def test_other_content_is_refused(content_type):
    failed, _ = fetch(lambda _: Reply(200, b"\x89PNG\r\n", {"content-type": content_type}))
    assert failed.kind is FailureKind.MALFORMED
    assert content_type in failed.detail


def test_json_and_text_are_shown_as_they_are():
    for kind in ("application/json", "text/plain; charset=latin-1"):
        document, _ = fetch(lambda _, kind=kind: Reply(200, b'{"a": "\xe9"}', {"content-type": kind}))
        assert document.text.startswith('{"a": "')
    assert document.text == '{"a": "é"}'


def test_redirects_are_followed_to_a_page():
    def answer(request):
        return (
            moved({"/": "/b", "/b": "c?d=1#e"}[request.path])
            if request.path in ("/", "/b")
            else Reply(200, PAGE, HTML)
        )

    document, requests = fetch(answer)
    assert document.title == "Laru"
    assert [request.path for request in requests] == ["/", "/b", "/c?d=1"]


def test_endless_redirects_end():
    failed, requests = fetch(lambda request: moved(request.path + "x"))
    assert failed.kind is FailureKind.REDIRECTS
    assert len(requests) == 6


def test_a_redirect_that_leads_nowhere_is_typed():
    assert fetch(lambda _: Reply(302))[0].kind is FailureKind.REDIRECTS
    # The HTTP library reads the header too, and does not like it.
    assert fetch(lambda _: moved("http://[::1"))[0].kind in (FailureKind.REDIRECTS, FailureKind.CONNECTION)


@pytest.mark.parametrize(
    "to",
    ["http://127.0.0.2:{port}/", "http://localhost.localdomain:22/", "http://169.254.169.254/latest/meta-data/",
     "http://[::1]:{port}/", "http://10.0.0.1/", "file:///etc/passwd", "ftp://127.0.0.1/", "//user:pw@127.0.0.1:{port}/",
     "http://0x7f000002:{port}/", "http://0:{port}/"],
)  # fmt: skip
def test_redirects_to_other_places_are_refused_unasked(to):
    def answer(request):
        port = request.headers["host"].split(":")[1]
        return moved(to.format(port=port)) if request.path == "/" else Reply(200, PAGE, HTML)

    failed, requests = fetch(answer)
    assert failed.kind is FailureKind.FORBIDDEN
    assert len(requests) == 1


def test_this_machine_is_refused_unless_a_recipe_names_its_network():
    failed, requests = fetch(lambda _: Reply(200, PAGE, HTML), networks=())
    assert failed.kind is FailureKind.FORBIDDEN
    assert requests == []


def jina(answer, url="https://a.test/x?y=1&z=2", key=None):
    with serve(answer) as server:

        async def main():
            secrets = () if key is None else (key,)
            client = HttpClient("jina", HttpSettings(attempts=1), secrets=secrets)
            source = JinaPages(client, BrowserConfig(source="jina", url=server.url, max_chars=200), key)
            try:
                return await source.read(url)
            except (RequestFailedError, ServiceDownError) as error:
                return error
            finally:
                await source.close()

        return asyncio.run(main()), server.requests


def test_jina_is_asked_in_its_json_mode():
    content = '![a](http://i.test/a.png) Laru is [a town](http://b.test/x "t"). [![i](j)](k)' + " more" * 100
    document, requests = jina(
        lambda _: as_json({"code": 200, "data": {"title": "Laru", "url": "u", "content": content}}),
        key="jina-key",
    )
    assert document.title == "Laru"
    assert document.text.strip().startswith("Laru is a town.")
    assert len(document.text) == 200
    (request,) = requests
    assert request.path == "/https://a.test/x?y=1&z=2"
    assert request.headers["accept"] == "application/json"
    assert request.headers["authorization"] == "Bearer jina-key"


@pytest.mark.parametrize("body", [[], {}, {"data": None}, {"data": {"content": None}}, {"data": []}, "x"])
def test_jina_answers_of_another_form_are_typed(body):
    failed, requests = jina(lambda _: as_json(body))
    assert failed.kind is FailureKind.MALFORMED
    assert "authorization" not in requests[0].headers


def test_jina_refusing_the_key_ends_the_run_and_one_page_does_not():
    refused, _ = jina(lambda _: as_json({"code": 401}, 401), key="jina-key")
    assert isinstance(refused, ServiceDownError)
    assert "jina-key" not in str(refused)
    failed, _ = jina(lambda _: as_json({"code": 422}, 422))
    assert failed.kind is FailureKind.CLIENT


def test_no_address_of_ours_is_told_to_jina():
    failed, requests = jina(lambda _: as_json({}), url="http://user:pw@intranet/")
    assert failed.kind is FailureKind.FORBIDDEN
    assert requests == []


def test_unfinished_links_stay_as_they_are():
    for hostile in ("[" * 2000, "[](" * 2000, "![" * 2000, "[a](b " * 2000, "[](" + "a" * 2000):
        document, _ = jina(lambda _, text=hostile: as_json({"data": {"content": text}}))
        assert hostile.startswith(document.text[:100])


def test_pages_are_remembered_by_address_and_failures_are_not():
    states = iter([Reply(503), Reply(200, b"<p>Access denied</p>", HTML), Reply(200, PAGE, HTML)])
    with serve(lambda _: next(states)) as server:

        async def main():
            source = GuardedPages(BrowserConfig(networks=HERE))
            cache = KeptAnswers()
            pages = Pages(source, cache)
            outcomes = []
            for path in ("/x", "/x#a", "/x#b", "/x"):
                try:
                    outcomes.append((await pages.read(server.url + path)).title)
                except RequestFailedError as error:
                    outcomes.append(error.kind.value)
            await pages.close()
            return outcomes, cache

        (outcomes, cache), requests = asyncio.run(main()), server.requests
    # The first failure is tried twice by the client: its second attempt meets the page that denies access.
    assert outcomes == ["malformed", "Laru", "Laru", "Laru"]
    assert len(requests) == 3
    assert {(key.tool, key.provider, key.request) for key in cache.keys} == {
        ("page", "guarded", server.url + "/x")
    }
    assert cache.keys[0].parameters["max_chars"] == 50_000


@pytest.mark.parametrize("works", [None, 3])
def test_a_source_that_never_reads_a_page_ends_the_run(works):
    """After `READS_TO_STOP` failures, also of readers that wait no longer; one page that could be read shows that reading works."""

    class Source:
        name, identity, reads = "guarded", {}, 0

        async def read(self, url):
            self.reads += 1
            if self.reads == works:
                return Document("Laru", TEXT)
            if self.reads % 2:
                await asyncio.Event().wait()
            raise RequestFailedError(FailureKind.CONNECTION, "no route")

        async def close(self):
            pass

    async def main():
        pages, outcomes = Pages(Source()), []
        for _ in range(2 * READS_TO_STOP):
            try:
                async with asyncio.timeout(0.001):
                    await pages.read("http://a.test/x")
            except (TimeoutError, RequestFailedError) as error:
                outcomes.append(type(error))
            except ServiceDownError as error:
                return len(outcomes), str(error)
        return len(outcomes), ""

    tried, message = asyncio.run(main())
    assert tried == (READS_TO_STOP - 1 if works is None else 2 * READS_TO_STOP - 1)
    assert ("the first 50 page reads all failed (timeout 25, connection 25)" in message) is (works is None)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (TEXT, None),
        ("", "hardly any text"),
        ("word " * 19, "hardly any text"),
        ("word " * 20, None),
        ("a " * 24, "hardly any text"),
        ("Just a moment... " + "word " * 30, "just a moment"),
        ("Page Not Found\n" + "word " * 60, "not found"),
        ("Page Not Found\n" + "word " * 61, None),
        ("该市的市长是巴多。" * 8, None),
        ("该市" * 5, "hardly any text"),
        ("北京是中华人民共和国的首都。位于华北平原北部。是政治文化中心。", None),
        ("東京は日本の首都であり、世界最大級の都市の一つである。", None),
        ("กรุงเทพมหานครเป็นเมืองหลวงและนครที่มีประชากรมากที่สุดของประเทศไทย", None),
        ("ไม่พบหน้า", "hardly any text"),
        (
            "HTTP 404 Not Found is a response code of the web. It indicates that a server was reached and has no such page, "
            "and early designers chose the number.",
            None,
        ),
        ("The Forbidden City is a palace in Beijing. Emperors of two dynasties lived in it for about five hundred years.", None),
        (
            "404 Not Found. This error means that the page you wanted was not found on the server. Go back to the home page "
            "and try again.",
            "not found",
        ),
        ("Not Found\nThe requested URL /a/b was not found on this server. " + "word " * 20, "not found"),
        ("页面不存在\n" + "很抱歉!您访问的页面不存在或已被删除。请检查网址是否正确。或返回首页。", "页面不存在"),
        ("404 (band)\n404 are from Oslo. Their first record, 404 Not Found, came out in 2004, and they have toured Europe three times.", None),
        ("Access Denied (film)\nThe film follows a thief who robs a bank by night. Critics praised it, and it was shown in forty countries.", None),
        ("HTTP 403\nHTTP 403 is a status code for access that is forbidden. The server understood what it was asked and will not do it.", None),
        ("Shop\nSorry, you have been blocked. This website uses a security service, and the action just performed triggered it at once.", "you have been blocked"),
        ("403 Forbidden\nThis is a page that only members of the club can open, with a password of their own, at any time.", "forbidden"),
    ],
)  # fmt: skip
def test_pages_that_say_nothing_are_left_out(text, fault):
    reason = fault_of(text.strip())
    assert (reason is None) if fault is None else (fault in reason)
