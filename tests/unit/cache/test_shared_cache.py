"""A cache that processes share, some of which are killed."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cache_children import key
from cache_uses import execute, fetch, never

from ramify.cache.database import read_groups
from ramify.cache.sqlite import CacheMode, SqliteCache

pytestmark = pytest.mark.integration

CHILDREN = Path(__file__).with_name("cache_children.py")


def child(name, folder, *arguments):
    return subprocess.Popen(
        [sys.executable, str(CHILDREN), name, str(folder), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_eight_processes_of_eight_threads_lose_nothing(tmp_path):
    children = [child("insert", tmp_path, str(i), "8", "25") for i in range(8)]
    assert [c.communicate()[0] is not None and c.returncode for c in children] == [0] * 8
    rows = execute(tmp_path / "cache.sqlite", "SELECT request, answer FROM answers")
    assert sorted(rows) == sorted(
        (f"{i}-{t}-{n}", f'"answer {i}-{t}-{n}"') for i in range(8) for t in range(8) for n in range(25)
    )


@pytest.mark.parametrize("lines", [1, 4, 9])
def test_a_kill_while_writing_leaves_all_that_was_flushed(tmp_path, lines):
    writer = child("write_until_killed", tmp_path)
    flushed = [int(writer.stdout.readline()) for _ in range(lines)][-1]
    os.kill(writer.pid, signal.SIGKILL)
    writer.communicate()
    for i in (0, flushed // 2, flushed - 1):
        (answer,) = fetch(tmp_path / "cache.sqlite", key(f"q{i}"))
        assert answer.startswith(f"answer {i} ")
    assert execute(tmp_path / "cache.sqlite", "PRAGMA integrity_check") == [("ok",)]
    assert execute(tmp_path / "cache.sqlite", "SELECT count(*) FROM answers")[0][0] >= flushed


@pytest.mark.parametrize("lines", [1, 20, 100])
def test_a_kill_while_recording_loses_no_outcome_that_a_caller_had(tmp_path, lines):
    recording = child("record_until_killed", tmp_path)
    count = [int(recording.stdout.readline()) for _ in range(lines)][-1]
    os.kill(recording.pid, signal.SIGKILL)
    recording.communicate()

    async def whole():
        cassette = SqliteCache(tmp_path / "cache.sqlite", mode=CacheMode.REPLAY_OR_FAIL)
        results = await asyncio.gather(
            *(cassette.fetch(key(f"q{i}"), never) for i in range(count)), return_exceptions=True
        )
        await cassette.close()
        return results

    assert [str(result).partition(" x")[0] for result in asyncio.run(whole())] == [
        f"server: failure {i}" if i % 3 == 2 else f"answer {i}" for i in range(count)
    ]
    (group,) = read_groups(tmp_path / "cache.sqlite")
    assert group.answers + group.failures >= count
    with pytest.raises(AssertionError, match="asked"):  # the lock of who was killed is gone
        fetch(tmp_path / "cache.sqlite", key("another"), mode=CacheMode.RECORD)


def test_who_is_killed_while_asking_frees_the_claim(tmp_path):
    async def make():
        return "answer of another"

    hanging = child("claim_and_hang", tmp_path)
    assert hanging.stdout.readline() == "claimed\n"

    async def whole():
        cache = SqliteCache(tmp_path / "cache.sqlite")
        waiting = asyncio.ensure_future(cache.fetch(key("q"), make))
        while cache.counts.waited == 0:
            await asyncio.sleep(0.01)
        os.kill(hanging.pid, signal.SIGKILL)
        answer = await asyncio.wait_for(waiting, 60)
        await cache.close()
        return answer

    assert asyncio.run(whole()) == "answer of another"
    hanging.communicate()


def test_identical_requests_of_processes_ask_once(tmp_path):
    children = [child("ask_slowly", tmp_path, "10") for _ in range(4)]
    assert [c.stdout.readline() for c in children] == ["ready\n"] * 4
    for c in children:
        c.stdin.write("go\n")
        c.stdin.flush()
    for c in children:
        c.communicate()
    assert [c.returncode for c in children] == [0] * 4
    assert len(list(tmp_path.glob("called-*"))) == 1


def test_a_disk_that_fills_ends_the_remembering_and_not_the_run(tmp_path):
    run = child("fill_a_small_disk", tmp_path, "200000")
    forgotten, times_said, *reason = run.communicate()[0].split()
    assert run.returncode == 0
    assert int(times_said) == 1
    assert "no longer stored" in " ".join(reason)
    (group,) = read_groups(tmp_path / "cache.sqlite")
    assert 0 < group.answers < 400
    assert group.answers + int(forgotten) == 400


def test_a_fork_is_told_to_open_a_cache_of_its_own(tmp_path):
    output, _ = child("fork", tmp_path).communicate(timeout=60)
    *refused, status, known, new = output.splitlines()
    assert len(refused) == 2
    assert all("Open one in each process" in line for line in refused)
    assert (status, known, new) == ("0", "answer", "answer")
