"""Two runs of a kind compared: two evaluations, or two training runs by their evaluations or the trees that they were trained on."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ramify.core.errors import DataError
from ramify.core.messages import Problem
from ramify.core.records import ScoredTree
from ramify.eval.evaluation import Evaluation, ProblemResult, make_evaluation
from ramify.eval.results import read_manifest, read_records, tree_lines
from ramify.eval.statistics import Difference, Interval, mean_interval, paired_difference
from ramify.obs.metrics import MetricsRow, read_metrics
from ramify.obs.trace import each_tree, parse_tree
from ramify.rewards.extract import answer_of
from ramify.runs.run_folder import SCORE, RunFolder

_LAST_STEPS = 5
"""Common steps at the end of two training runs whose trees are compared."""


@dataclass(frozen=True, slots=True)
class Side:
    """One evaluation: its folder, its manifest, its attempts."""

    folder: Path
    manifest: Mapping[str, Any]
    evaluation: Evaluation

    @property
    def name(self) -> str:
        """The folder, as the user gave it."""
        return str(self.folder)

    @property
    def in_order(self) -> list[ProblemResult]:
        """The problems in the order of their ids, which is that of all sides."""
        return sorted(self.evaluation.results, key=lambda result: result.id)


@dataclass(frozen=True, slots=True)
class Flip:
    """A problem that more than half of the trajectories of one run get right, and at most half of the other's.

    Attributes:
        problem: Id of the problem.
        question: Its last message.
        golds: Its accepted answers.
        right: Share of right trajectories in the first run and in the second.
        answers: The most frequent answer in each.
    """

    problem: str
    question: str
    golds: tuple[str, ...]
    right: tuple[float, float]
    answers: tuple[str, str]

    @property
    def is_better(self) -> bool:
        """Return True if the second run gets it right."""
        return self.right[1] > self.right[0]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Second run minus first.

    Attributes:
        metric: What is compared, problem by problem; "" if no problem can be.
        scores: The mean of each run; empty without a metric.
        difference: Paired difference over the problems that both have; None without a metric.
        flips: Problems that one run gets right and the other does not, those that the second gets right first.
        step: Last step that both training runs took; None for evaluations.
        metrics: Metrics of that step by name, of both runs.
        warnings: Reasons why the numbers may mislead.
    """

    metric: str
    scores: tuple[Interval, ...]
    difference: Difference | None
    flips: tuple[Flip, ...]
    step: int | None = None
    metrics: Mapping[str, tuple[float, float]] | None = None
    warnings: tuple[str, ...] = ()


def score_line(name: str, metric: str, score: Interval) -> str:
    """Return a side's score in words."""
    return f"{name}: {metric} {score.value:.3f}  95 % [{score.low:.3f}, {score.high:.3f}]"


def difference_line(first: str, second: str, difference: Difference) -> str:
    """Return a paired difference in words."""
    return (
        f"{second} minus {first}: {difference.value:+.3f}  95 % [{difference.low:+.3f}, {difference.high:+.3f}]  "
        f"p {difference.p_value:.3g} ({difference.method})  better on {difference.better}, "
        f"worse on {difference.worse} of {difference.n}"
    )


def read_side(folder: Path) -> Side:
    """Read a finished evaluation.

    Raises:
        DataError: There is none in the folder, or its files cannot be read.
    """
    if not (folder / "summary.json").is_file():
        raise DataError(f"{folder}: expected a finished evaluation, {folder / 'summary.json'} is missing")
    manifest = read_manifest(folder)
    records = read_records(folder)
    ids = tuple(dict.fromkeys(record.problem for record in records))
    if len(ids) != (count := manifest["scores"]["problems"]["count"]):
        raise DataError(
            f"{folder}: expected a finished evaluation of {count} problems, the results are of {len(ids)}; go on with --resume"
        )
    attempts = manifest["scores"]["sampling"]["attempts"]
    return Side(folder, manifest, make_evaluation(records, ids, attempts, manifest["scores"]["seed"]))


