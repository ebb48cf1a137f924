import math
from dataclasses import replace

import pytest

from ramify.core.records import Reward, ScoredTree
from ramify.core.tree import Source, TreeKey, make_tree
from ramify.data.order import DataCursor
from ramify.learner.guard import GuardState
from ramify.learner.report import UpdateReport
from ramify.obs.metrics import MetricsLog, read_metrics
from ramify.obs.tree_metrics import tree_metrics
from ramify.runs.state import LoopState
from ramify.sampler.batch import Batch
from ramify.train.step import update_guard_state, update_metrics, update_warnings
from ramify.train.supervised import step_metrics
from random_trees import PROBLEM, node

STEPPED = UpdateReport(
    outcome="stepped",
    loss=0.5,
    grad_norm=2.0,
    lr_factor=1.0,
    num_written=10,
    num_tokens=20,
    num_repeated=0,
    mismatch_mean=1e-6,
    mismatch_max=1e-5,
    mismatch_p99=0.0,
    mismatch_kl=0.0,
    mismatch_ess=1.0,
    entropy=3.0,
    unevenness=1.0,
    metrics={"clip_fraction": 0.0},
)
EMPTY = replace(
    STEPPED, outcome="empty", loss=0.0, grad_norm=0.0, num_written=0, num_tokens=0, entropy=0.0, metrics={}
)
SKIPPED = replace(STEPPED, outcome="non_finite", loss=math.nan, grad_norm=math.inf, entropy=math.nan)


@pytest.mark.parametrize("metrics", [update_metrics([SKIPPED, STEPPED]), step_metrics(SKIPPED)])
def test_a_step_that_was_skipped_is_logged_and_does_not_end_the_run(tmp_path, metrics):
    MetricsLog(tmp_path / "metrics.jsonl").append(1, metrics)
    (row,) = read_metrics(tmp_path / "metrics.jsonl")
    assert [name for name in metrics if name.endswith("loss") and row[name] is None]
    assert row.get("update/non_finite", 1.0) == 1.0


def test_a_dead_minibatch_stands_for_nothing_that_was_measured():
    assert update_metrics([EMPTY, STEPPED])["update/entropy"] == 3.0
    assert update_metrics([EMPTY, STEPPED])["update/mismatch_mean"] == 1e-6
    assert update_metrics([EMPTY, STEPPED])["update/steps"] == 1.0
    all_dead = update_metrics([EMPTY, EMPTY])
    assert all_dead["update/loss"] is None
    assert all_dead["update/entropy"] is None
    assert all_dead["update/lr_factor"] == 1.0


def test_importance_weights_are_told_where_they_masked_everything():
    masked = replace(EMPTY, metrics={"weight_bounded": 1.0})
    assert update_metrics([masked, masked])["update/weight_bounded"] == 1.0
    assert "update/weight_bounded" not in update_metrics([])


def test_a_run_that_changed_nothing_says_so():
    rows = [update_metrics([EMPTY, SKIPPED]), update_metrics([])]
    (warning,) = update_warnings(rows)
    assert warning.startswith("No optimizer step was taken in 2 steps; the weights are unchanged: ")
    assert update_warnings([*rows, update_metrics([EMPTY, STEPPED])]) == ()
    assert update_warnings([]) == ()


@pytest.mark.parametrize(
    ("row", "cause"),
    [
        (update_metrics([EMPTY, SKIPPED]), "loss or gradient was not finite, lower learner.optimizer.rate"),
        (
            {"sampling/empty": 1.0},
            "dynamic sampling kept no problem, since none had both right and wrong answers",
        ),
        (
            {"group/zero_variance": 1.0},
            "rewards never differed within a group, so that all of them were dead",
        ),
        (
            {"reward/not_counted": 1.0, "sampling/empty": 1.0},
            "no trajectory counted, since the environment failed, time ran out, or the judge gave no verdict",
        ),
        ({"guard/violated": 1.0, "group/zero_variance": 1.0}, "the guard refused to train on it"),
        (
            {"group/zero_variance": 0.5},
            "no token was left with an advantage: masked (truncated, correction) or exactly zero",
        ),
    ],
)
def test_why_nothing_was_learned_is_named(row, cause):
    assert update_warnings([row]) == (
        f"No optimizer step was taken in 1 step; the weights are unchanged: {cause} (in 1)",
    )


def test_the_most_frequent_cause_comes_first():
    dead, skipped = {"group/zero_variance": 1.0}, {"update/non_finite": 2.0}
    (warning,) = update_warnings([skipped, dead, dead])
    assert warning == (
        "No optimizer step was taken in 3 steps; the weights are unchanged: rewards never differed within a group, so that "
        "all of them were dead (in 2); loss or gradient was not finite, lower learner.optimizer.rate (in 1)"
    )


def test_the_share_of_right_answers_is_over_problems_that_count():
    """A step in which every world failed is no evidence, and one with a single problem weighs as one."""
    tree = make_tree(
        PROBLEM, TreeKey(0, 0), [node((), Source.PROMPT, [1]), node((0,), Source.POLICY, [2], leaf=True)]
    )
    right, failed = Reward(1.0, {"correct": 1.0}), Reward(-1.0, {"correct": 0.0}, counts=False)
    state = LoopState(guard=GuardState())
    for rewards in ([failed] * 64, [right] + [failed] * 63):
        batch = Batch(tuple(ScoredTree(tree, (reward,)) for reward in rewards), frozenset(), 1, DataCursor())
        state, _ = update_guard_state(state, batch, tree_metrics(batch.trees))
    assert state.guard == GuardState().after_batch(1.0, 1)
