"""The figures of a GPU, at tiny sizes on a CPU; what is timed there means nothing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from benchmarks.gpu.engine_rows import Load, mismatch, speed
from benchmarks.gpu.models import LARGE, SMALL, ModelSizes, learner_in, random_model, served
from benchmarks.gpu.update_rows import TREES, TreeRow, measured
from benchmarks.update.flops import peak_flops
from benchmarks.update.trees import reasoning_tree, sizes

ROOT = Path(__file__).parents[3]
TINY = ModelSizes("tiny", hidden=64, intermediate=96, layers=2, heads=4, kv_heads=2, vocabulary=8192)
LOAD = Load(sequences=3, prompt=9, written=5)


def test_models_have_the_sizes_of_qwen():
    for model, millions in ((SMALL, 494), (LARGE, 1544)):
        with torch.device("meta"):
            built = random_model(model, "meta")
        count = sum(parameter.numel() for parameter in built.parameters())
        assert round(count / 1e6) == millions
        # Operations count matrices only: no biases, no norms, the head apart.
        assert abs(model.shape.linear + model.vocabulary * model.hidden - count) < 3e5


def test_trees_are_as_long_as_the_rows_say():
    for row in TREES:
        unique = sizes([reasoning_tree(row.seed, row.trajectories, row.shorter)]).unique
        assert abs(unique / 1024 - int(row.name.split("k")[0])) < 1


def test_updates_on_a_cpu():
    learner = learner_in(random_model(TINY, "cpu"), torch.float32)
    row = TreeRow("short", trajectories=4, seed=0, token_budget=200, shorter=16)
    update, logprobs = measured(learner, TINY, row)
    assert (update.row, logprobs.row) == ("update.tiny.short", "logprobs.tiny.short")
    for figure in (update, logprobs):
        assert figure.value > 0
        assert len(figure.settings["seconds"]) == 5
        # A CPU has no MFU, so nothing is met.
        assert figure.met is None
        assert json.loads(figure.as_json)["settings"]["tokens"]["unique"] > 200


def test_the_engine_on_a_cpu():
    prefill, decode = speed(served(random_model(TINY, "cpu"), torch.float32), TINY, LOAD)
    assert prefill.value > 0
    assert decode.settings["seconds"] > 0


def test_engine_and_learner_agree_in_float32():
    figure = mismatch(random_model(TINY, "cpu", final_norm=6.0), TINY, LOAD, torch.float32)
    assert 0 <= figure.value < 1e-9
    assert figure.settings["largest"] < 1e-4


@pytest.mark.integration
def test_sixteen_bits_round_alike_on_both_sides():
    # A learner that computes in 16 bits has a process group, which would stay in this process.
    code = (
        "import torch\n"
        "from test_gpu_rows import LOAD, TINY, mismatch, random_model\n"
        "print(mismatch(random_model(TINY, 'cpu', 6.0), TINY, LOAD, torch.bfloat16).as_json)\n"
    )
    paths = (ROOT / "src", ROOT, ROOT / "tests" / "unit" / "benchmarks", ROOT / "tests")
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": ":".join(map(str, paths)), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    figure = json.loads(done.stdout.splitlines()[-1])
    assert figure["target"] == "at most 0.0015"
    assert 0 < figure["value"] < 0.01


def test_copies_for_engines_keep_their_angles():
    model = random_model(TINY, "cpu")
    copy = served(model, torch.bfloat16)
    assert {p.dtype for p in copy.parameters()} == {torch.bfloat16}
    assert {b.dtype for b in copy.buffers()} == {torch.float32}
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_peaks_by_name():
    assert peak_flops("NVIDIA H100 80GB HBM3") == peak_flops("NVIDIA H200") == 989e12
    assert peak_flops("NVIDIA H100 PCIe") == 756e12
    assert peak_flops("NVIDIA A100-SXM4-80GB") == 312e12
    assert peak_flops("Some other card") is None
