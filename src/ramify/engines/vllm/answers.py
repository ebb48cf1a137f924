"""Requests to a vLLM server and its answers: records, and the checks that turn JSON into them.

A server may be broken, or not vLLM at all. So every value is checked against what was asked: an answer that passes could have
come from a sound server. Any other raises RequestFailedError of the kind MALFORMED, which says what was expected.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ramify.core.protocols import Json
from ramify.core.records import TokenFilters
from ramify.net.exchange import Answer
from ramify.net.failures import FailureKind, RequestFailedError

_MIN_LOGPROB = -9999.0
"""vLLM's floor for a logprob: it sends -inf and NaN as this."""
_MAX_LOGPROB = 0.01
"""Rounding can give a token of probability 1 a little more than that."""
_MAX_PROBABILITY = 1.01
_MAX_TEXT = 200
"""Characters of a name or a label."""
_MAX_NUMBER = 2**53


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """A request for tokens.

    Attributes:
        token_ids: The context. [T]
        max_tokens: Most tokens to write.
        seed: Seed of the draws.
        temperature: Divides the logits.
        filters: Further changes of the distribution.
        stops: Texts that end it.
        stop_ids: Tokens that end it.
        top_k: Most likely tokens whose logprobs come with each token; 0: none.
    """

    token_ids: tuple[int, ...]
    max_tokens: int
    seed: int
    temperature: float
    filters: TokenFilters
    stops: tuple[str, ...]
    stop_ids: tuple[int, ...]
    top_k: int = 0


