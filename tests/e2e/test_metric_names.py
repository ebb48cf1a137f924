"""The table of metrics in docs/metrics.md against what runs write."""

import re
from pathlib import Path

import pytest

from e2e_runs import DPO, SELFCRITIC, SFT, TRAIN, write_task
from ramify.core.protocols import Event
from ramify.core.records import Reward, ScoredTree
from ramify.core.tree import Source, TreeKey, make_tree
from ramify.data.order import DataCursor
from ramify.learner.guard import GuardState
from ramify.obs.metrics import TimingLog, read_metrics
from ramify.obs.tree_metrics import tree_metrics
from ramify.runs.state import LoopState
from ramify.sampler.batch import Batch
from ramify.train.step import update_guard_state
from random_trees import PROBLEM, node

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
TABLE = dict(re.findall(r"^\| `([^`]+)` \| ([^|]+) \| [^|]+ \|$", PAGE.read_text(), re.MULTILINE))
ALL = """
loss = {{ name = "aepo_clip" }}
old = "recompute"
correction = {{ level = "token", kind = "truncate", cap = 2.0 }}
kl = {{ place = "loss", estimator = "k3", coefficient = 0.1 }}
entropy_bonus = 0.01
"""


def pattern(name):
    return re.compile(re.sub("NAME|REASON", "[^/]+", re.escape(name)))


def judged():
    """A batch in which a judge gave one verdict of two."""
    nodes = [node((), Source.PROMPT, [1]), *(node((k,), Source.POLICY, [2], leaf=True) for k in (0, 1))]
    rewards = Reward(1.0, {"correct": 1.0, "judge": 1.0}), Reward(0.0, {"correct": 0.0})
    return [ScoredTree(make_tree(PROBLEM, TreeKey(0, 0), nodes), rewards)]


def fallen():
    """Return the metrics that a step adds whose share of right answers is lower than that of the steps before."""
    state = LoopState(guard=GuardState())
    for correct in (1.0, 0.5):
        batch = Batch(tuple(judged() * 64), frozenset(), 1, DataCursor())
        state, metrics = update_guard_state(state, batch, {"reward/part/correct": correct})
    return metrics


def browsed():
    """Return the metrics of a step whose searches read pages."""
    log = TimingLog()
    counts = {
        "pages/ok": 3, "pages/timeout": 1, "summaries/ok": 1, "cache/page/hits": 2, "cache/search/misses": 1,
    }  # fmt: skip
    log.emit(Event("tool/search", (1, 0), "n", 0.1, {"services": counts}))
    return log.service_metrics()


@pytest.fixture(scope="module")
def written(tmp_path_factory, caller, forked):
    """Names that small runs write, and those of two functions about what small runs do not meet."""
    names = {*tree_metrics(judged()), *fallen(), *browsed()}
    refusing = SELFCRITIC.replace("[engine]", "dynamic_sampling = {{ max_attempts = 2 }}\n[engine]")
    texts = {
        "sft": SFT,
        "dpo": DPO.replace("epochs = 6", "epochs = 1"),
        "train": TRAIN.replace('loss = {{ name = "clip" }}\n', ALL),
        "selfcritic": refusing,
    }
    for command, text in texts.items():
        task = write_task(tmp_path_factory.mktemp(command), caller, text)
        dev = f"eval={{test={str(task.parent / 'problems.jsonl')!r}, every=1, limit=2, null=true}}"
        settings = {"train": ("-s", "run.steps=2"), "selfcritic": ("-s", dev)}.get(command, ())
        status, _, err = forked(command, task, *settings)
        assert status == 0, err
        paths = [*task.parent.rglob("metrics.jsonl"), *task.parent.rglob("evals.jsonl")]
        rows = [row for path in paths for row in read_metrics(path)]
        names |= {name for row in rows for name in row} - {"step", "time"}
    return names


def test_every_metric_of_a_run_is_in_the_table(written):
    patterns = [pattern(name) for name in TABLE]
    assert {name for name in written if not any(known.fullmatch(name) for known in patterns)} == set()


def test_every_metric_of_the_table_is_written(written):
    assert {name for name in TABLE if not any(map(pattern(name).fullmatch, written))} == set()
