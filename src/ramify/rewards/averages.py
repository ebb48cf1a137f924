"""Averages over the rows of a result file, and the figures of the papers' result tables, row by row."""

from collections import defaultdict
from collections.abc import Mapping

Figures = dict[str, float | str | None]

_COUNTED = ("unread", "timeout")
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
