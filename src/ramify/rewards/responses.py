"""Scores of responses that are only text, without a record of the run (`ramify score`): ours, or the released code's.

A call is a closed tool tag with a result directly after it; tags quoted in a result or a thought do not count. The text
does not say whether a program failed, so every call with a result counts as successful. A recorded trajectory does say
so (`answer_reward`).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

from ramify.rewards import compat_arpo as arpo
from ramify.rewards import compat_toolstar as toolstar
from ramify.rewards.answer_scores import SCORES, AnswerScore, accepted_answers
from ramify.rewards.extract import answer_in, has_closed_box, without_results

Row: TypeAlias = Mapping[str, Any]

REPORTED = ("em", "f1", "lenient", "acc", "math_equal", "unread", "timeout")
_COUNTED = ("unread", "timeout")
_TOOLS = ("search", "python")
_CALL = re.compile(r"<(search|python)>((?:(?!</?(?:search|python|result)>).)*)</\1>\s*$", re.DOTALL)
_THOUGHT = re.compile(r"<think>(?:(?!</?think>).)*</think>", re.DOTALL)
_REFUSAL = re.compile(
    r"\s*(?:the maximum (?:search|python) (?:call )?limit is|you have (?:already )?searched)", re.IGNORECASE
)
_FAILED_RUN = ("[Timeout (exceeding", "Error: ")
"""What the papers' code writes if a run timed out or failed."""


@dataclass(frozen=True, slots=True)
class ResponseText:
    """The structure of a response.

    Attributes:
        written: The text that the policy wrote, without tool results.
        calls: Names of the tools called before the answer, in order, without refused calls.
        fault: Why the structure is broken; "" if it is not.
    """

    written: str
    calls: tuple[str, ...]
    fault: str


@dataclass(frozen=True, slots=True)
class TextReward:
    """The hierarchical reward of a response: its `value` and its parts."""

    value: float
    correct: float
    well_formed: bool
    bonus: float


def read_response(response: str) -> ResponseText:
    """Read the structure of a response, in time linear in its length."""
    calls: list[str] = []
    spoken: list[str] = []
    fault, position, answered = "", 0, False
    while (opening := response.find("<result>", position)) >= 0:
        before = response[position:opening]
        name, start = _call_at_end(before)
        closing = response.find("</result>", opening)
        answered = answered or "</answer>" in _THOUGHT.sub("", before[:start])
        if not name:
            fault = fault or "a result follows no call"
        elif closing < 0:
            fault = fault or "a result is not closed"
        elif not answered and not _REFUSAL.match(response, opening + len("<result>"), closing):
            calls.append(name)
        spoken.append(before[:start])
        position = len(response) if closing < 0 else closing + len("</result>")
    spoken.append(response[position:])
    return ResponseText(without_results(response), tuple(calls), fault or _fault("".join(spoken)))


def text_reward(
    response: str, gold: object, *, trained: AnswerScore = SCORES["answer"], bonus: float = 0.1
) -> TextReward:
    """-1 if not well formed, else the trained score, plus `bonus` if that is above 0 and search and Python both answered."""
    read = read_response(response)
    if read.fault or not has_closed_box(_tagged(read.written)):
        return TextReward(-1.0, 0.0, False, 0.0)
    correct = trained(answer_in(response), accepted_answers(gold))
    earned = bonus if correct > 0 and set(read.calls) >= set(_TOOLS) else 0.0
    return TextReward(correct + earned, correct, True, earned)


