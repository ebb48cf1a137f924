"""How a zygote is started, and what it is told first."""

import base64
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ramify.sandbox.jail import Limits

# The packages are stubs, so that no `__init__` of ours or of another package runs in the zygote.
_BOOTSTRAP = """
import sys, types
for name, path in (("ramify", {root!r}), ("ramify.sandbox", {package!r})):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [path]
sys.modules["ramify"].sandbox = sys.modules["ramify.sandbox"]
from ramify.sandbox.zygote import main
main()
"""

ENVIRONMENT = {"PYTHONHASHSEED": "0"}
"""All that a zygote gets; it clears even that."""


def command(executable: str = sys.executable) -> list[str]:
    """The command line of a zygote."""
    package = Path(__file__).parent
    bootstrap = _BOOTSTRAP.format(root=str(package.parent), package=str(package))
    return [executable, "-P", "-s", "-S", "-B", "-X", "utf8", "-c", bootstrap]


def settings(level: int, limits: Limits, seccomp_program: bytes, base: str) -> dict[str, Any]:
    """The first frame. `base` is a folder that belongs to this zygote and is removed with it."""
    return {
        "level": level,
        "limits": asdict(limits),
        "seccomp": base64.b64encode(seccomp_program).decode(),
        "base": base,
    }
