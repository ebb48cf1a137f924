"""Scores of an evaluation (pass@k, mean@k, majority@k, parts of the reward) and the contents of summary.json and times.json.

Each score has a confidence interval over problems.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any

from ramify.core.errors import DataError
from ramify.core.records import TokenUsage
from ramify.core.tree import StopReason
from ramify.eval.results import GROUPS, AttemptRecord, AttemptTimes, Outcome, TimedCall
from ramify.eval.statistics import (
    Interval,
    calibration_error,
    judge_agreement,
    mean_interval,
    pass_at_k,
)
from ramify.obs.metrics import service_table
from ramify.obs.token_counts import PriceConfig
from ramify.rewards.answer_scores import same_answer
from ramify.runtime.call_clock import EventLoopLag

SCHEMA = 1
_OUTCOMES: tuple[Outcome, ...] = ("executed", "failed", "refused")


@dataclass(frozen=True, slots=True)
class ProblemResult:
    """All attempts at one problem, in order; `groups` has the problem's values in the columns of `GROUPS`."""

    id: str
    groups: Mapping[str, str]
    attempts: tuple[AttemptRecord, ...]

    @property
    def num_correct(self) -> int:
        """Number of correct attempts."""
        return sum(attempt.correct for attempt in self.attempts)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Results in the order of the problems, with the same number of attempts at each; `seed` is that of the intervals' bootstrap."""

    results: tuple[ProblemResult, ...]
    seed: int

    @property
    def attempts(self) -> tuple[AttemptRecord, ...]:
        """All attempts, problem by problem."""
        return tuple(attempt for result in self.results for attempt in result.attempts)

    def pass_at(self, k: int) -> Interval:
        """Return the mean over problems of the unbiased pass@k (Chen et al. 2021), with its 95 % interval.

        Raises:
            ValueError: Fewer than k attempts a problem.
        """
        return self._mean([pass_at_k(len(r.attempts), r.num_correct, k) for r in self.results])

    def mean_at(self, k: int) -> Interval:
        """Return the share of correct attempts among the first k."""
        return self._mean([sum(a.correct for a in r.attempts[:k]) / k for r in self.results])

    def majority_at(self, k: int) -> Interval:
        """Return the share of problems whose most frequent answer among the first k attempts is correct."""
        return self._mean([float(majority(result.attempts[:k])) for result in self.results])

    def part(self, name: str) -> Interval | None:
        """Return the mean over problems of a part of the reward; None if no attempt has it.

        Each problem's value is the mean over its attempts that have the part; problems without any are left out.
        """
        by_problem = [[a.parts[name] for a in r.attempts if name in a.parts] for r in self.results]
        means = [sum(values) / len(values) for values in by_problem if values]
        return self._mean(means) if means else None

    @property
    def part_names(self) -> tuple[str, ...]:
        """Parts of the reward that at least one attempt has, sorted."""
        return tuple(sorted({name for attempt in self.attempts for name in attempt.parts}))

    def values(self, column: str) -> tuple[str, ...]:
        """Return the distinct values that problems have in a column of `GROUPS`, sorted."""
        return tuple(sorted({r.groups[column] for r in self.results if column in r.groups}))

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of `GROUPS` that at least one problem has."""
        return tuple(column for column in GROUPS if self.values(column))

    def of(self, column: str, value: str) -> "Evaluation":
        """Return the evaluation restricted to the problems with this value in this column."""
        return replace(self, results=tuple(r for r in self.results if r.groups.get(column) == value))

    @property
    def calls_per_attempt(self) -> float:
        """Mean number of tool calls that got a result, so without calls over the limit."""
        counts = [sum(call.status != "over_limit" for call in attempt.calls) for attempt in self.attempts]
        return sum(counts) / len(counts)

    @property
    def by_verdict(self) -> "Evaluation":
        """The same attempts, correct if the judge's verdict says so; an attempt without a verdict is not correct."""
        results = (
            replace(
                result,
                attempts=tuple(
                    replace(attempt, correct=attempt.parts.get("judge", 0.0) >= 1.0)
                    for attempt in result.attempts
                ),
            )
            for result in self.results
        )
        return replace(self, results=tuple(results))

    def _mean(self, values: Sequence[float]) -> Interval:
        return mean_interval(values, self.seed)


def make_evaluation(
    records: Sequence[AttemptRecord], problem_ids: Sequence[str], attempts: int, seed: int
) -> Evaluation:
    """Return the evaluation that these records are all attempts of: `attempts` at each problem.

    Raises:
        DataError: An attempt is missing, or belongs to none of these problems.
    """
    by_key = {(record.problem, record.attempt): record for record in records}
    expected = [(problem, number) for problem in problem_ids for number in range(attempts)]
    missing = [key for key in expected if key not in by_key]
    unknown = by_key.keys() - set(expected)
    if missing or unknown:
        problem, number = missing[0] if missing else min(unknown)
        mismatch = (
            f"{len(missing)} are missing" if missing else f"{len(unknown)} belong to no problem of the data"
        )
        raise DataError(
            f"the results are not the {len(expected)} attempts of this evaluation: {mismatch}, the first is attempt "
            f"{number} at problem {problem!r}. Finish it with --resume, or evaluate in a new run.dir"
        )
    results = []
    for problem in problem_ids:
        of_problem = tuple(by_key[problem, number] for number in range(attempts))
        results.append(ProblemResult(problem, of_problem[0].groups, of_problem))
    return Evaluation(tuple(results), seed)