def compare_evaluations(first: Path, second: Path, metric: str) -> Comparison:
    """Compare two finished evaluations of the same problems, problem by problem.

    Args:
        first: Its folder.
        second: Its folder.
        metric: "correct" (share of correct attempts) or a part of the reward (its mean over the attempts).

    Raises:
        DataError: A folder has no finished evaluation, or one of other problems, or an attempt without the metric.
    """
    sides = (read_side(first), read_side(second))
    if sides[1].manifest["scores"]["problems"] != sides[0].manifest["scores"]["problems"]:
        raise DataError(
            f"{second}: its problems are not those of {first} (ids, texts or golds differ). Compare "
            "evaluations of the same problems"
        )
    before_scores, after_scores = (_by_problem(side, metric) for side in sides)
    results = zip(*(side.in_order for side in sides), strict=True)
    flipped = [(before, after) for before, after in results if _is_flip(_share(before), _share(after))]
    problems = _problems(sides[0], [before.id for before, _ in flipped])
    flips = [
        Flip(
            before.id,
            _question(problems.get(before.id)),
            problems[before.id].answer if before.id in problems else (),
            (_share(before), _share(after)),
            (_usual_answer(before), _usual_answer(after)),
        )
        for before, after in flipped
    ]
    return Comparison(
        metric,
        (mean_interval(before_scores, 0), mean_interval(after_scores, 0)),
        paired_difference(before_scores, after_scores, seed=0),
        _sorted(flips),
        warnings=_missing_verdicts(sides) if metric == "correct" else (),
    )


def _by_problem(side: Side, metric: str) -> list[float]:
    if metric == "correct":
        return [r.num_correct / len(r.attempts) for r in side.in_order]
    scores = []
    for result in side.in_order:
        values = [attempt.parts[metric] for attempt in result.attempts if metric in attempt.parts]
        if len(values) < len(result.attempts):
            everywhere = [
                name
                for name in side.evaluation.part_names
                if name != "correct" and all(name in attempt.parts for attempt in side.evaluation.attempts)
            ]
            raise DataError(
                f"{side.folder}: an attempt at problem {result.id!r} has no {metric!r}; expected one of "
                f"{', '.join(('correct', *everywhere))}, which all attempts have"
            )
        scores.append(sum(values) / len(values))
    return scores


def _missing_verdicts(sides: Sequence[Side]) -> tuple[str, ...]:
    lines = []
    for side in sides:
        missing = sum("judge" not in attempt.parts for attempt in side.evaluation.attempts)
        if missing and side.manifest["scores"]["sampling"]["right_by"] == "judge":
            lines.append(f"{side.name}: {missing} attempts have no verdict and count as wrong")
    return tuple(lines)


def _share(result: ProblemResult) -> float:
    return result.num_correct / len(result.attempts)


def _usual_answer(result: ProblemResult) -> str:
    return _usual([attempt.answer for attempt in result.attempts])


def _problems(side: Side, ids: Sequence[str]) -> dict[str, Problem]:
    lines = tree_lines(side.folder)
    texts = lines.texts(frozenset((problem, 0) for problem in ids)) if lines.path.exists() else {}
    return {key[0]: parse_tree(lines.path, *line).tree.problem for key, line in texts.items()}


def compare_trainings(first: Path, second: Path) -> Comparison:
    """Compare two training runs, by the evaluations that both made if there are any, and otherwise by trees of common steps.

    Raises:
        DataError: A file cannot be read.
    """
    folders = (RunFolder(first), RunFolder(second))
    logs = [_log(folder.root / "metrics.jsonl") for folder in folders]
    common = sorted(logs[0].keys() & logs[1].keys())
    step = common[-1] if common else None
    warnings = [] if common else ["no step is in both metrics.jsonl: no metric is compared"]
    metric, outcomes = _evaluated(folders, warnings)
    if not metric:
        metric, outcomes = _trained(folders, warnings)
    paired = _pair(outcomes, warnings)
    first_scores = [before.score for before, _ in paired]
    second_scores = [after.score for _, after in paired]
    return Comparison(
        metric if paired else "",
        tuple(mean_interval(scores, 0) for scores in (first_scores, second_scores)) if paired else (),
        paired_difference(first_scores, second_scores, seed=0) if paired else None,
        _sorted(
            Flip(
                before.problem.id,
                _question(before.problem),
                before.problem.answer,
                (before.right, after.right),
                (before.answer, after.answer),
            )
            for before, after in paired
            if _is_flip(before.right, after.right)
        ),
        step,
        {} if step is None else _both(logs[0][step], logs[1][step]),
        tuple(warnings),
    )


@dataclass(frozen=True, slots=True)
class _Outcome:
    """A problem in one run: its score, the share of right trajectories, and the most frequent answer."""

    problem: Problem
    score: float
    right: float
    answer: str


_Outcomes = tuple[dict[str, _Outcome], dict[str, _Outcome]]


