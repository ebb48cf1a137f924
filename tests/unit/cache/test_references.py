import json

import pytest
from cache_uses import asks, fetch, run

from ramify.cache.references import answer_of, export_json, import_json, text_of
from ramify.cli import main
from ramify.core.errors import DataError
from ramify.core.protocols import CacheKey
from ramify.tools.search import normalise

TWO = "Page 1: first\nPage 2: second \u2026"


def key(query):
    return CacheKey("search", "p", {"top_k": 10}, normalise(query))


def write(folder, entries):
    path = folder / "in.json"
    path.write_text(json.dumps(entries, ensure_ascii=False, indent=2), encoding="utf-8")
    return path


def round_trip(folder, path):
    count = import_json(path, folder / "cache.sqlite", key)
    entries, content = export_json(folder / "cache.sqlite")
    assert entries == count
    return content


def test_texts_become_hits_that_show_the_same_text():
    assert [hit["text"] for hit in answer_of(TWO)] == ["first", "second \u2026"]
    assert answer_of("No search results found.") == []
    assert text_of([]) == "No search results found."
    assert text_of(answer_of(TWO)) == TWO


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no pages",
        "Page 2: begins at two",
        "Page 1: a\nPage 3: b",
        "Page 1: two  blanks",
        "Page 1: a\nPage 2: a",
        "Page 1: line\nbreak",
        "Page 1: ",
        "before\nPage 1: a",
        "Page 1: " + "x" * 1001,
        "\n".join(f"Page {i}: {i}" for i in range(1, 12)),
    ],
)
def test_texts_that_hits_would_change_are_kept(text):
    assert answer_of(text) == text
    assert text_of(answer_of(text)) == text


def test_a_snippet_that_is_cut_at_a_blank_ends_before_it():
    hits = [{"id": "u", "text": "x" * 999 + " and more", "title": "", "url": ""}]
    assert text_of(hits) == "Page 1: " + "x" * 999


def test_import_and_export_give_the_same_file(tmp_path):
    entries = {
        "C++ vs C#": TWO,
        "c++ VS c#": "Page 1: other text, same request",
        "C vs C": "No search results found.",
        "search query:  \u65e5\u672c": "odd text",
        "Ada": TWO,
        "ADA": TWO,
    }
    path = write(tmp_path, entries)
    assert round_trip(tmp_path, path) == path.read_bytes()
    assert round_trip(tmp_path, path) == path.read_bytes()
    queries = ('c++  vs "C#"', "C vs c", "SEARCH QUERY: \u65e5\u672c")
    hits, *others = fetch(tmp_path / "cache.sqlite", *map(key, queries))
    assert (text_of(hits), others) == (TWO, [[], "odd text"])


def test_what_was_found_since_is_exported_too(tmp_path):
    path = write(tmp_path, {"a": TWO})
    round_trip(tmp_path, path)

    async def use(cache):
        await cache.fetch(key("b"), asks([{"id": "u", "text": "new\n snippet", "title": "T", "url": "U"}]))
        await cache.fetch(CacheKey("page", "p", {}, "https://x"), asks("the page's text"))

    run(use, tmp_path / "cache.sqlite")
    _, content = export_json(tmp_path / "cache.sqlite")
    assert json.loads(content) == {"a": TWO, "b": "Page 1: new snippet"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[]", "Expected one object"),
        (b'{"a": 1}', "entry 'a' is no text"),
        (b'{"a": "Page 1: x"', "broken JSON"),
        (b"\xff\xfe", "expected UTF-8"),
        (None, "cannot be read"),
    ],
)
def test_a_wrong_file_is_named_and_no_cache_is_made(content, message, tmp_path):
    path = tmp_path / "in.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=rf"in\.json.*{message}"):
        import_json(path, tmp_path / "cache.sqlite", key)
    assert not (tmp_path / "cache.sqlite").exists()


def test_a_query_that_sqlite_cannot_hold_is_escaped(tmp_path):
    path = tmp_path / "in.json"
    path.write_text(json.dumps({"q \ud800": "text \udfff"}))
    assert json.loads(round_trip(tmp_path, path)) == {"q \\ud800": "text \udfff"}


def test_the_released_cache_comes_back_byte_for_byte(shared_dir, tmp_path):
    path = shared_dir / "data" / "search_cache" / "search_cache.json"
    texts = json.loads(path.read_bytes())
    assert round_trip(tmp_path, path) == path.read_bytes()
    answers = fetch(tmp_path / "cache.sqlite", *map(key, texts))
    assert [*map(text_of, answers)] == [*texts.values()]


def test_the_command_line_imports_shows_and_exports(tmp_path, capsys):
    path, cache = write(tmp_path, {"Ada": TWO, "Bob": "No search results found."}), tmp_path / "cache.sqlite"
    where = ["--provider", "searxng", "-s", "url=http://127.0.0.1:1", "-s", "top_k=5"]
    assert main(["cache", "import", str(path), "--to", str(cache), *where]) == 0
    assert "2 entries" in capsys.readouterr().out
    assert main(["cache", "show", str(cache)]) == 0
    assert "search searxng: 2 answers, 1 of them empty" in capsys.readouterr().out
    assert main(["cache", "export", str(cache), "--to", str(tmp_path / "out.json")]) == 0
    assert (tmp_path / "out.json").read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "missing.sqlite"], "does not exist"),
        (["import", "in.json", "--to", "c", "--provider", "serper", "-s", "x"], "expected KEY=VALUE"),
        (["import", "missing.json", "--to", "c", "--provider", "serper"], "missing.json cannot be read"),
        (["import", "in.json", "--to", "c"], "--provider: expected whose answers in.json holds"),
    ],
)
def test_a_mistake_is_told_in_one_line(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, {})
    assert main(["cache", *arguments]) == 2
    message_lines = capsys.readouterr().err
    assert message in message_lines
    assert message_lines.count("\n") == 1
