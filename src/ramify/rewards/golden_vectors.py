"""Checking scoring vectors of the papers' code (`ramify score --golden`) against compatibility mode and our own scores.

A vector has a response, a gold, the result of the papers' code (`expected`) and, if that is plainly wrong, the right
result (`right`). Compatibility mode must reproduce `expected`. Our own scores must satisfy `right`, and must preserve
what the papers' code got right. That check (`kept_n` and `kept_ok` in the report) looks only at vectors that are not
marked wrong, and only at verdicts: full credit or none. It ignores measures that differ on purpose (calls, which we count
by structure; productivity, which must not rise with calls). The vectors ask what a careful reader would accept, so for
em, f1, acc and rewards we use the score `lenient`.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ramify.core.errors import DataError
from ramify.rewards import compat_arpo as arpo
from ramify.rewards import compat_toolstar as toolstar
from ramify.rewards.answer_scores import SCORES, accepted_answers
from ramify.rewards.judge_prompt import read_verdict
from ramify.rewards.responses import answer_in, text_reward, text_scores

Vector: TypeAlias = Mapping[str, Any]
Values: TypeAlias = Mapping[str, Any]

_TOLERANCE = 1e-9
_SCORES = ("em", "acc", "f1", "math_equal")
_JUDGE_TRIES = 3


@dataclass(frozen=True, slots=True)
class Verdicts:
    """The modes in which a vector holds; None if a mode does not apply.

    Attributes:
        compat: Compatibility mode reproduces `expected`.
        right: Our own scores satisfy `right`.
        preserved: Our own scores agree with the papers' code where it is right.
    """

    compat: bool
    right: bool | None
    preserved: bool | None


def judge_vector(vector: Vector, wrong: frozenset[str] = frozenset()) -> Verdicts:
    """Score one vector in both modes. A vector that cannot be scored, such as one without a text, does not hold.

    Args:
        vector: One line of a file.
        wrong: Cases (`case_of`) that another vector marks as wrong; for such a case `preserved` is None.

    Raises:
        DataError: The vector's id names an unknown scorer.
    """
    kind = str(vector["id"]).rpartition("-")[0]
    if kind not in _COMPAT:
        names = ", ".join(sorted(_COMPAT))
        raise DataError(f"id {vector['id']!r}: expected a scorer of {names} before the last '-'")
    marked = bool(vector.get("seed_wrong"))
    try:
        scores = _DEFAULT[kind](vector)
        holds = _is_right(vector, scores) if marked else _is_preserved(kind, vector, scores)
    except Exception:  # noqa: BLE001 - anyone may have written the file
        holds = False
    if marked:
        return Verdicts(_is_reproduced(kind, vector), holds, None)
    return Verdicts(_is_reproduced(kind, vector), None, None if case_of(vector) in wrong else holds)


def case_of(vector: Vector) -> str:
    """Return the response and the gold as one key; vectors for Tool-Star's two rewards share them."""
    return json.dumps([vector["response"], vector["gold"]])


def _is_reproduced(kind: str, vector: Vector) -> bool:
    expected = vector["expected"]
    outcome: dict[str, Any] = {}
    try:
        if kind in ("math_eval", "qa_eval"):
            outcome["prediction"] = arpo.extract(vector["response"])
        outcome |= _COMPAT[kind](vector)
    except Exception as error:  # noqa: BLE001 - vectors also record the errors of the released code
        outcome["error"] = f"{type(error).__name__}: {error}"
    return outcome.keys() == expected.keys() and all(_same(outcome[key], expected[key]) for key in expected)


def _released_reward(vector: Vector) -> Values:
    score = toolstar.reward if vector["task"] == "rl" else toolstar.math_reward
    return score(vector["response"], vector["gold"])


def _released_row(vector: Vector) -> Values:
    row, extract = vector["response"], "extract_answer=True" in vector["scorer"]
    return toolstar.scores(vector["task"], row["Output"], row["Full_output"], vector["gold"], extract)


_COMPAT: Mapping[str, Callable[[Vector], Values]] = {
    "extract_answer": lambda v: {"prediction": arpo.extract(v["response"])},
    "math_eval": lambda v: arpo.math_scores(arpo.extract(v["response"]), v["gold"]),
    "qa_eval": lambda v: arpo.qa_scores(arpo.extract(v["response"]), v["gold"]),
    "math_equiv_toolstar": lambda v: {"equal": toolstar.equal(v["response"], v["gold"])},
    "sample_metrics": lambda v: arpo.sample_scores(
        v["task"], v["response"]["output"], v["response"]["prediction"], v["gold"]
    ),
    "overall_metrics": lambda v: arpo.overall_scores(v["task"], v["response"]),
    "llm_judge": lambda v: arpo.judge_scores(
        v["response"]["prediction"], v["gold"], v["response"]["judge_reply"], v["response"]["failures_first"]
    ),
    "rl_reward_arpo": lambda v: arpo.reward(v["response"], v["gold"]),
    "rl_reward_toolstar": _released_reward,
    "toolstar_eval": _released_row,
}


def _answered(vector: Vector) -> Values:
    return _accepted(answer_in(vector["response"]), vector["gold"], vector["task"])