def _evaluated(folders: Sequence[RunFolder], warnings: list[str]) -> tuple[str, _Outcomes]:
    steps = [_steps_in(folder.root / "evals") for folder in folders]
    if not all(steps):
        return "", ({}, {})
    common = steps[0] & steps[1]
    last = [max(common)] * 2 if common else [max(each) for each in steps]
    if not common:
        warnings.append(
            f"no step was evaluated in both: the first is evaluated after step {last[0]}, the second after {last[1]}"
        )
    paths = [folder.evaluation(step) for folder, step in zip(folders, last, strict=True)]
    first, second = (
        {
            key: replace(each, score=each.right)
            # As in `evals.jsonl`, an attempt that says nothing about the policy is an attempt.
            for key, each in _outcomes([path], counts_all=True).items()
        }
        for path in paths
    )
    return f"{SCORE} at step {' and '.join(map(str, dict.fromkeys(last)))}", (first, second)


def _trained(folders: Sequence[RunFolder], warnings: list[str]) -> tuple[str, _Outcomes]:
    steps = sorted(set.intersection(*(_steps_in(folder.root / "trees") for folder in folders)))[-_LAST_STEPS:]
    if not steps:
        return "", ({}, {})
    warnings.append(
        "not both have evaluations ([eval]): rewards in training are compared, and trajectories of a tree are not independent"
    )
    first, second = (_outcomes([folder.trees(step) for step in steps]) for folder in folders)
    return f"mean reward in steps {steps[0]} to {steps[-1]}", (first, second)


def _steps_in(folder: Path) -> set[int]:
    return {int(path.stem) for path in folder.glob("*.jsonl") if path.stem.isdecimal()}


def _outcomes(traces: Iterable[Path], *, counts_all: bool = False) -> dict[str, _Outcome]:
    by_problem: dict[str, list[ScoredTree]] = {}
    for path in traces:
        for traced in each_tree(path):
            by_problem.setdefault(traced.tree.problem.id, []).append(traced)
    outcomes = {key: _outcome(trees, counts_all) for key, trees in by_problem.items()}
    return {key: outcome for key, outcome in outcomes.items() if outcome is not None}


def _outcome(trees: Sequence[ScoredTree], counts_all: bool) -> _Outcome | None:
    """Return the outcome of a problem, over its trajectories that count or all of them; None if there is none."""
    counted = [
        (trajectory, reward)
        for scored in trees
        for trajectory, reward in zip(scored.tree.trajectories, scored.rewards, strict=True)
        if counts_all or reward.counts
    ]
    if not counted:
        return None
    right = [reward.parts.get("correct", reward.value) >= 1.0 for _, reward in counted]
    return _Outcome(
        trees[0].tree.problem,
        sum(reward.value for _, reward in counted) / len(counted),
        sum(right) / len(right),
        _usual([answer_of(trajectory) for trajectory, _ in counted]),
    )


def _pair(outcomes: _Outcomes, warnings: list[str]) -> list[tuple[_Outcome, _Outcome]]:
    """Return the problems that both have, by id, with equal messages and golds; notes how many are left out."""
    first, second = outcomes
    both = [
        (first[key], second[key])
        for key in sorted(first.keys() & second.keys())
        if (first[key].problem.messages, first[key].problem.answer)
        == (second[key].problem.messages, second[key].problem.answer)
    ]
    if len(both) < max(len(first), len(second)):
        warnings.append(
            f"the problems differ: the first has {len(first)}, the second {len(second)}, and {len(both)} are the same"
            + (" and are compared" if both else "")
        )
    return both


def _log(path: Path) -> dict[int, MetricsRow]:
    if not path.is_file():
        raise DataError(f"{path.parent}: has taken no step. Compare runs that have.")
    return {int(row["step"] or 0): row for row in read_metrics(path)}


def _both(first: MetricsRow, second: MetricsRow) -> dict[str, tuple[float, float]]:
    return {
        name: (before, after)
        for name, before in first.items()
        if name not in ("step", "time") and before is not None and (after := second.get(name)) is not None
    }


def _is_flip(before: float, after: float) -> bool:
    return (before > 0.5) != (after > 0.5)


def _sorted(flips: Iterable[Flip]) -> tuple[Flip, ...]:
    return tuple(sorted(flips, key=lambda flip: (not flip.is_better, flip.problem)))


def _usual(answers: Sequence[str]) -> str:
    return Counter(answers).most_common(1)[0][0]


def _question(problem: Problem | None) -> str:
    return problem.messages[-1].text if problem is not None and problem.messages else ""
