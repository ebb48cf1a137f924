"""Scores of responses that came as text, without a record of what ran (`ramify score`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ramify.rewards.answer_scores import AnswerScore, answer, scores
from ramify.rewards.extract import answer_in, has_closed_box, without_results
from ramify.rewards.qa import accepted_answers
from ramify.rewards.response_text import read_response

_BOTH_TOOLS = frozenset({"search", "python"})
_FAILED_RUN = ("[Timeout (exceeding", "Error: ")


@dataclass(frozen=True, slots=True)
class TextReward:
    """The hierarchical reward of a response: `value`, and its parts."""

    value: float
    correct: float
    well_formed: bool
    bonus: float


def text_reward(
    response: str, gold: object, *, trained: AnswerScore = answer, bonus: float = 0.1
) -> TextReward:
    """-1 unless well formed by structure, else the trained score, plus `bonus` when search and Python both answered.

    A response does not say whether a program failed, so every call with a result earns the bonus here; a recorded
    trajectory says it (`answer_reward`).
    """
    read = read_response(response)
    if read.fault or not has_closed_box(_tagged(read.written)):
        return TextReward(-1.0, 0.0, False, 0.0)
    correct = trained(answer_in(response), accepted_answers(gold))
    earned = bonus if correct > 0 and set(read.calls) >= _BOTH_TOOLS else 0.0
    return TextReward(correct + earned, correct, True, earned)


def text_scores(
    response: str, gold: object, task: Literal["math", "qa"], prediction: str | None = None
) -> Mapping[str, float | str | bool]:
    """A row of results: the four scores, and calls as the response's structure shows them.

    Args:
        response: The whole response.
        gold: One answer or a list of them.
        task: How the answer is compared.
        prediction: The answer where it was read before; by default it is read from the response.
    """
    found = answer_in(response) if prediction is None else prediction
    golds = accepted_answers(gold, spelled_lists=task == "qa")
    is_valid = bool(found.strip()) and not _is_failed_run(response)
    calls = read_response(response).calls
    return {
        "prediction": found,
        "is_valid_answer": is_valid,
        **scores(found if is_valid else "", golds, task),
        "python_calls": calls.count("python"),
        "search_calls": calls.count("search"),
        "tool_counts": len(calls),
        "tools_used": "both" if set(calls) >= _BOTH_TOOLS else calls[0] if calls else "none",
        "output_length": len(without_results(response)),
    }


def means(rows: Sequence[Mapping[str, float | str | bool]]) -> Mapping[str, float | int]:
    """Means over rows; `correct_per_call` falls with calls that bring nothing, as the references' measure does not."""
    names = ("em", "f1", "acc", "math_equal", "python_calls", "search_calls", "tool_counts")
    count = max(1, len(rows))
    averages = {name: sum(float(row[name]) for row in rows) / count for name in names}
    calls = sum(float(row["tool_counts"]) for row in rows)
    correct = sum(float(row["em"]) for row in rows)
    return {
        "n": len(rows),
        "num_valid_answer": sum(bool(row["is_valid_answer"]) for row in rows),
        **averages,
        "used_tools": sum(float(row["tool_counts"]) > 0 for row in rows) / count,
        "correct_per_call": correct / calls if calls else 0.0,
    }


def _tagged(written: str) -> str:
    opening = written.rfind("<answer>")
    return written[opening : written.find("</answer>", opening)] if opening >= 0 else ""


def _is_failed_run(response: str) -> bool:
    """What the references write where a run timed out or broke."""
    return response.startswith(_FAILED_RUN[1]) or _FAILED_RUN[0] in response[-80:]