def majority(attempts: Sequence[AttemptRecord]) -> bool:
    """Return True if the most frequent answer is correct; among equally frequent answers the one given first wins.

    Two answers are the same if the scores treat them as equal: equal values if the first one is mathematics (without
    symbolic comparison), else equal words. Attempts without an answer do not vote. The winning answer is correct if any
    attempt that gave it was: other attempts may have been marked wrong for their format, or have no verdict.
    """
    voters = [attempt for attempt in attempts if attempt.answer.strip()]
    if not voters:
        return False
    # Each spelling of an answer votes for the first spelling that the scores treat as equal to it.
    vote_of: dict[str, str] = {}
    for answer in dict.fromkeys(attempt.answer for attempt in voters):
        vote_of[answer] = next((first for first in vote_of.values() if same_answer(answer, first)), answer)
    # most_common keeps equally frequent answers in order of first appearance.
    winner = Counter(vote_of[attempt.answer] for attempt in voters).most_common(1)[0][0]
    return any(attempt.correct for attempt in voters if vote_of[attempt.answer] == winner)


def summarise(
    evaluation: Evaluation,
    ks: Sequence[int],
    price: PriceConfig | None,
    *,
    judged: bool = False,
    helper: TokenUsage | None = None,
    null: Mapping[str, Interval] = MappingProxyType({}),
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the content of summary.json.

    It has no times, so that two runs with a deterministic engine give the same content. An interval is {value, low, high,
    n}: a mean over n problems with the bounds of its 95 % interval.

    Args:
        evaluation: All attempts.
        ks: Values of k.
        price: Price of tokens; None: leave out the cost.
        judged: Show the judge's section even if no answer has a verdict yet, because the recipe has a judge.
        helper: Tokens that the helper model of the repair tools used in this session; None: there is none.
        null: Scores of the null agents (`eval.null_agents`), by their names.
        notes: Notes about the problems, such as how many were dropped.
    """
    attempts = len(evaluation.results[0].attempts)
    stops = Counter(attempt.stop for attempt in evaluation.attempts)
    return {
        "schema": SCHEMA,
        "num_problems": len(evaluation.results),
        "attempts": attempts,
        "notes": list(notes),
        **_scores(evaluation, ks),
        "not_compared": not_compared(evaluation.attempts),
        "groups": {
            column: {
                value: {
                    **_scores(group := evaluation.of(column, value), ks),
                    "calls_per_attempt": group.calls_per_attempt,
                    **_calibration(group),
                }
                for value in evaluation.values(column)
            }
            for column in evaluation.columns
        },
        **({"judge": _judge(evaluation, ks)} if judged or "judge" in evaluation.part_names else {}),
        **({"null": {name: asdict(interval) for name, interval in null.items()}} if null else {}),
        "stops": {reason: stops[reason] for reason in StopReason},
        "tools": tool_table(evaluation),
        "repairs": repair_table(evaluation),
        **({} if helper is None else {"helper": asdict(helper)}),
        "calls_per_attempt": evaluation.calls_per_attempt,
        "tokens": _tokens(evaluation.attempts),
        **({} if price is None else {"cost": _cost(evaluation, price)}),
    }


def tool_table(evaluation: Evaluation) -> dict[str, dict[str, Any]]:
    """Return for each tool its calls by outcome, the attempts that used it or did not, and how many of each were correct.

    Every call is executed, failed (it raised or timed out) or refused without running (unreadable, unknown tool, over
    the limit). `repeated` counts calls, of any outcome, that the same attempt had made before. An attempt used a tool if
    a call of it was executed.
    """
    attempts = evaluation.attempts
    names = sorted({call.tool for attempt in attempts for call in attempt.calls})
    return {name: _tool_row(name, attempts) for name in names}


def repair_table(evaluation: Evaluation) -> dict[str, dict[str, int]]:
    """Return for each repair (a rewriter, or an outcome of the debugger) its number, its attempts and how many of these are correct."""
    attempts = evaluation.attempts
    names = sorted({name for attempt in attempts for name in attempt.repairs})
    table = {}
    for name in names:
        with_it = [attempt for attempt in attempts if name in attempt.repairs]
        table[name] = {
            "times": sum(attempt.repairs[name] for attempt in with_it),
            "attempts": len(with_it),
            "correct": sum(attempt.correct for attempt in with_it),
        }
    return table


def summarise_times(times: Sequence[AttemptTimes], lag: EventLoopLag) -> dict[str, Any]:
    """Return the content of times.json: seconds of attempts, of each tool's calls (running, queued), of a blocked event loop.

    Args:
        times: Lines of times.jsonl.
        lag: Time that the event loop was blocked since the evaluation was started or resumed.
    """
    calls: dict[str, list[TimedCall]] = {}
    for line in times:
        for call in line.calls:
            calls.setdefault(call.tool, []).append(call)
    return {
        "attempts": _spread([line.seconds for line in times]),
        "calls": {
            tool: {
                **_spread([call.seconds for call in tool_calls]),
                "queued": _spread([call.queued_seconds for call in tool_calls]),
            }
            for tool, tool_calls in sorted(calls.items())
        },
        "event_loop": {"held_up": lag.seconds, "longest": lag.longest},
    }


def summarise_services(times: Sequence[AttemptTimes]) -> dict[str, Any]:
    """Return the key `services` of summary.json, the counts of the services behind tool calls; nothing if there were none."""
    counts: Counter[str] = Counter()
    for line in times:
        for call in line.calls:
            counts.update(call.services)
    table = service_table(counts)
    return {"services": table} if table else {}


def _scores(evaluation: Evaluation, ks: Sequence[int]) -> dict[str, Any]:
    """Return the scores by k, and the means of the reward's parts."""
    parts = {name: evaluation.part(name) for name in evaluation.part_names}
    return {
        **_scores_by_k(evaluation, ks),
        "parts": {name: asdict(mean) for name, mean in parts.items() if mean is not None},
    }


def _calibration(evaluation: Evaluation) -> dict[str, Any]:
    """Return the calibration error over the attempts that state a confidence; nothing if none does."""
    stated = [attempt for attempt in evaluation.attempts if "confidence" in attempt.parts]
    if not stated:
        return {}
    error = calibration_error([a.parts["confidence"] for a in stated], [a.correct for a in stated])
    return {"calibration": {"n": len(stated), "error": error}}


def _scores_by_k(evaluation: Evaluation, ks: Sequence[int]) -> dict[str, Any]:
    return {
        "pass_at": {str(k): asdict(evaluation.pass_at(k)) for k in ks},
        "mean_at": {str(k): asdict(evaluation.mean_at(k)) for k in ks},
        "majority_at": {str(k): asdict(evaluation.majority_at(k)) for k in ks},
    }


def not_compared(attempts: Sequence[AttemptRecord]) -> dict[str, int]:
    """Return the numbers of answers counted as wrong without a comparison: `unread` cannot be parsed, `timeout` took too long."""
    return {
        name: sum(attempt.parts.get(name, 0.0) > 0 for attempt in attempts) for name in ("unread", "timeout")
    }


def _judge(evaluation: Evaluation, ks: Sequence[int]) -> dict[str, Any]:
    """Return the counts of verdicts, their agreement with the other scores, and the scores by k if verdicts decide."""
    parts = [attempt.parts for attempt in evaluation.attempts]
    verdicts = [scores["judge"] for scores in parts if "judge" in scores]
    return {
        "judged": len(verdicts),
        "right": sum(verdict >= 1.0 for verdict in verdicts),
        "without_verdict": len(parts) - len(verdicts),
        "agreement": judge_agreement(parts),
        **_scores_by_k(evaluation.by_verdict, ks),
    }


def _tool_row(name: str, attempts: Sequence[AttemptRecord]) -> dict[str, Any]:
    calls = [call for attempt in attempts for call in attempt.calls if call.tool == name]
    outcomes = Counter(call.outcome for call in calls)
    used = [any(c.tool == name and c.outcome == "executed" for c in attempt.calls) for attempt in attempts]
    correct_with = [attempt.correct for attempt, did in zip(attempts, used, strict=True) if did]
    correct_without = [attempt.correct for attempt, did in zip(attempts, used, strict=True) if not did]
    return {
        "calls": len(calls),
        **{outcome: outcomes[outcome] for outcome in _OUTCOMES},
        "repeated": sum(call.repeated for call in calls),
        "statuses": dict(sorted(Counter(call.status for call in calls).items())),
        "attempts_with": len(correct_with),
        "correct_with": sum(correct_with),
        "attempts_without": len(correct_without),
        "correct_without": sum(correct_without),
    }


def _tokens(attempts: Sequence[AttemptRecord]) -> dict[str, Any]:
    names = ("prompt", "written", "results", "sent")
    totals = {name: sum(getattr(attempt.tokens, name) for attempt in attempts) for name in names}
    return {"total": totals, "mean": {name: total / len(attempts) for name, total in totals.items()}}


def _cost(evaluation: Evaluation, price: PriceConfig) -> dict[str, float]:
    attempts = evaluation.attempts
    total = (
        sum(price.input * attempt.tokens.sent + price.output * attempt.tokens.written for attempt in attempts)
        / 1e6
    )
    right = sum(attempt.correct for attempt in attempts)
    return {
        "total": total,
        "per_attempt": total / len(attempts),
        **({"per_right_attempt": total / right} if right else {}),
    }


def _spread(seconds: Sequence[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    if not ordered:
        return {"n": 0}
    return {
        "n": len(ordered),
        "mean": sum(ordered) / len(ordered),
        "median": ordered[len(ordered) // 2],
        "p95": ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))],
        "max": ordered[-1],
    }
