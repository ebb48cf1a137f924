import json
import random
import sys
from dataclasses import replace

import numpy as np
import pytest

from ramify.core.errors import ConfigError
from ramify.core.messages import Final
from ramify.core.records import Reward, ScoredTree
from ramify.core.tree import Source, TreeKey, make_tree
from ramify.net import secrets
from ramify.obs.metrics import read_metrics
from ramify.runs.configs import LogConfig, TrainingLogConfig
from ramify.runs.loggers import LOGGERS, LoggedRun, require_loggers
from ramify.runs.manifest import RecipeRecord
from ramify.runs.recorder import Loggers, Recorder, open_loggers
from ramify.runs.run_folder import RunFolder
from random_trees import PROBLEM, node


class Follower:
    """Writes down what it gets, and draws as some packages do."""

    def __init__(self, run, first_step):
        self.lines = [("open", run.name, first_step)]
        random.random()
        np.random.rand()  # noqa: NPY002

    def step(self, step, metrics, trees):
        self.lines.append(("step", step, metrics))
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002

    def close(self, note, *, succeeded):
        self.lines.append(("close", note, succeeded))


class Broken(Follower):
    def step(self, step, metrics, trees):
        super().step(step, metrics, trees)
        raise RuntimeError("no\nroute")


class NoService:
    def __init__(self, run, first_step):
        raise OSError("no service")


@pytest.fixture
def opened():
    """Loggers that are opened are kept here, and so are the notes."""
    return [], []


def loggers_of(opened, tmp_path, *kinds, trees_every=0):
    followers, notes = opened

    def opener(kind):
        def open_one(run, first_step):
            followers.append(kind(run, first_step))
            return followers[-1]

        return open_one

    openers = {kind.__name__: opener(kind) for kind in kinds}
    return Loggers(openers, LoggedRun(tmp_path, "abc", {}), notes.append, trees_every)


def test_files_come_before_loggers_and_the_checkpoint_before_the_line(tmp_path, opened):
    folder, lines_when_settled = RunFolder(tmp_path), []
    path = tmp_path / "metrics.jsonl"

    def settle():
        lines_when_settled.append(len(read_metrics(path)) if path.exists() else 0)
        assert folder.trees(len(lines_when_settled)).exists()

    class Reader(Follower):
        def step(self, step, metrics, trees):
            super().step(step, metrics, trees)
            self.lines.append(read_metrics(path)[-1]["step"])

    with loggers_of(opened, tmp_path, Reader) as loggers:
        recorder = Recorder(folder, settle, loggers)
        recorder.step(1, {"loss": 0.5, "grad_norm": None}, ())
        recorder.step(2, {"loss": 0.25}, ())
        loggers.note("best checkpoint: 2")
    assert lines_when_settled == [0, 1]
    assert [dict(row, time=0) for row in read_metrics(path)] == [
        {"step": 1, "time": 0, "loss": 0.5, "grad_norm": None},
        {"step": 2, "time": 0, "loss": 0.25},
    ]
    assert opened[0][0].lines == [
        ("open", "abc", 1),
        ("step", 1, {"loss": 0.5}),
        1,
        ("step", 2, {"loss": 0.25}),
        2,
        ("close", "best checkpoint: 2", True),
    ]


def test_a_logger_that_fails_is_left_out_with_one_line(tmp_path, opened):
    def run():
        with loggers_of(opened, tmp_path, NoService, Broken, Follower) as loggers:
            for step in (1, 2):
                loggers.step(step, {"loss": 1.0})
            raise ValueError("the run's own")

    with pytest.raises(ValueError, match="the run's own"):
        run()
    broken, follower = opened[0]
    assert opened[1] == [
        "log.to: NoService failed and is left out from now on: OSError: no service",
        "log.to: Broken failed and is left out from now on: RuntimeError: no route",
    ]
    assert [line[0] for line in broken.lines] == ["open", "step"]
    assert [line[0] for line in follower.lines] == ["open", "step", "step", "close"]
    assert follower.lines[-1] == ("close", "", False)


