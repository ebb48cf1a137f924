"""Turning the JSON results of web search services into hits with plain text."""

import html
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ramify.core.protocols import Hit, Json
from ramify.net.client import Answer

_ATTRIBUTES = r"""(?:\s+[\w:-]+\s*=\s*(?:"[^"]*"|'[^']*'|[^\s"'<>]+))*"""
_INLINE = re.compile(
    rf"</?(?:a|abbr|b|bdi|cite|code|em|font|i|mark|q|s|small|span|strong|sub|sup|u|wbr){_ATTRIBUTES}\s*/?>",
    re.I,
)
_BLOCK = re.compile(
    rf"</?(?:br|dd|div|dl|dt|h[1-6]|hr|img|li|ol|p|pre|section|table|tbody|td|th|tr|ul){_ATTRIBUTES}\s*/?>",
    re.I,
)
# An element that is not closed extends to the end, as in browsers. Searching for each missing end would take quadratic time.
_UNSHOWN = re.compile(r"<!--.*?(?:-->|\Z)|<(script|style)\b.*?(?:</\1\s*>|\Z)", re.I | re.S)
_MOST_CHARS = 50_000
"""Most characters of a snippet's markup that are read; no search engine sends that many."""


@dataclass(frozen=True, slots=True)
class ResultFields:
    """The names of fields in a service's answer.

    Attributes:
        results: The list of results.
        text: The snippet of a result.
        url: The address of a result.
        besides: An answer with one of these fields may omit the list if nothing was found.
    """

    results: str
    text: str
    url: str
    besides: Sequence[str] = ()


def plain_text(markup: str) -> str:
    """A snippet without HTML: tags are removed, entities become characters, blanks collapse; "a < b" stays."""
    shown = _BLOCK.sub(" ", _INLINE.sub("", _UNSHOWN.sub(" ", markup[:_MOST_CHARS])))
    return " ".join(html.unescape(shown).split())


def read_hits(answer: Answer, fields: ResultFields, top_k: int) -> list[Hit]:
    """The first `top_k` results that have a snippet or an address.

    Raises:
        RequestFailedError: MALFORMED: the answer does not have the documented structure.
    """
    record = answer.json()
    if not isinstance(record, Mapping):
        raise answer.malformed(f"expected an object with '{fields.results}'")
    results = record.get(fields.results)
    if results is None and any(name in record for name in fields.besides):
        return []
    if not isinstance(results, list) or not all(isinstance(result, dict) for result in results):
        raise answer.malformed(f"expected a list of objects in '{fields.results}'")
    usable = (hit for hit in (_hit(result, fields) for result in results) if hit.text or hit.url)
    hits = list(itertools.islice(usable, top_k))
    if results and not hits:
        raise answer.malformed(
            f"expected '{fields.text}' or '{fields.url}' in the results, found neither in any"
        )
    return hits


def _hit(result: Mapping[str, Json], fields: ResultFields) -> Hit:
    url = _string(result, fields.url)
    return Hit(url, plain_text(_string(result, fields.text)), plain_text(_string(result, "title")), url)


def _string(result: Mapping[str, Json], key: str) -> str:
    value = result.get(key)
    return value if isinstance(value, str) else ""
