"""`python -m benchmarks.update [--json] [--rows 1,1b,8]`."""

from benchmarks.harness.family import run_family

_SPEED = "benchmarks.update.speed_rows"
_TREE = "benchmarks.update.tree_rows"
_MEMORY = "benchmarks.update.memory_rows"
_DOCTOR = "benchmarks.update.doctor_rows"
_GPU = "benchmarks.update.gpu_rows"

run_family(
    "update",
    {
        "1": _SPEED,
        "1.dead": _SPEED,
        "1b": _SPEED,
        "1.tau2": _TREE,
        "1t": _TREE,
        "1t.tau2": _TREE,
        "2": _SPEED,
        "8": _MEMORY,
        "8b": _MEMORY,
        "8t": _TREE,
        "8.doctor": _DOCTOR,
        "10.update": _SPEED,
        "14": "benchmarks.update.exactness",
        "1.gpu": _GPU,
        "1t.gpu": _GPU,
        "2.gpu": _GPU,
        "8.gpu": _GPU,
    },
)
