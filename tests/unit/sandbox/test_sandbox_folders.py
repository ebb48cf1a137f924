"""What is removed is what lay in the folder that was held on to, whatever stands at its path by then."""

import asyncio
import os
import tempfile

import pytest

from ramify.core.protocols import SandboxStatus
from ramify.sandbox.folders import Folder
from ramify.sandbox.levels import MAX_LEVEL, why_not
from ramify.sandbox.pool import open_sandbox

SWAPS = {
    "its folder": "os.rename(here, here + 'x')\nos.symlink(victim, here)",
    "its folder, removed": "os.rmdir(here)\nos.symlink(victim, here)",
    "its folder, moved out": "out = os.path.dirname(os.path.dirname(here)) + '/out'\nos.rename(here, out)",
    # Only once: where a second program would put its link nobody could know.
    "the folder above": (
        "base = os.path.dirname(here)\nif not base.endswith('.moved'):\n"
        "    os.rename(base, base + '.moved')\n    os.symlink(victim, base)"
    ),
    "a folder in it": "os.mkdir('a')\nos.symlink(victim, 'a/b')\nos.symlink(victim, 'b')",
    "another folder": "os.rename(here, here + 'x')\nos.mkdir(here)\nopen(here + '/new', 'w').close()",
}


@pytest.fixture
def victim(tmp_path):
    folder = tmp_path / "victim"
    (folder / "0" / "deep").mkdir(parents=True)
    for name in ("1", "2", "3"):
        (folder / name).mkdir()
    for path in (folder / "file", folder / "0" / "file", folder / "0" / "deep" / "file"):
        path.write_text("mine")
    return folder


def whole(victim):
    files = [victim / "file", victim / "0" / "file", victim / "0" / "deep" / "file"]
    return all(path.read_text() == "mine" for path in files) and len(list(victim.iterdir())) == 5


@pytest.fixture
def base(tmp_path, monkeypatch):
    """The folder that zygotes make theirs in."""
    folder = tmp_path / "base"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.mark.integration
def test_all_that_is_in_it_goes(tmp_path):
    root = tmp_path / "root"
    (root / "a" / "b" / "c").mkdir(parents=True)
    (root / "a" / "b" / "file").write_text("x")
    (root / "link").symlink_to(tmp_path)
    os.mkfifo(root / "a" / "pipe")
    deep = os.open(root, os.O_RDONLY)
    for _ in range(5000):
        os.mkdir("d", dir_fd=deep)
        deeper = os.open("d", os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = deeper
    os.close(deep)
    folder = Folder(str(root))
    assert not folder.is_usable
    (root / "a" / "b").chmod(0)
    (root / "a").chmod(0)
    root.chmod(0)
    folder.empty()
    assert folder.is_usable
    folder.remove()
    assert not root.exists()
    assert tmp_path.exists()


def test_a_link_is_no_folder_and_its_end_stays(tmp_path, victim):
    (tmp_path / "link").symlink_to(victim)
    with pytest.raises(OSError, match="Not a directory"):
        Folder(str(tmp_path / "link"))
    root = tmp_path / "root"
    root.mkdir()
    folder = Folder(str(root))
    (root / "file").write_text("x")
    root.rename(tmp_path / "moved")
    root.symlink_to(victim)
    assert not folder.is_usable
    folder.empty()
    assert not folder.is_usable
    assert not any((tmp_path / "moved").iterdir())
    folder.remove()
    assert whole(victim)
    assert not root.is_symlink()
    assert not (tmp_path / "moved").exists()


def test_a_folder_that_is_moved_while_it_is_emptied_leads_nowhere(tmp_path, victim, monkeypatch):
    root, aside = tmp_path / "root", tmp_path / "aside"
    (root / "a" / "b").mkdir(parents=True)
    aside.mkdir()
    folder = Folder(str(root))
    listed = os.scandir

    def move_then_list(descriptor):
        if (root / "a" / "b").exists() and os.path.samestat(os.fstat(descriptor), (root / "a" / "b").stat()):
            (root / "a" / "b").rename(victim / "b")
        return listed(descriptor)

    monkeypatch.setattr(os, "scandir", move_then_list)
    folder.empty()
    (victim / "b").rmdir()
    assert whole(victim)
    assert not folder.is_usable


@pytest.mark.integration
@pytest.mark.parametrize("level", range(MAX_LEVEL + 1))
@pytest.mark.parametrize("swap", SWAPS)
def test_a_program_that_swaps_folders_costs_nobody_else_s_files(level, swap, victim, base):
    if reason := why_not(level):
        pytest.skip(reason)
    code = f"import os\nhere, victim = os.getcwd(), {str(victim)!r}\n{SWAPS[swap]}"

    async def main():
        sandbox = open_sandbox(level, level)
        try:
            await asyncio.gather(*(sandbox.run(code, 10.0) for _ in range(3)))
            return await sandbox.run("print(6 * 7)", 10.0)
        finally:
            await sandbox.close()

    served = asyncio.run(main())
    assert (served.status, served.stdout.strip()) == (SandboxStatus.OK, "42")
    assert whole(victim)
    assert list(base.iterdir()) == []
