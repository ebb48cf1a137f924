"""The zygote: a clean process that forks one jailed child for each snippet. Standard library only.

It starts with an empty environment, speaks frames (`frames`) on standard input and output, and ends, with all its
children, when its input ends.

The first frame gives the level, the limits, the seccomp program and the folder that contains the snippets' folders.
Each later frame is a request, {"id", "timeout", "num_cells", "mark"} with the program as body, or {"id", "cancel"}.
The zygote sends an answer (`server.Call.answer`) with the output as body; at level 0 {"id", "pid"} precedes it. A request
that finds no free folder gets {"id", "waiting"}, and {"id", "begun"} once it has one. After a folder could not be
emptied, new requests get {"id", "unserved"}.

At level 0 nothing stops a snippet from killing its zygote. So there each zygote serves one snippet, and {"id", "pid"}
lets the caller kill what remains. A snippet that moves a grandchild to another session and then kills its zygote leaves
the grandchild behind: level 0 guards against accidents only.
"""

import base64
import contextlib
import fcntl
import gc
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any, NoReturn

from ramify.sandbox import frames, namespaces, snippet
from ramify.sandbox.folders import Slots
from ramify.sandbox.jail import Jail, Limits, volunteer_when_memory_ends
from ramify.sandbox.kernel import JailError, Landlock, advise
from ramify.sandbox.server import Birth, Server

_LAST_SECONDS = 10


def main(register_at_fork: Callable[..., None], hooks: Sequence[Mapping[str, Any]]) -> None:
    """Run the zygote on standard input and output.

    Args:
        register_at_fork: The function of `os`, which `launch` has replaced.
        hooks: The hooks that modules tried to register since then.
    """
    incoming, outgoing = (fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10) for descriptor in (0, 1))
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.environ.clear()
    settings = frames.read_head(incoming)
    if settings is None:
        return
    os.register_at_fork = register_at_fork
    if settings["level"] == 0:  # a snippet can fork as well, and its children need the hooks
        for hook in hooks:
            register_at_fork(**hook)
    try:
        jail, slots = _prepare(settings)
        names = _first_names(settings["level"], settings["packages"])
    except (JailError, OSError, ImportError, snippet.PreambleError) as error:
        os.write(outgoing, frames.encode({"ready": False, "reason": str(error)}))
        return
    gc.disable()
    gc.collect()
    if settings["level"] > 0:
        use_huge_pages()
    gc.freeze()
    server = Server(jail, slots, incoming, outgoing)
    birth = server.serve()
    if birth is None:
        signal.signal(signal.SIGALRM, lambda *_: os._exit(1))
        signal.alarm(_LAST_SECONDS)  # if a child cannot die
        server.kill_all()
        slots.remove()
        return
    _become_child(birth, jail, names)


def _prepare(settings: Mapping[str, Any]) -> tuple[Jail, Slots]:
    """Set up everything that all snippets share, including the limits that they inherit from this process.

    Raises:
        JailError, OSError: A protection that the level promises failed.
    """
    level, limits = settings["level"], Limits(**settings["limits"])
    packages = settings["packages"]
    volunteer_when_memory_ends()
    if level == 3:
        namespaces.enter(packages["folders"], settings["num_slots"], limits.folder_bytes)
    elif level == 4:
        namespaces.furnish(settings["num_slots"], limits.folder_bytes)
    if level > 0 or packages["modules"]:
        preload(packages["modules"], packages["paths"])
    landlock = None
    if level >= 2:
        readable = (*namespaces.readable(()), *packages["folders"], *namespaces.devices())
        landlock = Landlock(readable, namespaces.installed())
    slots = Slots(settings["base"], settings["num_slots"], landlock)
    if landlock is not None:
        landlock.close()
    return Jail(level, limits, base64.b64decode(settings["seccomp"])), slots


def _first_names(level: int, packages: Mapping[str, Any]) -> dict[str, Any]:
    """Return the names of the main module with which snippets start.

    Raises:
        PreambleError: The user's preamble failed.
    """
    hide_ramify()
    if level > 0:
        rehearse(packages["modules"])
    names = snippet.prepare()
    if packages["open_paths"]:
        open_to_snippets(packages["open_paths"], packages["open_names"])
    snippet.run_preamble(packages["preamble"], names)
    return names


def _become_child(birth: Birth, jail: Jail, names: dict[str, Any]) -> NoReturn:
    try:
        signal.set_wakeup_fd(-1)
        if jail.level == 0:  # from level 1 on a child cannot fork, and no fork hooks have reseeded
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            snippet.seed()
        os.setsid()
        os.dup2(birth.stdout, 1)
        os.dup2(birth.stderr, 2)
        os.chdir(birth.slot.folder.descriptor)
        try:
            jail.enter(birth.slot.rules, birth.processor_seconds, birth.zygote)
        except (JailError, OSError) as error:
            os.write(2, f"killed: the sandbox could not be set up: {error}".encode())
            os.kill(os.getpid(), signal.SIGKILL)
        os.closerange(3, 1 << 16)
        with birth.body.used as body:
            code, cells = frames.programs(body)
        snippet.run(code, cells, birth.mark, names)
    finally:
        os._exit(1)


