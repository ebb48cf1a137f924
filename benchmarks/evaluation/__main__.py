"""`python -m benchmarks.evaluation [--json] [--rows 12,12.qa,12.math,12.rewritten,coverage,..]`."""

from benchmarks.harness.family import run_family

_SCORERS = "benchmarks.evaluation.scorer_rows"
_VERDICTS = "benchmarks.evaluation.verdict_rows"

run_family(
    "evaluation",
    {
        "12": "benchmarks.evaluation.schedule_rows",
        **dict.fromkeys(("12.qa", "12.math"), _SCORERS),
        **dict.fromkeys(("12.rewritten", "12.spoiled", "12.suites", "12.notations", "12.steady"), _VERDICTS),
        "coverage": "benchmarks.evaluation.coverage",
    },
)
