"""The folder in which the ranks of one machine meet: private, and the same for all of them."""

import os
import stat
import threading
from datetime import timedelta

import pytest
import torch.distributed as dist

from ramify.core.errors import ConfigError
from ramify.core.rank import Rank
from ramify.learner import post
from ramify.learner.channel import ChannelError, Folder, TcpStore, folder_path, open_channel
from ramify.learner.post import Post
from ramify.learner.seal import ForgedError, Seal

RUN = {"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1234"}


def opened(number, environ, secret=None):
    rank = Rank(number, 2, local=number, local_size=2, is_supervised=True)
    return open_channel(rank, secret, environ, 5.0)


@pytest.fixture
def environ(tmp_path):
    tmp_path.chmod(0o700)
    return {**RUN, "XDG_RUNTIME_DIR": str(tmp_path)}


def test_ranks_of_one_run_meet_and_nobody_else_can_come(environ, tmp_path):
    (first, seal), (second, other) = opened(0, environ), opened(1, environ)
    Post(second, other).send("hello", b"name", sender=1)
    assert Post(first, seal).read("hello", sender=1) == b"name"
    (folder,) = tmp_path.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    first.close(is_last=True)
    assert not list(tmp_path.iterdir())
    with pytest.raises(ChannelError):
        second.get("hello")
    with pytest.raises(ChannelError):
        second.put("hello", b"name")
    # torch's store would wait for the folder for five minutes, and no other thread of the process would run.
    with pytest.raises(ChannelError, match="is gone"):
        second.collectives(other, "1", 2)


@pytest.mark.parametrize("key", ["TORCHELASTIC_RUN_ID", "MASTER_PORT", "MASTER_ADDR"])
def test_two_runs_at_once_have_two_folders(environ, key):
    assert folder_path(environ) != folder_path({**environ, key: "7"})


def test_other_ranks_wait_for_the_secret_of_rank_0(environ):
    folder = Folder(folder_path(environ))
    with pytest.raises(ConfigError, match="rank 0 did not come within 0 s"):
        folder.secret(writes=False, patience=0.05)
    late = threading.Timer(0.1, lambda: folder.secret(writes=True, patience=1.0))
    late.start()
    assert len(folder.secret(writes=False, patience=5.0)) == 32
    late.join()


def open_to_others(path):
    path.mkdir()
    path.chmod(0o750)


@pytest.mark.parametrize(
    "squat",
    [open_to_others, lambda path: path.symlink_to("/"), lambda path: path.write_text("")],
    ids=["open to others", "a link", "a file"],
)
def test_a_place_that_is_not_ours_alone_is_refused_in_a_line(environ, squat):
    squat(folder_path(environ))
    with pytest.raises(
        ConfigError, match=r"ramify-ranks-.*: .*name another with XDG_RUNTIME_DIR or TMPDIR\.$"
    ):
        opened(0, environ)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_refused(environ):
    path = folder_path(environ)
    path.mkdir(mode=0o700)
    os.chown(path, 65534, 65534)
    with pytest.raises(ConfigError, match="belongs to another user"):
        opened(0, environ)


def test_a_runtime_folder_that_others_can_write_is_not_used(environ, tmp_path):
    tmp_path.chmod(0o777)
    assert folder_path(environ).parent != tmp_path


def test_a_restart_finds_that_the_run_has_begun_and_a_later_run_does_not(environ):
    first = Post(*opened(0, environ))
    first.send("begun")
    first.of("old").send("ended")
    again = {**environ, "TORCHELASTIC_RESTART_COUNT": "1"}
    restarted = Post(*opened(0, again))
    assert restarted.read("begun") == b""
    assert restarted.of("old").read("ended") is None
    assert Post(*opened(0, {**environ, "TORCHELASTIC_RESTART_COUNT": "0"})).read("begun") is None


def channels(tmp_path):
    return [Folder(tmp_path / "folder"), TcpStore(dist.HashStore())]


def test_messages_that_do_not_carry_the_secret_are_none_and_end_the_run_if_they_stay(tmp_path, monkeypatch):
    for channel in channels(tmp_path):
        rank, stranger = Post(channel, Seal(b"secret", "r"), "g"), Post(channel, Seal(b"guess", "r"), "g")
        stranger.send("go")
        assert rank.wait("go", seconds=0.01) is None
        rank.send("go", b"1")
        assert rank.read("go") == b"1"
        stranger.send("go")
        assert rank.read("go") is None
        with monkeypatch.context() as patched:
            patched.setattr(post, "FORGED_SECONDS", 0.0)
            with pytest.raises(
                ForgedError, match=r"does not carry the run's secret\. Close the port to others"
            ):
                rank.wait("go", seconds=0.01)


def test_a_message_is_no_other_message(tmp_path):
    """A message of another command, rank or generation is not believed at the key that it is copied to."""
    for channel in channels(tmp_path):
        posts = {name: Post(channel, Seal(b"secret", "r"), name) for name in ("now", "before")}
        for generation, sender, number in (("now", 0, 1), ("now", 1, 2), ("before", 0, 2)):
            posts[generation].send("command", b"call", sender=sender, number=number)
        for key in ("now.command.1.0.-1", "now.command.2.1.-1", "before.command.2.0.-1"):
            channel.put("now.command.2.0.-1", channel.get(key))
            assert posts["now"].read("command", number=2) is None
        posts["now"].send("command", b"end", number=2)
        assert posts["now"].read("command", number=2) == b"end"


def test_the_first_failure_stays(tmp_path):
    for channel in channels(tmp_path):
        rank = Post(channel, Seal(b"secret", "r"), "g")
        rank.send_first("failed", b"first")
        rank.send_first("failed", b"second")
        assert rank.read("failed", sender=-1) == b"first"


def test_collectives_take_no_address_from_a_stranger():
    store = dist.HashStore()
    seal = Seal(b"secret", "r")
    signed = TcpStore(store).collectives(seal, "g", 2)
    signed.set("0", "127.0.0.1:80")
    assert signed.get("0") == b"127.0.0.1:80"
    store.set("g/1", "127.0.0.1:81")
    signed.wait(["1"], timedelta(seconds=1))
    with pytest.raises(ForgedError):
        signed.get("1")
    store.set("g/1", store.get("g/0"))
    with pytest.raises(ForgedError):
        signed.get("1")
