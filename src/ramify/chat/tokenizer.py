"""A tokenizer read from a model folder, without transformers.

It offers what agents need beyond encode and decode: the bytes of each token (stops and texts are made of bytes,
so a character that spans two tokens is never torn), an encoding in which no added token can occur (for text
that comes from outside), and the folder's own chat template.
"""

import hashlib
import json
import re
import unicodedata
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from ramify.core.errors import DataError
from ramify.core.messages import Message

_SPECIAL_NAMES = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
_BYTE_TOKEN = re.compile("<0x[0-9A-Fa-f]{2}>")


class ChatTokenizer:
    """Token ids of texts and of chats, for one model folder."""

    def __init__(self, folder: Path) -> None:
        """Read `tokenizer.json` and its companions.

        Raises:
            DataError: A file is missing, damaged or of a kind that is not supported.
        """
        self.folder = folder
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise DataError(f"{folder}: expected a model folder with a tokenizer.json")
        raw = _read_json(path)
        if not isinstance(raw.get("model"), dict) or "vocab" not in raw["model"]:
            raise DataError(f"{path}: expected a tokenizer with a model and its vocab")
        # A file may carry the truncation and padding of the last call that its writer made.
        raw |= {"truncation": None, "padding": None, "added_tokens": raw.get("added_tokens") or []}
        self._full = Tokenizer.from_str(json.dumps(raw))
        # Dropping the table is the only way to be sure: `encode_special_tokens` spares tokens that are added
        # but not marked special, such as the think tags of Qwen3.
        self._plain = Tokenizer.from_str(json.dumps({**raw, "added_tokens": [], "post_processor": None}))
        self.added_ids = frozenset(int(token["id"]) for token in raw["added_tokens"])
        self.token_bytes = _token_bytes(path, raw, self._full)
        settings = folder / "tokenizer_config.json"
        self._settings = _read_json(settings) if settings.is_file() else {}
        self._template = self._load_template()
        self.eos_ids = self._find_eos_ids()

    @property
    def vocab_size(self) -> int:
        """Number of tokens, added ones included."""
        return len(self.token_bytes)

    @cached_property
    def fingerprint(self) -> str:
        """Equal for tokenizers whose every id stands for the same bytes and that end a turn alike."""
        digest = hashlib.blake2b(repr(sorted(self.eos_ids)).encode(), digest_size=8)
        for data in self.token_bytes:
            digest.update(len(data).to_bytes(4, "big") + data)
        return digest.hexdigest()

    @property
    def eos_id(self) -> int:
        """The token that ends a turn in the chat template."""
        return self._token_id(self._special("eos_token"))

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of trusted text; added tokens are recognised, none is put in front or behind."""
        return tuple(self._full.encode(_unicode(text), add_special_tokens=False).ids)

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Number of tokens of each text; all at once is much faster than one by one."""
        return [
            len(item) for item in self._full.encode_batch([*map(_unicode, texts)], add_special_tokens=False)
        ]

    @staticmethod
    def most_tokens(text: str) -> int:
        """An upper bound of the number of tokens, found without encoding.

        A token has at least a byte of the text as the tokenizer normalises it (not at all, by NFC or by NFKC), and one
        blank may stand in front.
        """
        plain = _unicode(text)
        forms = (plain, unicodedata.normalize("NFC", plain), unicodedata.normalize("NFKC", plain))
        return max(len(form.encode()) for form in forms) + 1

    def encode_plain(self, text: str) -> tuple[int, ...]:
        """Ids of foreign text; whatever it says, no added token (end of text, a role, a tag) can come out."""
        ids = tuple(self._plain.encode(_unicode(text), add_special_tokens=False).ids)
        if not self.added_ids.isdisjoint(ids):
            raise DataError(f"{self.folder}: the tokenizer turns plain text into an added token")
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of tokens; bytes that are no UTF-8 become the replacement character.

        Ids behind the last token say nothing: models pad their vocabulary, and a random one samples there.
        """
        known = (self.token_bytes[i] for i in token_ids if i < len(self.token_bytes))
        return b"".join(known).decode("utf-8", errors="replace")

    def chat_text(self, messages: Sequence[Message]) -> str:
        """The chat template's text, up to where the assistant writes.

        Raises:
            DataError: The template refuses the messages.
        """
        special = {name: value for name in _SPECIAL_NAMES if (value := self._special(name))}
        try:
            return self._template.render(
                messages=[{"role": message.role, "content": message.text} for message in messages],
                add_generation_prompt=True,
                tools=None,
                documents=None,
                **special,
            )
        except (TemplateError, TypeError) as error:
            raise DataError(
                f"{self.folder}: the chat template refuses the messages: {_one_line(error)}"
            ) from error

    def _special(self, name: str) -> str:
        value = self._settings.get(name) or ""
        content = value.get("content") if isinstance(value, dict) else value
        if not isinstance(content, str):
            raise DataError(f"{self.folder}/tokenizer_config.json: {name}: expected text, got {value!r}")
        return content

    def _token_id(self, token: str) -> int:
        found = self._full.token_to_id(token)
        if found is None:
            raise DataError(
                f"{self.folder}/tokenizer_config.json: eos_token {token!r} is not in the vocabulary"
            )
        return int(found)

    def _find_eos_ids(self) -> frozenset[int]:
        path = self.folder / "generation_config.json"
        listed = _read_json(path).get("eos_token_id") if path.is_file() else None
        ids = listed if isinstance(listed, list) else [] if listed is None else [listed]
        if not all(isinstance(index, int) for index in ids):
            raise DataError(f"{path}: eos_token_id: expected token ids, got {listed!r}")
        return frozenset({self.eos_id, *ids})

    def _load_template(self) -> Template:
        path = self.folder / "chat_template.jinja"
        source = _read_text(path) if path.is_file() else self._settings.get("chat_template")
        if not isinstance(source, str):
            raise DataError(f"{self.folder}: expected a chat template (chat_template.jinja)")
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
        )
        # No `strftime_now`: a prompt must not depend on the day; templates that know it have a fallback.
        environment.globals["raise_exception"] = _refuse
        environment.filters["tojson"] = _to_json
        try:
            return environment.from_string(source)
        except TemplateError as error:
            raise DataError(f"{self.folder}: the chat template cannot be read: {_one_line(error)}") from error


class _Generation(Extension):
    """`{% generation %}`, which marks what an assistant wrote in templates made for training, changes no text."""

    tags = {"generation"}  # noqa: RUF012 - declared so by jinja2

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The filter as templates call it: with the options of `json.dumps`, and without jinja's HTML escapes."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _unicode(text: str) -> str:
    """Text that UTF-8 can carry: a lone surrogate (from JSON or a program's output) becomes U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: expected UTF-8 text: {error}") from None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(_read_text(path))
    except json.JSONDecodeError as error:
        raise DataError(f"{path}: expected JSON: {error}") from None
    if not isinstance(content, dict):
        raise DataError(f"{path}: expected a JSON object")
    return content


def _token_bytes(path: Path, raw: dict[str, Any], tokenizer: Tokenizer) -> tuple[bytes, ...]:
    """Bytes of every id, from the kind of decoder that the tokenizer names."""
    decoder = json.dumps(raw.get("decoder") or {})
    added = {int(token["id"]): token["content"].encode() for token in raw["added_tokens"]}
    size = max([*tokenizer.get_vocab(with_added_tokens=True).values(), *added]) + 1
    table = [b""] * size
    if '"ByteLevel"' in decoder:
        alphabet = _byte_alphabet()
        for token, index in tokenizer.get_vocab(with_added_tokens=False).items():
            # A special token that is also in the model's table is written as it is, not in the alphabet.
            spelt = alphabet.keys() >= set(token)
            table[index] = bytes(alphabet[c] for c in token) if spelt else token.encode()
    elif '"ByteFallback"' in decoder:
        for token, index in tokenizer.get_vocab(with_added_tokens=False).items():
            is_byte = _BYTE_TOKEN.fullmatch(token)
            table[index] = bytes([int(token[3:5], 16)]) if is_byte else token.replace("\u2581", " ").encode()
    else:
        raise DataError(f"{path}: expected a byte-level or byte-fallback tokenizer (Qwen, Llama)")
    for index, content in added.items():
        table[index] = content
    return tuple(table)


def _byte_alphabet() -> dict[str, int]:
    """The printable character that byte-level tokenizers write for each byte (the table of GPT-2)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {
        **{chr(byte): byte for byte in printable},
        **{chr(256 + index): byte for index, byte in enumerate(others)},
    }
