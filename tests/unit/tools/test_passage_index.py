import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.core.errors import DataError
from ramify.tools.index_folder import open_index
from ramify.tools.passage_index import PassageIndex

Build = Callable[[Path, list[dict]], PassageIndex]


@pytest.fixture(params=["memory", "folder"], scope="module")
def build(request: pytest.FixtureRequest) -> Build:
    def make(tmp_path: Path, rows: list[dict]) -> PassageIndex:
        path = tmp_path / "passages.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        if request.param == "memory":
            return PassageIndex.build(path)
        open_index(path, tmp_path / "index")
        return open_index(path, tmp_path / "index")

    return make


def ids(index: PassageIndex, query: str, top_k: int = 10, collection: str | None = None) -> list[str]:
    return [passage.id for passage in index.search(query, top_k, collection)]


def test_ranks_by_shared_words_and_keeps_texts(build: Build, tmp_path: Path) -> None:
    index = build(
        tmp_path,
        [
            {"id": "a", "text": "Paris is the capital of France."},
            {"id": "b", "contents": "Rome is the capital of Italy."},
            {"text": "Nothing here"},
        ],
    )
    assert ids(index, "capital of Italy") == ["b", "a"]
    assert index.search("nothing", 5)[0].id == "3"
    assert index.search("ROME", 1)[0].text == "Rome is the capital of Italy."
    assert len(index) == 3


def test_a_rare_word_and_a_short_passage_count_more(build: Build, tmp_path: Path) -> None:
    rows = [{"id": str(i), "text": "city of light"} for i in range(20)]
    rows += [{"id": "long", "text": "zebra " + "filler " * 50}, {"id": "short", "text": "zebra crossing"}]
    assert ids(build(tmp_path, rows), "zebra city", 3) == ["short", "long", "0"]


def test_a_word_repeated_in_a_query_counts_once(build: Build, tmp_path: Path) -> None:
    rows = [{"id": "a", "text": "capital of italy"}, {"id": "b", "text": "river in france"}]
    index = build(tmp_path, [*rows, *({"id": str(i), "text": "river"} for i in range(3))])
    once = index.ranked("italy river", 10)
    assert once[0][1].id == "a"  # the rarer word
    assert index.ranked("river italy River river, river", 10) == once


def test_title_is_searched_and_shown(build: Build, tmp_path: Path) -> None:
    index = build(tmp_path, [{"text": "Born in 1815.", "title": "Ada Lovelace"}, {"text": "Born in 1816."}])
    assert [p.text for p in index.search("lovelace", 5)] == ["Ada Lovelace: Born in 1815."]


@pytest.mark.parametrize("query", ["laru area", "LARU", "Laru's", "(laru", "the-laru_area"])
def test_words_match_whatever_their_case_and_punctuation(build: Build, tmp_path: Path, query: str) -> None:
    assert ids(build(tmp_path, [{"id": "x", "text": "Laru area 56 ."}]), query) == ["x"]


def test_letters_beyond_ascii_match(build: Build, tmp_path: Path) -> None:
    index = build(tmp_path, [{"id": "s", "text": "Die STRASSE nach Orléans"}])
    assert ids(index, "straße") == ids(index, "orle\u0301ans") == ["s"]


def test_ties_keep_file_order_at_every_depth(build: Build, tmp_path: Path) -> None:
    rng = random.Random(0)
    words = [f"w{i}" for i in range(8)]
    rows = [
        {"id": str(i), "text": " ".join(rng.choices(words, k=4)), "collection": "ab"[i % 2]}
        for i in range(4000)
    ]
    index = build(tmp_path, rows)
    bags = [sorted(row["text"].split()) for row in rows]
    for query in ("w0", "w1 w2", "w3 w4 w5", "w0 w1 w2 w6 w7"):
        for collection in (None, "a"):
            ranked = [int(i) for i in ids(index, query, len(rows), collection)]
            last: dict[tuple[str, ...], int] = {}
            for row in ranked:  # equal bags of words score equally, so they must come in file order
                assert row > last.get(tuple(bags[row]), -1)
                last[tuple(bags[row])] = row
            assert [int(i) for i in ids(index, query, 7, collection)] == ranked[:7]


