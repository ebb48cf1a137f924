import asyncio
import importlib.util
import json
import sys
import time
import types
import zlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from hub_stand_in import HubStandIn
from loopback import serve
from ramify.core.errors import DataError, MachineError
from ramify.runtime.call_clock import CallClock, on_clock
from ramify.tools.configs import DenseSearchConfig
from ramify.tools.search_dense import DenseSearch, Vectors, load_embedder

ROWS = [
    {"id": "a", "text": "red green", "collection": "one"},
    {"id": "b", "text": "red red blue", "collection": "two"},
    {"id": "c", "text": "red green", "collection": "two"},
    {"id": "d", "text": "grey"},
]


class CountingEmbedder:
    """Unit vectors of how often words occur: an embedding that can be computed by hand."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(self, texts: Sequence[str]) -> Vectors:
        self.texts += texts
        vectors = np.zeros((len(texts), 512), np.float32)
        for row, text in enumerate(texts):
            for word in text.split():
                vectors[row, zlib.crc32(word.encode()) % 512] += 1
        return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "passages.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def ids_of(provider: DenseSearch, query: str, top_k: int = 10, collection: str | None = None) -> list[str]:
    return [hit.id for hit in asyncio.run(provider.search(query, top_k, collection))]


def test_the_nearest_come_first_and_ties_in_file_order(corpus: Path) -> None:
    provider = DenseSearch(DenseSearchConfig(corpus=corpus, model="count"), CountingEmbedder())
    assert ids_of(provider, "red green") == ["a", "c", "b", "d"]
    assert ids_of(provider, "red green", 1) == ["a"]
    assert ids_of(provider, "grey", 1) == ["d"]
    assert asyncio.run(provider.search("grey", 1, None))[0].text == "grey"


def test_it_finds_what_a_plain_loop_finds(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    names = [f"w{i}" for i in range(30)]
    texts = [" ".join(rng.choice(names, 6)) for _ in range(400)]
    path = tmp_path / "many.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    embed = CountingEmbedder()
    provider = DenseSearch(DenseSearchConfig(corpus=path, model="count"), embed)
    vectors = embed(texts)
    for query in ("w1 w2", "w3", "w4 w4 w5 w6"):
        (embedded,) = embed([query])
        scores = [float(vectors[i] @ embedded) for i in range(len(texts))]
        expected = sorted(range(len(texts)), key=lambda i: (-round(scores[i], 5), i))
        got = [int(i) - 1 for i in ids_of(provider, query, 20)]
        assert [round(scores[i], 5) for i in got] == [round(scores[i], 5) for i in expected[:20]]


FAISS = importlib.util.find_spec("faiss") is not None


@pytest.mark.skipif(not FAISS, reason="FAISS is not installed: pip install faiss-cpu")
def test_faiss_ranks_as_numpy_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    path = tmp_path / "many.jsonl"
    path.write_text(
        "".join(json.dumps({"text": " ".join(rng.choice(list("abcdefgh"), 5))}) + "\n" for _ in range(300))
    )
    config = DenseSearchConfig(corpus=path, model="count", index=tmp_path / "vectors")
    with_faiss = DenseSearch(config, CountingEmbedder())
    monkeypatch.setitem(sys.modules, "faiss", None)
    with_numpy = DenseSearch(config, CountingEmbedder())
    for query in ("a b", "c", "d d e", "zebra"):
        first, second = with_faiss.ranked(query, 12), with_numpy.ranked(query, 12)
        assert np.allclose([score for score, _ in first], [score for score, _ in second], atol=1e-6)
        # Of passages that tie with the last one, FAISS may choose others.
        last = second[-1][0] + 1e-6
        assert {p.id for score, p in first if score > last} == {p.id for score, p in second if score > last}


def test_a_collection_restricts(corpus: Path) -> None:
    provider = DenseSearch(DenseSearchConfig(corpus=corpus, model="count"), CountingEmbedder())
    assert ids_of(provider, "red green", collection="two") == ["c", "b"]
    assert ids_of(provider, "red green", collection="none") == []


def test_prefixes_are_put_before_texts(corpus: Path) -> None:
    embed = CountingEmbedder()
    provider = DenseSearch(
        DenseSearchConfig(corpus=corpus, model="e5", query_prefix="query: ", passage_prefix="passage: "),
        embed,
    )
    ids_of(provider, "red")
    assert embed.texts[0] == "passage: red green"
    assert embed.texts[-1] == "query: red"


def test_vectors_are_kept_and_made_anew_when_they_do_not_fit(corpus: Path, tmp_path: Path) -> None:
    folder = tmp_path / "vectors"

    # Of vectors that are kept the first is compared, so one text is embedded.
    def count(model: str = "count", prefix: str = "") -> int:
        embed = CountingEmbedder()
        notes: list[str] = []
        provider = DenseSearch(
            DenseSearchConfig(corpus=corpus, model=model, passage_prefix=prefix, index=folder),
            embed,
            notes.append,
        )
        embedded = len(embed.texts)
        assert len(notes) == (embedded > 1)
        assert ids_of(provider, "grey", 1) == ["d"]
        return embedded

    assert (count(), count(), count("other"), count("other")) == (4, 1, 4, 1)
    assert (count(prefix="p: "), count(prefix="p: ")) == (4, 1)
    corpus.write_text(corpus.read_text().replace("blue", "pink"))
    assert count() == 4
    for file in folder.iterdir():
        file.write_bytes(file.read_bytes()[:50])
    assert (count(), count()) == (4, 1)
    with corpus.open("a") as file:
        file.write('{"text": "white"}\n')
    assert count() == 5
    assert list(folder.glob("*.part")) == []


class OtherEmbedder(CountingEmbedder):
    """As after more training: words have other places, of which there may be another number."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        return np.roll(super().__call__(texts), 1, axis=1)[:, : self.size]


