"""Control tokens, which give a chat its structure; foreign text is never encoded as one.

A prompt is the chat template's text around foreign texts: questions, system messages of a data set, descriptions of
tools, demonstrations. Only the template may write a role or an end of turn. A foreign text that spells a control token
is encoded as ordinary characters.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any

from tokenizers import Tokenizer

from ramify.chat.tokenizer import (
    AddedToken,
    ChatTokenizer,
    RenamedTokens,
    any_of,
    as_unicode,
    draw_names,
    renamed_entries,
)
from ramify.core.messages import Message

_SHAPE = re.compile(r"<\|.*\|>", re.DOTALL)
"""How most models spell control tokens, whether their files mark them as special or not."""
_MARKUP = re.compile(r"<[^<>\s]+>|\[[^\[\]\s]+\]")
_BREAK = "\u2060"
"""A word joiner: it has no width, and no control token contains it."""


class ControlTokens:
    """Encodes chats and texts so that foreign text never becomes a control token.

    A control token is an added token that the tokenizer's file marks as special, that ends a turn, that looks like
    `<|...|>`, or that is markup in the chat template (`<tool_response>`). The tags of the dialect are not control
    tokens: prompts explain them, and the policy writes them.
    """

    def __init__(self, tokenizer: ChatTokenizer, dialect: Collection[str]) -> None:
        """Find the control tokens of a tokenizer.

        Args:
            tokenizer: The model's tokenizer.
            dialect: Names of the tags that a turn is made of, such as "think".
        """
        self._tokenizer = tokenizer
        tags = {f"<{slash}{name}>" for name in dialect for slash in ("", "/")}
        template = tokenizer.template.source

        def is_control(token: AddedToken) -> bool:
            content = token.content.strip()
            if content in tags or not content:
                return False
            marked = token.special or token.id in tokenizer.eos_ids or _SHAPE.fullmatch(content)
            return bool(marked or (_MARKUP.fullmatch(content) and content in template))

        self._controls = {token.content for token in tokenizer.added if is_control(token)}
        self._any_added = any_of(token.content for token in tokenizer.added)
        self._heads = {text[:size] for text in self._controls for size in range(1, len(text))}
        self._tails = {text[-size:] for text in self._controls for size in range(1, len(text))}
        self._reach = max(map(len, self._controls), default=1) - 1

    def found_in(self, text: str) -> str | None:
        """Return the first control token that `text` spells, or None."""
        matches = (match[0] for match in self._any_added.finditer(text))
        return next((match for match in matches if match in self._controls), None)

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the ids of a text that continues another, such as an assistant's turn; it may hold tags of the dialect, and no id is a control token."""
        return (
            self._tokenizer.encode(text, continues=True)
            if self.found_in(text) is None
            else self._spelt.encode(as_unicode(text), continues=True)
        )

    def chat_ids(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()
    ) -> tuple[int, ...]:
        """Return the ids of the rendered chat; control tokens in them come from the template only.

        If no message and no tool spells a control token, these are the ids of `chat_text`.

        Raises:
            DataError: The template refuses the messages.
        """
        texts = [*(message.text for message in messages), *_texts_of(tools)]
        if not any(map(self._may_matter, texts)):
            return self._tokenizer.encode(self._tokenizer.chat_text(messages, tools))
        stand_ins = _StandIns(self._tokenizer.template.source + "".join(texts))
        hidden = [Message.of(message.role, self._hide(message.text, stand_ins)) for message in messages]
        text = self._tokenizer.chat_text(hidden, self._hide_all(tools, stand_ins))
        # The control tokens that are left are the template's. Rename them before the messages' spellings come back.
        return self._spelt.encode(as_unicode(stand_ins.undone(self._spelt.rename(text, self._any_added))))

    def framed_ids(self, frame: Sequence[str], texts: Sequence[str]) -> tuple[int, ...]:
        """Return the ids of foreign texts between the pieces of a frame, encoded as one text; added tokens come from the frame only.

        Args:
            frame: Trusted texts, one more than `texts`.
            texts: Foreign texts.
        """
        plain = self._tokenizer.plain_tokens
        own = [plain.rename(piece, self._any_added) for piece in frame]
        following = [part for pair in zip(texts, own[1:], strict=True) for part in pair]
        return plain.encode(as_unicode("".join((own[0], *following))), continues=True)

    def broken(self, token_ids: Sequence[int]) -> str:
        """Decode for a reader that parses control tokens from text; mere spellings of control tokens are broken up."""
        pieces: list[str] = []
        run: list[int] = []
        for index in (*token_ids, None):
            if index is not None and index not in self._tokenizer.added_ids:
                run.append(index)
                continue
            pieces.append(self.broken_text(self._tokenizer.decode(run)))
            pieces.append("" if index is None else self._tokenizer.decode([index]))
            run = []
        return "".join(pieces)

    def broken_text(self, text: str) -> str:
        """Break up each control token in a text whose reader parses control tokens from it."""
        return self._any_added.sub(self._break, text)

    def _break(self, match: "re.Match[str]") -> str:
        token = match[0]
        return f"{token[0]}{_BREAK}{token[1:]}" if token in self._controls else token

    def _may_matter(self, text: str) -> bool:
        """Return True if a text spells a control token, or a piece of one at an edge where its neighbour could complete it."""
        return self.found_in(text) is not None or self._edges(text) != (0, 0)

    def _edges(self, text: str) -> tuple[int, int]:
        """Return the lengths of the pieces of a control token at a text's beginning and end, ignoring blanks."""
        inner = text.strip()
        sizes = range(min(self._reach, len(inner)), 0, -1)
        return (
            next((size for size in sizes if inner[:size] in self._tails), 0),
            next((size for size in sizes if inner[-size:] in self._heads), 0),
        )

    def _hide(self, text: str, stand_ins: "_StandIns") -> str:
        """Replace each control token by one character, so that the template moves and trims the text as before."""

        def hidden(match: "re.Match[str]") -> str:
            return stand_ins.of(match[0]) if match[0] in self._controls else match[0]

        text = self._any_added.sub(hidden, text)
        start, stop = len(text) - len(text.lstrip()), len(text.rstrip())
        head, tail = self._edges(text)
        if tail:
            text = text[: stop - tail] + stand_ins.of(text[stop - tail : stop]) + text[stop:]
        if head and start + head <= stop - tail:
            text = text[:start] + stand_ins.of(text[start : start + head]) + text[start + head :]
        return text

    def _hide_all(self, value: Any, stand_ins: "_StandIns") -> Any:  # noqa: ANN401 - any JSON value
        """Apply `_hide` to each text in a JSON value."""
        if isinstance(value, str):
            return self._hide(value, stand_ins)
        if isinstance(value, Mapping):
            return {
                self._hide(key, stand_ins): self._hide_all(item, stand_ins) for key, item in value.items()
            }
        if isinstance(value, Sequence):
            return [self._hide_all(item, stand_ins) for item in value]
        return value

    @cached_property
    def _spelt(self) -> RenamedTokens:
        # Built when a text first spells a control token, which is rare: it takes as much memory as the tokenizer itself.
        return _with_controls_renamed(self._tokenizer, frozenset(self._controls))


