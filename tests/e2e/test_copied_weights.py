"""An engine with a copy of the learner's weights: the run is that of an engine on the learner's own, bit for bit."""

import json

import pytest

from e2e_runs import TRAIN, overrides, write_task
from ramify.cli import main
from ramify.obs.metrics import read_metrics

COPY = TRAIN.replace("slots = 12", 'slots = 12\nweights = "copy"')
SHARED = TRAIN.replace("slots = 12", 'slots = 12\nweights = "shared"')
LORA = ("model.lora.rank=4", "model.lora.alpha=8")
WHOLE = ()


def ramify(recipe, settings, *arguments):
    words = overrides(*settings)
    assert main(["train", str(recipe), *words, *arguments]) == 0
    return recipe.parent / "run"


@pytest.fixture(scope="module", params=[WHOLE, LORA], ids=["whole", "adapter"])
def shared(request, tmp_path_factory, caller):
    """Three steps of an engine that reads the learner's weights, and the settings of the run."""
    recipe = write_task(tmp_path_factory.mktemp("shared"), caller, SHARED)
    return ramify(recipe, request.param, "--max-steps", "3"), request.param


def check_equal_runs(run, other):
    """Traces, weights, optimizer and loop state; metrics but for the time."""
    for name in ("trees", "checkpoints"):
        files, others = (
            {path.relative_to(f): path.read_bytes() for path in (f / name).rglob("*") if path.is_file()}
            for f in (run, other)
        )
        assert files.keys() == others.keys()
        for path, content in files.items():
            if path.name == "state.json":
                states = [json.loads(text)["state"] for text in (content, others[path])]
                assert states[0].pop("run") != states[1].pop("run")
                assert states[0] == states[1]
            else:
                assert content == others[path], path
    rows, others = ([dict(r, time=0) for r in read_metrics(f / "metrics.jsonl")] for f in (run, other))
    assert rows == others
    assert any(row["update/grad_norm"] for row in rows)


def test_a_copy_trains_as_the_learners_own_weights_do(shared, tmp_path, caller):
    run, settings = shared
    recipe = write_task(tmp_path / "task", caller, COPY)
    check_equal_runs(ramify(recipe, settings, "--max-steps", "3"), run)
    assert 'weights = "copy"' in (recipe.parent / "run" / "recipe.toml").read_text()


@pytest.mark.parametrize("first", [SHARED, COPY], ids=["shared", "copy"])
def test_a_run_goes_on_with_a_copy(shared, tmp_path, caller, first):
    run, settings = shared
    recipe = write_task(tmp_path / "task", caller, first)
    ramify(recipe, settings, "--max-steps", "1")
    recipe = write_task(tmp_path / "task", caller, COPY)
    check_equal_runs(ramify(recipe, settings, "--max-steps", "3", "--resume"), run)


def test_a_run_that_falls_back_copies_the_older_weights(tmp_path, caller):
    """At far too high a rate the policy is lost: it repeats itself, or all of a group get the same reward (which of the two
    differs between machines); and the next step begins from older weights."""
    settings = (
        "guard.max_repetition=0.3", "guard.max_zero_variance=0.9", "guard.patience=1",
        "guard.max_fallbacks=9", "learner.optimizer.rate=0.1",
    )  # fmt: skip
    runs = []
    for text in (SHARED, COPY):
        recipe = write_task(tmp_path / str(len(runs)), caller, text)
        runs.append(ramify(recipe, settings, "--max-steps", "8"))
    check_equal_runs(*runs)
    assert read_metrics(runs[0] / "metrics.jsonl")[-2]["guard/fallbacks"] > 0
