"""numpy, mpmath and sympy: in every program that names them, at every level, with memory of their own."""

import pytest

from ramify.sandbox.launch import Packages, everything, mentioned, scientific


def test_programs_compute_with_them(box):
    code = """
import numpy, sympy
x = sympy.Symbol("x")
print(sympy.integrate(sympy.exp(x) * sympy.cos(x), x))
print(numpy.linalg.inv(numpy.array([[2.0, 0.0], [0.0, 4.0]])).tolist(), numpy.fft.fft([1, 2, 3]).real.tolist())
import mpmath
mpmath.mp.dps = 20
mpmath.pi"""
    lines = box.text(code).splitlines()
    assert lines[0] == "exp(x)*sin(x)/2 + exp(x)*cos(x)/2"
    assert lines[1] == "[[0.5, 0.0], [0.0, 0.25]] [6.0, -1.5, -1.5]"
    assert lines[2] == "3.1415926535897932385"


def test_parts_that_are_loaded_late_are_found(box):
    assert box.text("import numpy.testing, sympy.physics.units\n1") == "1"


def test_what_a_zygote_rehearsed_left_no_names(box):
    code = "import sympy\n[name for name in globals() if not name.startswith('__')]"
    assert box.text(code) == "['sympy']"
    assert box.text("sorted(globals())") == box.text("import sys\nsorted({*globals()} - {'sys'})")


def test_they_are_found_however_they_are_imported(box):
    assert box.text("__import__('numpy').arange(3).sum()") == "3"
    assert box.text("exec('import sympy')\nsympy.Integer(2)**3") == "8"


def test_their_memory_is_not_the_program_s(box):
    assert box.text("import numpy\nlen(numpy.ones(8 << 20).tobytes()) >> 20") == "64"
    assert "MemoryError" in box.run("import numpy\nnumpy.ones(1 << 30)").stderr


def test_one_thread_computes(box):
    if box.level >= 3:
        pytest.skip("there is no /proc to count threads in")
    code = """
import numpy, os
a = numpy.ones((300, 300))
a @ a
try:
    print(len(os.listdir("/proc/self/task")))
except PermissionError:
    print(1)"""
    assert box.text(code) == "1"


def test_a_word_chooses_and_not_its_part():
    assert mentioned("import numpy as np", ()) == {"numpy"}
    assert mentioned("x = 1", ("import sympy, mpmath", "")) == {"sympy", "mpmath"}
    assert mentioned("from numpyx import a_sympy\nnumpy_ = 1", ()) == frozenset()


def test_packages_are_those_asked_for():
    assert scientific(frozenset({"numpy"})).modules == ("numpy",)
    assert scientific(("sympy", "numpy")).modules == ("numpy", "sympy")
    assert everything().modules[:3] == ("numpy", "mpmath", "sympy")
    assert everything().folders == scientific(("mpmath", "numpy", "sympy")).folders
    assert scientific(frozenset()) == Packages()
