"""Search provider `dense`: ranks the passages of a file by the exact dot product of embeddings.

Needs sentence-transformers (`ramify-rl[dense]`). If FAISS is installed, it compares the query with the vectors, on all cores.
"""

import hashlib
import importlib
import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ramify.core.errors import DataError, MachineError
from ramify.core.protocols import Hit, Json
from ramify.net.hub_cache import HubRepo, cached_snapshot, hub_cache
from ramify.runtime.daemon_threads import DaemonThreads
from ramify.runtime.progress import ProgressNotes
from ramify.tools.configs import DenseSearchConfig
from ramify.tools.passage_index import PassageReader, Ranked

Vectors: TypeAlias = npt.NDArray[np.float32]
Embed: TypeAlias = Callable[[Sequence[str]], Vectors]
"""Maps n texts to unit vectors: [n] -> [n, d]."""

_BATCH = 256
_AT_ONCE = 4
"""Queries at a time: one is embedded while others are compared, on all cores each."""
_MOST_APART = 0.03
"""Distance of two unit vectors that one model gives a text on different machines; rounding to 16 bits moves them by less."""
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(?:/[\w.-]+)?", re.ASCII)
_SUFFIXES = (".json", ".txt", ".model", ".safetensors")
"""Suffixes of the files of a model that are read."""


class DenseSearch:
    """Implements `ramify.core.protocols.SearchProvider`; compares each query with every passage.

    Args:
        config: The file of passages, as for `local`, is held in memory.
        embed: Maps texts to vectors; called by one thread at a time.
        note: Called with a line for the user before passages are embedded.

    Raises:
        DataError: The file is missing or empty, a line is broken, or the folder cannot be written.
    """

    name = "dense"

    def __init__(
        self, config: DenseSearchConfig, embed: Embed, note: Callable[[str], None] = lambda _: None
    ) -> None:
        self._embed, self._prefix, path = embed, config.query_prefix, config.corpus
        reader = PassageReader(path)
        rows = list(reader.rows())
        if not rows:
            raise DataError(f"{path}: empty. Expected one passage per line.")
        self._passages = [row.passage for row in rows]
        collections = dict.fromkeys(row.collection for row in rows)
        self._members = {
            name: np.array([row.collection == name for row in rows])
            for name in collections
            if name is not None
        }
        self._turn = threading.Lock()
        self._threads = DaemonThreads("dense search", _AT_ONCE)
        self._faiss = _faiss()
        self.fingerprint, self.engine = reader.fingerprint, f"dense {config.model}"
        self.identity: Mapping[str, Json] = {
            "corpus": reader.fingerprint,
            "model": config.model,
            "query_prefix": config.query_prefix,
            "passage_prefix": config.passage_prefix,
        }
        texts = [config.passage_prefix + passage.text for passage in self._passages]
        named = "\0".join((config.model, config.passage_prefix, reader.fingerprint)).encode()
        digest = hashlib.blake2b(named, digest_size=16).hexdigest()
        vectors_path = None if config.index is None else config.index / f"{digest}.npy"
        self._vectors = _vectors(texts, embed, vectors_path, note, f"{path}: embedding")

    def __len__(self) -> int:
        return len(self._passages)

    async def search(self, query: str, top_k: int, collection: str | None) -> Sequence[Hit]:
        """Return the `top_k` nearest passages; ties in file order. `collection` restricts them."""
        job = self._threads.submit(partial(self.ranked, query, top_k, collection))
        ranked = await self._threads.result(job)
        return [Hit(passage.id, passage.text) for _, passage in ranked]

    async def close(self) -> None:
        """Do nothing: the object holds only memory."""

    def ranked(self, query: str, top_k: int, collection: str | None = None) -> tuple[Ranked, ...]:
        """Search as `search` does, and return each passage with its dot product. Threads may share the object."""
        with self._turn:
            vector = self._embed([self._prefix + query])[0]
        if collection is None and self._faiss is not None:
            count = min(top_k, len(self))
            (scores,), (rows,) = self._faiss.knn(
                vector[None], self._vectors, count, metric=self._faiss.METRIC_INNER_PRODUCT
            )
            best = rows[np.lexsort((rows, -scores))]
            scores = dict(zip(rows, scores, strict=True))
        else:
            scores = self._vectors @ vector
            best = self._nearest(scores, top_k, collection)
        return tuple((float(scores[i]), self._passages[i]) for i in best)

    def _nearest(self, scores: Vectors, top_k: int, collection: str | None) -> npt.NDArray[np.intp]:
        if collection is not None:
            inside = self._members.get(collection, np.zeros(len(scores), bool))
            scores = np.where(inside, scores, -np.inf)
        count = min(top_k, int(np.isfinite(scores).sum()))
        if not count:
            return np.empty(0, np.intp)
        worst = np.partition(scores, -count)[-count]
        near = np.flatnonzero(scores >= worst)
        return near[np.argsort(-scores[near], kind="stable")][:count]


