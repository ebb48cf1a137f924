"""The summaries of traces, of which a viewer needs many again and again: read once, and read on as a trace grows.

And the texts of token ids, by the tokenizer of a run, and the search for a text in traces.
"""

import json
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramify.chat.token_texts import token_texts
from ramify.chat.tokenizer import ChatTokenizer
from ramify.core.errors import DataError, MachineError
from ramify.core.tree import Node, Tree
from ramify.obs.trace import SCHEMA, lines_of, parse_tree
from ramify.obs.trace_index import TreeSummary, each_summary, index_path, summarize
from ramify.runs.manifest import file_sha256

_MOST = 100_000
"""Summaries in memory, about 1 kB each; those of files that were not read for the longest time are dropped."""
_HEAD = re.compile(rb'\{"schema":([0-9]{1,9}),')


@dataclass(frozen=True, slots=True)
class Summaries:
    """The summaries of a trace.

    Attributes:
        trees: One for each tree that can be read.
        note: A sentence about trees that are left out; "".
        is_broken: A line cannot be read. Otherwise a note is about a last line that is cut off, or still being written.
        inode, size: The file as it was read.
        end: Bytes that were read.
    """

    trees: tuple[TreeSummary, ...]
    note: str
    is_broken: bool
    inode: int
    size: int
    end: int


class SummaryCache:
    """Reads summaries; threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readers: dict[Path, threading.Lock] = {}
        self._total = 0
        self._files: OrderedDict[Path, Summaries] = OrderedDict()
        self._counts: dict[Path, tuple[int, int, int]] = {}

    def _reader(self, path: Path) -> threading.Lock:
        """Return the lock of those who read a file, since a large one takes minutes without an index."""
        with self._lock:
            return self._readers.setdefault(path, threading.Lock())

    def read(self, path: Path) -> Summaries:
        """Return the summaries of a trace. What cannot be read is left out, and `note` says so; nothing is raised."""
        with self._reader(path):
            try:
                about = path.stat()
            except OSError as error:
                note = f"{path}: cannot be read: {error.strerror}. Left out."
                return Summaries((), note, True, 0, 0, 0)
            before = self._files.get(path)
            if before is not None and (before.inode, before.size) == (about.st_ino, about.st_size):
                self._keep(path, before)
                return before
            grew = before is not None and before.inode == about.st_ino and before.end <= about.st_size
            goes_on = grew and before is not None and not before.is_broken
            summaries = _read(path, about, before if goes_on else None)
            self._keep(path, summaries)
            return summaries

    def _keep(self, path: Path, summaries: Summaries) -> None:
        with self._lock:
            before = self._files.pop(path, None)
            self._total += len(summaries.trees) - (0 if before is None else len(before.trees))
            self._files[path] = summaries
            while len(self._files) > 1 and self._total > _MOST:
                self._total -= len(self._files.popitem(last=False)[1].trees)

    def known(self, path: Path) -> Summaries | None:
        """Return the summaries of a trace as they were last read; None if they were not."""
        return self._files.get(path)

    def count(self, path: Path) -> int:
        """Return the number of trees of a trace by its ends of lines, of which the index has fewer to go through."""
        with self._reader(path):
            if (known := self._files.get(path)) is not None and known.size == _size(path):
                return len(known.trees)
            index = index_path(path)
            file = index if _size(index) and index.stat().st_mtime >= path.stat().st_mtime else path
            size, (before, end, lines) = _size(file), self._counts.get(file, (0, 0, 0))
            if size < before:
                end = lines = 0
            if size != before:
                end, lines = _count_lines(file, end, lines)
                self._counts[file] = (size, end, lines)
            return lines


def schema_note(path: Path) -> str:
    """Return why a trace is left out if it is of another schema, judged by its first bytes; "" if it is not."""
    try:
        with path.open("rb") as file:
            head = _HEAD.match(file.read(32))
    except OSError as error:
        return f"cannot be read: {error.strerror}. Left out."
    if head is None or int(head[1]) == SCHEMA:
        return ""
    # Its own message names the last version that reads it.
    try:
        parse_tree(path, 1, next(lines_of(path)))
    except DataError as error:
        return f"{error}. Left out.".removeprefix(f"{path} row 1: ")
    return ""


def _read(path: Path, about: os.stat_result, known: Summaries | None) -> Summaries:
    notes: list[str] = []
    trees = [] if known is None else list(known.trees)
    end = 0 if known is None else known.end
    try:
        if known is None:
            for summary in each_summary(path, notes.append):
                trees.append(summary)
                end = summary.offset + summary.length
        else:
            for line in lines_of(path, end):
                row = len(trees) + 1
                if not line.endswith(b"\n"):
                    notes.append(
                        f"{path} row {row}: the line is cut off or still being written. Its tree is left out."
                    )
                    break
                trees.append(summarize(parse_tree(path, row, line), row, end, len(line)))
                end += len(line)
    except DataError as error:
        note = f"{error}. This tree and those after it are left out."
        return Summaries(tuple(trees), note, True, about.st_ino, about.st_size, end)
    return Summaries(tuple(trees), " ".join(notes), False, about.st_ino, about.st_size, end)


def _count_lines(path: Path, start: int, lines: int) -> tuple[int, int]:
    """Return the bytes up to the last end of a line, and the number of ends."""
    end = start
    with path.open("rb") as file:
        file.seek(start)
        at = start
        while chunk := file.read(1 << 20):
            lines += chunk.count(b"\n")
            if (last := chunk.rfind(b"\n")) >= 0:
                end = at + last + 1
            at += len(chunk)
    return end, lines


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


_RUN_OF_LETTERS = re.compile(r"[0-9a-z ]+")


class TokenTexts:
    """Tokenizers of runs, each read once: runs of one model have equal files."""

    def __init__(self) -> None:
        self._tokenizers: dict[str, ChatTokenizer] = {}
        self._keys: dict[Path, str] = {}

    def of(self, folder: Path | None, tree: Tree) -> dict[str, tuple[str, ...]]:
        """Return the text of each token by node; nothing without a tokenizer that spells the tree's prompt."""
        if folder is None:
            return {}
        with suppress(DataError, MachineError):
            if folder not in self._keys:
                self._keys[folder] = file_sha256(folder / "tokenizer.json")
            key = self._keys[folder]
            if key not in self._tokenizers:
                self._tokenizers[key] = ChatTokenizer(folder)
            tokenizer, prompt = self._tokenizers[key], tree.by_id[""]
            if tokenizer.decode(prompt.token_ids) == prompt.text:
                return {
                    node.id: token_texts(tokenizer, node.token_ids, _begun(tree, node)) for node in tree.nodes
                }
        return {}


