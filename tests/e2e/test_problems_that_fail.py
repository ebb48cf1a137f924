"""A run with problems that cannot be used goes on without them, and a kill in between changes no bit."""

import json
import os

import pytest
from forked_runs import ForkedRuns
from test_kill_and_resume import check_equal_runs

from e2e_runs import write_lines
from ramify.cli import main
from ramify.obs.metrics import read_metrics
from ramify.obs.trace import read_trees

pytestmark = pytest.mark.integration

NUM_PROBLEMS = int(os.environ.get("RAMIFY_PROBLEMS", "24"))
PER_STEP = 8
RECIPE = """\
[model]
path = "{model}"
[data]
train = "{folder}/problems.jsonl"
max_prompt_tokens = 200
[run]
dir = "{folder}/run"
seed = 3
threads = 1
deterministic = true
save_every = 1
[rollout]
problems_per_step = 8
n = 4
m = 2
max_tokens = 48
max_calls = 2
branching = {{ name = "bernoulli", probe_tokens = 4 }}
[engine]
name = "local"
slots = 32
[environment]
path = "{folder}/world.py"
function = "World"
timeout_seconds = 2.0
in_prompt = false
[reward]
name = "parts"
own = [{{ path = "{folder}/world.py", function = "paid" }}]
[algorithm]
estimator = {{ name = "group" }}
loss = {{ name = "clip" }}
[learner]
problems_per_minibatch = 8
optimizer = {{ rate = 1e-3 }}
"""
WORLD = '''
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


@pytest.fixture
def write(tmp_path, caller):
    """Write the task into a folder of its own; returns the recipe."""

    def make(name):
        folder = tmp_path / name
        folder.mkdir()
        rows = [
            {"prompt": f"what is 12 plus {i} ?", "answer": "x", "what": BAD.get(i, "plain")}
            for i in range(NUM_PROBLEMS)
        ]
        write_lines(folder / "problems.jsonl", rows)
        (folder / "world.py").write_text(WORLD)
        recipe = folder / "recipe.toml"
        recipe.write_text(RECIPE.format(model=caller, folder=folder))
        return recipe

    return make


def test_bad_problems_are_counted_and_a_kill_changes_no_bit(tmp_path, write):
    runs = ForkedRuns(tmp_path)
    try:
        whole, killed = write("whole"), write("killed")
        status, told, error = runs("train", whole)
        assert status == 0, error
        status, _, _ = runs(
            "train", killed, at=(r"^open .*/metrics\.jsonl a", NUM_PROBLEMS // PER_STEP // 2 + 1)
        )
        assert status == -9
        status, _, error = runs("train", killed, "--resume")
        assert status == 0, error
    finally:
        runs.close()
    run = whole.parent / "run"
    rows = read_metrics(run / "metrics.jsonl")
    assert len(rows) == NUM_PROBLEMS // PER_STEP
    assert sum(row["group/failed"] for row in rows) == len(BAD)
    assert any(row["update/steps"] for row in rows)
    said = " ".join(told.split())
    assert said.count("failed and skipped: ") == 1
    assert all(said.count(reason) == 1 for reason in REASONS), said
    trees = [traced for path in sorted((run / "trees").iterdir()) for traced in read_trees(path)]
    failed = {traced.tree.problem.info["what"] for traced in trees if traced.tree.has_failed}
    assert failed == set(BAD.values())
    assert all((traced.advantages is None) == traced.tree.has_failed for traced in trees)
    events = [
        json.loads(line) for path in (run / "timing").iterdir() for line in path.read_text().splitlines()
    ]
    assert sum(event["kind"] == "problem/failed" for event in events) == len(BAD)
    check_equal_runs(run, killed.parent / "run")


EVAL = """\
[model]
path = "{model}"
[data]
test = "{folder}/problems.jsonl"
max_prompt_tokens = 200
[run]
dir = "{folder}/eval"
[sampling]
max_tokens = 48
max_calls = 2
[engine]
name = "local"
[environment]
path = "{folder}/world.py"
function = "World"
timeout_seconds = 2.0
in_prompt = false
[reward]
name = "hierarchical"
own = [{{ path = "{folder}/world.py", function = "paid" }}]
"""


def test_an_evaluation_goes_on_without_bad_problems(write, caller, capsys):
    folder = write("eval").parent
    recipe = folder / "eval.toml"
    recipe.write_text(EVAL.format(model=caller, folder=folder))
    assert main(["eval", str(recipe)]) == 0
    assert "failed and skipped: " in capsys.readouterr().out
    lines = [json.loads(line) for line in (folder / "eval" / "results.jsonl").read_text().splitlines()]
    assert len(lines) == NUM_PROBLEMS
    assert sum(line["stop"] == "failed" for line in lines) == len(BAD)


def test_a_run_in_which_nothing_works_ends_with_the_reason(write, refused):
    recipe = write("nothing")
    text = (recipe.parent / "world.py").read_text()
    (recipe.parent / "world.py").write_text(text.replace("unscored", "plain"))
    told = refused("train", recipe)
    assert "none of 8 problems worked; the first: problem " in told
