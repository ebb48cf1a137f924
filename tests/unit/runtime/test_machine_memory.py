"""What a container or a job of Slurm may take of its machine's memory."""

import pytest

from ramify.runtime import machine_memory
from ramify.runtime.machine_memory import memory_left, memory_limit

MEBIBYTE = 1 << 20


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """The folder of all control groups; this process is in `job/step`."""
    own = tmp_path / "own"
    own.write_text("1:name=systemd:/\n0::/job/step\n")
    monkeypatch.setattr(machine_memory, "_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(machine_memory, "_OWN_GROUP", own)
    (tmp_path / "groups/job/step").mkdir(parents=True)
    return tmp_path / "groups"


def write_group(folder, limit, used, inactive_file=0):
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {inactive_file}\n")


def test_a_limit_that_is_below_the_machines_memory_holds(groups):
    whole, left = memory_limit(), memory_left()
    assert MEBIBYTE < left <= whole
    write_group(groups / "job/step", "max", 3 * MEBIBYTE)
    assert memory_limit() == whole
    write_group(groups / "job", 8 * MEBIBYTE, 5 * MEBIBYTE, inactive_file=2 * MEBIBYTE)
    assert (memory_limit(), memory_left()) == (8 * MEBIBYTE, 5 * MEBIBYTE)
    write_group(groups / "job/step", 4 * MEBIBYTE, 3 * MEBIBYTE)
    assert (memory_limit(), memory_left()) == (4 * MEBIBYTE, MEBIBYTE)
    write_group(groups / "job/step", 4 * MEBIBYTE, 9 * MEBIBYTE)
    assert memory_left() == 0


def test_a_container_sees_its_own_group_as_the_root(groups):
    machine_memory._OWN_GROUP.write_text("0::/\n")
    write_group(groups, 8 * MEBIBYTE, 5 * MEBIBYTE)
    assert (memory_limit(), memory_left()) == (8 * MEBIBYTE, 3 * MEBIBYTE)


def test_where_there_are_no_groups_the_machine_decides(groups):
    whole = memory_limit()
    machine_memory._OWN_GROUP.unlink()
    assert memory_limit() == whole > 1 << 28
