"""Keys of services: reading them from the environment, and redacting them from all output."""

import logging
import os
import re
import unicodedata
from collections.abc import Sequence
from urllib.parse import quote, quote_plus

from ramify.core.errors import MachineError

_names: dict[str, str] = {}
"""Each hidden text, and the name shown in its place."""
_UNREAD = "key"
_LEAST_SECRET = 8
_CREDENTIALS = re.compile(r"(\w://|https?:/)[^\s/?#@]*(?:@[^\s/?#@]*)*@", re.IGNORECASE)
"""The credentials in an address: all before the last @ of its host. An address that was parsed as a path has one slash."""
_LIBRARY_LOGGERS = (
    "httpx", "httpx2", "httpcore.connection", "httpcore.http11", "httpcore.http2", "httpcore.proxy", "httpcore.socks",
)  # fmt: skip


def read_key(variable: str) -> str:
    """Return the key of a service, from the environment variable `variable`; from now on it is redacted.

    Raises:
        MachineError: The variable is unset or empty, or has characters that a header cannot carry.
    """
    key = os.environ.get(variable, "").strip()
    if not key:
        raise MachineError(
            f"the environment variable {variable} is not set. Set it to the key of the service."
        )
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise MachineError(
            f"the environment variable {variable} holds blanks, control or non-ASCII characters. Set it to a key."
        )
    _hide(variable, key)
    return key


def read_optional_key(variable: str) -> str | None:
    """Read a key as `read_key` does; None if the variable is unset or empty: the service also answers without one."""
    return read_key(variable) if os.environ.get(variable, "").strip() else None


def take_secret(variable: str) -> str | None:
    """Remove a secret from the environment, so that no program that this one starts inherits it; it is redacted from now on."""
    secret = os.environ.pop(variable, None)
    # Short texts, which are no secrets, would be redacted out of ordinary words.
    if secret and len(secret) >= _LEAST_SECRET:
        _hide(variable, secret)
    return secret


def hide(secrets: Sequence[str]) -> None:
    """Redact these from now on, whether they came from `read_key` or not."""
    for secret in secrets:
        if secret and secret not in _names:
            _hide(_UNREAD, secret)


def names_of(secrets: Sequence[str]) -> tuple[str, ...]:
    """Return the environment variables that these secrets were read from; secrets from elsewhere are skipped."""
    return tuple(_names[secret] for secret in secrets if _names.get(secret, _UNREAD) != _UNREAD)


def redact(text: str) -> str:
    """Return the text with every known key replaced by "[key NAME]", also where the key is URL-encoded."""
    for secret in sorted(_names, key=len, reverse=True):
        if secret in text:
            name = _names[secret]
            text = text.replace(secret, f"[{name}]" if name == _UNREAD else f"[key {name}]")
    return text


def shown(text: str, keep: str = "") -> str:
    """Return a text made safe for a terminal or a log: without keys, credentials in addresses, and control characters.

    `keep` lists control characters that are not escaped, such as line breaks.
    """
    return printable(_CREDENTIALS.sub(r"\1[credentials]@", redact(text)), keep)


def _hide(name: str, secret: str) -> None:
    for spelling in (secret, quote(secret, safe=""), quote_plus(secret)):
        _names[spelling] = name


class _SafeFormatter(logging.Formatter):
    """Formats warnings of ramify and of libraries on standard error if the program configured no logging."""

    def format(self, record: logging.LogRecord) -> str:
        return shown(super().format(record), keep="\n\t")


if logging.lastResort is not None:
    logging.lastResort.setFormatter(_SafeFormatter())


class _RedactingFilter(logging.Filter):
    """Redacts the addresses that libraries log: some services take their key in the address."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = redact(record.getMessage()), None
        return True


_filter = _RedactingFilter()
for _logger in _LIBRARY_LOGGERS:
    logging.getLogger(_logger).addFilter(_filter)


def printable(text: str, keep: str = "") -> str:
    r"""Escape (`\x1b`, `\u202e`) every character that does not print as itself, except those in `keep`.

    These are control and format characters, which move the cursor or reorder text, and lone surrogates, which no stream
    can encode.
    """
    # Long texts have line breaks: taken out, the test runs in C.
    if text.isprintable() or text.translate(dict.fromkeys(map(ord, keep))).isprintable():
        return text
    return "".join(
        c
        if c in keep or c.isprintable() or unicodedata.category(c) == "Zs"
        else c.encode("unicode_escape").decode("ascii")
        for c in text
    )
