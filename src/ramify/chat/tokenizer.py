"""A tokenizer read from a model folder, without transformers.

Beyond encode and decode it offers what agents need: the bytes of each token (stop strings and texts are assembled from
bytes, so a character that spans two tokens stays whole), an encoding that never produces an added token (for foreign
text), and the folder's own chat template.
"""

import hashlib
import json
import re
import secrets
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from ramify.chat.template import ChatTemplate, thought_opening
from ramify.core.errors import DataError, MachineError
from ramify.core.json_text import parse_object
from ramify.core.messages import Message
from ramify.files.untrusted import read_small_file, require_plain_model

_SPECIAL_NAMES = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
_BYTE_TOKEN = re.compile("<0x[0-9A-Fa-f]{2}>")
_MAX_IDS = 1 << 24
_BATCH = 1000
"""Texts that are encoded at once; more would need much memory, because the result takes about 100 bytes per token."""


@dataclass(frozen=True, slots=True)
class AddedToken:
    """An added token; `special` as the tokenizer's file marks it."""

    id: int
    content: str
    special: bool


def draw_names(contents: Collection[str]) -> dict[str, str]:
    """Draw a new name for each of these tokens; random, because a text that contains one would become the token."""
    draw = secrets.token_hex(8)
    return {text: f"\U0010fffd{draw}.{number}\U0010fffd" for number, text in enumerate(sorted(contents))}


def renamed_entries(entries: Sequence[dict[str, Any]], names: dict[str, str]) -> list[dict[str, Any]]:
    """Return the entries `added_tokens` of a tokenizer's file under their new names."""
    return [{**entry, "content": names.get(entry["content"], entry["content"])} for entry in entries]


class RenamedTokens:
    """A tokenizer with new names for some of its added tokens, so that their usual spelling is ordinary text."""

    def __init__(
        self,
        library: Tokenizer,
        added: Sequence[AddedToken],
        names: dict[str, str],
        folder: Path,
        unprefixed: Tokenizer | None,
    ) -> None:
        """Find the ids under which the library has the tokens.

        Args:
            library: The tokenizer; its added tokens have the new names.
            added: The added tokens as the model knows them.
            names: New names by the usual ones.
            folder: The model folder, for messages.
            unprefixed: `ChatTokenizer.unprefixed`.
        """
        self._library = library
        self._unprefixed = unprefixed
        self._any_added = any_of(names.get(token.content, token.content) for token in added)
        self._names = names
        # A renamed token gets another id if the model's own vocabulary holds it too.
        self._ids = {
            library.token_to_id(names.get(token.content, token.content)): token.id for token in added
        }
        self._forged = {token.id for token in added if token.content in names} - self._ids.keys()
        self._folder = folder

    def rename(self, text: str, added: "re.Pattern[str]") -> str:
        """Return a trusted text with the new names of its tokens; `added` matches all added tokens."""
        return added.sub(lambda match: self._names.get(match[0], match[0]), text)

    def encode(self, text: str, *, continues: bool = False) -> tuple[int, ...]:
        """Return the ids of a text in which the tokens have their new names; `continues` as of `ChatTokenizer.encode`.

        Raises:
            DataError: The model's own vocabulary still turns a usual spelling into the token.
        """
        ids = (
            _continuing_ids(self._library, self._unprefixed, self._any_added, text)
            if continues
            else self._library.encode(text, add_special_tokens=False).ids
        )
        if not self._forged.isdisjoint(ids):
            raise DataError(f"{self._folder}: the tokenizer turns plain text into a control token")
        return tuple(self._ids.get(index, index) for index in ids)


