"""What can be wrong with several processes: one line from rank 0, all ranks end, nothing is lost."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from launched import by_hand, finish, forked_ramify, free_port, ours, ramify
from launched import start_by_hand as start_by_hand_at
from torch.distributed import HashStore

from e2e_runs import SFT, write_task
from ramify.core.errors import ConfigError
from ramify.core.rank import Rank
from ramify.learner import parallel
from ramify.learner.channel import TcpStore
from ramify.learner.post import Post
from ramify.learner.seal import Seal

SMALL_FILES = str(Path(__file__).with_name("small_files.py"))
LONG = SFT.replace('run"\n', 'run"\nthreads = 1\n')


@pytest.fixture
def recipe(tmp_path, model_folder):
    return write_task(tmp_path / "task", model_folder, LONG)


SECRET = "1f" * 32


@pytest.fixture
def start_by_hand(forked):
    """Run ranks that a person starts one by one, each with a recipe and a secret of its own; what each did."""

    def run(recipes, port, *, size=None, secrets=(SECRET, SECRET)):
        ranks = (
            (
                ("sft", recipe),
                by_hand(number, size or len(recipes), port, **({"RAMIFY_SECRET": s} if s else {})),
            )
            for number, (recipe, s) in enumerate(zip(recipes, secrets, strict=False))
        )
        return [(status, out + err) for status, out, err in forked.ranks(*ranks)]

    return run


def test_a_world_size_that_does_not_divide(recipe, forked):
    status, output = forked_ramify(forked, 3, "sft", recipe, "-s", "learner.copies=2")
    assert status != 0
    assert [line for line in ours(output) if "learner.copies" in line] == [
        "ramify sft: learner.copies: expected a divisor of the number of processes, 3, got 2"
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("1e-3", "2e-3"), "another recipe"),
        (lambda text: text.replace("demonstrations.jsonl", "other.jsonl"), "another recipe"),
        (lambda text: text.replace("batch_size = 2", "batch_size = -2"), "rank 1: "),
        (lambda text: text.replace("demonstrations.jsonl", "nowhere.jsonl"), "rank 1: data.train: "),
    ],
)
def test_ranks_with_other_recipes(recipe, start_by_hand, change, message):
    folder = recipe.parent
    (folder / "other.jsonl").write_text((folder / "demonstrations.jsonl").read_text())
    other = folder / "other.toml"
    other.write_text(change(recipe.read_text()))
    (status, output), (served, silence) = start_by_hand([recipe, other], free_port())
    assert (status, served) == (2, 1)
    (line,) = ours(output)
    assert message in line
    assert silence == ""
    assert not (folder / "run" / "recipe.toml").exists()


@pytest.mark.parametrize("secret", [None, "a1" * 15])
def test_ranks_that_torchrun_did_not_start_here_need_a_secret(recipe, start_by_hand, secret):
    (status, output), (served, silence) = start_by_hand(
        [recipe, recipe], free_port(), secrets=(secret, secret)
    )
    assert (status, served) == (2, 2)
    (line,) = output.splitlines()
    assert line.startswith("ramify sft: RAMIFY_SECRET: ")
    assert "`openssl rand -hex 32`" in line
    assert silence == ""
    assert not (recipe.parent / "run").exists()


def test_a_rank_that_never_comes(monkeypatch):
    """It does not even reach the store, or (under torchrun, which has one) does not say that it is there."""
    monkeypatch.setattr(parallel, "JOIN_SECONDS", 2)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", f"{free_port()}")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with (
        pytest.raises(ConfigError, match=r"^not all of the 2 ranks came to .* within 2 s"),
        parallel.connect_ranks(Rank(0, 2), {}, SECRET),
    ):
        pass
    with (
        pytest.raises(ConfigError, match=r"^rank 1 of 2 did not join within 2 s\. Start it"),
        parallel.connect_ranks(Rank(0, 2, local_size=2, is_supervised=True), {}),
    ):
        pass


def test_the_other_ranks_read_their_files_before_they_wait_for_rank_0(monkeypatch, tmp_path):
    """Rank 0 reads them at the same time: checksums of large weights take minutes."""

    class WasReadError(Exception):
        pass

    def read():
        raise WasReadError

    monkeypatch.setattr(parallel, "JOIN_SECONDS", 1)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    handlers = [(sign, signal.getsignal(sign)) for sign in (signal.SIGINT, signal.SIGTERM)]
    try:
        with pytest.raises(WasReadError):
            parallel.serve(Rank(1, 2, local=1, local_size=2, is_supervised=True), read, lambda _: None)
    finally:
        for sign, handler in handlers:
            signal.signal(sign, handler)


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_a_rank_that_waits_for_rank_0_can_be_stopped(recipe, sign):
    with socket.socket() as store:
        store.bind(("127.0.0.1", 0))
        store.listen()
        waiting = subprocess.Popen(
            [sys.executable, "-m", "ramify", "sft", str(recipe)],
            env={**os.environ, **by_hand(1, 2, store.getsockname()[1], RAMIFY_SECRET=SECRET)},
        )
        store.settimeout(60)
        store.accept()
        waiting.send_signal(sign)
        assert waiting.wait(10) == -sign


def test_a_run_folder_that_not_all_ranks_see(tmp_path, model_folder):
    recipe = write_task(tmp_path / "task", model_folder, LONG.replace('"{folder}/run"', '"run"'))
    machines = [tmp_path / name for name in ("first", "second")]
    for machine in machines:
        machine.mkdir()
    ranks = start_by_hand_at(
        recipe,
        free_port(),
        2,
        program=[str(Path(__file__).with_name("hurried.py"))],
        folders=machines,
        RAMIFY_SECRET=SECRET,
    )
    (status, output), (served, _) = map(finish, ranks)
    assert (status, served) == (2, 0)
    (line,) = [line for line in ours(output) if line.startswith("ramify")]
    assert line.startswith(
        f"ramify sft: run.dir: rank 1 on {socket.gethostname()} does not see what rank 0 writes to run/"
    )
    assert not list((machines[0] / "run").glob(".*"))


def test_a_rank_with_another_secret():
    """Rank 0 takes no notice of it, and says so when it has waited long enough."""
    channel = TcpStore(HashStore())
    Post(channel, Seal(b"another", "run")).send("hello", b"name", sender=1)
    with pytest.raises(ConfigError, match=r"another secret\. Give all ranks the same RAMIFY_SECRET$"):
        Post(channel, Seal(b"secret", "run")).meet_all(Rank(0, 2), {}, 0.5)


def test_a_port_in_use(recipe, start_by_hand):
    with socket.socket() as held:
        held.bind(("", 0))
        held.listen()
        port = held.getsockname()[1]
        ((status, output),) = start_by_hand([recipe], port, size=2)
    assert status == 2
    (line,) = ours(output)
    assert f"127.0.0.1:{port} is in use" in line


def test_a_truncated_shard_of_a_checkpoint(recipe, forked):
    saving = ("sft", recipe, "-s", "run.save_every=1")
    status, output = forked_ramify(forked, 2, *saving, "--max-steps", 2)
    assert status == 0, output
    checkpoints = recipe.parent / "run" / "checkpoints"
    shard = checkpoints / "step-000002" / "state" / "optimizer-00002-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-100])
    status, output = forked_ramify(forked, 3, *saving, "--resume")
    assert status != 0
    (line,) = [line for line in ours(output) if line.startswith("ramify")]
    assert "optimizer-00002-of-00002.safetensors has " in line
    assert "delete this folder to go on from step-000001" in line


def test_a_disk_that_is_full_at_rank_0_alone(recipe, forked):
    saving = ("sft", recipe, "-s", "run.save_every=1")
    status, output = forked_ramify(forked, 2, *saving, "--max-steps", 1)
    assert status == 0, output
    checkpoints = recipe.parent / "run" / "checkpoints"
    status, output = ramify(2, *saving, "--resume", program=[SMALL_FILES])
    assert status != 0
    (line,) = [line for line in ours(output) if line.startswith("ramify")]
    assert "step-000002: cannot be written (" in line
    assert "Earlier checkpoints are whole" in line
    assert [path.name for path in checkpoints.iterdir()] == ["step-000001"]
    status, output = forked_ramify(forked, 2, *saving, "--resume")
    assert status == 0, output
    assert "going on from" in output
