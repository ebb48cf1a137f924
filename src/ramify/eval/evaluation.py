"""Scores of an evaluation: pass@k, mean@k, majority@k and parts of the reward, each with an interval over problems."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ramify.core.errors import DataError
from ramify.eval.attempts import GROUPS, AttemptRecord
from ramify.eval.statistics import Interval, mean_interval, pass_at_k
from ramify.rewards.answer_scores import same_answer


@dataclass(frozen=True, slots=True)
class ProblemResult:
    """All attempts at one problem, in order."""

    id: str
    groups: Mapping[str, str]
    attempts: tuple[AttemptRecord, ...]

    @property
    def num_correct(self) -> int:
        """Number of correct attempts."""
        return sum(attempt.correct for attempt in self.attempts)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Results in the order of the problems, with the same number of attempts at each; `seed` is for the intervals."""

    results: tuple[ProblemResult, ...]
    seed: int

    @property
    def attempts(self) -> tuple[AttemptRecord, ...]:
        """All attempts, problem by problem."""
        return tuple(attempt for result in self.results for attempt in result.attempts)

    def pass_at(self, k: int) -> Interval:
        """Mean over problems of the unbiased pass@k (Chen et al. 2021), with its 95 % interval.

        Raises:
            ValueError: Fewer than k attempts a problem.
        """
        return self._mean([pass_at_k(len(r.attempts), r.num_correct, k) for r in self.results])

    def mean_at(self, k: int) -> Interval:
        """Share of correct attempts among the first k."""
        return self._mean([sum(a.correct for a in r.attempts[:k]) / k for r in self.results])

    def majority_at(self, k: int) -> Interval:
        """Share of problems whose most frequent answer among the first k attempts is correct."""
        return self._mean([float(majority(result.attempts[:k])) for result in self.results])

    def part(self, name: str) -> Interval | None:
        """Mean over problems of a part of the reward; None if no attempt has it.

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
        """The distinct values of a column, sorted."""
        return tuple(sorted({r.groups[column] for r in self.results if column in r.groups}))

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of `GROUPS` that at least one problem has."""
        return tuple(column for column in GROUPS if self.values(column))

    def of(self, column: str, value: str) -> "Evaluation":
        """The evaluation restricted to the problems with this value in this column."""
        return replace(self, results=tuple(r for r in self.results if r.groups.get(column) == value))

    @property
    def calls_per_attempt(self) -> float:
        """Mean number of tool calls that got a result: all calls but those over the limit."""
        counts = [sum(call.status != "over_limit" for call in attempt.calls) for attempt in self.attempts]
        return sum(counts) / len(counts)

    def _mean(self, values: Sequence[float]) -> Interval:
        return mean_interval(values, self.seed)


def make_evaluation(
    records: Sequence[AttemptRecord], problem_ids: Sequence[str], attempts: int, seed: int
) -> Evaluation:
    """Group attempts by problem.

    Raises:
        DataError: An attempt is missing, or belongs to none of these problems.
    """
    by_key = {(record.problem, record.attempt): record for record in records}
    expected = [(problem, number) for problem in problem_ids for number in range(attempts)]
    missing = [key for key in expected if key not in by_key]
    unknown = by_key.keys() - set(expected)
    if missing or unknown:
        some = missing[0] if missing else min(unknown)
        what = (
            f"{len(missing)} are missing" if missing else f"{len(unknown)} belong to no problem of the data"
        )
        raise DataError(
            f"the results are not the {len(expected)} attempts of this evaluation: {what}, the first is attempt "
            f"{some[1]} at problem {some[0]!r}"
        )
    results = []
    for problem in problem_ids:
        of_problem = tuple(by_key[problem, number] for number in range(attempts))
        results.append(ProblemResult(problem, of_problem[0].groups, of_problem))
    return Evaluation(tuple(results), seed)


def majority(attempts: Sequence[AttemptRecord]) -> bool:
    """Whether the most frequent answer is correct; among equally frequent answers the one given first wins.

    Two answers are the same if the scores treat them as equal: equal values if the first one is mathematics (without
    symbolic comparison), else equal words. Attempts without an answer do not vote. The winning answer is correct if any
    attempt that gave it was: other attempts may have been marked wrong for their format, or have no verdict.
    """
    voters = [attempt for attempt in attempts if attempt.answer.strip()]
    if not voters:
        return False
    groups: dict[str, str] = {}
    for answer in dict.fromkeys(attempt.answer for attempt in voters):
        groups[answer] = next((first for first in groups.values() if same_answer(answer, first)), answer)
    # most_common keeps equally frequent answers in order of first appearance.
    winner = Counter(groups[attempt.answer] for attempt in voters).most_common(1)[0][0]
    return any(attempt.correct for attempt in voters if groups[attempt.answer] == winner)