def test_no_logger_moves_the_global_generators(tmp_path, opened):
    random.seed(7)
    np.random.seed(7)  # noqa: NPY002
    before = random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    with loggers_of(opened, tmp_path, Broken, Follower) as loggers:
        loggers.step(1, {"loss": 1.0})
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # noqa: NPY002


def test_trees_are_logged_at_their_interval_and_without_keys(tmp_path, opened, monkeypatch):
    monkeypatch.setenv("SOME_KEY", "sk-0123456789")
    secrets.read_key("SOME_KEY")
    logged = []

    class Reader(Follower):
        def step(self, step, metrics, trees):
            logged.append((step, trees))

    prompt = node((), Source.PROMPT, [1])
    half = replace(node((0,), Source.POLICY, [2]), text="What ")
    leaf = replace(node((0, 0), Source.POLICY, [3], leaf=True), text="is sk-0123456789?", turn=Final("42"))
    scored = ScoredTree(make_tree(PROBLEM, TreeKey(0, 0), [prompt, half, leaf]), (Reward(0.5, {}),))
    with loggers_of(opened, tmp_path, Reader, trees_every=2) as loggers:
        for step in (1, 2):
            loggers.step(step, {"loss": 1.0}, {"trees": [scored]})
    (_, nothing), (step, shown) = logged
    assert (nothing, step) == ({}, 2)
    (only,) = shown["trees"]
    assert (only.problem, only.answer, only.reward, only.turns) == (PROBLEM.id, "42", 0.5, 1)
    assert only.messages[-1] == ("assistant", "What is [key SOME_KEY]?")
    assert only.prompt == PROBLEM.messages[-1].text


def test_a_tree_that_cannot_be_shown_ends_no_run(tmp_path, opened):
    with loggers_of(opened, tmp_path, Follower, trees_every=1) as loggers:
        loggers.step(1, {"loss": 1.0}, {"trees": [None]})
    (note,) = opened[1]
    assert note.startswith("log.to: Follower failed and is left out from now on: AttributeError")


def test_trees_without_a_logger_that_shows_them_are_refused():
    with pytest.raises(ConfigError, match=r"trees_every: .* log\.to"):
        TrainingLogConfig(to=("mlflow",), trees_every=1)


def test_a_run_without_a_step_opens_nothing(tmp_path, opened):
    with loggers_of(opened, tmp_path, Follower):
        pass
    assert opened == ([], [])


def test_the_recipe_goes_out_without_keys(tmp_path, monkeypatch):
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    monkeypatch.setenv("SOME_KEY", "sk-0123456789")
    secrets.read_key("SOME_KEY")
    text = '[engine]\nurls = ["http://user:pass@host/v1"]\nnote = "sk-0123456789"\nslots = 3\n'
    record = RecipeRecord(text, "", frozenset())
    with open_loggers(tmp_path, "abc", record, LogConfig(to=("tensorboard",)), print) as loggers:
        loggers.step(1, {})
    events = accumulators.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    (logged,) = events.Tensors("recipe/text_summary")
    assert json.loads(logged.tensor_proto.string_val[0]) == {
        "engine": {"urls": ["http://[credentials]@host/v1"], "note": "[key SOME_KEY]", "slots": 3}
    }


@pytest.mark.parametrize("name", LOGGERS)
def test_a_missing_package_is_refused(monkeypatch, name):
    package = "sqlalchemy" if name == "mlflow" else name
    monkeypatch.setitem(sys.modules, package, None)
    if name == "mlflow":
        monkeypatch.setitem(sys.modules, "mlflow", sys)
    with pytest.raises(ConfigError, match=rf"log\.to: \"{name}\" needs .*{package}.*'ramify-rl\[{name}\]'\."):
        require_loggers(LogConfig(to=(name,)))
