"""A zygote from its parent's side: its packages, command line, environment and first message, and reading its answers."""

import base64
import functools
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ramify.core.protocols import SandboxResult, SandboxStatus
from ramify.sandbox import namespaces
from ramify.sandbox.jail import Limits
from ramify.sandbox.kernel import JailError
from ramify.sandbox.namespaces import HOST_NAME, ROOM
from ramify.sandbox.program_setup import ProgramSetup, importable
from ramify.sandbox.snippet import NOT_REPLAYED, failed_cell, own_errors

_NAMES = ("numpy", "mpmath", "sympy")
_LATE_PARTS = """
sympy.assumptions.wrapper sympy.combinatorics sympy.integrals.heurisch sympy.integrals.manualintegrate
sympy.integrals.prde sympy.integrals.rde sympy.integrals.risch sympy.physics.units sympy.polys.polymatrix
sympy.sets.setexpr
"""
# sympy imports these when it first expands, differentiates, integrates or simplifies, which takes 20 to 100 ms.
_MENTIONS = {name: re.compile(rf"\b{name}\b") for name in _NAMES}


@dataclass(frozen=True, slots=True)
class Packages:
    """The packages that a zygote loads, and its preamble.

    Attributes:
        modules: Imported before the first snippet; submodules that the installed version lacks are skipped.
        paths: Folders to import them from.
        folders: Folders that snippets may read.
        preamble: The user's code that runs before the first snippet.
        open_paths: Folders from which snippets can import the user's packages.
        open_names: The only modules that they can import from there; None: all.
    """

    modules: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    preamble: str = ""
    open_paths: tuple[str, ...] = ()
    open_names: tuple[str, ...] | None = None


def mentioned(code: str, cells: Sequence[str]) -> frozenset[str]:
    """Return the names of packages that occur in a program or in the cells before it.

    This looks for the word, not for an import: parsing untrusted code could crash our process, and a word that is not
    an import only costs a slower start. A program that builds the name at run time finds only the standard library.
    """
    texts = (*cells, code)
    return frozenset(
        name for name in _NAMES if any(name in text and _MENTIONS[name].search(text) for text in texts)
    )


_NO_SETUP = ProgramSetup()


@functools.cache
def everything(setup: ProgramSetup = _NO_SETUP) -> Packages:
    """Return all installed packages, with the submodules that they would import later: for a zygote of many snippets."""
    packages = scientific(_NAMES, setup)
    parts = [part for part in _LATE_PARTS.split() if part.split(".")[0] in packages.modules]
    return replace(packages, modules=(*packages.modules, *parts))


def always_loaded(setup: ProgramSetup) -> frozenset[str]:
    """Return the packages that every program of a setup needs: its preamble names them, or its packages may load them.

    Only a numpy that is loaded beforehand is seeded.
    """
    names = mentioned(setup.preamble, ())
    return names | {"numpy"} if setup.paths else names


@functools.cache
def scientific(names: Iterable[str], setup: ProgramSetup = _NO_SETUP) -> Packages:
    """Return the installed packages among `names`, with what the setup adds."""
    modules: list[str] = []
    paths: list[str] = []
    folders = [*setup.folders]
    for name in sorted(names, key=_NAMES.index):
        spec = _spec(name, setup)
        if spec is None or not spec.submodule_search_locations:
            continue
        folder = Path(spec.submodule_search_locations[0])
        modules.append(name)
        paths.append(str(folder.parent))
        libraries = folder.parent / f"{name}.libs"
        folders.extend(str(path) for path in (folder, libraries) if path.exists())
    return Packages(
        tuple(modules),
        tuple(dict.fromkeys(paths)),
        tuple(dict.fromkeys(folders)),
        setup.preamble,
        setup.paths,
        setup.names,
    )


def _spec(name: str, setup: ProgramSetup) -> ModuleSpec | None:
    return find_spec(name) if setup.environment is None else PathFinder.find_spec(name, [setup.environment])


def installed(setup: ProgramSetup = _NO_SETUP) -> tuple[str, ...]:
    """Return the names of the packages that programs can import besides the standard library."""
    own = () if setup.environment is not None else scientific(_NAMES).modules
    return (*own, *(name for name in importable(setup) if name not in own))


_SHOWN_FOLDER = "/sandbox"


def read_answer(head: Mapping[str, Any], body: bytes, level: int, mark: str = "") -> SandboxResult:
    """Turn an answer (`server.Call.answer`) into a result.

    Args:
        head: The head of the answer's frame.
        body: Standard output, then standard error, each as far as it was buffered.
        level: Isolation level of the zygote.
        mark: The mark of the request, if it had cells (see `snippet`).
    """
    limit, cut = head["limit"], head["stdout_kept"]
    status, note = SandboxStatus(head["status"]), head["note"]
    failed = failed_cell(head["num_marks"], head["num_cells"])
    if failed is not None and status is SandboxStatus.OK:
        status, note = SandboxStatus.ERROR, NOT_REPLAYED
    stdout = _text(body[:cut], head["stdout_bytes"], limit, head["folder"], keep_tail=False)
    errors = _text(body[cut:], head["stderr_bytes"], limit, head["folder"], keep_tail=True)
    if head["num_cells"]:
        errors = own_errors(errors, mark, failed)
    stderr = "\n".join(filter(None, (errors, note)))
    return SandboxResult(status, stdout, stderr, level, failed_cell=failed)


