"""Frames and sealed memory: whole however they are cut, and empty in children."""

import os

import pytest

from ramify.sandbox import frames
from ramify.sandbox.frames import SealedBuffer

FRAMES = [({"id": 1, "text": "\ud800é"}, b""), ({}, b"\x00" * 300_000), ({"list": [1, 2]}, b"body")]


def exit_code(child):
    """Return the result of `child()` in a forked process, which is its exit code."""
    pid = os.fork()
    if pid == 0:
        os._exit(child())
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.fixture
def pipe():
    read, write = os.pipe()
    yield read, write
    os.close(read)
    os.close(write)


@pytest.mark.parametrize("size", [1 << 9, 1000, 1 << 16])
def test_frames_survive_being_cut_anywhere(pipe, size):
    data = b"".join(frames.encode(*frame) for frame in FRAMES)
    inbox, received = frames.Inbox(pipe[0]), []
    for start in range(0, len(data), size):
        os.write(pipe[1], data[start : start + size])
        assert inbox.read()
        received.extend((head, bytes(body.used)) for head, body in inbox.take())
    assert received == FRAMES


def test_a_frame_that_trickles_in_is_whole(pipe):
    data = frames.encode({"id": 7}, b"abc")
    inbox, received = frames.Inbox(pipe[0]), []
    for byte in data:
        os.write(pipe[1], bytes([byte]))
        inbox.read()
        received.extend((head, bytes(body.used)) for head, body in inbox.take())
    assert received == [({"id": 7}, b"abc")]


def test_a_head_is_read_without_a_byte_of_the_next_frame(pipe):
    os.write(pipe[1], frames.encode({"first": 1}) + frames.encode({"second": 2}))
    assert frames.read_head(pipe[0]) == {"first": 1}
    assert frames.read_head(pipe[0]) == {"second": 2}


def test_what_the_reader_does_not_take_waits(pipe):
    os.set_blocking(pipe[1], False)
    outbox, body = frames.Outbox(pipe[1]), SealedBuffer(200_000)
    body.add(memoryview(b"x" * 200_000))
    outbox.add({"id": 1}, body)
    wanted, received = frames.encode({"id": 1}, b"x" * 200_000), b""
    while len(received) < len(wanted):
        outbox.write()
        received += os.read(pipe[0], 1 << 16)
    assert received == wanted
    assert outbox.is_empty


def test_programs_come_back_as_they_were(pipe):
    os.write(pipe[1], frames.request(3, "print('\ud800é')", 2.5, ("a = 1", ""), "m"))
    inbox = frames.Inbox(pipe[0])
    inbox.read()
    ((head, body),) = inbox.take()
    assert head == {"id": 3, "timeout": 2.5, "num_cells": 2, "mark": "m"}
    assert frames.programs(body.used) == ("print('\ud800é')", ("a = 1", ""))


def test_a_sealed_buffer_holds_the_end_of_what_is_too_much():
    sealed = SealedBuffer(4)
    sealed.add(memoryview(b"abcd"))
    sealed.drop(3)
    sealed.add(memoryview(b"ef"))
    assert bytes(sealed.used) == b"def"
    assert not sealed.is_full
    sealed.clear()
    assert bytes(sealed.used) == b""


def test_children_find_sealed_memory_empty_unless_it_is_shown_to_them():
    if not hasattr(os, "fork") or os.uname().sysname != "Linux":
        pytest.skip("only Linux can empty memory in children")
    sealed, shown = SealedBuffer(6), SealedBuffer(6)
    for buffer in (sealed, shown):
        buffer.add(memoryview(b"secret"))
    shown.show_to_next_child()
    assert exit_code(lambda: bytes(sealed.used) == bytes(6)) == 1
    assert exit_code(lambda: bytes(shown.used) == b"secret") == 1
    assert bytes(sealed.used) == b"secret"
