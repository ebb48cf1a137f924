"""Results of search services, whose markup anyone wrote."""

import time

import pytest

from ramify.net.client import Answer
from ramify.tools.search_http import ResultFields, plain_text, read_hits

FIELDS = ResultFields("organic", "snippet", "link")


@pytest.mark.parametrize(
    ("markup", "expected"),
    [
        ("a <b>bold</b> word &amp; a&nbsp;sign", "a bold word & a sign"),
        ("one<br/>two<p class='x'>three</p>", "one two three"),
        ("x < y and y > z", "x < y and y > z"),
        ("before<!-- hidden -->after <script>alert(1)</script >end", "before after end"),
        ("shown <!-- not closed <b>hidden</b>", "shown"),
        ("shown <style> not closed", "shown"),
    ],
)
def test_snippets_are_plain_text(markup: str, expected: str) -> None:
    assert plain_text(markup) == expected


@pytest.mark.parametrize(
    "piece", ["<!--", "<script>", "<style ", "<a b=c ", "<a a=", "<b ", "&lt", "< ", "</script "]
)
def test_markup_without_end_takes_no_time_of_its_own(piece: str) -> None:
    """In processor seconds, which other programs of the machine do not change; what is quadratic takes minutes."""
    started = time.thread_time()
    plain_text(piece * (2_000_000 // len(piece)))
    assert time.thread_time() - started < 2.0


def test_only_the_hits_that_are_shown_are_read() -> None:
    body = b'{"organic": [{"snippet": "a"}, {}, {"link": "b"}, {"snippet": "c"}]}'
    hits = read_hits(Answer(200, "http://a/", "", body), FIELDS, 2)
    assert [(hit.text, hit.url) for hit in hits] == [("a", ""), ("", "b")]
