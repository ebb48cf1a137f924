"""`python -m benchmarks.examples [--json] [--rows 15,16]`."""

from benchmarks.harness.family import run_family

run_family(
    "examples",
    {
        "15.speed": "benchmarks.examples.file_rows",
        "15.memory": "benchmarks.examples.file_rows",
        "16": "benchmarks.examples.mask_rows",
    },
)