# What the zygote does once for all its snippets. A function that has run before takes faster paths, imports nothing and
# looks up less; in a child, each of these steps would also copy the memory page that it writes to. All children start
# from the same state, sympy's caches included.

_HUGE_PAGE_BYTES = 2 << 20
_COLLAPSE = 25
"""MADV_COLLAPSE, since Linux 6.1; older kernels refuse it, and forks stay slower."""


def use_huge_pages() -> int:
    """Move the memory of Python's objects to huge pages of 2 MiB where possible; returns how many there are now.

    They make forks cheap. A fork copies one page-table entry per page, and the child's end frees each of them. A huge page
    needs one entry instead of 512. When a child writes to one, only the small page that it writes to is copied.
    """
    blocks = {id(each) // _HUGE_PAGE_BYTES for each in gc.get_objects()}
    return sum(advise(block * _HUGE_PAGE_BYTES, _HUGE_PAGE_BYTES, _COLLAPSE) for block in blocks)


# Modules that snippets often use. Each one also makes every fork a little slower.
_MODULES = """
bisect cmath collections datetime decimal fractions functools heapq itertools json math operator random re statistics
string time
"""
_ONE_THREAD = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


def preload(modules: Sequence[str], paths: Sequence[str]) -> None:
    """Import the modules that snippets often use, and `modules` from `paths`.

    The paths do not stay in `sys.path`: a package finds its own parts without them, and nothing else there can be
    imported.
    """
    for name in _MODULES.split():
        __import__(name)
    sys.path += paths
    os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))
    for name in modules:
        with contextlib.suppress(ImportError) if "." in name else contextlib.nullcontext():
            __import__(name)
    os.environ.clear()
    del sys.path[len(sys.path) - len(paths) :]


class ListedPackages:
    """Finds the listed modules in the user's folders, and nothing else there."""

    def __init__(self, paths: Sequence[str], names: Sequence[str]) -> None:
        self._paths, self._names = [*paths], frozenset(names)

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:  # noqa: ARG002
        """Return the spec of a listed module; a package's own parts are found without this."""
        return PathFinder.find_spec(name, self._paths) if path is None and name in self._names else None


def open_to_snippets(paths: Sequence[str], names: Sequence[str] | None) -> None:
    """Let snippets import from `paths`: everything, or only `names`."""
    # Libraries that a snippet loads read these then.
    os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))
    if names is None:
        sys.path += paths
    else:
        sys.meta_path.append(ListedPackages(paths, names))


def hide_ramify() -> None:
    """Remove ramify from `sys.modules`, so that snippets cannot import it. Existing references stay valid."""
    for name in [name for name in sys.modules if name.split(".")[0] == "ramify"]:
        del sys.modules[name]


_PLAIN = (
    """
import collections, itertools, json, math, re
from fractions import Fraction
def primes(limit):
    sieve = [True] * (limit + 1)
    for number in range(2, math.isqrt(limit) + 1):
        if sieve[number]:
            for multiple in range(number * number, limit + 1, number):
                sieve[multiple] = False
    return [number for number in range(2, limit + 1) if sieve[number]]
class Point:
    def __init__(self, x, y):
        self.x, self.y = x, y
total = sum(i * i for i in range(100))
counts = collections.Counter(str(total))
print(f"{total:,}", sorted(counts.items()), primes(50)[-1], Fraction(3, 6), round(math.sqrt(2), 3), {1, 2}, "a".join("bc"))
print(json.dumps({"a": [1, 2.5, None]}), re.findall(r"[0-9]+", "a1b22"), list(itertools.combinations(range(3), 2)))
try:
    Point(1, 2).z
except AttributeError as error:
    print(error)
while total > 10**3:
    total //= 3
total""",
    "def f(x):\n    return 1 / x\nprint('before')\nf(0)",
    "x = (1,\n",
)
_OF_PACKAGES = {
    "numpy": "import numpy as np\na = np.arange(6.0).reshape(2, 3)\nprint(a @ a.T, a.mean(), np.linalg.norm(a))",
    "sympy": """
import sympy
from sympy import Symbol, expand, factor, simplify, solve, symbols
x, y = symbols("x y")
print(expand((x + 1) ** 3), factor(x**2 - 1), simplify(sympy.sin(x) ** 2 + sympy.cos(x) ** 2), solve(x**2 - 2, x))
print(sympy.diff(x * sympy.sin(x), x), sympy.integrate(x**2 * sympy.exp(x), x), sympy.sqrt(8), sympy.Rational(1, 3) + 1)
print(solve([x + y - 3, x - y - 1], [x, y]), sympy.factorint(360), sympy.N(sympy.pi, 20), sympy.limit(sympy.sin(x) / x, x, 0))
sympy.Matrix([[1, 2], [3, 4]]).det()""",
}


def rehearse(modules: Sequence[str]) -> None:
    """Run the programs as children will, including those for packages in `modules`."""
    programs = [*_PLAIN, *(program for name, program in _OF_PACKAGES.items() if name in modules)]
    for program in (*programs, *programs):
        snippet.perform(program, (), "", {"__name__": "__main__"})
