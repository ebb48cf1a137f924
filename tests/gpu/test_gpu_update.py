"""Gradients of whole updates on a GPU, in float32, against those on a CPU."""

import pytest
import torch
from benchmarks.harness.tiny_model import write_tiny_model
from benchmarks.update.ours import gradients_of, make_batch, make_learner, relative_difference
from benchmarks.update.trees import reasoning_tree

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def test_gradients_are_those_of_a_cpu_whole_and_in_stages(tmp_path):
    write_tiny_model(tmp_path)
    here, there = make_learner(tmp_path), make_learner(tmp_path, "cuda")
    batch = make_batch(here, [reasoning_tree(seed, n=8) for seed in (0, 1)])
    whole, staged, alone = batch.rows(10_000), batch.rows(300), batch.rows_alone(1)
    expected, wanted = gradients_of(here, whole, batch.denominator)
    for rows in (whole, staged, alone):
        report, gradients = gradients_of(there, rows, batch.denominator)
        assert abs(report.loss - expected.loss) < 1e-4
        assert relative_difference({name: grad.cpu() for name, grad in gradients.items()}, wanted) < 1e-3
