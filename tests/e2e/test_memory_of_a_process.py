"""A fresh process takes about the memory that the estimate says."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ramify.modeling.row_bytes import row_bytes
from wide_rows import random_model, tree, update


def high_water_mark():
    """Of this process in bytes; ru_maxrss would begin with that of the process that started it."""
    (line,) = [
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")
    ]
    return int(line.split()[1]) * 1024


def child():
    """Print how far a row of 2048 tokens raises this process's high-water mark, and the estimate."""
    model = random_model()
    update(model, tree(64))
    before = high_water_mark()
    update(model, tree(2048))
    raised = high_water_mark() - before
    print(raised, row_bytes(model.config, 2048, torch.float32.itemsize).kept)  # noqa: T201


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is of Linux")
def test_the_estimate_and_the_high_water_mark_of_a_process():
    code = f"import sys; sys.path[:0] = {sys.path!r}; import test_memory_of_a_process; test_memory_of_a_process.child()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    raised, estimate = map(int, done.stdout.split())
    assert 0.7 < raised / estimate < 2.5
