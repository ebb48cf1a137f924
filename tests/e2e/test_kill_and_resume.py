"""A run that is killed or interrupted and resumed ends, in deterministic mode, with the weights of one that was not."""

import json
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from e2e_runs import SECONDS, SFT, ramify, start, wait_for_step, write_lines, write_task

from ramify.algos.credit import Weighting, credit
from ramify.algos.losses import Objective
from ramify.algos.sft import NegativeLogLikelihood
from ramify.learner.optimizer import AdamWSettings, Schedule
from ramify.learner.pack import pack
from ramify.learner.update import Learner
from ramify.modeling.load import load_model
from ramify.obs.metrics import read_metrics
from ramify.obs.trace import read_trees

LAST = "step-000009"


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, caller):
    """Nine steps without a break."""
    recipe = write_task(tmp_path_factory.mktemp("whole"), caller)
    status, _, told = ramify("train", recipe)
    assert status == 0, told
    return recipe.parent / "run"


@pytest.fixture
def task(tmp_path, caller):
    return write_task(tmp_path / "task", caller)


def files_of(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def checkpoint(run, scored=True):
    """A checkpoint without what names its run or its place on the disk; its score depends on how often the run saved."""
    files = files_of(run / "checkpoints" / LAST)
    del files[Path("state/.metadata")]
    state = json.loads(files.pop(Path("state.json")))["state"]
    assert state.pop("run")["name"] == json.loads((run / "run.json").read_text())["name"]
    if not scored:
        for name in ("scores", "due", "ranking"):
            del state["loop"][name]
    assert {Path("model.safetensors"), Path("state/__0_0.distcp")} <= files.keys()
    return files, state


def check_equal_runs(run, other, scored=True):
    """Weights, optimizer state, loop state and traces, bit for bit; metrics but for the time."""
    assert checkpoint(run, scored) == checkpoint(other, scored)
    assert files_of(run / "trees") == files_of(other / "trees")
    rows, others = ([dict(r, time=0) for r in read_metrics(f / "metrics.jsonl")] for f in (run, other))
    assert rows == others


def test_the_runs_below_call_tools_branch_and_learn(uninterrupted, caller):
    weights = (uninterrupted / "checkpoints" / LAST / "model.safetensors").read_bytes()
    assert weights != (caller / "model.safetensors").read_bytes()
    rows = read_metrics(uninterrupted / "metrics.jsonl")
    assert all(row["update/grad_norm"] > 0 for row in rows)
    assert sum(row["branch/taken"] for row in rows) > 0
    assert all(row["calls/ok_rate"] > 0 for row in rows)


@pytest.mark.parametrize("step", [1, 3])
def test_killed_in_the_middle(uninterrupted, task, step):
    run = task.parent / "run"
    process = start("train", task)
    wait_for_step(process, run, step)
    process.kill()
    process.communicate(timeout=SECONDS)
    assert not (run / "checkpoints" / LAST).exists()
    status, said, told = ramify("train", task, "--resume")
    assert status == 0, told
    assert f"model written to {run}/checkpoints/{LAST}" in said
    check_equal_runs(run, uninterrupted)


def test_killed_while_a_line_of_metrics_and_a_checkpoint_were_being_written(uninterrupted, task):
    """The files as such a kill leaves them."""
    run = task.parent / "run"
    assert ramify("train", task, "--max-steps", 2)[0] == 0
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step":3,"time":17')
    shutil.copytree(run / "checkpoints" / "step-000002", run / "checkpoints" / ".step-000003.partial")
    status, said, _ = ramify("train", task, "--resume")
    assert status == 0
    assert said.startswith(f"{run}/metrics.jsonl: the last line was cut off by a crash and is dropped; ")
    assert f"going on from {run}/checkpoints/step-000002\n" in said
    check_equal_runs(run, uninterrupted)
    kept, expected = (sorted(p.name for p in (r / "checkpoints").iterdir()) for r in (run, uninterrupted))
    assert kept == expected
    assert kept[-2:] == ["step-000008", LAST]


@pytest.mark.parametrize(
    ("number", "name", "code"), [(signal.SIGINT, "Ctrl-C", 130), (signal.SIGTERM, "SIGTERM", 143)]
)
def test_interrupted(uninterrupted, task, number, name, code):
    run = task.parent / "run"
    process = start("train", task, "-s", "run.save_every=100")
    wait_for_step(process, run, 2)
    process.send_signal(number)
    _, told = process.communicate(timeout=SECONDS)
    assert process.returncode == code
    assert told.count("\n") == 1
    (saved,) = (run / "checkpoints").iterdir()
    assert told == (f"ramify train: stopped by {name}; state saved in {saved}, go on with --resume\n")
    assert ramify("train", task, "-s", "run.save_every=100", "--resume")[0] == 0
    check_equal_runs(run, uninterrupted, scored=False)


def test_killed_with_a_rule_that_remembers_the_steps_before(tmp_path, caller):
    """The released baselines are those of the first problem ever seen at a place of the batch."""
    rule = ("-s", "rollout.branching={name='seed_compat_arpo', probe_tokens=4}")
    whole, broken = (write_task(tmp_path / name, caller) for name in ("whole", "broken"))
    assert ramify("train", whole, *rule)[0] == 0
    process = start("train", broken, *rule)
    wait_for_step(process, broken.parent / "run", 3)
    process.kill()
    process.communicate(timeout=SECONDS)
    status, _, told = ramify("train", broken, *rule, "--resume")
    assert status == 0, told
    check_equal_runs(broken.parent / "run", whole.parent / "run")
    _, state = checkpoint(whole.parent / "run")
    assert len(state["loop"]["branching"]["first_seen"]) > 2


def test_killed_between_problems_that_were_refused(tmp_path, caller):
    """Dynamic sampling: the cursor counts every problem that a step has taken, and draws know their round."""
    settings = ("reward.name=hierarchical", "rollout.dynamic_sampling.max_attempts=3")
    words = [word for setting in settings for word in ("-s", setting)]
    rows = [
        {"id": f"p{i}", "prompt": "what is 12 plus 30 ?", "answer": [42, "Paris"][i % 2]} for i in range(18)
    ]
    whole, broken = (write_task(tmp_path / name, caller) for name in ("whole", "broken"))
    for recipe in (whole, broken):
        write_lines(recipe.parent / "problems.jsonl", rows)
    assert ramify("train", whole, *words)[0] == 0
    process = start("train", broken, *words)
    wait_for_step(process, broken.parent / "run", 3)
    process.kill()
    process.communicate(timeout=SECONDS)
    status, _, told = ramify("train", broken, *words, "--resume")
    assert status == 0, told
    check_equal_runs(broken.parent / "run", whole.parent / "run")
    done = read_metrics(whole.parent / "run" / "metrics.jsonl")
    refused = sum(row["sampling/refused"] for row in done)
    assert refused > 0
    assert max(row["sampling/attempts"] for row in done) > 1
    taken = [len(read_trees(path)) for path in sorted((whole.parent / "run" / "trees").iterdir())]
    _, state = checkpoint(whole.parent / "run")
    cursor = state["loop"]["cursor"]
    assert sum(taken) == cursor["epoch"] * len(rows) + cursor["next_index"] > 9 * 2


def test_a_run_whose_checkpoints_are_gone_does_not_start_again_in_silence(task):
    run = task.parent / "run"
    assert ramify("train", task, "--max-steps", 3)[0] == 0
    shutil.rmtree(run / "checkpoints")
    status, _, told = ramify("train", task, "--resume")
    assert status == 2
    assert told == (
        f"ramify train: {run}: metrics.jsonl has 3 steps, but there is no checkpoint in {run}/checkpoints; put it "
        "back, or name a new run.dir to start again\n"
    )
    assert len(read_metrics(run / "metrics.jsonl")) == 3


def test_a_job_that_always_asks_to_resume_begins_at_the_start_and_says_so(task):
    run = task.parent / "run"
    status, said, told = ramify("train", task, "--resume", "--max-steps", 1)
    assert status == 0, told
    assert f"nothing to resume in {run}: starting from step 0\n" in said
    assert [row["step"] for row in read_metrics(run / "metrics.jsonl")] == [1]


def test_a_checkpoint_of_another_run_is_refused(uninterrupted, task):
    """The same recipe, seed and model."""
    run = task.parent / "run"
    assert ramify("train", task, "--max-steps", 1)[0] == 0
    shutil.copytree(uninterrupted / "checkpoints" / LAST, run / "checkpoints" / LAST)
    status, _, told = ramify("train", task, "--resume")
    assert status == 2
    assert told.startswith(f"ramify train: {run}/checkpoints/{LAST}: of run ")
    assert told.endswith("move it out of this folder, or name a new run.dir with it as model.path\n")
    assert told.count("\n") == 1


def test_supervised_training_interrupted(tmp_path, model_folder):
    settings = ("-s", "data.epochs=400", "-s", "run.threads=1", "-s", "run.deterministic=true")
    recipe = write_task(tmp_path / "sft", model_folder, SFT)
    run = recipe.parent / "run"
    process = start("sft", recipe, *settings)
    wait_for_step(process, run, 3)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert told.startswith("ramify sft: stopped by Ctrl-C; state saved in ")
    assert told.count("\n") == 1
    done = len(read_metrics(run / "metrics.jsonl"))
    assert ramify("sft", recipe, *settings, "--resume", "--max-steps", done + 2)[0] == 0
    assert [row["step"] for row in read_metrics(run / "metrics.jsonl")] == list(range(1, done + 3))


def test_a_checkpoint_opens_in_transformers_with_the_learners_logprobs(uninterrupted):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = uninterrupted / "checkpoints" / LAST
    theirs = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ours = Learner(
        load_model(folder),
        optimizer=AdamWSettings(0.0),
        schedule=Schedule(),
        total_steps=1,
        objective=Objective(NegativeLogLikelihood()),
        temperature=1.0,
        max_grad_norm=1.0,
    )
    for traced in read_trees(uninterrupted / "trees" / "000009.jsonl"):
        tree = traced.tree
        ones = [np.ones(trajectory.num_written) for trajectory in tree.trajectories]
        (row,) = pack([tree], [credit(tree, ones, Weighting())], 1 << 20)
        (packed,) = ours.logprobs([row])
        found = []
        for trajectory in tree.trajectories:
            (segment,) = trajectory.segments
            ids = torch.tensor([segment.token_ids])
            with torch.no_grad():
                logits = theirs(ids).logits[0, :-1]
            every = torch.log_softmax(logits, -1).gather(1, ids[0, 1:, None])[:, 0]
            found.append(every[torch.tensor(segment.written[1:])].numpy())
            prompt = tokenizer(trajectory.nodes[0].text, add_special_tokens=False)["input_ids"]
            assert tuple(prompt) == trajectory.nodes[0].token_ids
        np.testing.assert_allclose(packed, unique_of(tree, found), atol=1e-5)


def unique_of(tree, per_trajectory):
    """Values along trajectories as values of the tree's written tokens, in the order of its nodes."""
    by_node = {}
    for trajectory, values in zip(tree.trajectories, per_trajectory, strict=True):
        start = 0
        for node in trajectory.policy_nodes:
            by_node[node.id] = values[start : start + len(node.token_ids)]
            start += len(node.token_ids)
    return np.concatenate([by_node[node.id] for node in tree.nodes if node.id in by_node])
