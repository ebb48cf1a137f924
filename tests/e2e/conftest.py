import fcntl
import os
import signal

import pytest

from e2e_runs import SFT, overrides, start, write_task
from ramify.cli import main


@pytest.fixture(scope="session", autouse=True)
def ctrl_c_is_heard():
    """A shell has what it starts with `&` ignore Ctrl-C, and every program that a test starts would inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def write_once(tmp_path_factory, name, write):
    """The folder `name`, into which `write` writes; the processes that share the tests out share it too."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        folder = tmp_path_factory.mktemp(name)
        write(folder)
        return folder
    folder = tmp_path_factory.getbasetemp().parent / name
    done = folder / "written"
    with folder.with_name(f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            folder.mkdir(exist_ok=True)
            write(folder)
            done.touch()
    return folder


@pytest.fixture(scope="session")
def caller(tmp_path_factory, model_folder):
    """A model that calls tools and answers: a random one after a short cold start."""

    def write(folder):
        recipe = write_task(folder, model_folder, SFT)
        settings = ("data.epochs=20", "learner.optimizer.rate=5e-3", "run.threads=1", "run.save_every=100")
        assert main(["sft", str(recipe), *overrides(*settings)]) == 0

    return write_once(tmp_path_factory, "caller", write) / "run" / "checkpoints" / "step-000060"


@pytest.fixture(scope="session")
def smoke_quickstart(tmp_path_factory):
    """The folder of a finished smoke quick start of seed 1; in a process of its own, since it reports its peak memory."""

    def write(folder):
        process = start("quickstart", "--smoke", "--seed", "1", "--out", folder / "out")
        _, errors = process.communicate(timeout=600)
        assert process.returncode == 0, errors

    return write_once(tmp_path_factory, "quickstart", write) / "out"


@pytest.fixture
def refused(capsys):
    """Run a command that must be refused; returns the one line."""

    def run(*arguments):
        status = main([str(argument) for argument in arguments])
        message = capsys.readouterr().err
        assert status == 2, message
        assert message.count("\n") == 1
        assert "Traceback" not in message
        return message

    return run
