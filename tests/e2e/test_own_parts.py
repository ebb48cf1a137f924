"""`ramify train` with a branching rule, an estimator and a token loss from one file of the user's own."""

import json
import signal
from pathlib import Path

import pytest

import own_parts
from e2e_runs import TRAIN, overrides, write_task
from ramify.cli import main
from ramify.obs.metrics import read_metrics

PARTS = {
    "rollout.branching": '{name="file", path="own_parts.py", function="rule", probe_tokens=4}',
    "algorithm.estimator": '{name="file", path="own_parts.py", function="advantage"}',
    "algorithm.loss": '{name="file", path="own_parts.py", function="clip", args={clip_high=0.3}}',
}
NAMED = {"algorithm.loss": '{name="clip", clip_high=0.3}'}


@pytest.fixture
def task(tmp_path, caller, monkeypatch):
    (tmp_path / "own_parts.py").write_text(Path(own_parts.__file__).read_text())
    monkeypatch.chdir(tmp_path)
    return write_task(tmp_path / "task", caller, TRAIN)


def settings(parts=PARTS, steps=3):
    values = {**parts, "run.steps": steps, "learner.problems_per_minibatch": 1}
    return overrides(values)


def files(run, folder):
    return {path.name: path.read_bytes() for path in (run / folder).rglob("*") if path.is_file()}


def weights(run):
    return (max((run / "checkpoints").iterdir()) / "model.safetensors").read_bytes()


def rows(run):
    return [{**row, "time": 0} for row in read_metrics(run / "metrics.jsonl")]


def test_a_run_with_parts_in_a_file_is_the_run_with_ramifys_own(task, tmp_path, capsys):
    assert main(["train", str(task), *settings()]) == 0
    out = capsys.readouterr().out
    assert all(f"{key}: " in out for key in PARTS)
    assert "algorithm.loss: clip of own_parts.py, sha256 " in out
    manifest = json.loads((task.parent / "run" / "manifest.json").read_text())
    assert manifest["made_from"]["functions"].keys() == PARTS.keys()
    assert main(["train", str(task), *settings(NAMED), "-s", f"run.dir={tmp_path / 'named'}"]) == 0
    named = rows(tmp_path / "named")
    assert any(row["branch/taken"] > 0 for row in named)
    for row, expected in zip(rows(task.parent / "run"), named, strict=True):
        for key in ("update/loss", "update/grad_norm", "update/clip_fraction", "branch/taken"):
            assert row[key] == pytest.approx(expected[key], rel=1e-4, abs=1e-6), key
    assert "functions" not in json.loads((tmp_path / "named" / "manifest.json").read_text())["made_from"]


def test_a_killed_run_goes_on_to_the_same_bits_and_refuses_another_file(task, tmp_path, forked):
    expected, run = tmp_path / "whole", task.parent / "run"
    assert main(["train", str(task), *settings(), "-s", f"run.dir={expected}"]) == 0
    status, _, err = forked("train", task, *settings(), at=(r"^open .*/metrics\.jsonl a", 2))
    assert status == -signal.SIGKILL, err
    source = (tmp_path / "own_parts.py").read_text()
    (tmp_path / "own_parts.py").write_text(source + "\n")
    status, _, err = forked("train", task, *settings(), "--resume")
    assert status == 2
    assert "made_from" not in err
    assert "functions.algorithm.loss = " in err
    (tmp_path / "own_parts.py").write_text(source)
    assert main(["train", str(task), *settings(), "--resume"]) == 0
    assert weights(run) == weights(expected)
    assert files(run, "trees") == files(expected, "trees")
    assert rows(run) == rows(expected)


@pytest.mark.parametrize(
    ("key", "path", "function", "message"),
    [
        *((key, "other.py", "other", "other.py: other: expected other(") for key in PARTS),
        ("algorithm.loss", "other.py", "clip", "other.py: no function or class 'clip'. It has other"),
        ("algorithm.estimator", "broken.py", "f", "broken.py, line 1: not Python: "),
    ],
)
def test_a_dry_run_finds_what_cannot_be_loaded(task, tmp_path, capsys, key, path, function, message):
    (tmp_path / "broken.py").write_text("def f(:\n")
    (tmp_path / "other.py").write_text("def other():\n    return 1\n")
    part = f'{{name="file", path="{path}", function="{function}"}}'
    assert main(["train", str(task), *settings({**PARTS, key: part}), "--dry-run"]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("key", "parameters", "body", "message"),
    [
        ("rollout.branching", "candidate", "return None", "line 1: f: tree "),
        ("rollout.branching", "candidate", "raise OSError('no')", "it raised OSError: no. Correct the function."),
        ("algorithm.estimator", "rewards, tree", "return [0]", "it returned an array of shape [1] for 6 trajectories"),
        ("algorithm.loss", "ratio, sign", "return 1", "line 1: f: with sign 1 it returned 1. Return a tensor."),
    ],
)  # fmt: skip
def test_a_function_that_fails_ends_the_run_with_one_line(
    task, tmp_path, refused, key, parameters, body, message
):
    (tmp_path / "fails.py").write_text(f"def f({parameters}):\n    {body}\n")
    part = '{name="file", path="fails.py", function="f"}'
    line = refused("train", task, *settings({**PARTS, key: part}))
    assert message in line
    assert "fails.py, line " in line
