"""`python -m benchmarks.end_to_end [--json] [--rows 9.clean,9.tail]`."""

from benchmarks.harness.family import run_family

_STEPS = "benchmarks.end_to_end.step_rows"

run_family("end_to_end", {"9.clean": _STEPS, "9.tail": _STEPS})
