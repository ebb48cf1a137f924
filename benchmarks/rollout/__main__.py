"""`python -m benchmarks.rollout [--json] [--rows 3,3b,11]`."""

from benchmarks.harness.family import run_family

_ENGINE = "benchmarks.rollout.engine_rows"
_SCHEDULE = "benchmarks.rollout.schedule_rows"

run_family(
    "rollout",
    {
        "3": _ENGINE,
        "3b": _ENGINE,
        "3c": "benchmarks.rollout.slow_steps",
        "3.client": "benchmarks.rollout.client_row",
        "3.vllm": "benchmarks.rollout.vllm_row",
        "4.clean": _SCHEDULE,
        "4.tail": _SCHEDULE,
        "4b": _SCHEDULE,
        "4.grants": _SCHEDULE,
        "10.rollout": _ENGINE,
        "11": _ENGINE,
    },
)
