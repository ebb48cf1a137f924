"""How a zygote is started, and what it is told first."""

import base64
import os
import sys
import tempfile
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ramify.sandbox import bubblewrap, places
from ramify.sandbox.jail import Limits
from ramify.sandbox.namespaces import ROOM
from ramify.sandbox.packages import Packages

# The packages are stubs, so that no `__init__` of ours or of another package runs in the zygote.
_BOOTSTRAP = """
import sys, types
for name, path in (("ramify", {root!r}), ("ramify.sandbox", {package!r})):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [path]
sys.modules["ramify"].sandbox = sys.modules["ramify.sandbox"]
from ramify.sandbox import fork_hooks
from ramify.sandbox.zygote import main
main()
"""

ENVIRONMENT = {"PYTHONHASHSEED": "0", "LD_BIND_NOW": "1"}
"""All that a zygote gets; it clears even that. Symbols are looked up once, not in every child."""

_PACKAGES_BYTES = 512 << 20
"""Address space of numpy and sympy themselves, most of it never touched."""

_INTERPRETER = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
"""Not the one of a virtual environment: that needs files which are not part of its installation."""


def new_place() -> str:
    """A path for a folder that nobody else has or can guess. Nothing is made: who makes it knows already what to remove."""
    return f"{os.path.realpath(tempfile.gettempdir())}/ramify-{os.urandom(8).hex()}"


@dataclass(frozen=True, slots=True)
class Start:
    """What kind of zygote to start.

    Attributes:
        level: 0 to 4.
        limits: Of each snippet.
        num_slots: Snippets that can run at once.
        packages: Loaded beside the standard library.
    """

    level: int
    limits: Limits = field(default_factory=Limits)
    num_slots: int = 1
    packages: Packages = field(default_factory=Packages)

    @property
    def needs_base(self) -> bool:
        """Whether snippets run in a folder of the machine; else they have file systems of their own."""
        return self.level < 3

    def command(self, executable: str = _INTERPRETER) -> list[str]:
        """The command line of the zygote.

        Raises:
            JailError: The level needs a program that is missing.
        """
        package = Path(__file__).parent
        bootstrap = _BOOTSTRAP.format(root=str(package.parent), package=str(package))
        plain = [executable, "-P", "-s", "-S", "-B", "-X", "utf8", "-c", bootstrap]
        if self.level < 4:
            return plain
        readable = places.readable((*self.packages.folders, *bubblewrap.interpreter_places(executable)))
        return bubblewrap.wrap(plain, readable, self.num_slots)

    def settings(self, seccomp_program: bytes, base: str | None) -> dict[str, Any]:
        """The first frame. `base` is a folder that belongs to this zygote and is removed with it."""
        limits = self.limits
        if self.packages.modules:
            limits = replace(limits, memory_bytes=limits.memory_bytes + _PACKAGES_BYTES)
        return {
            "level": self.level,
            "limits": asdict(limits),
            "seccomp": base64.b64encode(seccomp_program).decode(),
            "base": base if self.needs_base else ROOM,
            "num_slots": self.num_slots,
            "packages": asdict(self.packages),
        }
