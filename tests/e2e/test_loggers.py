"""Runs that loggers follow: what their own packages read back, killed and gone on, and loggers that fail."""

import io
import json
import signal
import sqlite3
import sys
from dataclasses import replace

import pytest

from e2e_runs import SFT, TRAIN, overrides, write_task
from ramify.assemble.training import build_rl
from ramify.cli import main
from ramify.config.load import load_recipe
from ramify.config.other_runs import record_of
from ramify.config.schema_train import TrainRecipe
from ramify.core.rank import Rank
from ramify.learner.parallel import Ranks
from ramify.modeling.memory_plan import GATHERED_ONCE
from ramify.obs.console import RunConsole
from ramify.obs.metrics import read_metrics
from ramify.obs.trace import read_trees
from ramify.rewards.extract import answer_of
from ramify.runs.loggers import LoggedRun
from ramify.runs.recorder import Loggers, Recorder
from ramify.runs.run_folder import claim_run_folder
from ramify.train.rl import run_to_end


def read_tensorboard(run):
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulators.EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    assert '"batch_size": 2' in events.Tensors("recipe/text_summary")[-1].tensor_proto.string_val[0].decode()
    scalars = events.Scalars("loss")
    return {event.step: event.value for event in scalars}, len(scalars)


def read_wandb(run):
    """Two sessions of one run; W&B writes in blocks, so nothing may have been written of the one that was killed."""
    proto = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    name = json.loads((run / "manifest.json").read_text())["name"]
    first, second = sorted((run.parent / "wandb").glob("offline-run-*/run-*.wandb"))
    assert first.name == second.name == f"run-{name}.wandb"
    records = [proto.Record.FromString(content) for content in records_of(second.read_bytes())]
    assert [record.run.run_id for record in records if record.HasField("run")] == [name]
    assert [record.exit.exit_code for record in records if record.HasField("exit")] == [0]
    rows = [
        {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
        for record in records
        if record.HasField("history")
    ]
    return {row["step"]: row["loss"] for row in rows}, len(rows)


def records_of(content):
    """The records of a file of W&B: a header of seven bytes, then LevelDB's log format."""
    at, record, block = 7, b"", 1 << 15
    while at + 7 <= len(content):
        if block - at % block < 7:
            at += block - at % block
        size, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        record += content[at + 7 : at + 7 + size]
        if len(content) < at + 7 + size:
            return
        at += 7 + size
        if kind in (1, 4):  # a whole record, or the last part of one
            yield record
            record = b""


def read_trackio(run):
    storage = pytest.importorskip("trackio.sqlite_storage").SQLiteStorage
    name = json.loads((run / "manifest.json").read_text())["name"]
    (path,) = (run.parent / "trackio").glob("*.db")
    with sqlite3.connect(path) as database:
        assert database.execute("SELECT COUNT(DISTINCT run_id) FROM metrics").fetchone() == (1,)
    logs = storage.get_logs("ramify", f"{run.parent.name}/run-{name}")
    config = storage.get_run_config("ramify", f"{run.parent.name}/run-{name}")
    assert config["learner"]["batch_size"] == 2
    return {row["step"]: row["loss"] for row in logs}, len(logs)


def read_mlflow(run):
    pytest.importorskip("sqlalchemy")
    client = pytest.importorskip("mlflow").MlflowClient(f"sqlite:///{run / 'mlflow' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("ramify")
    (own,) = client.search_runs([experiment.experiment_id])
    assert own.data.tags["ramify.run"] == json.loads((run / "manifest.json").read_text())["name"]
    assert own.info.status == "FINISHED"
    assert own.data.tags["mlflow.note.content"].startswith("best checkpoint: ")
    history = client.get_metric_history(own.info.run_id, "loss")
    return {metric.step: metric.value for metric in history}, len(history)


READERS = {"tensorboard": read_tensorboard, "wandb": read_wandb, "trackio": read_trackio, "mlflow": read_mlflow}  # fmt: skip


@pytest.mark.parametrize("name", READERS)
def test_a_run_that_was_killed_goes_on_in_the_same_run_of_its_logger(
    tmp_path, model_folder, forked, monkeypatch, name
):
    pytest.importorskip(name)
    if name == "mlflow":
        pytest.importorskip("sqlalchemy")
    folder = tmp_path / "task"
    recipe, run = write_task(folder, model_folder, SFT), folder / "run"
    monkeypatch.setenv("TRACKIO_DIR", str(folder / "trackio"))
    environment = {"TRACKIO_DIR": str(folder / "trackio"), "WANDB_DIR": str(folder)}
    settings = ("data.epochs=400", "run.threads=1", "run.save_every=4", f'log.to=["{name}"]')
    arguments = ("sft", recipe, *overrides(*settings))
    seventh = (r"^open .*/metrics\.jsonl a", 7)
    assert forked(*arguments, at=seventh, **environment)[0] == -signal.SIGKILL
    before = len(read_metrics(run / "metrics.jsonl"))
    status, out, err = forked(*arguments, "--resume", "--max-steps", before + 5, **environment)
    assert status == 0, err
    assert "log.to" not in out + err
    truth = {row["step"]: row["loss"] for row in read_metrics(run / "metrics.jsonl")}
    assert len(truth) == before + 5
    if name == "trackio":  # it reads TRACKIO_DIR when it is imported
        monkeypatch.setattr("trackio.sqlite_storage.TRACKIO_DIR", folder / "trackio")
    logged, rows = READERS[name](run)
    assert logged == pytest.approx({step: truth[step] for step in logged}, rel=1e-6)
    assert set(range(before + 1, before + 6)) <= logged.keys()
    if name in ("tensorboard", "mlflow"):  # the others write behind, and are killed before they have
        assert logged.keys() == truth.keys()
    if name == "tensorboard":
        assert rows == len(truth)


def test_who_logs_may_change_when_a_run_goes_on(tmp_path, model_folder):
    pytest.importorskip("tensorboard")
    recipe = write_task(tmp_path / "task", model_folder, SFT)
    threads = ("-s", "run.threads=1")
    assert main(["sft", str(recipe), *threads, "--max-steps", "1"]) == 0
    assert main(["sft", str(recipe), *threads, "--resume", "-s", 'log.to=["tensorboard"]']) == 0
    logged, _ = read_tensorboard(tmp_path / "task" / "run")
    assert logged.keys() == {2, 3}


def test_a_missing_package_is_refused_before_anything_is_made(tmp_path, model_folder, monkeypatch, refused):
    monkeypatch.setitem(sys.modules, "wandb", None)
    recipe = write_task(tmp_path / "task", model_folder, SFT)
    for words in ((), ("--dry-run",)):
        line = refused("sft", recipe, "-s", 'log.to=["wandb"]', *words)
        assert (
            "log.to: \"wandb\" needs packages that are not installed: wandb. Run pip install 'ramify-rl[wandb]'."
            in line
        )
    assert not (tmp_path / "task" / "run").exists()


def wandb_tables(run, key):
    """The tables that W&B has of a name, by step."""
    proto = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    (path,) = (run.parent / "wandb").glob("offline-run-*/run-*.wandb")
    steps = {}
    for record in map(proto.Record.FromString, records_of(path.read_bytes())):
        row = {"/".join(item.nested_key) or item.key: item.value_json for item in record.history.item}
        if f"{key}/path" in row:
            name = json.loads(row[f"{key}/path"])
            table = json.loads((path.parent / "files" / name).read_text())
            steps[json.loads(row["step"])] = [
                dict(zip(table["columns"], line, strict=True)) for line in table["data"]
            ]
    return steps


def trackio_traces(run, key):
    """The traces that trackio has of a name, by step, as rows of a table."""
    storage = pytest.importorskip("trackio.sqlite_storage").SQLiteStorage
    name = json.loads((run / "manifest.json").read_text())["name"]
    steps = {}
    for trace in storage.get_traces("ramify", f"{run.parent.name}/run-{name}", limit=1000):
        if trace["key"] == key:
            text = "\n\n".join(f"[{m['role']}]\n{m['content']}" for m in trace["messages"])
            row = {**trace["metadata"], "prompt": trace["messages"][0]["content"], "messages": text}
            steps.setdefault(trace["step"], {})[trace["index"]] = row
    return {step: [rows[index] for index in sorted(rows)] for step, rows in steps.items()}


def test_mlflow_gets_the_scores_of_evaluations_under_names_that_it_takes(tmp_path, model_folder, capsys):
    pytest.importorskip("sqlalchemy")
    mlflow = pytest.importorskip("mlflow")
    recipe = write_task(tmp_path / "task", model_folder, TRAIN)
    settings = (
        *("run.steps=1", "reward.name=hierarchical", 'log.to=["mlflow"]', "eval.limit=1", "eval.every=1"),
        *(f"eval.test={tmp_path / 'task' / 'problems.jsonl'}", "eval.max_tokens=8"),
    )
    assert main(["train", str(recipe), *overrides(*settings)]) == 0
    assert "log.to" not in capsys.readouterr().out
    run = tmp_path / "task" / "run"
    client = mlflow.MlflowClient(f"sqlite:///{run / 'mlflow' / 'mlflow.db'}")
    (own,) = client.search_runs([client.get_experiment_by_name("ramify").experiment_id])
    scores = {each.step: each.value for each in client.get_metric_history(own.info.run_id, "eval/pass_at_1")}
    assert scores == {row["step"]: row["eval/pass@1"] for row in read_metrics(run / "evals.jsonl")}


@pytest.mark.parametrize(("name", "read"), [("wandb", wandb_tables), ("trackio", trackio_traces)])
def test_trackers_get_the_trees_of_every_second_step(tmp_path, caller, forked, monkeypatch, name, read):
    pytest.importorskip(name)
    folder = tmp_path / "task"
    recipe, run = write_task(folder, caller, TRAIN), folder / "run"
    monkeypatch.setenv("TRACKIO_DIR", str(folder / "trackio"))
    environment = {"TRACKIO_DIR": str(folder / "trackio"), "WANDB_DIR": str(folder)}
    settings = (
        *("run.steps=3", "reward.name=hierarchical", f'log.to=["{name}"]', "log.trees_every=2", "eval.limit=3"),
        *(f"eval.test={folder / 'problems.jsonl'}", "eval.every=1", "eval.max_tokens=8"),
    )  # fmt: skip
    status, out, err = forked("train", recipe, *overrides(*settings), **environment)
    assert status == 0, err
    assert "log.to" not in out + err
    if name == "trackio":
        monkeypatch.setattr("trackio.sqlite_storage.TRACKIO_DIR", folder / "trackio")
    for key, traces, steps in (("trees", run / "trees", {2}), ("eval/trees", run / "evals", {0, 2})):
        logged = read(run, key)
        assert logged.keys() == steps
        for step, rows in logged.items():
            trees = read_trees(traces / f"{step:06d}.jsonl")
            pairs = [
                pair for tree in trees for pair in zip(tree.tree.trajectories, tree.rewards, strict=True)
            ]
            assert len(rows) == len(pairs)
            for row, (trajectory, reward) in zip(rows, pairs, strict=True):
                assert row["problem"] == trajectory.problem.id
                assert row["prompt"] == trajectory.problem.messages[-1].text
                assert row["answer"] == answer_of(trajectory)
                assert row["reward"] == reward.value
                assert row["turns"] == row["messages"].count("[assistant]\n") >= 1
                assert trajectory.leaf.text.strip()[:5] in row["messages"]


class Raising:
    """Fails at every step, and draws before it does."""

    def __init__(self, run: LoggedRun, first_step: int) -> None:
        self.run = run

    def step(self, step, metrics, trees):
        import random

        import numpy as np
        import torch

        random.seed(step)
        np.random.seed(step)  # noqa: NPY002
        raise torch.cuda.OutOfMemoryError(f"step {step}")

    def close(self, note, *, succeeded):
        raise AssertionError("it was left out")


def test_a_logger_that_raises_changes_no_bit_of_a_run(tmp_path, caller):
    weights, consoles = [], []
    for name, openers in (("plain", {}), ("raising", {"one": Raising, "other": Raising})):
        recipe = load_recipe(TrainRecipe, write_task(tmp_path / name, caller, TRAIN), ["run.steps=2"])
        stream = io.StringIO()
        console = RunConsole(stream)
        with claim_run_folder(recipe.run.dir, record_of(recipe), resume=False) as folder:
            run, state = build_rl(recipe, console, folder, Ranks(Rank()), GATHERED_ONCE)
            loggers = Loggers(openers, LoggedRun(folder.root, "abc", {}), console.note)
            recorder = Recorder(folder, run.saver.settle, loggers)
            with loggers:
                saved = run_to_end(replace(run, recorder=recorder), state)
        weights.append((saved / "model.safetensors").read_bytes())
        consoles.append(stream.getvalue())
    assert weights[0] == weights[1]
    assert "log.to" not in consoles[0]
    assert consoles[1].count("log.to: ") == 2
