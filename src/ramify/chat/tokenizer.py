"""A tokenizer read from a model folder, without transformers.

It offers what agents need beyond encode and decode: the bytes of each token (stops and texts are made of bytes,
so a character that spans two tokens is never torn), an encoding in which no added token can occur (for text
that comes from outside), and the folder's own chat template.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from ramify.core.errors import DataError
from ramify.core.messages import Message


class ChatTokenizer:
    """Token ids of texts and of chats, for one model folder."""

    def __init__(self, folder: Path) -> None:
        """Read `tokenizer.json` and its companions.

        Raises:
            DataError: A file is missing or of a kind that is not supported.
        """
        self.folder = folder
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise DataError(f"{folder}: expected a model folder with a tokenizer.json")
        raw = json.loads(path.read_text(encoding="utf-8"))
        self._full = Tokenizer.from_str(json.dumps(raw))
        # Dropping the table is the only way to be sure: `encode_special_tokens` spares tokens that are added
        # but not marked special, such as the think tags of Qwen3.
        self._plain = Tokenizer.from_str(json.dumps({**raw, "added_tokens": [], "post_processor": None}))
        self.added_ids = frozenset(int(token["id"]) for token in raw.get("added_tokens", []))
        self.token_bytes = _token_bytes(raw, self._full)
        self._settings = _read_json(folder / "tokenizer_config.json")
        self._template = self._load_template()
        self.eos_ids = self._find_eos_ids()

    @property
    def vocab_size(self) -> int:
        """Number of tokens, added ones included."""
        return len(self.token_bytes)

    @property
    def eos_id(self) -> int:
        """The token that ends a turn in the chat template."""
        return self._token_id(self._special("eos_token"))

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of trusted text; added tokens are recognised, none is put in front or behind."""
        return tuple(self._full.encode(text, add_special_tokens=False).ids)

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Number of tokens of each text; all at once is much faster than one by one."""
        return [len(item) for item in self._full.encode_batch(list(texts), add_special_tokens=False)]

    def encode_plain(self, text: str) -> tuple[int, ...]:
        """Ids of foreign text; whatever it says, no added token (end of text, a role, a tag) can come out."""
        ids = tuple(self._plain.encode(text, add_special_tokens=False).ids)
        if not self.added_ids.isdisjoint(ids):
            raise DataError(f"{self.folder}: the tokenizer turns plain text into an added token")
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of tokens; bytes that are no UTF-8 become the replacement character."""
        return b"".join(self.token_bytes[i] for i in token_ids).decode("utf-8", errors="replace")

    def chat_text(self, messages: Sequence[Message]) -> str:
        """The chat template's text, up to where the assistant writes."""
        try:
            return self._template.render(
                messages=[{"role": message.role, "content": message.text} for message in messages],
                add_generation_prompt=True,
                tools=None,
                bos_token=self._special("bos_token"),
                eos_token=self._special("eos_token"),
                pad_token=self._special("pad_token"),
            )
        except TemplateError as error:
            raise DataError(f"{self.folder}: the chat template refuses the messages: {error}") from error

    def _special(self, name: str) -> str:
        value = self._settings.get(name) or ""
        return value["content"] if isinstance(value, dict) else value

    def _token_id(self, token: str) -> int:
        found = self._full.token_to_id(token)
        if found is None:
            raise DataError(
                f"{self.folder}/tokenizer_config.json: eos_token {token!r} is not in the vocabulary"
            )
        return int(found)

    def _find_eos_ids(self) -> frozenset[int]:
        listed = _read_json(self.folder / "generation_config.json").get("eos_token_id")
        ids = listed if isinstance(listed, list) else [] if listed is None else [listed]
        return frozenset({self.eos_id, *map(int, ids)})

    def _load_template(self) -> Template:
        path = self.folder / "chat_template.jinja"
        source = path.read_text(encoding="utf-8") if path.is_file() else self._settings.get("chat_template")
        if not isinstance(source, str):
            raise DataError(f"{self.folder}: expected a chat template (chat_template.jinja)")
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.globals["raise_exception"] = _refuse
        environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
        try:
            return environment.from_string(source)
        except TemplateError as error:
            raise DataError(f"{self.folder}: the chat template cannot be read: {error}") from error


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise DataError(f"{path}: expected a JSON object")
    return content


def _token_bytes(raw: dict[str, Any], tokenizer: Tokenizer) -> tuple[bytes, ...]:
    """Bytes of every id, from the kind of decoder that the tokenizer names."""
    decoder = json.dumps(raw.get("decoder") or {})
    added = {int(token["id"]): token["content"].encode() for token in raw.get("added_tokens", [])}
    size = max([*tokenizer.get_vocab(with_added_tokens=True).values(), *added]) + 1
    table = [b""] * size
    if '"ByteLevel"' in decoder:
        alphabet = _byte_alphabet()
        for token, index in tokenizer.get_vocab(with_added_tokens=False).items():
            table[index] = bytes(alphabet[character] for character in token)
    elif '"ByteFallback"' in decoder:
        for token, index in tokenizer.get_vocab(with_added_tokens=False).items():
            is_byte = len(token) == 6 and token.startswith("<0x")
            table[index] = bytes([int(token[3:5], 16)]) if is_byte else token.replace("\u2581", " ").encode()
    else:
        raise DataError("tokenizer.json: expected a byte-level or byte-fallback tokenizer (Qwen, Llama)")
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
