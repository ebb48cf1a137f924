"""Level 4: the command line that starts a zygote inside bubblewrap."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from ramify.sandbox import places, uids
from ramify.sandbox.kernel import JailError
from ramify.sandbox.namespaces import HOST_NAME, ROOM


def wrap(command: Sequence[str], readable: Sequence[str], num_folders: int) -> list[str]:
    """The command line that runs `command` with its own namespaces and a root of only `readable`, devices and `ROOM`.

    Args:
        command: An absolute path and arguments; the program must lie in `readable`.
        readable: Files and folders, read-only and at the same paths.
        num_folders: Folders below `ROOM`. The zygote mounts a file system on each, then drops the right to mount.

    Raises:
        JailError: bubblewrap is not installed.
    """
    program = shutil.which("bwrap")
    if program is None:
        raise JailError("bubblewrap is not installed (no bwrap on PATH)")
    arguments = [program, "--die-with-parent", "--new-session", "--hostname", HOST_NAME, "--cap-drop", "ALL"]
    arguments += ["--cap-add", "CAP_SYS_ADMIN"]
    if uids.has_spare():
        # No user namespace: inside one, the user ids that count a snippet's tasks would not exist.
        arguments += [f"--unshare-{name}" for name in ("ipc", "pid", "net", "uts", "cgroup-try")]
        arguments += ["--cap-add", "CAP_SETUID"]
    else:
        arguments += ["--unshare-all", "--uid", "0", "--gid", "0"]
    for path in readable:
        arguments += ["--ro-bind", path, path]
    for path in places.devices():
        arguments += ["--dev-bind", path, path]
    for number in range(num_folders):
        arguments += ["--dir", f"{ROOM}/{number}"]
    return [*arguments, "--remount-ro", "/", "--chdir", "/", "--", *command]


def interpreter_places(executable: str) -> list[str]:
    """What an interpreter must read to start a zygote, beyond what snippets may read."""
    return [executable, str(Path(__file__).parent)]
