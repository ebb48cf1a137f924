"""Another user of the machine, which only root can become."""

import errno
import os
import socket
from pathlib import Path

import pytest

_NOBODY = 65534


def refuses_another_user(path: Path) -> bool:
    """Another user is not permitted to connect to a Unix socket."""
    if os.getuid() != 0:
        pytest.skip("becoming another user takes root")
    # No program is started: that user may not be able to read this environment's Python.
    child = os.fork()
    if child == 0:
        os._exit(_connected(path))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == errno.EACCES


def _connected(path: Path) -> int:
    """The error of a connection by the other user; 0: it has one."""
    try:
        os.setgroups([])
        os.setgid(_NOBODY)
        os.setuid(_NOBODY)
        with socket.socket(socket.AF_UNIX) as theirs:
            theirs.connect(str(path))
    except OSError as error:
        return error.errno or 255
    return 0
