"""Texts of token ids, by the tokenizer of a run, and the search for a text in traces."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ramify.core.errors import DataError, MachineError
from ramify.obs.trace import TracedTree, lines_of
from ramify.runs.manifest import file_sha256

if TYPE_CHECKING:
    from ramify.chat.tokenizer import ChatTokenizer

_RUN_OF_LETTERS = re.compile(r"[0-9a-z ]+")


class TokenTexts:
    """Tokenizers of runs, each read once. Runs of one model have equal files."""

    def __init__(self) -> None:
        self._tokenizers: dict[str, _Decoder] = {}

    def of(self, folder: Path | None, traced: TracedTree) -> Callable[[Sequence[int]], list[str]] | None:
        """Return what gives the text of each token of a tree; None without a tokenizer that spells the tree's prompt."""
        if folder is None:
            return None
        with suppress(DataError, MachineError):
            key = file_sha256(folder / "tokenizer.json")
            if key not in self._tokenizers:
                from ramify.chat.tokenizer import ChatTokenizer

                self._tokenizers[key] = _Decoder(ChatTokenizer(folder))
            prompt = traced.tree.nodes[0]
            if self._tokenizers[key].spells(prompt.token_ids, prompt.text):
                return self._tokenizers[key].texts
        return None


class _Decoder:
    """The text of each token by itself; of a token that is a part of a character it is the replacement character."""

    def __init__(self, tokenizer: "ChatTokenizer") -> None:
        self._tokenizer = tokenizer
        self._texts: dict[int, str] = {}

    def spells(self, ids: Sequence[int], text: str) -> bool:
        return self._tokenizer.decode(ids) == text

    def texts(self, ids: Sequence[int]) -> list[str]:
        for token in ids:
            if token not in self._texts:
                self._texts[token] = self._tokenizer.decode((token,))
        return [self._texts[token] for token in ids]


def search_trace(path: Path, text: str) -> Iterator[tuple[int, str]]:
    """Yield row (from 0) and place of the trees of a trace that hold a text, small and capital letters alike.

    The place is the id of a node, "problem" or "answer". The file is read line by line; most lines are passed over without being
    parsed, and a line that is cut off or damaged is passed over too.
    """
    wanted = text.casefold()
    # Letters and digits of ASCII stand in JSON as they are; any other character may be an escape.
    letters = max(_RUN_OF_LETTERS.findall(text.lower()), key=len, default="").encode()
    with suppress(DataError):
        for row, line in enumerate(lines_of(path)):
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
