"""Attempts made by hand."""

from ramify.core.tree import StopReason
from ramify.eval.evaluation import make_evaluation
from ramify.eval.results import AttemptRecord, CallRecord
from ramify.obs.token_counts import TokenCounts


def attempt(problem, number, answer="7", correct=False, calls=(), **more):
    """One attempt; `calls` are (tool, status, repeated)."""
    return AttemptRecord(
        problem,
        number,
        more.get("groups", {}),
        answer,
        correct,
        float(correct),
        more.get("parts", {"correct": float(correct)}),
        StopReason.ANSWERED,
        tuple(CallRecord(*call) for call in calls),
        TokenCounts(*more.get("tokens", (10, 5, 0, 10))),
        more.get("repairs", {}),
    )


def evaluation(*problems, **more):
    """One problem for each list of verdicts."""
    records = [
        attempt(f"p{index}", number, str(correct), bool(correct), **more)
        for index, verdicts in enumerate(problems)
        for number, correct in enumerate(verdicts)
    ]
    return make_evaluation(records, [f"p{i}" for i in range(len(problems))], len(problems[0]), 0)
