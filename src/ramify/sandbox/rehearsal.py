"""Programs that a zygote runs before its first snippet, to warm up for its children. Standard library only.

A function that has run before takes faster paths, imports nothing and looks up less. In a child, each of these steps
would also copy the memory page that it writes to. All children start from the same state, sympy's caches included.
"""

from collections.abc import Sequence

from ramify.sandbox import snippet

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