@dataclass(frozen=True, slots=True)
class GenerateResponse:
    """The tokens that a server wrote.

    Attributes:
        token_ids: New tokens. [N]
        logprobs: Their logprobs, nats. [N]
        tops: For each token the logprobs of the most likely ones, nats; empty if not asked for. [N][K]
        finish_reason: "stop" or "length".
        labels: (label of the weights, number of tokens) in order; the numbers add up to N.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    tops: tuple[tuple[float, ...], ...]
    finish_reason: str
    labels: tuple[tuple[str, int], ...]


def max_answer_bytes(tokens: int, top_k: int) -> int:
    """Return how large an answer with logprobs of `tokens` tokens may be; what a server says about itself is less."""
    # Of vLLM 0.32 an entry has 70 bytes, and 200 in a prompt.
    return 1_000_000 + tokens * (512 + 128 * (top_k + 1))


def read_generated(
    answer: Answer, request: GenerateRequest, vocab_size: int, prompt: Mapping[str, Json]
) -> GenerateResponse:
    """Check the object `prompt` that an answer holds, and return the tokens.

    Raises:
        RequestFailedError: MALFORMED if it is no answer to `request`; SERVER if the server dropped the request.
    """
    choices = _objects(prompt, "choices", answer)
    if len(choices) != 1:
        raise answer.malformed(f"expected 1 entry in choices, got {len(choices)}")
    choice = choices[0]
    reason = choice.get("finish_reason")
    if reason == "abort":  # by a restart, or by somebody else's pause
        raise RequestFailedError(FailureKind.SERVER, f"{answer.where}: the server dropped the request")
    if reason not in ("stop", "length"):
        raise answer.malformed('expected finish_reason "stop" or "length"')
    ids = tuple(id_list(choice, "token_ids", answer, vocab_size))
    if not 1 <= len(ids) <= request.max_tokens:
        raise answer.malformed(f"expected 1 to {request.max_tokens} tokens, got {len(ids)}")
    logprobs = part_of(choice, "logprobs")
    content = _objects(logprobs, "content", answer) if logprobs else []
    if len(content) != len(ids) or any(
        entry.get("token_id") != i for entry, i in zip(content, ids, strict=True)
    ):
        raise answer.malformed(f"expected a logprob for each of {len(ids)} tokens, got {len(content)}")
    tops = tuple(_tops(e, request.top_k, vocab_size, answer) for e in content) if request.top_k else ()
    values = tuple(drawn_logprob(entry.get("logprob"), answer) for entry in content)
    return GenerateResponse(ids, values, tops, str(reason), _labels(choice, len(ids), answer))


def _tops(entry: Mapping[str, Json], top_k: int, vocab_size: int, answer: Answer) -> tuple[float, ...]:
    """Return the logprobs of the `top_k` most likely tokens.

    One more entry comes with them, for the sampled token or the next likely one.
    """
    tops = _objects(entry, "top_logprobs", answer)
    ids = {_id_of(top.get("token_id"), "top_logprobs", vocab_size, answer) for top in tops}
    if len(ids) != len(tops) or not top_k <= len(tops) <= top_k + 1:
        raise answer.malformed(f"expected the logprobs of {top_k} tokens, got {len(ids)} of {len(tops)}")
    ranked = sorted((_logprob(top.get("logprob"), answer) for top in tops), reverse=True)
    if math.fsum(map(math.exp, ranked)) > _MAX_PROBABILITY:
        raise answer.malformed("expected probabilities in top_logprobs that add up to at most 1")
    return tuple(ranked[:top_k])


def drawn_logprob(value: Json, answer: Answer) -> float:
    """Return the logprob of a token that was written; such a token has a probability, so vLLM's floor means NaN.

    Raises:
        RequestFailedError: It is no such number.
    """
    logprob = _logprob(value, answer)
    if logprob <= _MIN_LOGPROB:
        raise answer.malformed(f"expected logprobs above {_MIN_LOGPROB:g} (vLLM writes that for NaN)")
    return logprob


def _logprob(value: Json, answer: Answer) -> float:
    # Compared before it is converted: 10**400 is a number in JSON. NaN fails both comparisons.
    is_number = isinstance(value, float | int) and not isinstance(value, bool)
    if not is_number or not _MIN_LOGPROB <= value <= _MAX_LOGPROB:  # type: ignore[operator]
        raise answer.malformed(f"expected a logprob that is a number from {_MIN_LOGPROB:g} to 0")
    return min(float(value), 0.0)  # type: ignore[arg-type]


def _labels(choice: Mapping[str, Json], size: int, answer: Answer) -> tuple[tuple[str, int], ...]:
    """Return the labels with their numbers of tokens. Spans follow each other from 0 to `size`."""
    spans = _objects(choice, "weight_versions", answer)
    ends = [0, *(number_of(span, "end", answer) for span in spans)]
    starts = [*(number_of(span, "start", answer) for span in spans), size]
    if ends != starts or any(start >= end for start, end in pairwise(ends)):
        raise answer.malformed(f"expected weight_versions whose spans cover {size} tokens in order")
    return tuple(
        (text_of(span, "version", answer), end - start)
        for span, (start, end) in zip(spans, pairwise(ends), strict=True)
    )


def read_prompt_logprobs(read: Mapping[str, Json], answer: Answer, token_ids: Sequence[int]) -> list[float]:
    """Return the logprob of each token of a prompt after the first. [T] -> [T - 1]

    Raises:
        RequestFailedError: One of them is missing, or no logprob.
    """
    rows = listed(read, "prompt_logprobs", answer)
    if len(rows) != len(token_ids):
        raise answer.malformed(f"expected prompt_logprobs of {len(token_ids)} tokens, got {len(rows)}")
    return [
        drawn_logprob(part_of(row, str(token)).get("logprob"), answer)
        for row, token in zip(rows[1:], token_ids[1:], strict=True)
    ]


def as_mapping(answer: Answer, max_bytes: int) -> Mapping[str, Json]:
    """Return the object that an answer of at most `max_bytes` holds.

    Raises:
        RequestFailedError: It holds none, or is larger.
    """
    # Before it is parsed: small texts can become large objects.
    if len(answer.body) > max_bytes:
        raise answer.malformed(f"expected at most {max_bytes} bytes, got {len(answer.body)}")
    read = answer.json()
    if not isinstance(read, Mapping):
        raise answer.malformed("expected an object")
    return read


def part_of(read: Json, key: str) -> Mapping[str, Json]:
    """Return an object inside another; empty if there is none."""
    part = read.get(key) if isinstance(read, Mapping) else None
    return part if isinstance(part, Mapping) else {}


def listed(read: Json, key: str, answer: Answer) -> Sequence[Json]:
    """Return the list under a key; RequestFailedError if there is none."""
    values = read.get(key) if isinstance(read, Mapping) else None
    if not isinstance(values, list):
        raise _missing(key, answer)
    return values


def _objects(read: Json, key: str, answer: Answer) -> list[Mapping[str, Json]]:
    values = listed(read, key, answer)
    objects = [value for value in values if isinstance(value, Mapping)]
    if len(objects) != len(values):
        raise answer.malformed(f"expected objects in {key}")
    return objects


def id_list(read: Json, key: str, answer: Answer, vocab_size: int) -> list[int]:
    """Return the token ids under a key; RequestFailedError if one is none, or outside the vocabulary."""
    return [_id_of(value, key, vocab_size, answer) for value in listed(read, key, answer)]


def _id_of(value: Json, key: str, vocab_size: int, answer: Answer) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < vocab_size:
        raise answer.malformed(f"expected token ids from 0 to {vocab_size - 1} in {key}")
    return value


def text_of(read: Json, key: str, answer: Answer) -> str:
    """Return the text under a key; RequestFailedError if there is none, or one that is no name."""
    text = read.get(key) if isinstance(read, Mapping) else None
    if not isinstance(text, str):
        raise _missing(key, answer)
    if len(text) > _MAX_TEXT or (text and not text.isprintable()):
        raise answer.malformed(f"expected {key} of at most {_MAX_TEXT} printable characters")
    return text


def number_of(read: Json, key: str, answer: Answer) -> int:
    """Return the whole number under a key; RequestFailedError if there is none, or one of no sane size."""
    number = read.get(key) if isinstance(read, Mapping) else None
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= _MAX_NUMBER:
        raise _missing(key, answer)
    return number


def _missing(key: str, answer: Answer) -> RequestFailedError:
    return answer.malformed(f"expected {key}: is this a vLLM server?")
