"""Runs in worlds that fail: what failed teaches nothing, is recorded as such, and ends no run; a kill in between changes no bit."""

import json
import os

import pytest
from test_kill_and_resume import check_equal_runs

from e2e_runs import EVAL, TRAIN, overrides, read_lines, write_task
from ramify.cli import main
from ramify.core.tree import StopReason
from ramify.obs.metrics import read_metrics
from ramify.obs.trace import read_trees
from ramify.obs.trace_index import trace_files

pytestmark = pytest.mark.integration

WORLD = """\
import itertools

opened = itertools.count()


class World:
    def reset(self, seed: int) -> None:
        if next(opened) % {every} == 0:
            raise OSError("no room left")

    def wait(self) -> str:
        '''Wait for a while.'''
        return "done"
"""
ENVIRONMENT = '[environment]\npath = "{folder}/world.py"\nfunction = "World"\n[reward]'


def in_world(text):
    """A recipe whose agent acts in the file world.py beside it."""
    return text.split("[tools.search]")[0] + ENVIRONMENT + text.split("[reward]")[1]


def task(folder, model, every):
    recipe = write_task(folder, model, in_world(TRAIN))
    (recipe.parent / "world.py").write_text(WORLD.format(every=every))
    return recipe


def test_the_rest_of_a_group_learns_as_if_they_had_not_been_there(tmp_path, model_folder, capsys):
    recipe = task(tmp_path / "task", model_folder, every=3)
    assert main(["train", str(recipe), "--max-steps", "1"]) == 0
    assert main(["train", str(recipe), "--max-steps", "2", "--resume"]) == 0
    assert "not counted" in capsys.readouterr().out
    run = recipe.parent / "run"
    lost = 0
    for step, row in enumerate(read_metrics(run / "metrics.jsonl"), 1):
        trees = read_trees(run / "trees" / f"{step:06d}.jsonl")
        stops = [(t.stop, reward.counts) for tree in trees for t, reward in pairs(tree)]
        assert all(counts is (stop is not StopReason.FAILED) for stop, counts in stops)
        assert row["reward/not_counted"] == row["stop/failed"]
        lost += sum(not counts for _, counts in stops)
        for tree in trees:
            advantages = [a for a, (_, r) in zip(tree.advantages, pairs(tree), strict=True) if r.counts]
            assert sum(advantages) == pytest.approx(0, abs=1e-4)
            assert [a for a, (_, r) in zip(tree.advantages, pairs(tree), strict=True) if not r.counts] == [
                0.0
            ] * (len(tree.rewards) - len(advantages))
    assert lost >= 4


def test_where_every_world_fails_nothing_is_learned_and_the_run_ends_with_the_reason(
    tmp_path, model_folder, capsys
):
    recipe = task(tmp_path / "task", model_folder, every=1)
    assert main(["train", str(recipe), "--max-steps", "2"]) == 2
    out, error = capsys.readouterr()
    assert "step 1: all 2 problems failed; nothing was learned" in out
    assert "No optimizer step was taken in 2 steps" in out
    assert "none of 4 problems worked; the first: problem " in error
    rows = read_metrics(recipe.parent / "run" / "metrics.jsonl")
    assert all(row["reward/not_counted"] == 1 and "reward/mean" not in row for row in rows)
    looked = ("-s", "preflight.enabled=true", "-s", f"run.dir={tmp_path / 'other'}")
    assert main(["train", str(recipe), "--max-steps", "1", *looked]) == 2
    assert " problems worked; the first: problem " in capsys.readouterr().err


def pairs(traced):
    return list(zip(traced.tree.trajectories, traced.rewards, strict=True))


# problems that fail, each in its own way