def _begun(tree: Tree, node: Node) -> tuple[int, ...]:
    """Return the ids before a node that belong to the same turn."""
    parent = tree.by_id[node.parent] if node.parent is not None else None
    is_same = parent is not None and parent.source is node.source and node.context == "parent"
    return parent.token_ids if parent is not None and is_same else ()


def search_trace(path: Path, text: str, num_trees: int) -> Iterator[tuple[int, str]]:
    """Yield row (from 0) and place of the first trees of a trace that hold a text, small and capital letters alike.

    The place is the id of a node, "problem" or "answer". The file is read line by line; most lines are passed over without being
    parsed, and a line that is cut off or damaged is passed over too.
    """
    wanted = text.casefold()
    # Letters and digits of ASCII stand in JSON as they are; any other character may be an escape.
    letters = max(_RUN_OF_LETTERS.findall(text.lower()), key=len, default="").encode()
    with suppress(DataError):
        for row, line in zip(range(num_trees), lines_of(path), strict=False):
            if letters in line.lower():
                with suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
                    if (where := _where(json.loads(line), wanted)) is not None:
                        yield row, where


def _where(record: Mapping[str, Any], wanted: str) -> str | None:
    problem = record["problem"]
    messages = [part["text"] for message in problem["messages"] for part in message["content"]]
    if any(wanted in text.casefold() for text in (problem["id"], *messages)):
        return "problem"
    if any(wanted in text.casefold() for text in problem["answer"]):
        return "answer"
    for node in record["nodes"]:
        turn = node.get("turn") or {}
        texts = [node["text"], turn.get("answer", ""), turn.get("reason", "")]
        texts += [result["text"] for result in node.get("results", ())]
        for call in turn.get("calls", ()):
            texts += [call["name"], json.dumps(call["arguments"], ensure_ascii=False)]
        if any(wanted in text.casefold() for text in texts):
            return str(node["id"])
    return None
