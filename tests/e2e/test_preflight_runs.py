"""The look before training: what it says, what it refuses, and that it changes nothing else."""

import json

from e2e_runs import write_task
from ramify.cli import main
from ramify.obs.trace import read_trees

ON = ("-s", "preflight.enabled=true", "-s", "preflight.problems=3")


def test_it_reports_and_training_is_the_same_with_it(tmp_path, caller, capsys):
    plain, looked = (write_task(tmp_path / name, caller) for name in ("plain", "looked"))
    assert main(["train", str(plain), "--max-steps", "2"]) == 0
    capsys.readouterr()
    assert main(["train", str(looked), "--max-steps", "2", *ON]) == 0
    assert "preflight: 3 problems, 18 trajectories: reward " in capsys.readouterr().out
    folders = [recipe.parent / "run" for recipe in (plain, looked)]
    for name in ("trees/000001.jsonl", "trees/000002.jsonl", "checkpoints/step-000002/model.safetensors"):
        before, after = [(folder / name).read_bytes() for folder in folders]
        assert before == after, name
    report = json.loads((folders[1] / "preflight" / "report.json").read_text())
    assert (report["problems"], report["trajectories"]) == (3, 18)
    assert report["groups_that_differ"] > 0
    assert report["reward_std"] > 0
    assert len(read_trees(folders[1] / "preflight" / "trees.jsonl")) == 3


def test_rewards_that_never_differ_are_refused_unless_allowed(tmp_path, model_folder, refused, capsys):
    recipe = write_task(tmp_path / "task", model_folder)
    settings = ("-s", "reward.name=hierarchical", *ON)
    message = refused("train", recipe, "--max-steps", "1", *settings)
    assert "preflight: the rewards never differ, so there is nothing to learn from (3 problems" in message
    assert "preflight.allow_zero_variance = true" in message
    run = recipe.parent / "run"
    assert f"the trees are in {run / 'preflight'}" in message
    names = {"report.json", "timing.jsonl", "trees.jsonl", "trees.index.jsonl"}
    guarded = ("-s", "guard.max_length=1.0")
    # What it saw is in nobody's way.
    for more in ((), guarded, ("--resume",)):
        refused("train", recipe, "--max-steps", "1", *settings, *more)
        assert {path.name for path in run.iterdir()} == {".lock", "manifest.json", "preflight", "recipe.toml"}
        assert {path.name for path in (run / "preflight").iterdir()} == names
        assert len(read_trees(run / "preflight" / "trees.jsonl")) == 3
    allowed = ("-s", "preflight.allow_zero_variance=true")
    assert main(["train", str(recipe), "--max-steps", "1", *settings, *allowed]) == 0
    assert "reward -1 (std 0, -1 to -1), rewards differ in 0 of 3 groups" in capsys.readouterr().out


def test_a_resumed_run_does_not_look_again(tmp_path, caller, capsys):
    recipe = write_task(tmp_path / "task", caller)
    assert main(["train", str(recipe), "--max-steps", "1", *ON]) == 0
    assert "preflight: 3 problems" in capsys.readouterr().out
    assert main(["train", str(recipe), "--max-steps", "2", "--resume", *ON]) == 0
    assert "preflight" not in capsys.readouterr().out
