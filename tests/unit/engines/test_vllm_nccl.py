"""A group of NCCL whose other processes do not come, or die: its library is a stand-in, which answers as NCCL does without blocking."""

import threading
import time

import pytest
import torch

from ramify.engines.vllm.nccl import NcclCommunicator
from ramify.engines.vllm.wires import NcclWire, WireError

GROUP = bytes(range(128))


class Library:
    """What the other processes do: `stuck` names the call that they do not join."""

    def __init__(self, stuck=None, fails=None):
        self.stuck, self.fails = stuck, fails
        self.calls, self.aborted = [], []

    def begin(self, group, size):
        self._call("begin")
        return group, size

    def is_pending(self, handle):
        assert handle not in self.aborted
        if self.fails == self.calls[-1]:
            raise RuntimeError("NCCL: remote process exited or there was a network error")
        return self.stuck == self.calls[-1] == "begin"

    def start_sum(self, handle):
        self._call("sum")

    def start_broadcast(self, handle, tensor):
        self._call("broadcast")

    def is_computing(self):
        return self.stuck == self.calls[-1]

    def abort(self, handle):
        self.aborted.append(handle)

    def _call(self, name):
        self.calls.append(name)


def group_of(library, seconds=0.05):
    return NcclCommunicator(GROUP, 3, seconds, lambda: library)


def test_a_group_whose_processes_all_come_takes_tensors():
    library = Library()
    group = group_of(library)
    group.join()
    group.broadcast(torch.zeros(3, dtype=torch.uint8))
    group.abort()
    group.abort()
    assert library.calls == ["begin", "sum", "broadcast"]
    assert library.aborted == [(GROUP, 3)]


@pytest.mark.parametrize(
    ("stuck", "reason"),
    [
        ("begin", "not all of 3 processes came within 0.05 s"),
        ("sum", "not all of 3 processes came within 0.05 s"),
        ("broadcast", "a process did not take a bucket of weights within 0.05 s"),
    ],
)
def test_each_wait_has_a_limit_after_which_the_group_is_ended(stuck, reason):
    library = Library(stuck)
    group = group_of(library)
    if stuck == "broadcast":
        group.join()
    with pytest.raises(RuntimeError, match=reason):
        (group.join if stuck != "broadcast" else lambda: group.broadcast(torch.zeros(1)))()
    assert library.aborted == [(GROUP, 3)]
    with pytest.raises(RuntimeError, match="was ended"):
        group.broadcast(torch.zeros(1))


def test_a_process_that_dies_is_told_at_once():
    with pytest.raises(RuntimeError, match="remote process exited"):
        group_of(Library(fails="begin"), seconds=60.0).join()


@pytest.mark.parametrize("stuck", ["begin", "sum", "broadcast"])
def test_another_thread_ends_what_waits(stuck):
    library, errors = Library(stuck), []
    group = group_of(library, seconds=60.0)

    def work():
        try:
            group.join()
            group.broadcast(torch.zeros(1))
        except RuntimeError as error:
            errors.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    while stuck not in library.calls:
        time.sleep(0.001)
    group.abort()
    thread.join(10.0)
    assert errors == ["NCCL: the group was ended"]
    assert library.aborted == [(GROUP, 3)]


def test_a_wire_that_is_stopped_before_its_thread_begins_joins_nothing():
    library = Library("begin")

    class Group(NcclCommunicator):
        new_id = staticmethod(lambda: GROUP)

        def __init__(self, group, size, seconds):
            super().__init__(group, size, seconds, lambda: library)

    class Weights:
        bucket_bytes = 8

    wire = NcclWire(Group)
    wire.meet(Weights(), [1], 3)
    wire.stop()
    with pytest.raises(WireError, match="stopped"):
        wire.join()
    assert library.calls == []
