"""Texts of token ids, by the tokenizer of a run, and the search for a text in traces."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ramify.chat.token_texts import token_texts
from ramify.chat.tokenizer import ChatTokenizer
from ramify.core.errors import DataError, MachineError
from ramify.core.tree import Node, Tree
from ramify.obs.trace import lines_of
from ramify.runs.manifest import file_sha256

_RUN_OF_LETTERS = re.compile(r"[0-9a-z ]+")


class TokenTexts:
    """Tokenizers of runs, each read once: runs of one model have equal files."""

    def __init__(self) -> None:
        self._tokenizers: dict[str, ChatTokenizer] = {}

    def of(self, folder: Path | None, tree: Tree) -> dict[str, tuple[str, ...]]:
        """Return the text of each token by node; nothing without a tokenizer that spells the tree's prompt."""
        if folder is None:
            return {}
        with suppress(DataError, MachineError):
            key = file_sha256(folder / "tokenizer.json")
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
