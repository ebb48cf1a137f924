"""Scoring vectors of the references (`ramify score --golden`), against compatibility mode and against our own scores.

A vector holds a response, a gold, what the reference returned (`expected`), and where that is plainly wrong what is
right (`right`). Compatibility mode reproduces `expected`. By default `right` holds, and what the reference had right
stays right: "kept" looks at the vectors that are not marked wrong and at verdicts, which is full credit or none, not at
measures that are meant to differ (calls, counted by structure; productivity, which must not rise with calls).
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from ramify.core.errors import DataError
from ramify.rewards import compat_arpo_scores as arpo
from ramify.rewards.answer_scores import scores
from ramify.rewards.compat_arpo_extract import extract_arpo
from ramify.rewards.compat_arpo_reward import arpo_reward
from ramify.rewards.compat_toolstar_math import toolstar_equal
from ramify.rewards.compat_toolstar_reward import toolstar_math_reward, toolstar_reward
from ramify.rewards.compat_toolstar_scores import toolstar_scores
from ramify.rewards.extract import answer_in
from ramify.rewards.math_equal import math_equal
from ramify.rewards.qa import accepted_answers, exact_words
from ramify.rewards.response_scores import means, text_reward, text_scores
from ramify.rewards.verdict import read_verdict

Vector: TypeAlias = Mapping[str, Any]
Values: TypeAlias = Mapping[str, Any]

_TOLERANCE = 1e-9
_SCORES = ("em", "acc", "f1", "math_equal")
_JUDGE_TRIES = 3


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Whether a vector holds in each mode; None where it says nothing."""

    compat: bool
    right: bool | None
    kept: bool | None


def judge_vector(vector: Vector, wrong: frozenset[str] = frozenset()) -> Verdicts:
    """Score one vector in both modes.

    Args:
        vector: One line of a file.
        wrong: Cases (`case_of`) that another vector marks as wrong; one that repeats such a case says nothing.

    Raises:
        DataError: No scorer here has its name.
    """
    kind = str(vector["id"]).rpartition("-")[0]
    if kind not in _COMPAT:
        raise DataError(
            f"id {vector['id']!r}: expected a scorer of {', '.join(sorted(_COMPAT))} before the last '-'"
        )
    compat, default = _compat(kind, vector), _DEFAULT[kind](vector)
    if vector.get("seed_wrong"):
        return Verdicts(compat, _is_right(vector, default), None)
    says = case_of(vector) not in wrong
    return Verdicts(compat, None, _is_kept(kind, vector, default) if says else None)


def case_of(vector: Vector) -> str:
    """The response and the gold: Tool-Star's two rewards are shown the same ones."""
    return json.dumps([vector["response"], vector["gold"]])


def _compat(kind: str, vector: Vector) -> bool:
    expected = vector["expected"]
    found: dict[str, Any] = {}
    if kind in ("math_eval", "qa_eval"):
        found["prediction"] = extract_arpo(vector["response"])
    try:
        found |= _COMPAT[kind](vector)
    except (TypeError, IndexError, AttributeError) as error:
        found["error"] = f"{type(error).__name__}: {error}"
    return found.keys() == expected.keys() and all(_same(found[key], expected[key]) for key in expected)


def _toolstar_reward(vector: Vector) -> Values:
    score = toolstar_reward if vector["task"] == "rl" else toolstar_math_reward
    return score(vector["response"], vector["gold"])


def _toolstar_row(vector: Vector) -> Values:
    row, extract = vector["response"], "extract_answer=True" in vector["scorer"]
    return toolstar_scores(vector["task"], row["Output"], row["Full_output"], vector["gold"], extract)


def _sample(vector: Vector) -> Values:
    row = vector["response"]
    return arpo.sample_scores(vector["task"], row["output"], row["prediction"], vector["gold"])


def _verdict(vector: Vector) -> Values:
    row = vector["response"]
    return arpo.judge_scores(row["prediction"], vector["gold"], row["judge_reply"], row["failures_first"])


_COMPAT: Mapping[str, Callable[[Vector], Values]] = {
    "extract_answer": lambda v: {"prediction": extract_arpo(v["response"])},
    "math_eval": lambda v: arpo.math_scores(extract_arpo(v["response"]), v["gold"]),
    "qa_eval": lambda v: arpo.qa_scores(extract_arpo(v["response"]), v["gold"]),
    "math_equiv_toolstar": lambda v: {"equal": toolstar_equal(v["response"], v["gold"])},
    "sample_metrics": _sample,
    "overall_metrics": lambda v: arpo.overall_scores(v["task"], v["response"]),
    "llm_judge": _verdict,
    "rl_reward_arpo": lambda v: arpo_reward(v["response"], v["gold"]),
    "rl_reward_toolstar": _toolstar_reward,
    "toolstar_eval": _toolstar_row,
}


