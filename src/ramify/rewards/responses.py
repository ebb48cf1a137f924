"""Scores of responses that are only text, without a record of the run (`ramify score`): ours, or the released code's.

`chat.tags` reads their structure. The text does not say whether a program failed, so every call with a result
counts as successful. A recorded trajectory does say so (`trajectory_rewards`).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, cast

from ramify.chat.tags import TOOLS, final_answer, read_response, without_results
from ramify.core.records import Reward
from ramify.rewards import compat_arpo as arpo
from ramify.rewards import compat_toolstar as toolstar
from ramify.rewards.answer_scores import SCORES, AnswerScore, accepted_answers
from ramify.rewards.extract import has_closed_box, read_answer

Row: TypeAlias = Mapping[str, Any]

REPORTED = ("em", "f1", "lenient", "acc", "math_equal", "unread", "timeout")
_COUNTED = ("unread", "timeout")
_FAILED_RUN = ("[Timeout (exceeding", "Error: ")
"""Texts that the papers' code writes if a run timed out or failed."""


def answer_in(response: str) -> str:
    r"""Return the answer in the text of a whole response: the last box of its last answer tag, or that tag's text.

    Without an answer tag, or with an empty one: the last box in everything that the policy wrote; "" if there is none.
    """
    written = without_results(response)
    return read_answer(final_answer(written) or "", written)


def text_reward(response: str, gold: object, *, trained: AnswerScore = SCORES["answer"]) -> Reward:
    """Return the hierarchical reward: -1 if not well formed, else the trained score, plus a bonus of 0.1.

    The bonus requires a score above 0 and results of both search and Python.
    """
    read = read_response(response)
    if read.fault or not has_closed_box(read.answer):
        return Reward(-1.0, {"correct": 0.0, "format": 0.0, "bonus": 0.0})
    correct = trained(read_answer(read.answer, read.written), accepted_answers(gold))
    earned = 0.1 if correct > 0 and set(read.calls) >= set(TOOLS) else 0.0
    return Reward(correct + earned, {"correct": correct, "format": 1.0, "bonus": earned})


def text_scores(
    response: str, gold: object, task: Literal["math", "qa"], prediction: str | None = None
) -> Mapping[str, float | str | bool]:
    """Return a row of results: the scores, and the calls counted from the response's structure.

    Args:
        response: The whole response.
        gold: One answer or a list of them.
        task: For "qa", a gold in brackets is a list of answers.
        prediction: The answer, if it was read before; by default it is read from the response.
    """
    answer = answer_in(response) if prediction is None else prediction
    golds = accepted_answers(gold, spelled_lists=task == "qa")
    failed = response.startswith(_FAILED_RUN[1]) or _FAILED_RUN[0] in response[-80:]
    is_valid = bool(answer.strip()) and not failed
    calls = read_response(response).calls
    return {
        "prediction": answer,
        "is_valid_answer": is_valid,
        **{name: SCORES[name](answer, golds) if is_valid else 0.0 for name in REPORTED},
        "python_calls": calls.count("python"),
        "search_calls": calls.count("search"),
        "tool_counts": len(calls),
        "tools_used": "both" if set(calls) >= set(TOOLS) else calls[0] if calls else "none",
        "output_length": len(without_results(response)),
    }


def row_scores(
    response: str, gold: object, task: str, compat: str | None, prediction: str | None = None
) -> Row:
    """Return the scores of one response; `task` is "math", "qa" or "reward", `compat` None, "arpo" or "toolstar".

    `prediction` is the answer that the released code wrote beside the response; it scores that one.

    Raises:
        TypeError, IndexError: The released code fails on this gold.
    """
    if task == "reward":
        return _reward(response, gold, compat)
    kind = cast(Literal["math", "qa"], task)
    if compat is None:
        return text_scores(response, gold, kind)
    prediction = arpo.extract(response) if prediction is None else prediction
    if compat == "toolstar":
        scores = toolstar.scores(kind, toolstar.scored_part(prediction), response, gold, extract=True)
        return {"prediction": prediction, **scores}
    return {"prediction": prediction, **arpo.sample_scores(kind, response, prediction, gold)}


def _reward(response: str, gold: object, compat: str | None) -> Row:
    if compat is None:
        reward = text_reward(response, gold)
        return {
            "reward": reward.value,
            **reward.parts,
            **{name: SCORES[name](answer_in(response), accepted_answers(gold)) for name in _COUNTED},
        }
    golds = gold if isinstance(gold, str) else [str(each) for each in cast(Sequence[object], gold)]
    scored = arpo.reward(response, golds) if compat == "arpo" else toolstar.reward(response, golds)
    return {"reward": scored["score"], "reason": scored["reason"]}


Figures = dict[str, float | str | None]

_MARGIN = 0.1


class RowAverages:
    """Adds up the scores of responses (`responses.row_scores`); rows are not stored.

    The figures of the release are those of its `calculate_overall_metrics`: "accuracy" is the judge's verdict if some row has one,
    else math_equal for mathematics and f1 for questions.
    """

    def __init__(self, task: str, compat: str | None = None) -> None:
        """Start with no rows; arguments as for `row_scores`."""
        self._task, self._compat = task, compat
        self._rows = self._judged = self._valid = self._used = self._used_right = self._judged_right = 0
        self._verdicts = 0.0
        self._sums: defaultdict[str, float] = defaultdict(float)

    def add(self, scores: Mapping[str, float | str | bool], verdict: float | None = None) -> None:
        """Add a row; `verdict` is a judge's, None if there is none."""
        self._rows += 1
        for name, value in scores.items():
            if isinstance(value, int | float) and name != "id":
                self._sums[name] += float(value)
        if self._task == "reward":
            return
        self._valid += bool(scores["is_valid_answer"])
        if verdict is not None:
            self._judged += 1
            self._verdicts += verdict
        if float(scores["tool_counts"]) > 0:
            self._used += 1
            self._used_right += float(scores[self._measure]) >= 1.0
            self._judged_right += verdict is not None and verdict >= 1.0

    def result(self) -> Figures:
        """Return the number of rows, the mean of every number in them (of "unread" and "timeout" the sums), and the release's figures."""
        means: Figures = {"n": self._rows}
        means |= {name: total / self._rows for name, total in self._sums.items()}
        means |= {name: int(self._sums[name]) for name in _COUNTED if name in self._sums}
        return means if self._task == "reward" or not self._rows else means | self._released()

    @property
    def _measure(self) -> str:
        return "math_equal" if self._task == "math" else "f1"

    def _released(self) -> Figures:
        rows = self._rows
        judged = {"llm_equal": self._verdicts / self._judged} if self._judged else {}
        accuracy = judged.get("llm_equal", self._sums[self._measure] / rows)
        calls, used = self._sums["tool_counts"] / rows, self._used / rows
        productivity: float | None = accuracy * calls / (calls + _MARGIN) * 100
        m1m2 = productivity
        if self._compat == "toolstar":
            productivity = accuracy / calls if calls else None
            m1m2 = used * accuracy / (calls + _MARGIN) * 100
        right = self._judged_right if self._judged else self._used_right
        return {
            **judged,
            "num_valid_answer": f"{self._valid} of {rows}",
            "tool_productivity": productivity,
            "average_datas_used_tool_number": used,
            "tool_call": calls,
            **{
                f"average_{name}": self._sums[name] / rows
                for name in ("python_calls", "search_calls")
                if name in self._sums
            },
            "m1m2": m1m2,
            "TE": right / self._used if self._used else None,
        }