def load_embedder(model: str) -> Embed:
    """Load a model of sentence-transformers, by name or folder; the library chooses the device.

    A model of the hub is fetched first, without pickles and code, and the library reads its folder.

    Raises:
        DataError: The hub has no such model or refuses it.
        MachineError: The library is not installed, finds no model in the folder, or the hub cannot be reached.
    """
    try:
        library: Any = importlib.import_module("sentence_transformers")
    except ImportError:
        raise MachineError(
            "dense search needs sentence-transformers, which is not installed: pip install sentence-transformers"
        ) from None
    try:
        encoder = library.SentenceTransformer(str(_folder(model)), local_files_only=True)
    except (OSError, ValueError) as error:
        raise MachineError(f"no embedding model at {model}: {' '.join(str(error).split())}") from None

    def embed(texts: Sequence[str]) -> Vectors:
        vectors: Vectors = encoder.encode(list(texts), normalize_embeddings=True, show_progress_bar=False)
        return vectors.astype(np.float32, copy=False)

    return embed


def _faiss() -> ModuleType | None:
    """Return the module of FAISS, or None where it is not installed."""
    try:
        return importlib.import_module("faiss")
    except ImportError:
        return None


def _folder(model: str) -> Path:
    """Return the folder of a model: itself, or for a name of the hub the one in the hub's cache."""
    from ramify.net.hub import HubFailedError, HubProblem, fetch_snapshot

    if not _HUB_NAME.fullmatch(model) or Path(model).exists():
        return Path(model)
    # The library's own models are named without their organisation.
    repo = HubRepo("model", model if "/" in model else f"sentence-transformers/{model}")
    try:
        return fetch_snapshot(repo, lambda names: [name for name in names if name.endswith(_SUFFIXES)]).folder
    except HubFailedError as error:
        failure = error
    here = cached_snapshot(hub_cache(), repo) if failure.problem is HubProblem.UNREACHABLE else None
    if here is None:
        raise failure.for_user(model, "embedding model")
    return here


def _vectors(
    texts: Sequence[str], embed: Embed, path: Path | None, note: Callable[[str], None], title: str
) -> Vectors:
    """Load the vectors in the file `path` if it matches texts and model; else compute them and store them there."""
    if path is not None and path.is_file():
        try:
            loaded: Vectors = np.load(path, mmap_mode="r")
        except (ValueError, EOFError, OSError):
            pass  # cut or damaged: compute them again
        else:
            if loaded.ndim == 2 and len(loaded) == len(texts) and _are_of(embed, texts[0], loaded[0]):
                return loaded
    if path is not None:
        try:  # fail now rather than after hours of embedding
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(
                f"{path.parent}: cannot be created ({error.strerror}). Choose a folder for vectors."
            ) from None
    note(f"{title} {len(texts):,} passages")
    progress, parts = ProgressNotes(note, title, len(texts)), []
    for at in range(0, len(texts), _BATCH):
        progress.reach(at)
        parts.append(embed(texts[at : at + _BATCH]))
    vectors = np.concatenate(parts)
    if path is not None:
        _save(path, vectors)
    return vectors


def _are_of(embed: Embed, text: str, vector: Vectors) -> bool:
    """Return True if `embed` still gives a text its vector: a model at the same path may have been trained further."""
    fresh = embed([text])[0]
    return fresh.shape == vector.shape and bool(np.linalg.norm(fresh - vector) <= _MOST_APART)


def _save(path: Path, vectors: Vectors) -> None:
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with unfinished.open("wb") as file:
            np.save(file, vectors)
        unfinished.replace(path)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise DataError(f"{path.parent}: the vectors cannot be written ({error.strerror})") from None
