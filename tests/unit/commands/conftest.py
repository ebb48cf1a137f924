import ctypes
import subprocess
import sys
from collections.abc import Callable

import pytest

_CAPBSET_DROP = 24
_DAC_OVERRIDE, _DAC_READ_SEARCH = 1, 2


def _obey_permissions() -> None:
    """Also as root, of whom permissions of files are not asked while these two capabilities are left."""
    libc = ctypes.CDLL(None)
    for capability in (_DAC_OVERRIDE, _DAC_READ_SEARCH):
        libc.prctl(_CAPBSET_DROP, capability, 0, 0, 0)


@pytest.fixture
def with_permissions() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `ramify` as a process whom permissions of files hold for."""

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "ramify", *map(str, arguments)]
        return subprocess.run(
            command, preexec_fn=_obey_permissions, capture_output=True, text=True, check=False
        )

    return run
