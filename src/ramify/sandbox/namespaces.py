"""The parts of the machine that a sandbox sees: user ids, readable paths, and namespaces. Standard library only.

At level 3 the zygote gets its own namespaces and an almost empty root, created once. It becomes process 1, so nothing
outlives it. Its children see neither /proc nor the machine's files, network, host name or shared memory. An ordinary
user can do this too where user namespaces are allowed.
"""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from ramify.sandbox import kernel
from ramify.sandbox.kernel import JailError

SPARE_UID, NUM_SPARE_UIDS = 0x60000000, (1 << 22) + 1
"""The first id and their number: one for each process id that Linux can assign."""


def has_spare_uids() -> bool:
    """Return True if this process can use these ids; it tries the first and the last."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return False
    real = os.getresuid()[0]
    try:
        for uid in (SPARE_UID, SPARE_UID + NUM_SPARE_UIDS - 1, real):
            os.setresuid(uid, -1, -1)
    except OSError:
        return False
    return True


_SYSTEM = (
    "/usr/lib", "/usr/lib64", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime", "/usr/share/zoneinfo",
)  # fmt: skip
_INSTALLED = ("site-packages", "dist-packages")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")


def readable(packages: Sequence[str]) -> list[str]:
    """Return the existing paths among the system's libraries, the interpreter's installation and `packages`.

    No path lies below another.
    """
    candidates = (*_SYSTEM, f"{sys.base_prefix}/lib", str(Path(os.__file__).parent), *packages)
    paths: list[str] = []
    for path in sorted(candidates):
        if Path(path).exists() and not any(path == above or path.startswith(f"{above}/") for above in paths):
            paths.append(path)
    return paths


def installed() -> list[str]:
    """Return the folders of installed packages (site-packages and the like) below the paths that every snippet may read."""
    patterns = (f"{below}{name}" for below in ("", "python*/") for name in _INSTALLED)
    return sorted(
        {str(match) for pattern in patterns for path in readable(()) for match in Path(path).glob(pattern)}
    )


def devices() -> list[str]:
    """Return the devices that exist."""
    return [path for path in _DEVICES if Path(path).exists()]


ROOM = "/sandbox"
"""The folder of the snippets' folders, in the zygote's own root."""
HOST_NAME = "sandbox"

_NEW_NS, _NEW_CGROUP, _NEW_UTS, _NEW_IPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
_NEW_USER, _NEW_PID, _NEW_NET = 0x10000000, 0x20000000, 0x40000000
_EVERYTHING = _NEW_NS | _NEW_CGROUP | _NEW_UTS | _NEW_IPC | _NEW_USER | _NEW_PID | _NEW_NET

_MOUNT_POINT = "/proc"
"""Every Linux has this folder, and no readable path lies below it."""
_NUM_FILES = 4096


def enter(packages: Sequence[str], num_folders: int, folder_bytes: int) -> None:
    """Return in a new process, alone in its namespaces; the old process waits for it and ends with it.

    Args:
        packages: Folders that can be read besides the system's and the interpreter's.
        num_folders: Folders below `ROOM`, each a file system of its own.
        folder_bytes: Size of each of these file systems.

    Raises:
        JailError: This machine forbids or lacks a requirement.
    """
    _leave()
    pid = os.fork()
    if pid:
        os.closerange(3, 1 << 16)
        status = os.waitpid(pid, 0)[1]
        os._exit(0 if status == 0 else 1)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    kernel.set_host_name(HOST_NAME)
    _build_root(packages, num_folders, folder_bytes)


def furnish(num_folders: int, folder_bytes: int) -> None:
    """Mount a file system on each folder below `ROOM`: those of bubblewrap do not limit the number of files.

    Raises:
        JailError: bubblewrap left no right to mount.
    """
    # bubblewrap may have mapped the user ids in a second user namespace, which does not own its mounts.
    kernel.unshare(_NEW_NS)
    _mount_folders(ROOM, num_folders, folder_bytes)


def _leave() -> None:
    """Leave all namespaces. A helper process stays behind and maps the user ids: only from outside can root be mapped."""
    names = [(0, os.geteuid(), 1)], [(0, os.getegid(), 1)]
    if has_spare_uids():
        names[0].append((SPARE_UID, SPARE_UID, NUM_SPARE_UIDS))
    parent = os.getpid()
    read, write = os.pipe()
    helper = os.fork()
    if helper == 0:
        try:
            os.close(write)
            if os.read(read, 1):
                _map_ids(Path(f"/proc/{parent}"), *names)
                os._exit(0)
        finally:
            os._exit(1)
    os.close(read)
    try:
        kernel.unshare(_EVERYTHING)
        os.write(write, b"x")
    except JailError as error:
        raise JailError(f"no user namespaces here ({error})") from None
    finally:
        os.close(write)
        status = os.waitpid(helper, 0)[1]
    if status:
        raise JailError("no user namespaces here (user ids could not be mapped)")


def _map_ids(
    process: Path, users: Sequence[tuple[int, int, int]], groups: Sequence[tuple[int, int, int]]
) -> None:
    if os.geteuid() != 0:
        (process / "setgroups").write_text("deny")
    for name, ranges in (("uid_map", users), ("gid_map", groups)):
        lines = "\n".join(" ".join(map(str, each)) for each in ranges)
        (process / name).write_bytes(lines.encode())


def _build_root(packages: Sequence[str], num_folders: int, folder_bytes: int) -> None:
    root = _MOUNT_POINT
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("tmpfs", root, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=1m,mode=755")
    for path in readable(packages):
        _show(path, root, kernel.MOUNT_ATTR_NODEV)
    for path in devices():
        _show(path, root, 0)
    for number in range(num_folders):
        Path(f"{root}{ROOM}/{number}").mkdir(parents=True)
    _mount_folders(f"{root}{ROOM}", num_folders, folder_bytes)
    kernel.become_root(root)
    kernel.restrict_mount("/", kernel.MOUNT_ATTR_RDONLY, whole_tree=False)


def _mount_folders(room: str, num_folders: int, folder_bytes: int) -> None:
    flags = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
    options = f"size={folder_bytes},nr_inodes={_NUM_FILES},mode=700"
    for number in range(num_folders):
        kernel.mount("tmpfs", f"{room}/{number}", "tmpfs", flags, options)


def _show(path: str, root: str, attributes: int) -> None:
    """Bind-mount a path of the machine, read-only, into the new root."""
    target = Path(f"{root}{path}")
    target.parent.mkdir(parents=True, exist_ok=True)
    if Path(path).is_dir():
        target.mkdir(exist_ok=True)
    else:
        target.touch()
    kernel.mount(path, str(target), None, kernel.MS_BIND | kernel.MS_REC)
    attributes |= kernel.MOUNT_ATTR_RDONLY | kernel.MOUNT_ATTR_NOSUID
    kernel.restrict_mount(str(target), attributes, whole_tree=True)
