"""A run that is killed or interrupted and resumed ends, in deterministic mode, with the bits of one that was not.

Each command is killed at a chain of instants, most of them while it writes a file. RAMIFY_KILLS=10 makes it ten instants of
each command, the others at drawn times, and fills 28 disks instead of two (with --timeout 0; a quarter of an hour).
"""

import json
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

import build
from e2e_runs import DPO, EVAL, SFT, TRAIN, overrides, write_task
from ramify.algos.credit import Weighting, credit
from ramify.cli import main
from ramify.learner.pack import pack
from ramify.modeling.load import load_model
from ramify.obs.metrics import read_metrics
from ramify.obs.trace import read_trees
from ramify.obs.trace_index import trace_files
from ramify.sampler.sampler import Sampler
from random_trees import credited, training

LAST = "step-000005"
KILLS = int(os.environ.get("RAMIFY_KILLS", "0"))
"""Instants at which each command is killed; at least those of `COMMANDS`."""


def five_steps(folder, model, text=TRAIN):
    """A task whose training takes five steps; returns the recipe."""
    rows = [{"prompt": f"what is 12 plus {i} ?", "answer": 12 + i} for i in range(10)]
    return write_task(folder, model, text, problems=rows)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, caller, forked):
    """Five steps without a break."""
    recipe = five_steps(tmp_path_factory.mktemp("whole"), caller)
    status, _, message = forked("train", recipe)
    assert status == 0, message
    return recipe.parent / "run"


@pytest.fixture
def task(tmp_path, caller):
    return five_steps(tmp_path / "task", caller)