@lru_cache(maxsize=4)
def _with_controls_renamed(tokenizer: ChatTokenizer, controls: frozenset[str]) -> RenamedTokens:
    """Return the tokenizer with new names for its control tokens; one for all renderers."""
    names = draw_names(controls)
    raw = json.loads(tokenizer.json)
    raw["added_tokens"] = renamed_entries(raw["added_tokens"], names)
    raw["post_processor"] = None  # it may name a renamed token
    library = Tokenizer.from_str(json.dumps(raw))
    return RenamedTokens(library, tokenizer.added, names, tokenizer.folder, tokenizer.unprefixed)


def _texts_of(value: object) -> list[str]:
    """Return all texts in a JSON value."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        value = [*value.keys(), *value.values()]
    return [text for item in value for text in _texts_of(item)] if isinstance(value, Sequence) else []


class _StandIns:
    """Unused single characters, each of which stands for a text."""

    def __init__(self, taken: str) -> None:
        used = set(taken)
        self._free = (chr(code) for code in range(0x100000, 0x10FFFE) if chr(code) not in used)
        self._of: dict[str, str] = {}

    def of(self, text: str) -> str:
        """Return the character that stands for a text."""
        if text not in self._of:
            self._of[text] = next(self._free)
        return self._of[text]

    def undone(self, text: str) -> str:
        """Replace the characters by their texts."""
        return text.translate({ord(character): hidden for hidden, character in self._of.items()})