def test_collection_restricts_and_leaves_the_ranking(build: Build, tmp_path: Path) -> None:
    rng = random.Random(1)
    words = ["red", "green", "blue", "grey"]
    rows = [
        {"id": str(i), "text": " ".join(rng.choices(words, k=3)), "collection": c}
        for i, c in enumerate(rng.choices(["one", "two", "one two"], k=300))
    ]
    index = build(tmp_path, rows)
    everywhere = ids(index, "red blue", 300)
    for collection in ("one", "two", "one two"):
        inside = [i for i in everywhere if rows[int(i)]["collection"] == collection]
        assert ids(index, "red blue", 300, collection) == inside
        assert len(inside) > 50
    assert ids(index, "red", 5, "One") == ids(index, "red", 5, "") == []


@pytest.mark.parametrize("query", ["", "   ", "?!* () :", '"', "\x00", "\ud800", "___"])
def test_a_query_without_words_finds_nothing(build: Build, tmp_path: Path, query: str) -> None:
    assert ids(build(tmp_path, [{"text": "some words"}]), query) == []


def test_query_syntax_does_not_act(build: Build, tmp_path: Path) -> None:
    index = build(tmp_path, [{"id": "1", "text": "cats"}, {"id": "2", "text": "dogs"}])
    assert sorted(ids(index, "cats AND NOT dogs")) == ["1", "2"]
    assert ids(index, "-cats") == ["1"]
    assert ids(index, "collection:cats title:[a TO z] cat* c~2") == ["1"]


@pytest.fixture(scope="module")
def tiny(build: Build, tmp_path_factory: pytest.TempPathFactory) -> PassageIndex:
    return build(tmp_path_factory.mktemp("tiny"), [{"text": "a b c", "collection": "k"}])


@settings(max_examples=100, deadline=None)
@given(query=st.text(alphabet=st.characters(exclude_categories=())))
def test_no_query_raises(tiny: PassageIndex, query: str) -> None:
    assert len(tiny.search(query, 3, "k")) <= 1


def test_huge_queries_and_words(build: Build, tmp_path: Path) -> None:
    index = build(tmp_path, [{"id": "1", "text": "needle " + "x" * 100_000}])
    assert ids(index, "y" * 200_000 + " needle " + "z " * 5000) == ["1"]
    assert ids(index, "needle " + " ".join(f"z{i}" for i in range(3000))) == ["1"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("{", "broken JSON"),
        ("[1]", "expected an object"),
        ('{"title": "x"}', "no 'text' or 'contents'"),
        ('{"text": 5}', "'text' must be text"),
        ('{"text": "x", "id": [1]}', "'id' must be"),
        ('{"text": "x", "id": "\\ud800"}', "surrogates"),
        ('{"text": "x", "collection": 3}', "'collection' must be text"),
        ('{"text": "\\ud800"}', "surrogates"),
        ("[" * 100_000, "row 3"),
    ],
)
def test_a_broken_line_names_file_and_row(tmp_path: Path, line: str, expected: str) -> None:
    path = tmp_path / "broken.jsonl"
    path.write_text('{"text": "fine"}\n\n' + line + "\n", encoding="utf-8")
    with pytest.raises(DataError) as caught:
        PassageIndex.build(path)
    message = str(caught.value)
    assert message.startswith(f"{path} row 3 ")
    assert expected in message
    assert "\n" not in message


def test_bytes_that_are_no_text_name_the_row(tmp_path: Path) -> None:
    path = tmp_path / "latin.jsonl"
    path.write_bytes(b'{"text": "fine"}\n{"text": "caf\xe9"}\n')
    with pytest.raises(DataError, match="row 2"):
        PassageIndex.build(path)


def test_missing_and_empty_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        PassageIndex.build(tmp_path / "absent.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n\n")
    with pytest.raises(DataError, match="empty"):
        PassageIndex.build(tmp_path / "empty.jsonl")


def test_a_collection_that_is_no_text_holds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "passages.jsonl"
    path.write_text('{"text": "some words", "collection": "c"}\n')
    index = PassageIndex.build(path)
    assert index.search("words", 3, "\ud800") == ()
    assert len(index.search("words \ud800", 3, "c")) == 1


def test_small_files_stay_in_memory_unless_a_folder_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "passages.jsonl"
    path.write_text('{"text": "some words"}\n')
    open_index(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["passages.jsonl"]
    open_index(path, tmp_path / "named")
    assert (tmp_path / "named" / "manifest.json").is_file()
    monkeypatch.setattr("ramify.tools.index_folder.MEMORY_BYTES", 10)
    open_index(path)
    assert (tmp_path / "passages.jsonl.index" / "manifest.json").is_file()