NUM_PROBLEMS = int(os.environ.get("RAMIFY_PROBLEMS", "24"))
PER_STEP = 8
ODD_WORLD = '''
import random
import time


class World:
    def reset(self, what: str, **row):
        if what == "long":
            return "a word " * 2000
        if what == "raises":
            raise OSError("no such room")
        if what == "hangs":
            time.sleep(30)
        self.number = random.randint(1, 9)
        return f"The number is {self.number}."

    def search(self, query: str) -> str:
        """Look something up.

        Args:
            query: What.
        """
        return f"{self.number} {random.random():.3f}"


def paid(completions, what, **columns):
    if "unscored" in what:
        raise KeyError("no score")
    return [len(text) % 7 / 7 for text in completions]
'''
BAD = {5: "long", 11: "raises", 17: "hangs", 20: "unscored"}
REASONS = (
    "problem 'problems-6': the prompt has 10019 tokens, the engine's context 248",
    "problem 'problems-12': OSError: no such room",
    "problem 'problems-18': it did not answer in time",
    "problem 'problems-21': reward paid: it raised KeyError: 'no score'",
)
SLOW = ("environment.timeout_seconds=6.0", "environment.in_prompt=false")
SIZES = ("rollout.n=4", "rollout.m=2", "rollout.max_tokens=48", "engine.slots=32")
STEP = (f"rollout.problems_per_step={PER_STEP}", f"learner.problems_per_minibatch={PER_STEP}")


@pytest.fixture
def write(tmp_path, caller):
    """Write the task into a folder of its own; returns the words of a command."""

    def make(name, text, *settings):
        folder = tmp_path / name
        rows = [
            {"prompt": f"what is 12 plus {i} ?", "answer": "x", "what": BAD.get(i, "plain")}
            for i in range(NUM_PROBLEMS)
        ]
        recipe = write_task(folder, caller, in_world(text), problems=rows)
        (folder / "world.py").write_text(ODD_WORLD)
        own = f"reward.own=[{{path='{folder / 'world.py'}', function='paid'}}]"
        return folder, [str(recipe), *overrides(*SLOW, own, *settings)]

    return make


def test_bad_problems_are_counted_and_a_kill_changes_no_bit(forked, write):
    settings = ("reward.name=parts", *STEP, *SIZES)
    (whole, words), (killed, killed_words) = (write(name, TRAIN, *settings) for name in ("whole", "killed"))
    status, out, error = forked("train", *words)
    assert status == 0, error
    half = (r"^open .*/metrics\.jsonl a", NUM_PROBLEMS // PER_STEP // 2 + 1)
    assert forked("train", *killed_words, at=half)[0] == -9
    status, _, error = forked("train", *killed_words, "--resume")
    assert status == 0, error
    run = whole / "run"
    rows = read_metrics(run / "metrics.jsonl")
    assert len(rows) == NUM_PROBLEMS // PER_STEP
    assert sum(row["group/failed"] for row in rows) == len(BAD)
    assert any(row["update/steps"] for row in rows)
    text = " ".join(out.split())
    assert text.count("failed and skipped: ") == 1
    assert all(text.count(reason) == 1 for reason in REASONS), text
    trees = [traced for path in trace_files(run / "trees") for traced in read_trees(path)]
    failed = {traced.tree.problem.info["what"] for traced in trees if traced.tree.has_failed}
    assert failed == set(BAD.values())
    assert all((traced.advantages is None) == traced.tree.has_failed for traced in trees)
    events = [
        json.loads(line) for path in (run / "timing").iterdir() for line in path.read_text().splitlines()
    ]
    assert sum(event["kind"] == "problem/failed" for event in events) == len(BAD)
    check_equal_runs(run, killed / "run")


def test_an_evaluation_goes_on_without_bad_problems(write, capsys):
    limits = ("sampling.attempts=1", "sampling.k=[1]", "sampling.max_tokens=48", "sampling.max_calls=2")
    folder, words = write("eval", EVAL, *limits)
    assert main(["eval", *words]) == 0
    assert "failed and skipped: " in capsys.readouterr().out
    lines = read_lines(folder / "run" / "results.jsonl")
    assert len(lines) == NUM_PROBLEMS
    assert sum(line["stop"] == "failed" for line in lines) == len(BAD)
