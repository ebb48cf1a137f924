"""The part of a page that a search engine's snippet quotes.

As in the released code of Tool-Star (arXiv 2505.16410) and of ARPO's deep-search evaluation (arXiv 2507.19849): the
sentence whose set of words has the highest F1 with that of the snippet, plus a number of characters on either side; or
the beginning of the page if no sentence is near enough. Chinese, Japanese and Korean text is compared by pairs of
neighbouring characters; the released code uses a word segmenter, for Chinese only.
"""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ramify.tools.configs import BrowserConfig

_CJK: Final = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
_RUN: Final = re.compile(rf"[{_CJK}]+|[^\W_{_CJK}]+")
_LATIN_RUN: Final = re.compile(r"[a-z0-9]+")
_CJK_RUN: Final = re.compile(rf"[{_CJK}]")
_MARKUP: Final = re.compile(r"</?(?:b|strong|em|i|mark)>", re.IGNORECASE)
# A sentence ends at a full-width mark, at a Latin one before a blank, and at the end of a line.
_SENTENCE_END: Final = re.compile(
    r"[\u3002\uff01\uff1f\uff1b]+[\u201d\u2019\u300d\u300f]*|[.!?]+[\"')\]]*(?=\s)|\n+"
)


@dataclass(frozen=True, slots=True)
class Passage:
    """A part of a page; `f1` is the F1 of its sentence, or 0 for the beginning of the page."""

    text: str
    f1: float


def passage_near(
    text: str, snippet: str, config: BrowserConfig, *, searched_chars: int = 50_000, min_f1: float = 0.2
) -> Passage:
    """Return the passage of `text` around the sentence nearest to `snippet`; of equally near sentences the first.

    The first `searched_chars` characters are searched, and the sentence's F1 must be above `min_f1`.
    """
    snippet_words = words(_MARKUP.sub("", snippet))
    best, at = min_f1, None
    for start, end in sentences(text[:searched_chars]) if snippet_words else ():
        sentence = words(text[start:end])
        f1 = 2 * len(snippet_words & sentence) / (len(snippet_words) + len(sentence))
        if f1 > best:
            best, at = f1, (start, end)
    if at is None:
        return Passage(text[: config.head_chars].strip(), 0.0)
    first = max(0, at[0] - config.context_chars)
    return Passage(text[first : at[1] + config.context_chars].strip(), best)


def sentences(text: str) -> Iterator[tuple[int, int]]:
    """Yield start and end position of each sentence."""
    start = 0
    for end in _SENTENCE_END.finditer(text):
        yield start, end.end()
        start = end.end()
    if start < len(text):
        yield start, len(text)


def words(text: str) -> frozenset[str]:
    """Return the distinct words of a text, case-folded; a Chinese, Japanese or Korean run gives its pairs of neighbours."""
    if text.isascii():
        return frozenset(_LATIN_RUN.findall(text.lower()))
    distinct: set[str] = set()
    for run in _RUN.findall(unicodedata.normalize("NFKC", text).casefold()):
        if len(run) > 1 and _CJK_RUN.match(run):
            distinct.update(map(str.__add__, run, run[1:]))
        else:
            distinct.add(run)
    return frozenset(distinct)


def count_words(text: str, limit: int) -> int:
    """Return the number of words; each Chinese, Japanese or Korean character counts as one. Counting stops at `limit`."""
    count = 0
    for run in _RUN.finditer(text):
        count += len(run[0]) if _CJK_RUN.match(run[0]) else 1
        if count >= limit:
            return limit
    return count
