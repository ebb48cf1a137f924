"""The work that a zygote does once for all its snippets: imports, trial programs, huge pages. Standard library only.

A function that has run before takes faster paths, imports nothing and looks up less. In a child, each of these steps
would also copy the memory page that it writes to. All children start from the same state, sympy's caches included.
"""

import contextlib
import gc
import os
import sys
from collections.abc import Sequence

from ramify.sandbox import snippet
from ramify.sandbox.kernel import advise

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
