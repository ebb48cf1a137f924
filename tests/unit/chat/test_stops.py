import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_folders import write_tokenizer
from ramify.chat.stops import StopMatcher
from ramify.chat.tags import stop_strings
from ramify.chat.tokenizer import ChatTokenizer
from ramify.core.errors import ConfigError

STOPS = stop_strings(("search", "python"))
PIECES = st.lists(st.text("ab<>/\u00e9", max_size=4).map(str.encode), min_size=1, max_size=12)


def by_force(table, stops, ids):
    """Return True if a stop ends within the bytes of the last token."""
    before = b"".join(table[i] for i in ids[:-1])
    whole = before + table[ids[-1]]
    ends = [
        start + len(stop)
        for stop in (s.encode() for s in stops)
        for start in range(len(whole) - len(stop) + 1)
        if whole[start : start + len(stop)] == stop
    ]
    return any(len(before) < end for end in ends)


@given(
    PIECES,
    st.lists(st.text("ab<>/\u00e9", min_size=1, max_size=5), max_size=4),
    st.lists(st.integers(0, 11), min_size=1, max_size=24),
)
def test_the_matcher_agrees_with_brute_force_at_every_token(table, stops, picks):
    ids = [pick % len(table) for pick in picks]
    # Every byte has a token, so that every stop can be written.
    table = [*table, *(bytes([byte]) for byte in "ab<>/\u00e9".encode())]
    matcher = StopMatcher(table, stops)
    for end in range(1, len(ids) + 1):
        assert matcher.completes(ids[:end]) == by_force(table, stops, ids[:end])


@given(
    st.lists(
        st.sampled_from([b"\xc3", b"\xa9", b"\xe2", b"\x82\xac", b"<", b"\xe2\x82"]), min_size=1, max_size=9
    )
)
def test_stops_of_several_bytes_a_character_are_found_across_torn_tokens(pieces):
    table = sorted(set(pieces))
    ids = [table.index(piece) for piece in pieces]
    stops = ("\u00e9", "<\u20ac")
    table += [bytes([byte]) for byte in "".join(stops).encode()]
    matcher = StopMatcher(table, stops)
    for end in range(1, len(ids) + 1):
        assert matcher.completes(ids[:end]) == by_force(table, stops, ids[:end])


@pytest.mark.parametrize(
    ("table", "stop", "possible"),
    [
        ([b"<", b"/a", b">"], "</a>", True),
        ([b"x<", b"/a", b">y"], "</a>", True),
        ([b"--</a>--"], "</a>", True),
        ([b"x</", b"a>z"], "</a>", True),
        ([b"<", b"/", b"a"], "</a>", False),
        ([b"<", b"a", b">y"], "</a>", False),
        ([b"a>", b"b</"], "</a></a>", False),
        ([b"a>", b"b</", b"a></"], "</a></a>", True),
        ([b"<", b"/", b"a", b">"], "", False),
        ([b""], "a", False),
    ],
)
def test_a_stop_that_no_tokens_spell_is_refused(table, stop, possible):
    if possible:
        assert not StopMatcher(table, [stop]).completes([0]) or stop.encode() in table[0]
    else:
        with pytest.raises(ConfigError, match=re.escape(repr(stop))):
            StopMatcher(table, [stop])


@pytest.fixture(scope="module", params=[True, False], ids=["tags-are-tokens", "tags-are-text"])
def tokenizer(tmp_path_factory, request):
    folder = tmp_path_factory.mktemp("stops") / "folder"
    write_tokenizer(folder, tags_are_tokens=request.param)
    return ChatTokenizer(folder)


def test_random_tokens_stop_where_their_text_first_holds_a_stop(tokenizer):
    draw = random.Random(7)
    matcher = StopMatcher(tokenizer.token_bytes, STOPS)
    # Whole and broken stops amid noise; a random sequence alone would never complete one.
    inserts = [
        tokenizer.encode_plain(text) for text in (*STOPS, "</sea", "rch>", "</", "<resu", "lt>", "wer>")
    ]
    inserts += [tokenizer.encode(stop) for stop in STOPS]
    stopped = 0
    for _ in range(300):
        ids: list[int] = []
        while len(ids) < 30:
            ids += draw.choice(inserts) if draw.random() < 0.3 else [draw.randrange(tokenizer.vocab_size)]
        stop_at = next((i for i in range(len(ids)) if matcher.completes(ids[: i + 1])), None)
        texts = (b"".join(tokenizer.token_bytes[t] for t in ids[: i + 1]) for i in range(len(ids)))
        expected = next((i for i, t in enumerate(texts) if any(s.encode() in t for s in STOPS)), None)
        assert stop_at == expected
        stopped += stop_at is not None
    assert 100 < stopped <= 300


def test_a_stop_may_span_many_tokens_and_is_not_found_twice(tokenizer):
    ids = tokenizer.encode_plain("so </search> and")
    at = [i for i in range(len(ids)) if StopMatcher(tokenizer.token_bytes, STOPS).completes(ids[: i + 1])]
    assert len(at) == 1
    assert tokenizer.decode(ids[: at[0] + 1]).rstrip() == "so </search>"
    assert len(tokenizer.encode_plain("</search>")) > 3


def test_padded_ids_before_a_stop_and_as_its_end(tokenizer):
    padded = tokenizer.vocab_size + 3
    matcher = StopMatcher(tokenizer.token_bytes, STOPS)
    ids = tokenizer.encode_plain("</answer>")
    assert matcher.completes([padded, *ids])
    assert matcher.completes([*ids[:-1], padded, ids[-1]])
    assert not matcher.completes([*ids, padded])


def test_without_stops_nothing_stops(tokenizer):
    assert not StopMatcher(tokenizer.token_bytes, ()).completes(tokenizer.encode("</answer>"))
