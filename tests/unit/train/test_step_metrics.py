import math
from dataclasses import replace

import pytest

from ramify.learner.update import UpdateReport
from ramify.obs.metrics import MetricsLog, read_metrics
from ramify.train.rl import update_metrics
from ramify.train.sft import sft_metrics

STEPPED = UpdateReport("stepped", 0.5, 2.0, 1.0, 10, 20, 1e-6, 1e-5, 3.0, {"clip_fraction": 0.0})
EMPTY = UpdateReport("empty", 0.0, 0.0, 1.0, 0, 0, 0.0, 0.0, 0.0, {})
SKIPPED = replace(STEPPED, outcome="non_finite", loss=math.nan, grad_norm=math.inf, entropy=math.nan)


@pytest.mark.parametrize("metrics", [update_metrics([SKIPPED, STEPPED]), sft_metrics(SKIPPED)])
def test_a_step_that_was_skipped_is_logged_and_does_not_end_the_run(tmp_path, metrics):
    MetricsLog(tmp_path / "metrics.jsonl").append(1, metrics)
    (row,) = read_metrics(tmp_path / "metrics.jsonl")
    assert [name for name in metrics if name.endswith("loss") and row[name] is None]
    assert row.get("update/non_finite", 1.0) == 1.0


def test_a_dead_minibatch_stands_for_nothing_that_was_measured():
    assert update_metrics([EMPTY, STEPPED])["update/entropy"] == 3.0
    assert update_metrics([EMPTY, STEPPED])["update/gap_mean"] == 1e-6
    assert update_metrics([EMPTY, STEPPED])["update/steps"] == 1.0
    all_dead = update_metrics([EMPTY, EMPTY])
    assert all_dead["update/loss"] is None
    assert all_dead["update/entropy"] is None
    assert all_dead["update/lr_factor"] == 1.0
