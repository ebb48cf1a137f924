"""Records with one fault each, drawn at random: a page of the run is there all the same, and holds plain JSON."""

import json
import random
import shutil
from contextlib import suppress
from itertools import count

import pytest

from damaged_records import damaged
from ramify.core.errors import DataError, UserError
from ramify.obs.trace_index import write_index
from ramify.view.payload import NotThereError, RunView
from ramify.view.safe import dump
from viewed_runs import one_path, two_calls, write_evaluation, write_json_lines, write_training

EACH = 12
"""Faults that are drawn for each file."""
RECIPE = """\
[model]
path = "model"
[reward]
name = "hierarchical"
[price]
input = 1.0
output = 2.0
[algorithm]
estimator = { name = "group" }
loss = { name = "clip" }
[rollout]
max_tokens = 100
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A training run and an evaluation with all the files that a page reads."""
    folder = tmp_path_factory.mktemp("damage")
    texts = (f"word{number}" for number in count())
    train = write_training(folder / "rl", {1: [two_calls(texts, f"p{n}", slot=n) for n in range(3)]})
    write_index(train / "trees" / "000001.jsonl")
    event = {"kind": "tool/search", "tree": [0, 0], "node": "0", "begin": 0.5, "seconds": 0.25}
    (train / "timing").mkdir()
    fields = {"queued_seconds": 0.5, "issued": 1, "services": {"cache/search/hits": 1}}
    write_json_lines(train / "timing" / "000001.jsonl", [event | {"fields": fields}] * 3)
    verdict = {"problem": "p1", "attempt": 0, "correct": True, "reason": "So it is.", "source": "asked"}
    attempts = [one_path(f"p{n}", 0, "41", float(n)) for n in range(2)]
    evaluation = write_evaluation(folder / "eval", attempts, [verdict])
    score = {"value": 0.5, "low": 0.25, "high": 0.75, "n": 2}
    for run in (train, evaluation):
        (run / "recipe.toml").write_text(RECIPE)
        (run / "manifest.json").write_text(
            json.dumps({"schema": 2, "made_with": [{"commit": "c", "packages": {}}]})
        )
        (run / "summary.json").write_text(
            json.dumps({"pass_at": {"1": score}, "cost": {"total": 1.5}, "notes": ["n"]})
        )
        (run / "status.json").write_text('{"state": "running", "steps": 2}')
    return folder


FILES = (
    *("rl/trees/000001.jsonl", "rl/trees/000001.index.jsonl", "rl/timing/000001.jsonl", "rl/metrics.jsonl"),
    *("eval/trees.jsonl", "eval/results.jsonl", "eval/times.jsonl", "eval/judge/verdicts.jsonl", "eval/summary.json"),
    *("rl/manifest.json", "rl/recipe.toml", "eval/recipe.toml"),
)  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_a_fault_in_a_record_leaves_a_page(runs, tmp_path, name):
    whole = (runs / name).read_text().splitlines(keepends=True)
    values = []
    for seed in range(EACH):
        rng = random.Random(f"{name} {seed}")
        folder = shutil.copytree(runs, tmp_path / f"{seed}")
        lines = [line.encode() for line in whole]
        at = rng.randrange(len(lines))
        lines[at] = (
            bytes(rng.choices(lines[at] + b'"={}[]', k=len(lines[at])))
            if name.endswith("toml")
            else damaged(whole[at], rng)
        )
        (folder / name).write_bytes(b"".join(lines))
        values.append(_look_at(RunView([folder])))
        shutil.rmtree(folder)
    # A page of an undamaged run beside the damaged one has all of its trees.
    assert all(sources >= 1 for sources, _ in values)
    assert all(trees >= 2 for _, trees in values)


def _look_at(view):
    """Ask for everything; returns the numbers of sources and of trees."""
    dump(view.run())
    trees = 0
    for source in view.sources:
        dump(view.index(source))
        for row in range(view.num_trees(source)):
            # The index may list a tree that is not there.
            with suppress(DataError):
                dump(view.tree(source, row, with_credits=True))
                trees += 1
        with suppress(UserError, NotThereError):
            dump(view.credit(source, 0, "of the run"))
    dump([view.search("word1"), view.search("41"), view.problem("p1"), view.run()])
    return len(view.sources), trees
