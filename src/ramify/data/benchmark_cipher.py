"""Rows whose question and answer are encrypted against crawlers, with the key beside them, as in xbench.

A field is base64 of the UTF-8 text, XORed with the bytes of the row's `canary`, repeated as often as needed.
"""

import base64
import binascii
import re
from collections.abc import Mapping
from itertools import cycle
from typing import Any

_SEALED = re.compile("[A-Za-z0-9+/]{32,}={0,2}")
_FIELDS = ("prompt", "question", "answer")


def is_sealed(question: object) -> bool:
    """Whether a question looks like base64: long and without blanks."""
    return isinstance(question, str) and _SEALED.fullmatch(question.strip()) is not None


def unsealed(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Decrypt the question and answer of a row; a row that is not encrypted, or has no key, is returned unchanged.

    Raises:
        ValueError: The key does not fit.
    """
    key = row.get("canary")
    if not isinstance(key, str) or not key or not any(is_sealed(row.get(name)) for name in _FIELDS[:2]):
        return row
    return {
        **row,
        **{name: _open(row[name], key, name) for name in _FIELDS if isinstance(row.get(name), str)},
    }


def _open(text: str, key: str, name: str) -> str:
    try:
        sealed = base64.b64decode(text, validate=True)
        return bytes(a ^ b for a, b in zip(sealed, cycle(key.encode()), strict=False)).decode()
    except (binascii.Error, UnicodeError):
        raise ValueError(f"field {name!r} is encrypted, but not with the row's 'canary'") from None