def text_scores(
    response: str, gold: object, task: Literal["math", "qa"], prediction: str | None = None
) -> Mapping[str, float | str | bool]:
    """A row of results: the scores, and the calls counted from the response's structure.

    Args:
        response: The whole response.
        gold: One answer or a list of them.
        task: For "qa", a gold in brackets is a list of answers.
        prediction: The answer, if it was read before; by default it is read from the response.
    """
    found = answer_in(response) if prediction is None else prediction
    golds = accepted_answers(gold, spelled_lists=task == "qa")
    failed = response.startswith(_FAILED_RUN[1]) or _FAILED_RUN[0] in response[-80:]
    is_valid = bool(found.strip()) and not failed
    calls = read_response(response).calls
    return {
        "prediction": found,
        "is_valid_answer": is_valid,
        **{name: SCORES[name](found, golds) if is_valid else 0.0 for name in REPORTED},
        "python_calls": calls.count("python"),
        "search_calls": calls.count("search"),
        "tool_counts": len(calls),
        "tools_used": "both" if set(calls) >= set(_TOOLS) else calls[0] if calls else "none",
        "output_length": len(without_results(response)),
    }


def row_scores(response: str, gold: object, task: str, compat: str | None) -> Row:
    """The scores of one response; `task` is "math", "qa" or "reward", `compat` None, "arpo" or "toolstar".

    Raises:
        TypeError, IndexError: The released code fails on this gold.
    """
    if task == "reward":
        return _reward(response, gold, compat)
    kind = cast(Literal["math", "qa"], task)
    if compat is None:
        return text_scores(response, gold, kind)
    prediction = arpo.extract(response)
    if compat == "toolstar":
        scores = toolstar.scores(kind, toolstar.kept_of(prediction), response, gold, extract=True)
        return {"prediction": prediction, **scores}
    return {"prediction": prediction, **arpo.sample_scores(kind, response, prediction, gold)}


def averages(rows: Sequence[Row]) -> Row:
    """The number of rows, and the mean of every number in them; for "unread" and "timeout" their sums."""
    names = {
        key: None
        for row in rows
        for key, value in row.items()
        if isinstance(value, int | float) and key != "id"
    }
    sums = {name: sum(float(row.get(name, 0.0)) for row in rows) for name in names}
    found: dict[str, float] = {"n": len(rows), **{name: total / len(rows) for name, total in sums.items()}}
    return found | {name: int(sums[name]) for name in _COUNTED if name in sums}


def _reward(response: str, gold: object, compat: str | None) -> Row:
    if compat is None:
        found = text_reward(response, gold)
        return {
            "reward": found.value,
            "correct": found.correct,
            "format": float(found.well_formed),
            "bonus": found.bonus,
            **{name: SCORES[name](answer_in(response), accepted_answers(gold)) for name in _COUNTED},
        }
    golds = gold if isinstance(gold, str) else [str(each) for each in cast(Sequence[object], gold)]
    scored = arpo.reward(response, golds) if compat == "arpo" else toolstar.reward(response, golds)
    return {"reward": scored["score"], "reason": scored["reason"]}


def _call_at_end(text: str) -> tuple[str, int]:
    """Tool name and start of the call at the end of the text; ("", length of the text) if it does not end with a call."""
    start = max(text.rfind(f"<{tool}>") for tool in _TOOLS)
    match = _CALL.match(text, start) if start >= 0 else None
    return (match.group(1), start) if match else ("", len(text))


def _fault(spoken: str) -> str:
    """What is wrong with the text outside calls and results; "" if nothing is."""
    if spoken.count("<think>") != spoken.count("</think>"):
        return "thoughts are not paired"
    outside = _THOUGHT.sub(lambda match: "<think>".ljust(len(match.group())), spoken)
    if outside.count("<answer>") != 1 or outside.count("</answer>") != 1:
        return "not one answer"
    if outside.find("<answer>") > outside.find("</answer>"):
        return "the answer closes before it opens"
    if "<think>" not in outside[: outside.find("<answer>")]:
        return "no thought before the answer"
    if any(f"<{tool}>" in outside or f"</{tool}>" in outside for tool in _TOOLS):
        return "a call has no result"
    return ""


def _tagged(written: str) -> str:
    opening = written.rfind("<answer>")
    return written[opening : written.find("</answer>", opening)] if opening >= 0 else ""