def _golds(vector: Vector) -> tuple[str, ...]:
    return accepted_answers(vector["gold"], spelled_lists=vector["task"] == "qa")


def _default_scores(vector: Vector) -> Values:
    return scores(answer_in(vector["response"]), _golds(vector), vector["task"])


def _default_row(vector: Vector) -> Values:
    row = vector["response"]
    return text_scores(row["output"], vector["gold"], vector["task"], row["prediction"])


def _default_means(vector: Vector) -> Values:
    rows = [
        text_scores(row["output"], row["answer"], vector["task"], row["prediction"])
        for row in vector["response"]
    ]
    found = dict(means(rows))
    return {**found, "num_valid_answer": f"{found['num_valid_answer']} of {found['n']}"}


def _default_verdict(vector: Vector) -> Values:
    row = vector["response"]
    if row["failures_first"] >= _JUDGE_TRIES:
        return {"llm_equal": exact_words(row["prediction"], accepted_answers(vector["gold"]))}
    return {"llm_equal": int(read_verdict(row["judge_reply"]) is True)}


def _default_reward(vector: Vector) -> Values:
    response = vector["response"].partition("<|im_start|>assistant\n")[2] or vector["response"]
    found = text_reward(response.removesuffix("<|im_end|>"), vector["gold"])
    return {"score": found.value, "correct": found.correct}


def _default_toolstar_row(vector: Vector) -> Values:
    output = vector["response"]["Output"]
    last_line = output.strip().rpartition("\n")[2]
    return scores(answer_in(output) or last_line, _golds(vector), vector["task"])


_DEFAULT: Mapping[str, Callable[[Vector], Values]] = {
    "extract_answer": lambda v: {"prediction": answer_in(v["response"])},
    "math_eval": _default_scores,
    "qa_eval": _default_scores,
    "math_equiv_toolstar": lambda v: {"equal": math_equal(v["response"], _golds(v))},
    "sample_metrics": _default_row,
    "overall_metrics": _default_means,
    "llm_judge": _default_verdict,
    "rl_reward_arpo": _default_reward,
    "rl_reward_toolstar": _default_reward,
    "toolstar_eval": _default_toolstar_row,
}


def _is_right(vector: Vector, found: Values) -> bool:
    """Whether the default scores satisfy `right`: its values, its range, or its verdict in the fields that were wrong."""
    right = vector["right"]
    if "score_range" in right:
        low, high = right["score_range"]
        return bool(low - _TOLERANCE <= found["score"] <= high + _TOLERANCE)
    if "verdict" in right:
        fields = [key for key in vector["wrong_fields"] if key in _SCORES] or ["em"]
        correct = right["verdict"] == "correct"
        return all((found[key] == 1) if correct else (found[key] < 1) for key in fields)
    values = {key: value for key, value in right.items() if key != "reason"}
    if not values:  # the one that says that productivity must not rise with calls
        return bool(found["correct_per_call"] * found["tool_counts"] <= found["em"] + _TOLERANCE)
    return all(_same(found[key], value) for key, value in values.items())


def _is_kept(kind: str, vector: Vector, found: Values) -> bool | None:
    expected, truth = vector["expected"], vector.get("truth")
    if kind in ("qa_eval", "math_eval", "math_equiv_toolstar", "toolstar_eval"):
        if truth is None:
            return None
        fields = [key for key in (*_SCORES, "equal") if key in expected]
        if kind == "math_eval" or vector["task"] == "math":
            fields = [key for key in fields if key in ("math_equal", "equal")]
        if truth == "correct":
            return all(found[key] >= expected[key] - _TOLERANCE for key in fields)
        return all(found[key] < 1 for key in fields if expected[key] < 1)
    if kind.startswith("rl_reward"):
        return _is_reward_kept(vector, found)
    differ = {"output_length"} | (
        {"acc", "f1"} if kind == "overall_metrics" and vector["task"] == "math" else set()
    )
    shared = [key for key in expected if key in found and key not in differ]
    return all(_same(found[key], expected[key]) for key in shared)


def _is_reward_kept(vector: Vector, found: Values) -> bool | None:
    """Full credit, none and refusal are the same, credit in part is some; Tool-Star's maths scale (0.1 and 0 for wrong) by
    its full credit alone.
    """
    score = vector["expected"]["score"]
    if vector["task"] == "rl_math":
        return bool(found["correct"] == 1) if score == 1 else None
    return bool(found["score"] > 0) if 0 < score < 1 else _same(found["score"], score)


def _same(found: object, expected: object) -> bool:
    if isinstance(found, int | float) and isinstance(expected, int | float):
        return abs(found - expected) <= _TOLERANCE
    return bool(found == expected)