def files_of(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def checkpoint(run, scored=True):
    """The last checkpoint without what names its run; its score depends on how often the run saved."""
    files = files_of(max((run / "checkpoints").iterdir()))
    state = json.loads(files.pop(Path("state.json")))["state"]
    assert state.pop("run")["name"] == json.loads((run / "manifest.json").read_text())["name"]
    if not scored:
        for name in ("scores", "due", "ranking"):
            del state["loop"][name]
    assert {Path("model.safetensors"), Path("state/optimizer.safetensors")} <= files.keys()
    return files, state


def test_the_manifest_of_a_run_has_the_version_of_python_and_the_level_of_the_sandbox(uninterrupted):
    (session,) = json.loads((uninterrupted / "manifest.json").read_text())["made_with"]
    assert session["python"] == platform.python_version()
    assert session["sandbox"]["sandbox_level"] in range(5)


def check_equal_runs(run, other, scored=True):
    """Weights, optimizer state, loop state and traces, bit for bit; metrics but for the time."""
    assert checkpoint(run, scored) == checkpoint(other, scored)
    assert files_of(run / "trees") == files_of(other / "trees")
    rows, others = ([dict(r, time=0) for r in read_metrics(f / "metrics.jsonl")] for f in (run, other))
    assert rows == others
    if scored:
        names = ({path.relative_to(f) for path in f.rglob("*")} for f in (run, other))
        assert len(set(map(frozenset, names))) == 1


def check_equal_evaluations(run, other):
    """Every file that holds no times."""
    for name in ("summary.json", "results.jsonl", "trees.jsonl"):
        assert (run / name).read_bytes() == (other / name).read_bytes(), name


SETTINGS = ("run.threads=1", "run.deterministic=true")
PARTIAL = r"\.step-00000%d\.partial"


@dataclass(frozen=True)
class Command:
    """How a command is run, where it is killed (an operation on a file, and the how manieth), and what has to be equal."""

    recipe: str
    settings: tuple[str, ...]
    instants: tuple[tuple[str, int], ...]
    check: Callable[[Path, Path], None] = check_equal_runs

    def words(self):
        return overrides(*SETTINGS, *self.settings)


COMMANDS = {
    "train": Command(
        TRAIN,
        ("guard.max_repetition=0.99", "preflight.enabled=true", "preflight.problems=2"),
        (
            (r"^os.rename .*/recipe\.toml\.part", 1),
            (r"^open .*/preflight/report\.json\.part", 1),
            (r"^open .*/metrics\.jsonl a", 2),
            (r"^open .*" + PARTIAL % 3 + r"/state/\.optimizer\.safetensors\.part x", 1),
            (r"^shutil.rmtree .*" + PARTIAL % 2, 1),
            (r"^os.rename .*/trees/000005\.jsonl\.part", 1),
        ),
    ),
    "sft": Command(
        SFT,
        ("data.epochs=3", "run.save_every=2"),
        (
            (r"^open .*/manifest\.json\.part", 1),
            (r"^open .*" + PARTIAL % 2 + r"/config\.json", 1),
            (r"^os.rename .*" + PARTIAL % 4, 1),
            (r"^os.rename .*/metrics\.jsonl\.part", 1),
        ),
    ),
    "dpo": Command(
        DPO,
        ("data.epochs=3", "run.save_every=2"),
        (
            (r"^open .*/recipe\.toml\.part", 1),
            (r"^open .*" + PARTIAL % 2 + r"/state\.json", 1),
            (r"^open .*/metrics\.jsonl a", 2),
            (r"^os.rename .*/step-000002 ", 1),
        ),
    ),
    "eval": Command(
        EVAL,
        ("data.limit=8", "sampling.k=[1]", "engine.slots=4"),
        (
            (r"^os.rename .*/manifest\.json\.part", 1),
            (r"^open .*/results\.jsonl a", 3),
            (r"^open .*/trees\.jsonl a", 7),
            (r"^os.rename .*/results\.jsonl\.part", 2),
            (r"^open .*/summary\.json\.part", 1),
        ),
        check_equal_evaluations,
    ),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_killed_while_it_writes(tmp_path, caller, forked, name):
    command = COMMANDS[name]
    whole = five_steps(tmp_path / "whole", caller, command.recipe)
    began = time.monotonic()
    status, _, message = forked(name, whole, *command.words())
    assert status == 0, message
    seconds = time.monotonic() - began
    draw = random.Random(name)
    chains = [[{"at": instant} for instant in command.instants]]
    chains += [[{"seconds": seconds * draw.random()}] for _ in range(KILLS - len(command.instants))]
    for number, chain in enumerate(chains):
        recipe = five_steps(tmp_path / str(number), caller, command.recipe)
        for kill in chain:
            status, _, message = forked(name, recipe, *command.words(), "--resume", **kill)
            assert status == -signal.SIGKILL or (status == 0 and "seconds" in kill), (kill, message)
        status, _, message = forked(name, recipe, *command.words(), "--resume")
        assert status == 0, (chain, message)
        command.check(recipe.parent / "run", whole.parent / "run")


def test_killed_while_a_line_of_metrics_and_a_checkpoint_were_being_written(uninterrupted, task, forked):
    """The files as such a kill leaves them."""
    run = task.parent / "run"
    assert forked("train", task, "--max-steps", 2)[0] == 0
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step":3,"time":17')
    shutil.copytree(run / "checkpoints" / "step-000002", run / "checkpoints" / ".step-000003.partial")
    status, output, _ = forked("train", task, "--resume")
    assert status == 0
    assert (
        f"  {run}/metrics.jsonl: the last line was cut off by a crash and is dropped; "
        in output.splitlines()[0]
    )
    assert f"going on from {run}/checkpoints/step-000002\n" in output
    check_equal_runs(run, uninterrupted)
    names, expected = (sorted(p.name for p in (r / "checkpoints").iterdir()) for r in (run, uninterrupted))
    assert names == expected
    assert names[-2:] == ["step-000004", LAST]


PATHS = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")


def test_a_disk_that_is_full_ends_a_run_in_a_line_and_it_goes_on(uninterrupted, tmp_path, caller):
    """The file that is cut depends on the size of the disk; one checkpoint takes 1.3 MB, and three are there at a time."""
    if subprocess.run([*NAMESPACE, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True).returncode:
        pytest.skip("this user may not mount a file system of his own")
    sizes = range(1300, 4100, 100) if KILLS else (1400, 2700)
    recipe = five_steps(tmp_path / "task", caller)
    script = [sys.executable, Path(__file__).with_name("small_disk.py"), tmp_path, ",".join(map(str, sizes))]
    done = subprocess.run(
        [*NAMESPACE, *script, "train", recipe], capture_output=True, text=True, check=True, env=PATHS
    )
    for size, (status, _, message), (resumed, _, message_then) in json.loads(done.stdout):
        assert resumed == 0, message_then
        check_equal_runs(tmp_path / str(size) / "run", uninterrupted)
        assert status in ((0, 1) if size > 3500 else (1,)), (size, message)
        if status:
            assert message.count("\n") == 1
            assert "No space left on device" in message
            assert f"{tmp_path}/disk/run/" in message


@pytest.mark.parametrize(("number", "name", "code"), [(signal.SIGINT, "Ctrl-C", 130), (signal.SIGTERM, "SIGTERM", 143)])  # fmt: skip
def test_interrupted(uninterrupted, task, forked, number, name, code):
    run = task.parent / "run"
    words = ("train", task, "-s", "run.save_every=100")
    status, _, message = forked(*words, at=(r"^open .*/metrics\.jsonl a", 3, number))
    assert status == code
    assert message.count("\n") == 1
    (saved,) = (run / "checkpoints").iterdir()
    assert message == (f"ramify train: stopped by {name}; state saved in {saved}, go on with --resume\n")
    assert forked(*words, "--resume")[0] == 0
    check_equal_runs(run, uninterrupted, scored=False)


AFTER_STEP_3 = (r"^open .*/metrics\.jsonl a", 4)


def test_killed_with_a_rule_that_remembers_the_steps_before(tmp_path, caller, forked):
    """The released baselines are those of the first problem ever seen at a place of the batch."""
    rule = ("-s", "rollout.branching={name='seed_compat_arpo', probe_tokens=4}")
    whole, broken = (five_steps(tmp_path / name, caller) for name in ("whole", "broken"))
    assert forked("train", whole, *rule)[0] == 0
    assert forked("train", broken, *rule, at=AFTER_STEP_3)[0] == -signal.SIGKILL
    status, _, message = forked("train", broken, *rule, "--resume")
    assert status == 0, message
    check_equal_runs(broken.parent / "run", whole.parent / "run")
    _, state = checkpoint(whole.parent / "run")
    assert len(state["loop"]["branching"]["first_seen"]) > 2


def test_killed_between_problems_that_were_refused(tmp_path, caller, forked):
    """Dynamic sampling: the cursor counts every problem that a step has taken, and draws know their round."""
    words = overrides("reward.name=hierarchical", "rollout.dynamic_sampling.max_attempts=3")
    rows = [
        {"id": f"p{i}", "prompt": "what is 12 plus 30 ?", "answer": [42, "Paris"][i % 2]} for i in range(18)
    ]
    whole, broken = (write_task(tmp_path / name, caller, problems=rows) for name in ("whole", "broken"))
    assert forked("train", whole, *words)[0] == 0
    assert forked("train", broken, *words, at=AFTER_STEP_3)[0] == -signal.SIGKILL
    status, _, message = forked("train", broken, *words, "--resume")
    assert status == 0, message
    check_equal_runs(broken.parent / "run", whole.parent / "run")
    done = read_metrics(whole.parent / "run" / "metrics.jsonl")
    refused = sum(row["sampling/refused"] for row in done)
    assert refused > 0
    assert max(row["sampling/attempts"] for row in done) > 1
    taken = [len(read_trees(path)) for path in trace_files(whole.parent / "run" / "trees")]
    _, state = checkpoint(whole.parent / "run")
    cursor = state["loop"]["cursor"]
    assert sum(taken) == cursor["epoch"] * len(rows) + cursor["next_index"] > 9 * 2


def test_a_run_whose_checkpoints_are_gone_does_not_start_again_in_silence(task, forked):
    run = task.parent / "run"
    assert forked("train", task, "--max-steps", 3)[0] == 0
    shutil.rmtree(run / "checkpoints")
    status, _, message = forked("train", task, "--resume")
    assert status == 2
    assert message == (
        f"ramify train: {run}: metrics.jsonl has 3 steps, but there is no checkpoint in {run}/checkpoints; put it "
        "back, or name a new run.dir to start again\n"
    )
    assert len(read_metrics(run / "metrics.jsonl")) == 3


def test_a_job_that_always_asks_to_resume_begins_at_the_start_and_says_so(task, forked):
    run = task.parent / "run"
    status, output, message = forked("train", task, "--resume", "--max-steps", 1)
    assert status == 0, message
    assert f"nothing to resume in {run}: starting from step 0\n" in output
    assert [row["step"] for row in read_metrics(run / "metrics.jsonl")] == [1]


def test_a_checkpoint_of_another_run_is_refused(uninterrupted, task, forked):
    """The same recipe, seed and model."""
    run = task.parent / "run"
    assert forked("train", task, "--max-steps", 1)[0] == 0
    shutil.copytree(uninterrupted / "checkpoints" / LAST, run / "checkpoints" / LAST)
    status, _, message = forked("train", task, "--resume")
    assert status == 2
    assert message.startswith(f"ramify train: {run}/checkpoints/{LAST}: of run ")
    assert message.endswith("move it out of this folder, or name a new run.dir with it as model.path\n")
    assert message.count("\n") == 1


def test_supervised_training_interrupted(tmp_path, model_folder, forked):
    settings = ("-s", "data.epochs=4", "-s", "run.threads=1", "-s", "run.deterministic=true")
    recipe = write_task(tmp_path / "sft", model_folder, SFT)
    run = recipe.parent / "run"
    status, _, message = forked("sft", recipe, *settings, at=(r"^open .*/metrics\.jsonl a", 3, signal.SIGINT))
    assert status == 130
    assert message.startswith("ramify sft: stopped by Ctrl-C; state saved in ")
    assert message.count("\n") == 1
    done = len(read_metrics(run / "metrics.jsonl"))
    assert forked("sft", recipe, *settings, "--resume", "--max-steps", done + 2)[0] == 0
    assert [row["step"] for row in read_metrics(run / "metrics.jsonl")] == list(range(1, done + 3))


def test_a_checkpoint_opens_in_transformers_with_the_learners_logprobs(uninterrupted):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = uninterrupted / "checkpoints" / LAST
    theirs = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ours = build.learner(load_model(folder))
    for traced in read_trees(uninterrupted / "trees" / "000005.jsonl"):
        tree = traced.tree
        ones = [np.ones(trajectory.num_written) for trajectory in tree.trajectories]
        (row,) = pack(credited([tree], [credit(training(tree, ones), Weighting())]), 1 << 20)
        (packed,) = ours.logprobs([row])
        differences = []
        for trajectory in tree.trajectories:
            (segment,) = trajectory.segments
            ids = torch.tensor([segment.token_ids])
            with torch.no_grad():
                logits = theirs(ids).logits[0, :-1]
            every = torch.log_softmax(logits, -1).gather(1, ids[0, 1:, None])[:, 0]
            differences.append(every[torch.tensor(segment.written[1:])].numpy())
            prompt = tokenizer(trajectory.nodes[0].text, add_special_tokens=False)["input_ids"]
            assert tuple(prompt) == trajectory.nodes[0].token_ids
        np.testing.assert_allclose(packed, unique_of(tree, differences), atol=1e-5)


def unique_of(tree, per_trajectory):
    """Values along trajectories as values of the tree's written tokens, in the order of its nodes."""
    by_node = {}
    for trajectory, values in zip(tree.trajectories, per_trajectory, strict=True):
        start = 0
        for node in trajectory.policy_nodes:
            by_node[node.id] = values[start : start + len(node.token_ids)]
            start += len(node.token_ids)
    return np.concatenate([by_node[node.id] for node in tree.nodes if node.id in by_node])


def test_a_signal_behind_the_last_step_saves_what_was_trained(task, uninterrupted, monkeypatch, capsys):
    """While the sampler is closed nothing is left to stop, and `--max-steps` may end between two checkpoints."""
    close = Sampler.close

    async def stopped_while_closing(sampler):
        os.kill(os.getpid(), signal.SIGINT)
        await close(sampler)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(Sampler, "close", stopped_while_closing)
    words = ["train", str(task), *overrides("run.save_every=5")]
    try:
        assert main([*words, "--max-steps", "2"]) == 130
    finally:
        signal.signal(signal.SIGINT, before)
        monkeypatch.undo()
    message = capsys.readouterr().err
    assert "stopped by Ctrl-C" in message
    assert (
        f"state saved in {task.parent / 'run' / 'checkpoints' / 'step-000002'}, go on with --resume"
        in message
    )
    assert main([*words, "--resume"]) == 0
    trees = Path("trees", "000005.jsonl")
    assert (task.parent / "run" / trees).read_bytes() == (uninterrupted / trees).read_bytes()
