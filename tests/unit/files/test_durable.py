"""Files of a run: written whole, never through a link, and named when the disk or their content is bad."""

import errno
import fcntl
import os
import shutil
import socket
import stat
from pathlib import Path

import pytest

from ramify.core.errors import ConfigError, DataError
from ramify.core.json_types import part
from ramify.files.durable import (
    LOCK,
    append_line,
    claimed_folder,
    entries,
    is_locked,
    locked_folder,
    parse_line,
    read_record,
    replace_file,
    require_plain_files,
    sync,
    sync_folder,
)


def test_what_a_kill_left_is_written_over(tmp_path):
    path = tmp_path / "a.json"
    (tmp_path / "a.json.part").write_bytes(b"half of it")
    replace_file(path, b"new")
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("a.json", b"new")]


def test_a_link_in_the_place_of_an_unfinished_file_is_not_written_through(tmp_path):
    outside = tmp_path / "outside"
    outside.write_bytes(b"mine")
    run = tmp_path / "run"
    run.mkdir()
    (run / "a.json.part").symlink_to(outside)
    replace_file(run / "a.json", b"new")
    assert outside.read_bytes() == b"mine"
    assert (run / "a.json").read_bytes() == b"new"
    assert not (run / "a.json").is_symlink()


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.json"
    replace_file(path, b"old")
    with pytest.raises(TypeError):
        replace_file(path, "no bytes")
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("a.json", b"old")]
    replace_file(path, b"new")
    assert path.read_bytes() == b"new"


def test_a_full_disk_is_told_with_the_name_of_the_file():
    with pytest.raises(OSError, match="No space left") as error:
        append_line(Path("/dev/full"), {"step": 1}, synced=True)
    assert (error.value.errno, error.value.filename) == (errno.ENOSPC, "/dev/full")


@pytest.mark.parametrize("record", [{"x": float("nan")}, {"x": object()}])
def test_what_json_does_not_know_adds_no_line(tmp_path, record):
    append_line(tmp_path / "a", {"x": 1}, synced=False)
    with pytest.raises((TypeError, ValueError)):
        append_line(tmp_path / "a", record, synced=False)
    assert (tmp_path / "a").read_text() == '{"x":1}\n'


def test_a_folder_that_somebody_removes_meanwhile_does_not_hide_what_failed(tmp_path):
    def fail():
        with claimed_folder("out", tmp_path / "out", lambda: None):
            shutil.rmtree(tmp_path / "out")
            raise DataError("the first error")

    with pytest.raises(DataError, match="the first error"):
        fail()


def test_the_lock_is_held_by_one_and_no_link_is_followed(tmp_path):
    with (
        locked_folder("run.dir", tmp_path),
        pytest.raises(ConfigError, match=r"run\.dir: .* is in use by another process"),
        locked_folder("run.dir", tmp_path),
    ):
        pass
    (tmp_path / LOCK).unlink()
    outside = tmp_path / "outside"
    outside.write_bytes(b"mine")
    (tmp_path / LOCK).symlink_to(outside)
    with pytest.raises(OSError, match="symbolic links"), locked_folder("run.dir", tmp_path):
        pass
    assert outside.read_bytes() == b"mine"


def test_a_lock_and_unfinished_files_make_no_folder_somebodys(tmp_path):
    for name in (LOCK, "recipe.toml.part", ".checkpoint.part"):
        (tmp_path / name).write_text("")
    assert entries(tmp_path) == frozenset()
    (tmp_path / "thesis.tex").write_text("")
    assert entries(tmp_path) == {"thesis.tex"}


def _link(path):
    path.symlink_to("/")


def _broken_link(path):
    path.symlink_to("nowhere")


def _socket(path):
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))


@pytest.mark.parametrize("make", [_link, _broken_link, os.mkfifo, _socket])
def test_only_files_and_folders_are_a_runs_own(tmp_path, make, monkeypatch):
    (tmp_path / "checkpoints" / "step-000001").mkdir(parents=True)
    (tmp_path / "recipe.toml").write_text("{}")
    require_plain_files("run.dir", tmp_path)
    monkeypatch.chdir(tmp_path)
    make(Path("checkpoints/step-000001/a"))
    with pytest.raises(ConfigError, match=r"run\.dir: .*checkpoints/step-000001/a is (a link|neither)"):
        require_plain_files("run.dir", tmp_path)
    linked = tmp_path.with_name(tmp_path.name + "-link")
    linked.symlink_to(tmp_path / "nothing")
    require_plain_files("run.dir", linked)


UNREADABLE = ["", "{", "[1]", "7", "[" * 100_000, '{"a": ' + "1" * 5000 + "}"]


@pytest.mark.parametrize("content", UNREADABLE)
def test_what_is_no_json_object_is_refused_in_a_line(tmp_path, content):
    path = tmp_path / "a.json"
    path.write_text(content)
    with pytest.raises(
        DataError, match=r"a\.json: (broken JSON|expected a JSON object|nested more|a number has)"
    ):
        read_record(path, part())
    with pytest.raises(DataError, match=r"a\.json row 3: ") as error:
        parse_line(path, 3, content)
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there_is_a_folder_or_is_endless_is_no_object(tmp_path):
    with pytest.raises(DataError, match="cannot be read: No such file"):
        read_record(tmp_path / "a.json", part())
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        read_record(tmp_path, part())
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(DataError, match=r"large: .*expected at most"):
        read_record(tmp_path / "large", part())


def failing(number):
    def fail(*_):
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK])
def test_a_disk_without_locks_can_be_used(tmp_path, monkeypatch, number):
    """Lustre without `-o flock`, NFS without its daemon."""
    monkeypatch.setattr(fcntl, "flock", failing(number))
    with claimed_folder("run.dir", tmp_path / "run", lambda: None):
        replace_file(tmp_path / "run" / "a", b"1")
        assert not is_locked(tmp_path / "run")
    monkeypatch.setattr(fcntl, "flock", failing(errno.EIO))
    with pytest.raises(OSError, match="Input/output error"), locked_folder("run.dir", tmp_path / "run"):
        pass


def test_a_disk_that_cannot_flush_a_folder_can_be_used_but_not_one_that_cannot_flush_a_file(
    tmp_path, monkeypatch
):
    flush = os.fsync

    def of_folder(handle):
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            failing(errno.EINVAL)()
        flush(handle)

    monkeypatch.setattr(os, "fsync", of_folder)
    replace_file(tmp_path / "a", b"1")
    sync_folder(tmp_path)
    assert (tmp_path / "a").read_bytes() == b"1"
    monkeypatch.setattr(os, "fsync", failing(errno.EINVAL))
    with pytest.raises(OSError, match="Invalid argument"):
        sync(tmp_path / "a")
