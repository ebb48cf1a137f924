"""What is asked of a vLLM server and what it answers: records, and how JSON becomes them.

Whatever an answer lacks is a RequestFailedError of the kind MALFORMED, which ends the run: nothing is guessed.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ramify.core.protocols import Json
from ramify.net.client import Answer
from ramify.net.failures import FailureKind, RequestFailedError


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for tokens: ids, what stops it, and how many of the most likely tokens are told with each (0: none)."""

    token_ids: tuple[int, ...]
    max_tokens: int
    seed: int
    temperature: float
    top_p: float
    stops: tuple[str, ...]
    stop_ids: tuple[int, ...]
    top_k: int = 0


@dataclass(frozen=True, slots=True)
class Served:
    """What a server wrote.

    Attributes:
        token_ids: New tokens. [N]
        logprobs: Their logprobs, nats. [N]
        tops: For each token the logprobs of the most likely ones, nats; empty if not asked for. [N][K]
        finish_reason: "stop" or "length".
        labels: (label of the weights, number of tokens) in order.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    tops: tuple[tuple[float, ...], ...]
    finish_reason: str
    labels: tuple[tuple[str, int], ...]


def read_served(read: Mapping[str, Json], answer: Answer, asked: Asked) -> Served:
    """What a server wrote for a request; raises RequestFailedError if the answer lacks a part or was dropped."""
    choices = listed(read, "choices", answer)
    choice = choices[0] if choices and isinstance(choices[0], Mapping) else {}
    ids = tuple(id_list(choice, "token_ids", answer))
    reason = choice.get("finish_reason")
    if reason not in ("stop", "length"):
        # "abort": the server dropped it, as a restart or somebody else's pause does.
        raise RequestFailedError(FailureKind.SERVER, f"{answer.where}: finish_reason {reason!r}")
    logprobs = choice.get("logprobs")
    content = listed(logprobs, "content", answer) if isinstance(logprobs, Mapping) else []
    told = [entry for entry in content if isinstance(entry, Mapping)]
    if (
        not ids
        or len(told) != len(ids)
        or any(e.get("token_id") != i for e, i in zip(told, ids, strict=True))
    ):
        raise answer.malformed(f"expected a logprob for each of {len(ids)} tokens, found {len(told)}")
    tops = tuple(_tops(entry, asked.top_k, answer) for entry in told) if asked.top_k else ()
    return Served(
        ids, tuple(_logprob(e, answer) for e in told), tops, reason, _labels(choice, len(ids), answer)
    )


def _tops(entry: Mapping[str, Json], most: int, answer: Answer) -> tuple[float, ...]:
    """Logprobs of the `most` most likely tokens; one more entry is there, for the sampled token or the next likely one."""
    found = [top for top in listed(entry, "top_logprobs", answer) if isinstance(top, Mapping)]
    ranked = {top.get("token_id"): _logprob(top, answer) for top in found}
    if len(ranked) < most:
        raise answer.malformed(f"expected the logprobs of {most} tokens, found {len(ranked)}")
    return tuple(sorted(ranked.values(), reverse=True)[:most])


def _logprob(entry: Mapping[str, Json], answer: Answer) -> float:
    value = entry.get("logprob")
    if isinstance(value, bool) or not isinstance(value, float | int):
        raise answer.malformed("expected a logprob that is a number")
    # Rounding can give a token of probability 1 a little more than that.
    return min(float(value), 0.0) if math.isfinite(value) else float(value)


def _labels(choice: Mapping[str, Json], size: int, answer: Answer) -> tuple[tuple[str, int], ...]:
    spans = [span for span in listed(choice, "weight_versions", answer) if isinstance(span, Mapping)]
    labels = tuple(
        (text_of(span, "version"), number_of(span, "end") - number_of(span, "start")) for span in spans
    )
    if sum(count for _, count in labels) != size:
        raise answer.malformed(f"expected weight_versions of {size} tokens")
    return labels


def as_mapping(answer: Answer) -> Mapping[str, Json]:
    """The object that an answer holds."""
    read = answer.json()
    if not isinstance(read, Mapping):
        raise answer.malformed("expected an object")
    return read


def part_of(read: Json, key: str) -> Mapping[str, Json]:
    """An object inside another; empty if there is none."""
    found = read.get(key) if isinstance(read, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _wrong(key: str, answer: Answer | None) -> RequestFailedError:
    if answer is not None:
        return answer.malformed(f"expected {key}")
    return RequestFailedError(FailureKind.MALFORMED, f"expected {key}: is this a vLLM server?")


def listed(read: Json, key: str, answer: Answer | None = None) -> Sequence[Json]:
    """The list under a key."""
    found = read.get(key) if isinstance(read, Mapping) else None
    if not isinstance(found, list):
        raise _wrong(key, answer)
    return found


def id_list(read: Json, key: str, answer: Answer | None = None) -> list[int]:
    """The token ids under a key."""
    found = listed(read, key, answer)
    ids = [i for i in found if isinstance(i, int) and not isinstance(i, bool)]
    if len(ids) != len(found):
        raise _wrong(key, answer)
    return ids


def text_of(read: Json, key: str) -> str:
    """The text under a key."""
    found = read.get(key) if isinstance(read, Mapping) else None
    if not isinstance(found, str):
        raise _wrong(key, None)
    return found


def number_of(read: Json, key: str) -> int:
    """The whole number under a key."""
    found = read.get(key) if isinstance(read, Mapping) else None
    if not isinstance(found, int):
        raise _wrong(key, None)
    return found
