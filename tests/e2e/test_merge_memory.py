"""Converting takes memory for one tensor and the part of the shards that is being read, not for the model."""

import sys
from pathlib import Path

import pytest
from test_memory_of_a_process import high_water_mark

from e2e_runs import python
from ramify.cli import main
from ramify.modeling import plain_folder, verl_shards
from verl_checkpoints import write_many_sharded, write_small_model

MB = 1_000_000
SIZES = {
    "vocab_size": 16_000, "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 128,
}  # fmt: skip
LARGEST = 16_000 * 1024 * 4
FILE, READ, SLACK = 60 * MB, 30 * MB, 40 * MB


def child(folder):
    """Print how far a conversion raises this process's high-water mark."""
    plain_folder.FILE_BYTES, verl_shards.REOPEN_BYTES = FILE, READ
    assert main(["merge", "verl", f"{folder}/tiny", "--out", f"{folder}/tiny_out"]) == 0
    Path("/proc/self/clear_refs").write_text("5")  # the mark is what is in memory now
    before = high_water_mark()
    assert main(["merge", "verl", f"{folder}/large", "--out", f"{folder}/large_out"]) == 0
    print(high_water_mark() - before)  # noqa: T201


@pytest.mark.integration
@pytest.mark.skipif(sys.platform != "linux", reason="/proc is of Linux")
def test_memory_is_that_of_a_tensor(tmp_path):
    saves = [
        (tmp_path / name, write_small_model(tmp_path / "models" / name, **sizes), (2,), "tensors")
        for name, sizes in (("tiny", {}), ("large", SIZES))
    ]
    write_many_sharded(saves, tmp_path / "scratch")
    code = (
        f"import sys; sys.path[:0] = {sys.path!r}; import test_merge_memory as t; t.child({str(tmp_path)!r})"
    )
    done = python(code)
    assert done.returncode == 0, done.stderr
    raised = int(done.stdout.split()[-1])
    stored = sum(file.stat().st_size for file in (tmp_path / "large_out").glob("*.safetensors"))
    assert stored > 300 * MB
    # One tensor as it is written, and its pieces in the shards.
    assert raised < 2 * LARGEST + SLACK, f"{raised / MB:.0f} MB of {stored / MB:.0f} MB"