@pytest.mark.parametrize("size", [512, 511])
def test_vectors_of_a_model_that_was_replaced_at_its_path_are_made_anew(
    corpus: Path, tmp_path: Path, size: int
) -> None:
    config = DenseSearchConfig(corpus=corpus, model="count", index=tmp_path / "vectors")
    DenseSearch(config, CountingEmbedder())
    for embed in (OtherEmbedder(size), OtherEmbedder(size)):
        assert ids_of(DenseSearch(config, embed), "grey", 1) == ["d"]
    assert len(embed.texts) == 2


def test_a_folder_that_cannot_be_made_is_named(corpus: Path) -> None:
    embed = CountingEmbedder()
    with pytest.raises(DataError, match="cannot be created"):
        DenseSearch(DenseSearchConfig(corpus=corpus, model="count", index=corpus / "below a file"), embed)
    assert embed.texts == []


def test_an_empty_file_is_refused(corpus: Path) -> None:
    corpus.write_text("\n")
    with pytest.raises(DataError, match="empty"):
        DenseSearch(DenseSearchConfig(corpus=corpus, model="count"), CountingEmbedder())


def test_identity_tells_models_and_corpora_apart(corpus: Path) -> None:
    first = DenseSearch(DenseSearchConfig(corpus=corpus, model="a"), CountingEmbedder()).identity
    assert first != DenseSearch(DenseSearchConfig(corpus=corpus, model="b"), CountingEmbedder()).identity
    corpus.write_text('{"text": "x"}\n')
    assert first != DenseSearch(DenseSearchConfig(corpus=corpus, model="a"), CountingEmbedder()).identity


INSTALLED = importlib.util.find_spec("sentence_transformers") is not None


@pytest.mark.integration
def test_a_model_of_the_hub_is_fetched_without_pickles_and_read_from_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a stand-in for the library, which notes what it is asked to read."""
    loaded: list[tuple[str, dict[str, object]]] = []

    class SentenceTransformer:
        def __init__(self, name: str, **settings: object) -> None:
            loaded.append((name, settings))

    library = types.SimpleNamespace(SentenceTransformer=SentenceTransformer)
    monkeypatch.setitem(sys.modules, "sentence_transformers", library)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    files = {
        "modules.json": b"[]",
        "1_Pooling/config.json": b"{}",
        "model.safetensors": b"w",
        "pytorch_model.bin": b"!",
    }
    with serve(HubStandIn({"sentence-transformers/tiny": files})) as hub:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
        load_embedder("tiny")
    load_embedder("tiny")  # the hub is gone
    (folder, settings), again = loaded
    assert (again, settings) == ((folder, settings), {"local_files_only": True})
    names = {str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file()}
    assert names == set(files) - {"pytorch_model.bin"}
    with pytest.raises(MachineError, match="other: the hub cannot be reached"):
        load_embedder("other")


@pytest.mark.skipif(INSTALLED, reason="sentence-transformers is installed")
def test_a_missing_library_is_named_with_its_install_line() -> None:
    with pytest.raises(MachineError, match=r"pip install sentence-transformers"):
        load_embedder("any")


@pytest.mark.skipif(
    not INSTALLED, reason="sentence-transformers is not installed: pip install sentence-transformers"
)
def test_a_real_model_gives_unit_vectors(tmp_path: Path, model_folder: Path) -> None:
    vectors = load_embedder(str(model_folder))(["a red house", "another one"])
    assert len(vectors) == 2
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-4)
    with pytest.raises(MachineError, match="no embedding model"):
        load_embedder(str(tmp_path / "absent"))


def test_the_wait_for_other_queries_is_time_in_a_queue(corpus: Path) -> None:
    class SlowEmbedder(CountingEmbedder):
        def __call__(self, texts: Sequence[str]) -> Vectors:
            time.sleep(0.02)
            return super().__call__(texts)

    provider = DenseSearch(DenseSearchConfig(corpus=corpus, model="count"), SlowEmbedder())

    async def main() -> list[float]:
        clocks = [CallClock(asyncio.get_running_loop().time) for _ in range(12)]
        searches = (on_clock(clock, partial(provider.search, "grey", 1, None)) for clock in clocks)
        await asyncio.gather(*map(asyncio.create_task, searches))
        return [clock.queued for clock in clocks]

    queued = asyncio.run(main())
    assert queued[0] < queued[-1]
