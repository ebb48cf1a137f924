"""How to start a zygote: its command line, its environment and its first message."""

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

# The packages are stubs, so that the zygote runs no `__init__` of ramify.
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
"""The whole environment of a zygote, which clears it at the start. LD_BIND_NOW: symbols are resolved once, not per child."""

_PACKAGES_BYTES = 512 << 20
"""Address space that numpy and sympy themselves reserve; most of it is never touched."""

_INTERPRETER = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
"""The base interpreter. That of a virtual environment needs files outside its own installation."""


def new_place() -> str:
    """A path for a new folder that nobody can guess. Does not create it, so the caller knows what to remove beforehand."""
    return f"{os.path.realpath(tempfile.gettempdir())}/ramify-{os.urandom(8).hex()}"


@dataclass(frozen=True, slots=True)
class Start:
    """What kind of zygote to start.

    Attributes:
        level: 0 to 4.
        limits: Limits of each snippet.
        num_slots: Most snippets that run at once.
        packages: Packages to load besides the standard library.
    """

    level: int
    limits: Limits = field(default_factory=Limits)
    num_slots: int = 1
    packages: Packages = field(default_factory=Packages)

    @property
    def needs_base(self) -> bool:
        """Whether snippets run in folders of the machine, rather than in file systems of their own."""
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
        """The head of the first frame. `base` is a folder that belongs to this zygote and is removed with it."""
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
