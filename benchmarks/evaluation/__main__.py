"""`python -m benchmarks.evaluation [--json] [--rows 12,12.qa,12.math,coverage]`."""

from benchmarks.harness.family import run_family

_SCORERS = "benchmarks.evaluation.scorer_rows"

run_family(
    "evaluation",
    {
        "12": "benchmarks.evaluation.schedule_rows",
        "12.qa": _SCORERS,
        "12.math": _SCORERS,
        "coverage": "benchmarks.evaluation.coverage",
    },
)