def _accepted(prediction: str, gold: object, task: str) -> Values:
    golds = accepted_answers(gold, spelled_lists=task == "qa") if prediction.strip() else ()
    if task == "math":
        scores = dict.fromkeys(_SCORES, SCORES["math_equal"](prediction, golds))
        return {**scores, "em": SCORES["em"](prediction, golds)}
    lenient = SCORES["lenient"](prediction, golds)
    same = float(lenient == 1)
    return {"em": same, "f1": lenient, "acc": SCORES["acc"](prediction, golds), "math_equal": same}


def _row(row: Mapping[str, Any], gold: object, task: Literal["math", "qa"]) -> Values:
    scores = text_scores(row["output"], gold, task, row["prediction"])
    return {**scores, **_accepted(row["prediction"] if scores["is_valid_answer"] else "", gold, task)}


def _means(vector: Vector) -> Values:
    rows = [_row(row, row["answer"], vector["task"]) for row in vector["response"]]
    names = (*_SCORES, "python_calls", "search_calls", "tool_counts")
    means = {name: sum(float(row[name]) for row in rows) / max(1, len(rows)) for name in names}
    valid = sum(bool(row["is_valid_answer"]) for row in rows)
    per_call = means["em"] / means["tool_counts"] if means["tool_counts"] else 0.0
    return {**means, "num_valid_answer": f"{valid} of {len(rows)}", "correct_per_call": per_call}


def _verdict(vector: Vector) -> Values:
    row = vector["response"]
    if row["failures_first"] >= _JUDGE_TRIES:
        return {"llm_equal": SCORES["lenient"](row["prediction"], accepted_answers(vector["gold"])) == 1}
    return {"llm_equal": int(read_verdict(row["judge_reply"]) is True)}


def _rewarded(vector: Vector) -> Values:
    response = vector["response"].partition("<|im_start|>assistant\n")[2] or vector["response"]
    reward = text_reward(response.removesuffix("<|im_end|>"), vector["gold"], trained=SCORES["lenient"])
    return {"score": reward.value, "correct": reward.parts["correct"]}


def _toolstar_row(vector: Vector) -> Values:
    output = vector["response"]["Output"]
    last_line = output.strip().rpartition("\n")[2]
    return _accepted(answer_in(output) or last_line, vector["gold"], vector["task"])


_DEFAULT: Mapping[str, Callable[[Vector], Values]] = {
    "extract_answer": lambda v: {"prediction": answer_in(v["response"])},
    "math_eval": _answered,
    "qa_eval": _answered,
    "math_equiv_toolstar": lambda v: {"equal": SCORES["math_equal"](v["response"], [str(v["gold"])])},
    "sample_metrics": lambda v: _row(v["response"], v["gold"], v["task"]),
    "overall_metrics": _means,
    "llm_judge": _verdict,
    "rl_reward_arpo": _rewarded,
    "rl_reward_toolstar": _rewarded,
    "toolstar_eval": _toolstar_row,
}


def _is_right(vector: Vector, scores: Values) -> bool:
    """Return True if our scores satisfy `right`: its range, its verdict on the fields that were wrong, or its values."""
    right = vector["right"]
    if "score_range" in right:
        low, high = right["score_range"]
        return bool(low - _TOLERANCE <= scores["score"] <= high + _TOLERANCE)
    if "verdict" in right:
        fields = [key for key in vector["wrong_fields"] if key in _SCORES] or ["em"]
        return all((scores[key] == 1) == (right["verdict"] == "correct") for key in fields)
    values = {key: value for key, value in right.items() if key != "reason"}
    if not values:  # the vector which requires that productivity does not rise with calls
        return bool(scores["correct_per_call"] * scores["tool_counts"] <= scores["em"] + _TOLERANCE)
    return all(_same(scores[key], value) for key, value in values.items())


def _is_preserved(kind: str, vector: Vector, scores: Values) -> bool | None:
    expected, truth = vector["expected"], vector.get("truth")
    if kind.startswith("rl_reward"):
        return _is_reward_preserved(vector, scores)
    if kind in ("sample_metrics", "overall_metrics", "llm_judge", "extract_answer"):
        differ = {"output_length"}
        if kind == "overall_metrics" and vector["task"] == "math":
            differ |= {"acc", "f1"}
        return all(_same(scores[key], expected[key]) for key in expected.keys() & scores.keys() - differ)
    names: Sequence[str] = ("math_equal", "equal") if vector["task"] == "math" else _SCORES
    fields = [key for key in names if key in expected]
    if truth == "correct":
        return all(scores[key] >= expected[key] - _TOLERANCE for key in fields)
    return all(scores[key] < 1 for key in fields if expected[key] < 1) if truth else None


def _is_reward_preserved(vector: Vector, scores: Values) -> bool | None:
    """Return True if a reward is preserved: full credit, none and -1 must be equal; partial credit must only be above 0.

    Of Tool-Star's scale for mathematics, where wrong answers get 0.1 or 0, only full credit is compared.
    """
    score = vector["expected"]["score"]
    if vector["task"] == "rl_math":
        return bool(scores["correct"] == 1) if score == 1 else None
    return bool(scores["score"] > 0) if 0 < score < 1 else _same(scores["score"], score)


def _same(actual: object, expected: object) -> bool:
    if isinstance(actual, int | float) and isinstance(expected, int | float):
        return abs(actual - expected) <= _TOLERANCE
    return bool(actual == expected)