class ChatTokenizer:
    """Token ids of texts and of chats, for one model folder.

    Attributes:
        unprefixed: Where the tokenizer puts a blank in front of every text, one that does not, and knows no added token.
    """

    def __init__(self, folder: Path) -> None:
        """Read `tokenizer.json` and its companions.

        Raises:
            DataError: A file is missing, damaged or of a kind that is not supported.
        """
        self.folder = folder
        try:
            with naming_panics(folder):
                self._read(folder / "tokenizer.json")
        except (DataError, MachineError):
            raise
        # Foreign files: the tokenizers library may raise anything about them.
        except Exception as error:  # noqa: BLE001
            raise DataError(f"{folder / 'tokenizer.json'}: cannot be read ({_one_line(error)})") from None

    def _read(self, path: Path) -> None:
        folder = self.folder
        if not path.is_file():
            raise DataError(f"{folder}: expected a model folder with a tokenizer.json")
        require_plain_model(folder)
        raw = _read_json(path)
        if not isinstance(raw.get("model"), dict) or "vocab" not in raw["model"]:
            raise DataError(f"{path}: expected a tokenizer with a model and its vocab")
        self.added = _added_tokens(path, raw)
        self.added_ids = frozenset(token.id for token in self.added)
        # A file may contain truncation and padding settings from the last use before it was saved.
        raw |= {"truncation": None, "padding": None, "added_tokens": raw.get("added_tokens") or []}
        self.json = json.dumps(raw)
        self._full = Tokenizer.from_str(self.json)
        for token in self.added:
            if (number := self._full.token_to_id(token.content)) != token.id:
                raise DataError(
                    f"{path}: added_tokens: {token.content!r:.40} has id {token.id}, but the tokenizers library gives it {number}"
                )
        # `encode_special_tokens` would not do: it does not affect added tokens that are not marked special, such as the
        # think tags of Qwen3. Under names that no text holds, none of them ever matches.
        names = draw_names({token.content for token in self.added})
        entries = renamed_entries(raw["added_tokens"], names)
        self._plain = Tokenizer.from_str(json.dumps({**raw, "added_tokens": entries, "post_processor": None}))
        without = _without_prefix(raw)
        self.unprefixed = (
            None
            if without == raw
            else Tokenizer.from_str(json.dumps({**without, "added_tokens": [], "post_processor": None}))
        )
        self._any_added = any_of(token.content for token in self.added)
        self.plain_tokens = RenamedTokens(self._plain, self.added, names, folder, self.unprefixed)
        self.token_bytes = _token_bytes(path, raw, self._full, self.added)
        self._longest = max(map(len, self.token_bytes))
        # Such tokens absorb any number of blanks beside them.
        self._eats_blanks = any(token.get("lstrip") or token.get("rstrip") for token in raw["added_tokens"])
        settings = folder / "tokenizer_config.json"
        self._settings = _read_json(settings) if settings.exists() else {}
        self.special = {name: value for name in _SPECIAL_NAMES if (value := self._special(name))}
        self.eos_ids = self._find_eos_ids()
        self.template = ChatTemplate(self._template_source(), self.special, f"{folder}")

    @property
    def vocab_size(self) -> int:
        """Number of token ids, including added tokens."""
        return len(self.token_bytes)

    @cached_property
    def fingerprint(self) -> str:
        """A hash, equal for tokenizers with the same bytes for every id and the same end-of-turn tokens."""
        digest = hashlib.blake2b(repr(sorted(self.eos_ids)).encode(), digest_size=8)
        for data in self.token_bytes:
            digest.update(len(data).to_bytes(4, "big") + data)
        return digest.hexdigest()

    @property
    def eos_id(self) -> int:
        """The token that ends a turn in the chat template."""
        token = self._special("eos_token")
        index = self._full.token_to_id(token)
        if index is None:
            raise DataError(
                f"{self.folder}/tokenizer_config.json: eos_token {token!r} is not in the vocabulary"
            )
        return int(index)

    def encode(self, text: str, *, continues: bool = False) -> tuple[int, ...]:
        """Return the ids of trusted text; added tokens in it are recognised, and no token is put before or after it.

        Args:
            text: The text.
            continues: It continues another text, so that no blank is put in front of it (SentencePiece).
        """
        with naming_panics(self.folder):
            if continues:
                return tuple(_continuing_ids(self._full, self.unprefixed, self._any_added, as_unicode(text)))
            return tuple(self._full.encode(as_unicode(text), add_special_tokens=False).ids)

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each trusted text; uses all processors."""
        counts: list[int] = []
        for first in range(0, len(texts), _BATCH):
            batch = [*map(as_unicode, texts[first : first + _BATCH])]
            with naming_panics(self.folder):
                counts += map(len, self._full.encode_batch_fast(batch, add_special_tokens=False))
        return counts

    @staticmethod
    def most_tokens(text: str) -> int:
        """Return an upper bound on the number of tokens, without encoding.

        Each token covers at least one byte of the normalised text (not normalised, NFC or NFKC), and the tokenizer may
        put one blank in front.
        """
        plain = as_unicode(text)
        forms = (plain, unicodedata.normalize("NFC", plain), unicodedata.normalize("NFKC", plain))
        return max(len(form.encode()) for form in forms) + 1

    def fewest_tokens(self, text: str) -> int:
        """Return a lower bound on the number of tokens, without encoding: bytes of the text over bytes of the widest token."""
        if self._eats_blanks:
            text = "".join(text.split())
        plain = as_unicode(text)
        size = len(plain.encode())
        if not plain.isascii():
            forms = (unicodedata.normalize("NFC", plain), unicodedata.normalize("NFKC", plain))
            size = min(size, *(len(form.encode()) for form in forms))
        return -(-size // self._longest)

    def encode_plain(self, text: str) -> tuple[int, ...]:
        """Return the ids of foreign text that continues another; none is an added token (end of text, a role, a tag).

        Raises:
            DataError: The model's own vocabulary produces an added token all the same.
        """
        with naming_panics(self.folder):
            plain = self._plain if self.unprefixed is None else self.unprefixed
            ids = tuple(plain.encode(as_unicode(text), add_special_tokens=False).ids)
        if not self.added_ids.isdisjoint(ids):
            raise DataError(f"{self.folder}: the tokenizer turns plain text into an added token")
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens; bytes that are not UTF-8 become the replacement character.

        Ids beyond the last token have no text: models pad their vocabulary, and a random model samples those ids.
        """
        known = (self.token_bytes[i] for i in token_ids if i < len(self.token_bytes))
        return b"".join(known).decode("utf-8", errors="replace")

    def chat_text(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """Return the rendered chat, up to where the assistant starts to write; `tools` as in OpenAI's API.

        A turn of the assistant at the end is continued: its text follows the beginning of a turn, and nothing closes it.

        Raises:
            DataError: The template refuses the messages, or opens a thought before a turn that is to be continued.
        """
        begun = begun_turn(messages)
        whole = messages[:-1] if begun else messages
        plain = [{"role": message.role, "content": message.text} for message in whole]
        prompt = self.template.render(plain, tools)
        if not begun or not thought_opening(prompt):
            return prompt + begun
        if begun.strip() != "<think>":
            raise DataError(
                f"{self.folder}: the chat template opens a thought, which the turn of the assistant at the end of the prompt does not "
                "continue. Leave out this turn, or use another template"
            )
        return prompt

    def _special(self, name: str) -> str:
        value = self._settings.get(name) or ""
        content = value.get("content") if isinstance(value, dict) else value
        if not isinstance(content, str):
            raise DataError(f"{self.folder}/tokenizer_config.json: {name}: expected text, got {value!r:.80}")
        return content

    def _find_eos_ids(self) -> frozenset[int]:
        path = self.folder / "generation_config.json"
        listed = _read_json(path).get("eos_token_id") if path.exists() else None
        ids = listed if isinstance(listed, list) else [] if listed is None else [listed]
        for index in ids:
            if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < self.vocab_size:
                raise DataError(
                    f"{path}: eos_token_id: expected token ids from 0 to {self.vocab_size - 1}, got {listed!r:.80}"
                )
        return frozenset({self.eos_id, *ids})

    def _template_source(self) -> str:
        path = self.folder / "chat_template.jinja"
        source = _read_text(path) if path.exists() else self._settings.get("chat_template")
        if isinstance(source, list):
            # Several named templates; "default" is for chats without tools or documents.
            source = next(
                (
                    entry.get("template")
                    for entry in source
                    if isinstance(entry, dict) and entry.get("name") == "default"
                ),
                None,
            )
        if not isinstance(source, str):
            raise DataError(f"{self.folder}: expected a chat template (chat_template.jinja)")
        return source


@contextmanager
def naming_panics(folder: Path) -> Iterator[None]:
    """Turn a panic of the tokenizers library, which is not an `Exception`, into a DataError that names the folder."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise DataError(
            f"{folder}: the tokenizers library breaks on its files ({_one_line(error)})"
        ) from None


def begun_turn(messages: Sequence[Message]) -> str:
    """Return the text of a turn of the assistant that ends a prompt, which the policy continues; "" if none does."""
    return messages[-1].text if messages and messages[-1].role == "assistant" else ""


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def as_unicode(text: str) -> str:
    """Return the text so that it can be encoded as UTF-8: a lone surrogate (from JSON or a program's output) becomes U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _read_text(path: Path) -> str:
    try:
        return read_small_file(path).decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: expected UTF-8 text: {error}") from None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return parse_object(_read_text(path))
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None


def _added_tokens(path: Path, raw: dict[str, Any]) -> tuple[AddedToken, ...]:
    listed = raw.get("added_tokens") or []
    if not isinstance(listed, list):
        raise DataError(f"{path}: expected added_tokens to be a list")
    for token in listed:
        if not isinstance(token, dict) or not isinstance(token.get("content"), str) or not token["content"]:
            raise DataError(f"{path}: added_tokens: expected objects with id and content, got {token!r:.80}")
        index = token.get("id")
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < _MAX_IDS:
            raise DataError(
                f"{path}: added_tokens: id of {token['content']!r:.40}: expected 0 to {_MAX_IDS - 1}, got {index!r:.40}"
            )
    return tuple(AddedToken(token["id"], token["content"], bool(token.get("special"))) for token in listed)


def _token_bytes(
    path: Path, raw: dict[str, Any], tokenizer: Tokenizer, added_tokens: Sequence[AddedToken]
) -> tuple[bytes, ...]:
    """Return the bytes of every id, according to the tokenizer's kind of decoder."""
    decoder = json.dumps(raw.get("decoder") or {})
    added = {token.id: as_unicode(token.content).encode() for token in added_tokens}
    size = max([*tokenizer.get_vocab(with_added_tokens=True).values(), *added], default=-1) + 1
    if not 0 < size <= _MAX_IDS:
        raise DataError(f"{path}: expected from 1 to {_MAX_IDS:,} token ids, got {size:,}")
    table = [b""] * size
    if '"ByteLevel"' in decoder:
        alphabet = _byte_alphabet()
        for token, index in tokenizer.get_vocab(with_added_tokens=False).items():
            # A special token in the model's vocabulary is plain text, not in the byte alphabet.
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


def any_of(texts: Iterable[str]) -> "re.Pattern[str]":
    """Return a pattern of these texts, the longest first, as the tokenizers library matches added tokens."""
    longest_first = sorted(set(texts), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


def _continuing_ids(
    library: Tokenizer, unprefixed: Tokenizer | None, added: "re.Pattern[str]", text: str
) -> list[int]:
    """Return the ids of a text that continues another: nothing is put in front of what stands before its first added token."""
    if unprefixed is None:
        return list(library.encode(text, add_special_tokens=False).ids)
    first = added.search(text)
    start = first.start() if first else len(text)
    head = unprefixed.encode(text[:start], add_special_tokens=False).ids
    return [*head, *library.encode(text[start:], add_special_tokens=False).ids]


def _without_prefix(raw: dict[str, Any]) -> dict[str, Any]:
    """Return a tokenizer's file without the blank that it puts in front of texts."""
    parts = [name for name in ("normalizer", "pre_tokenizer") if name in raw]
    return {**raw, **{name: _unprefixed_part(raw[name]) for name in parts}}


def _unprefixed_part(part: Any) -> Any:  # noqa: ANN401 - a part of the file, checked by the library
    if not isinstance(part, dict):
        return part
    match part.get("type"):
        case "Prepend":
            return None
        case "Metaspace":
            return {**part, "prepend_scheme": "never"} | (
                {"add_prefix_space": False} if "add_prefix_space" in part else {}
            )
        case "ByteLevel":
            return {**part, "add_prefix_space": False}
        case "Sequence":
            key = "normalizers" if "normalizers" in part else "pretokenizers"
            inner = map(_unprefixed_part, part.get(key) or [])
            return {**part, key: [each for each in inner if each is not None]}
    return part


def _byte_alphabet() -> dict[str, int]:
    """Return the byte for each printable character of byte-level tokenizers (GPT-2's table)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {
        **{chr(byte): byte for byte in printable},
        **{chr(256 + index): byte for index, byte in enumerate(others)},
    }
