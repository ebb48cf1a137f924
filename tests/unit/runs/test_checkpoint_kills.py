"""A process that is killed while it saves leaves the checkpoint before or the new one, whole, and nothing else."""

import itertools
import os
import signal
import sys
import time
import warnings

import pytest

import build
from ramify.modeling.load import load_model
from ramify.runs.checkpoint import companion_files, save_checkpoint
from ramify.runs.checkpoint_files import (
    checkpoint_folder,
    latest_checkpoint,
    prune_checkpoints,
    read_state,
)

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def learner():
    return build.learner(build.tiny_model())


def keep(run, step, learner, model_folder):
    """Save as a run does when a checkpoint is due."""
    folder = checkpoint_folder(run, step)
    save_checkpoint(folder, learner, {"step": step}, companion_files(model_folder))
    prune_checkpoints(run, 1)


def in_a_child(work):
    """Run `work` in a copy of this process; its number."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)
    return child


def check(run, steps, learner):
    """The run can go on from one of `steps`."""
    folder = latest_checkpoint(run)
    state = read_state(folder, "")
    assert folder == checkpoint_folder(run, state["step"])
    assert state["step"] in steps
    load_model(folder)
    learner.ranks.all("load_state", folder / "state", "")


def test_killed_before_each_thing_that_saving_does_to_the_file_system(tmp_path, learner, model_folder):
    def dying(run, last):
        events = itertools.count()

        def hook(event, arguments):
            del arguments
            if event.split(".")[0] in ("open", "os", "shutil") and next(events) == last:
                os.kill(os.getpid(), signal.SIGKILL)

        def work():
            sys.addaudithook(hook)
            keep(run, 2, learner, model_folder)

        return work

    ends = []
    for last in itertools.count(step=2):
        run = tmp_path / str(last)
        keep(run, 1, learner, model_folder)
        _, status = os.waitpid(in_a_child(dying(run, last)), 0)
        check(run, (1, 2), learner)
        ends.append(read_state(latest_checkpoint(run), "")["step"])
        if os.waitstatus_to_exitcode(status) == 0:
            break
    assert len(ends) > 20
    assert ends == sorted(ends)
    # The next save clears away what the killed one left.
    keep(tmp_path / "0", 3, learner, model_folder)
    assert [path.name for path in (tmp_path / "0" / "checkpoints").iterdir()] == ["step-000003"]


def test_killed_at_any_time(tmp_path, learner, model_folder):
    keep(tmp_path, 0, learner, model_folder)
    for wait in (0.05, 0.13, 0.21, 0.34, 0.55):
        before = read_state(latest_checkpoint(tmp_path), "")["step"]

        def from_here(first=before + 1):
            for step in itertools.count(first):
                keep(tmp_path, step, learner, model_folder)

        child = in_a_child(from_here)
        time.sleep(wait)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
        check(tmp_path, range(before, 1_000_000), learner)