def _text(output: bytes, num_bytes: int, limit: int, folder: str, *, keep_tail: bool) -> str:
    """Decode a stream's output. The snippet's folder gets one fixed name, so that equal calls give equal text."""
    text = output.decode("utf-8", "replace").replace(folder, _SHOWN_FOLDER)
    if num_bytes <= limit:
        return text
    note = f"[output cut at {limit} bytes]"
    return f"{note}\n{text}" if keep_tail else f"{text}\n{note}"


def _in_bubblewrap(command: Sequence[str], readable: Sequence[str], num_folders: int) -> list[str]:
    """Return the command line that, at level 4, runs `command` with its own namespaces and a root of only `readable`, devices and `ROOM`.

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
    if namespaces.has_spare_uids():
        # No user namespace: inside one, the user ids that count a snippet's tasks would not exist.
        arguments += [f"--unshare-{name}" for name in ("ipc", "pid", "net", "uts", "cgroup-try")]
        arguments += ["--cap-add", "CAP_SETUID"]
    else:
        arguments += ["--unshare-all", "--uid", "0", "--gid", "0"]
    for path in readable:
        arguments += ["--ro-bind", path, path]
    for path in namespaces.devices():
        arguments += ["--dev-bind", path, path]
    for number in range(num_folders):
        arguments += ["--dir", f"{ROOM}/{number}"]
    return [*arguments, "--remount-ro", "/", "--chdir", "/", "--", *command]


# Modules register hooks that run in every forked child: `random` would reseed itself, and `threading` would look for
# threads that are gone. A zygote has no threads, and all its children should start alike, so it decides about the hooks.
# The packages are stubs, so that it runs no `__init__` of ramify.
_BOOTSTRAP = """
import os, sys, types
hooks, register_at_fork = [], os.register_at_fork
os.register_at_fork = lambda **hook: hooks.append(hook)
for name, path in (("ramify", {root!r}), ("ramify.sandbox", {package!r})):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [path]
sys.modules["ramify"].sandbox = sys.modules["ramify.sandbox"]
# Compiled first, the largest module leaves memory that the others fill; each fork copies what is left over.
__import__("ramify.sandbox.server")
from ramify.sandbox.zygote import main
main(register_at_fork, hooks)
"""

ENVIRONMENT = {"PYTHONHASHSEED": "0", "LD_BIND_NOW": "1"}
"""The whole environment of a zygote, which clears it at the start. LD_BIND_NOW: symbols are resolved once, not per child."""

_PACKAGES_BYTES = 512 << 20
"""Address space that packages themselves reserve; most of it is never touched."""

_INTERPRETER = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
"""The base interpreter. That of a virtual environment needs files outside its own installation."""


def new_folder_path() -> str:
    """Return an unguessable path. The folder is not created, so the caller knows beforehand what to remove."""
    return f"{os.path.realpath(tempfile.gettempdir())}/ramify-{os.urandom(8).hex()}"


@dataclass(frozen=True, slots=True)
class Start:
    """Settings of a zygote.

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
        """True if snippets run in folders of the machine, False if in file systems of their own."""
        return self.level < 3

    def command(self, executable: str = _INTERPRETER) -> list[str]:
        """Return the command line of the zygote.

        Raises:
            JailError: The level needs a program that is missing.
        """
        package = Path(__file__).parent
        bootstrap = _BOOTSTRAP.format(root=str(package.parent), package=str(package))
        plain = [executable, "-P", "-s", "-S", "-B", "-X", "utf8", "-c", bootstrap]
        if self.level < 4:
            return plain
        # The interpreter and our own code besides what snippets may read.
        readable = namespaces.readable((*self.packages.folders, executable, str(package)))
        return _in_bubblewrap(plain, readable, self.num_slots)

    def settings(self, seccomp_program: bytes, base: str | None) -> dict[str, Any]:
        """Return the head of the first frame. `base` is a folder that belongs to this zygote and is removed with it."""
        limits = self.limits
        if self.packages.modules or self.packages.open_paths:
            limits = replace(limits, memory_bytes=limits.memory_bytes + _PACKAGES_BYTES)
        return {
            "level": self.level,
            "limits": asdict(limits),
            "seccomp": base64.b64encode(seccomp_program).decode(),
            "base": base if self.needs_base else ROOM,
            "num_slots": self.num_slots,
            "packages": asdict(self.packages),
        }
