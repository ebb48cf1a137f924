"""Another user of the machine attacks a run of two processes: nothing of his runs, and no step is forged."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from launched import finish, forked_ramify, free_port, ours, ranks_of, start, start_by_hand, wait_until
from test_runs import last_checkpoint, weights

from e2e_runs import SFT, write_task

STRANGER = Path(__file__).with_name("stranger.py")
RUN = SFT.replace('run"\n', 'run"\nthreads = 1\ndeterministic = true\n').replace(
    "[learner]\n", "[learner]\ntoken_budget = 4000\n"
)
SECRET = "5eed" * 16

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process as another user")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, model_folder, forked):
    """The weights of a run that nobody attacks."""
    recipe = write_task(tmp_path_factory.mktemp("undisturbed"), model_folder, RUN)
    status, output = forked_ramify(forked, 2, "sft", recipe)
    assert status == 0, output
    return weights(last_checkpoint(recipe.parent / "run"))


@pytest.fixture
def attacked(tmp_path, model_folder):
    """Starts a stranger, then a run; returns what came of them."""
    strangers = []

    def attack(launch, *modes):
        port, public = free_port(), Path(tempfile.mkdtemp(dir=tmp_path))
        # Down from the folder of all users' temporary files, which stays as it is.
        above = [
            each for each in (tmp_path, *tmp_path.parents) if Path(tempfile.gettempdir()) in each.parents
        ]
        for folder in (public, *above):
            folder.chmod(0o777 if folder == public else 0o755)
        canary, log = public / "canary", tmp_path / "stranger.log"
        words = [sys.executable, STRANGER, port, canary, Path(tempfile.gettempdir()) / "x", *modes]
        with log.open("w") as out:
            strangers.append(subprocess.Popen([str(w) for w in words], stdout=out, stderr=subprocess.STDOUT))
        wait_until(lambda: "ready" in log.read_text(), strangers[0])
        recipe = write_task(tmp_path / "task", model_folder, RUN)
        done = launch(recipe, port)
        assert strangers[0].poll() is None, log.read_text()
        words = log.read_text().split()
        assert not canary.exists(), canary.read_text()
        assert "joined" not in words
        assert "entered" not in words
        return done, recipe.parent / "run", words

    yield attack
    for process in strangers:
        process.send_signal(signal.SIGKILL)
        process.wait()


def assert_equal_weights(run, undisturbed):
    ours = weights(last_checkpoint(run))
    assert ours.keys() == undisturbed.keys()
    assert all((ours[name] == undisturbed[name]).all() for name in ours)


def test_ranks_of_one_machine_trust_nothing_on_torchruns_port(attacked, undisturbed):
    """They do not even look there; and only loopback can reach what they listen on."""
    addresses = set()

    def launch(recipe, port):
        process = start(2, "sft", recipe, launcher=["--master-port", port])
        while process.poll() is None:
            for pid in ranks_of(process).values():
                addresses.update(listening(pid))
        return finish(process)

    (status, output), run, words = attacked(launch, "persistent")
    assert status == 0, output
    assert_equal_weights(run, undisturbed)
    assert addresses == {"0100007F"}
    assert "read" not in words


def launch_by_hand(recipe, port):
    return [finish(process) for process in start_by_hand(recipe, port, 2, RAMIFY_SECRET=SECRET)]


def test_ranks_with_a_shared_secret_do_not_mind_messages_that_lack_it(attacked, undisturbed):
    """A stranger who writes everything once, at the wrong time or too early, changes nothing."""
    ((status, output), _), run, words = attacked(launch_by_hand)
    assert {"read", "wrote"} <= set(words)
    assert status == 0, output
    assert_equal_weights(run, undisturbed)
    assert not [path for path in run.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]


def test_who_takes_every_message_away_ends_the_run_in_a_line(attacked, undisturbed):
    """A vandal on the port of several machines can end the run, and no more."""
    done, run, words = attacked(launch_by_hand, "persistent")
    assert {"read", "wrote"} <= set(words)
    texts = [output for _, output in done]
    assert "Traceback" not in "".join(texts)
    assert SECRET not in "".join(texts)
    if done[0][0] == 0:
        assert_equal_weights(run, undisturbed)
    else:
        assert len(ours(texts[0])) <= 1
        assert any(
            "does not carry the run's secret" in text or "another rank is gone" in text for text in texts
        )


def listening(pid):
    """The addresses on which a process listens, as /proc writes them."""
    try:
        sockets = {str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    except OSError:
        return set()
    rows = []
    for table in ("tcp", "tcp6"):
        rows += [line.split() for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]]
    return {row[1].split(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets}
