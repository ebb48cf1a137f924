"""A start that fails or is killed before the first step never blocks the same command, with --resume or without.

`RAMIFY_STARTS=all` kills every command at every access to its run folder up to the first step.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from e2e_runs import DPO, EVAL, SELFCRITIC, SFT, SYNTH, TRAIN, write_task

pytestmark = pytest.mark.integration

EVERY = os.environ.get("RAMIFY_STARTS") == "all"


def lean(text):
    """A recipe of the smallest trees, without a sandbox, which would take most of the time."""
    text = re.sub(r"\[tools\.python\]\ntimeout_seconds = \d+\n|\[sandbox\]\nmin_level = 0\n", "", text)
    small = {"n": 2, "m": 1, "max_tokens": 16, "problems_per_step": 1, "problems_per_minibatch": 1}
    for key, value in small.items():
        text = re.sub(rf"^{key} = \d+$", f"{key} = {value}", text, flags=re.MULTILINE)
    return text


ONE_STEP = ("--max-steps", "1")
LOOKED = ("-s", "preflight.enabled=true", "-s", "preflight.problems=1", "-s", "guard.max_length=0.99")
STARTS = {
    "train": (lean(TRAIN), ONE_STEP),
    "train, looked at": (lean(TRAIN), (*ONE_STEP, *LOOKED, "-s", "preflight.allow_zero_variance=true")),
    "sft": (SFT, ONE_STEP),
    "dpo": (DPO, ONE_STEP),
    "eval": (EVAL, ("-s", "data.limit=1")),
    "synth": (lean(SYNTH), ("-s", "data.limit=1")),
    "selfcritic": (lean(SELFCRITIC), ("-s", "selfcritic.problems=1", "-s", "dpo.max_tokens=300")),
    "rollout": (lean(TRAIN), ("--problems", "1")),
}
"""Recipes and further words, so that each run is as short as it can be."""
RESUMED = {name for name in STARTS if name != "rollout"}
RESULTS = ("metrics.jsonl", "results.jsonl", "summary.json", "checkpoints/step-*", "trees/*.jsonl")
"""Files with which a run has begun; empty ones do not count."""


def has_begun(run):
    places = [*RESULTS, *(f"cycle-01/rl/{name}" for name in RESULTS)]
    return any(path.is_dir() or path.stat().st_size for pattern in places for path in run.glob(pattern))


@pytest.fixture(params=STARTS)
def start(request, tmp_path, model_folder):
    """The words of a command, and its run folder."""
    text, more = STARTS[request.param]
    recipe = write_task(tmp_path / "task", model_folder, text)
    return request.param, (request.param.partition(",")[0], recipe, *more), recipe.parent / "run"


def check_repeats(forked, words, run, resumes):
    """The same command works now; where results are there, only with --resume. Returns whether they are."""
    begun = has_begun(run)
    status, _, message = forked(*words)
    if not begun or "--resume" in words:
        assert status == 0, message
    else:
        assert (status, message.count("\n")) == (2, 1), message
        assert ("go on with --resume" if resumes else "holds trees; name a new folder") in message
    return begun


def test_a_start_that_is_killed(forked, start):
    name, words, run = start
    accesses = rf"^(open|os|shutil)\S* {re.escape(str(run))}\b"
    resumes = name in RESUMED
    killed = 0
    for number in range(1, 1000) if EVERY else (3, 10):
        shutil.rmtree(run, ignore_errors=True)
        status, _, message = forked(*words, at=(accesses, number))
        assert status in (0, -9), message
        if status == 0:
            break
        again = ("--resume",) if resumes and number % 2 else ()
        if check_repeats(forked, (*words, *again), run, resumes):
            break
        killed += 1
    # Shown by `pytest -rP`, for the figures of a campaign.
    sys.stdout.write(f"{name}: killed at {killed} accesses before the first step\n")
    assert killed >= 2


@pytest.fixture
def broken_python(tmp_path):
    """An interpreter that starts no server."""
    path = tmp_path / "python"
    path.write_text("#!/bin/sh\necho 'RuntimeError: no kernel image' >&2\nexit 1\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("name", ["train", "eval", *(["synth", "rollout", "selfcritic"] if EVERY else [])])
def test_a_server_that_does_not_start(forked, tmp_path, model_folder, broken_python, name):
    text, more = STARTS[name]
    recipe = write_task(tmp_path / "task", model_folder, text.replace("deterministic = true\n", ""))
    run = recipe.parent / "run"
    served = f'engine={{name="vllm",launch=true,python="{broken_python}",dtype="float32",start_seconds=60}}'
    words = (name, recipe, *more)
    for again in ((), ("--resume",) if name in RESUMED else ()):
        status, _, message = forked(*words, "-s", served, *again)
        assert (status, message.count("\n")) == (2, 1), message
        assert "no kernel image" in message
        assert not has_begun(run)
    logs = [path.read_text() for path in run.rglob("server-0.log")]
    assert logs
    check_repeats(forked, words, run, name in RESUMED)
    assert [path.read_text() for path in run.rglob("server-0.log")] == logs


def test_weights_that_cannot_be_read(forked, start, tmp_path, model_folder):
    name, words, run = start
    if name == "synth" or not (EVERY or name in ("train", "sft")):
        pytest.skip("a scripted engine reads no weights; the others with RAMIFY_STARTS=all")
    weights = model_folder.with_name("damaged") / "model.safetensors"
    shutil.copytree(model_folder, weights.parent, dirs_exist_ok=True)
    whole = weights.read_bytes()
    # NaN: found when the weights are loaded, after the tools, the data and the manifest.
    weights.write_bytes(whole[:-64] + b"\xff" * 64)
    words = (*words, "-s", f"model.path={weights.parent}")
    status, _, message = forked(*words)
    assert (status, message.count("\n")) == (2, 1), message
    assert "NaN" in message
    weights.write_bytes(whole)
    check_repeats(forked, words, run, name in RESUMED)


NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")
PATHS = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}


def test_a_disk_that_is_full_at_once(start, tmp_path):
    if subprocess.run([*NAMESPACE, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True).returncode:
        pytest.skip("this user may not mount a file system of his own")
    name, words, _ = start
    if not EVERY and name != "eval":
        pytest.skip("with RAMIFY_STARTS=all")
    sizes = (4, 8, 12, 16, 20, 24, 32, 48, 64, 96, 128) if EVERY else (8,)
    script = [sys.executable, Path(__file__).with_name("small_disk.py"), tmp_path, ",".join(map(str, sizes))]
    done = subprocess.run(
        [*NAMESPACE, *script, *map(str, words)], capture_output=True, text=True, check=True, env=PATHS
    )
    outcomes = json.loads(done.stdout)
    assert any(status for _, (status, *_), _ in outcomes)
    for size, (status, _, message), (again, _, message_then) in outcomes:
        # 2: a training run sees beforehand that no checkpoint fits.
        assert status in (0, 1, 2), (size, message)
        assert message.count("\n") == (status != 0), (size, message)
        # A rollout that fits is done, and is not made again.
        assert again == (2 if name == "rollout" and not status else 0), (size, message_then)


def test_a_folder_of_a_stranger_is_still_refused(forked, start):
    name, words, run = start
    if not (EVERY or name in ("train", "rollout")):
        pytest.skip("with RAMIFY_STARTS=all")
    run.mkdir()
    for file in ("recipe.toml", "notes.txt"):
        (run / file).write_text("mine")
    for more in ((), ("--resume",)) if name in RESUMED else ((),):
        status, _, message = forked(*words, *more)
        assert (status, message.count("\n")) == (2, 1)
        assert f"run.dir: {run} exists and is not empty; expected a new or empty folder" in message
    assert {path.name: path.read_text() for path in run.iterdir()} == {
        "recipe.toml": "mine",
        "notes.txt": "mine",
    }
