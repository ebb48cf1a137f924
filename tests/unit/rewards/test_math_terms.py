import math
from fractions import Fraction

import pytest

from ramify.rewards.math_equal import decide
from ramify.rewards.math_terms import read_term
from ramify.rewards.math_values import UndecidedError, arithmetic, exact_value

SAME = [
    (r"\sqrt{8}-2\sqrt2", "0"),
    (r"\sin^2 x+\cos^2 x-1", "0"),
    (r"10^{50}(\sin^2 1+\cos^2 1-1)", "0"),
    (r"(10^{16}+\sqrt2)-10^{16}", r"\sqrt2"),
    (r"\sqrt{5+2\sqrt6}", r"\sqrt2+\sqrt3"),
    (r"\frac{1}{\sqrt{10^{20}+1}+10^{10}}", r"\sqrt{10^{20}+1}-10^{10}"),
    (r"\frac{2\sqrt2}{2^{51}}", r"\frac{\sqrt2}{2^{50}}"),
    ("e^{-30}", r"\frac{1}{e^{30}}"),
    (r"10^{60}+\sqrt8", r"10^{60}+2\sqrt2"),
    (r"e^{i\pi}+1", "0"),
    (r"\log_{10} 1000", "3"),
    (r"y=\sqrt2 x", r"2y=\sqrt8 x"),
    (r"\cot x", r"\frac{1}{\tan x}"),
    (r"\arctan 1", r"\frac{\pi}{4}"),
    (r"\sqrt[3]{-8\sqrt2}", r"-2\sqrt[6]{2}"),
    ("|x|", r"\sqrt{x^2}"),
    (r"\sin 10^{20}", r"\cos(\pi/2-10^{20})"),
    (r"\frac{2023!}{2022!}", "2023"),
    ("2^{20000}", "4^{10000}"),
    ("e^{1000}", "e^{999} e"),
    (r"\sqrt{2 \cdot 10^{1000}}", r"10^{500} \sqrt2"),
    (r"\log_2(2^{20000})", "20000"),
    ("x^{10000}+1", "1+x^{10000}"),
    ("9^{9^{9}}", "9^{9^9}"),
]
OTHER = [
    (r"\frac{\sqrt2}{2^{50}}", r"\frac{\sqrt3}{2^{50}}"),
    ("e^{-30}", "0"),
    ("e^{-800}", "0"),
    ("e^{-30}", "e^{-31}"),
    (r"10^{10}+\sqrt2", r"10^{10}+\sqrt3"),
    (r"10^{60}+\sqrt2", r"10^{60}+\sqrt3"),
    (r"\sqrt{10^{20}+1}-10^{10}", "0"),
    (r"(10^{16}+\sqrt2)-10^{16}", r"\sqrt3"),
    (r"\frac{x\sqrt2}{10^{20}}", r"\frac{x\sqrt3}{10^{20}}"),
    (r"\sqrt{2}+10^{-20}", r"\sqrt2"),
    ("10^{400}", r"\sqrt2"),
    (r"10^{400}+\sqrt2", "10^{400}"),
    ("y=10^{-13}x", "y=0"),
    (r"\pi", "3.14159265358979323846"),
    (r"\sin 10^{20}", r"\cos 10^{20}"),
    ("1/1009!", "1/1011!"),
    ("1/10000!", "1/10001!"),
    ("1/2^{20000}", "1/2^{20001}"),
    ("1/3^{10000}", "2/3^{10000}"),
    ("2^{100000}", "2^{100001}"),
    ("2^{100000}+1", "2^{100000}"),
    (r"\frac{2^{100000}+1}{2^{100000}}", "1"),
    ("(1/2)^{100000}+1", "1"),
    ("e^{1000}+1", "e^{1000}"),
    ("1+e^{-1000}", "1"),
    (r"\exp(-1000)", "0"),
    (r"2^{20000}\sqrt2", r"2^{20001}\sqrt2"),
    ("9^{9^{9^9}}", "9^{9^{9^8}}"),
    ("Boeing 0", "0"),
]


@pytest.mark.parametrize(("left", "right"), SAME)
def test_equal_however_small_or_large_or_cancelled(left: str, right: str) -> None:
    assert decide(left, right) is decide(right, left) is True


@pytest.mark.parametrize(("left", "right"), OTHER)
def test_unequal_however_close(left: str, right: str) -> None:
    assert decide(left, right) is decide(right, left) is False


@pytest.mark.parametrize(
    "text",
    [
        "\\log 0",
        "\\log_0 5",
        "\\ln 0",
        "\\log_1 5",
        "\\cot 0",
        "1/0",
        "0^{-\\sqrt2}",
        "(-1)!",
    ],
)
def test_what_is_not_defined_is_undecided(text: str) -> None:
    with pytest.raises(UndecidedError):
        arithmetic(150).value(read_term(text), {})


@pytest.mark.parametrize("text", ["2^{70000}", "e^{1000}", "6000!", "9^{9^9}"])
def test_what_is_too_large_has_no_value(text: str) -> None:
    assert arithmetic(150).value(read_term(text), {}) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("\\sin 1", math.sin(1)),
        ("\\cot 2", 1 / math.tan(2)),
        ("\\sec 1", 1 / math.cos(1)),
        ("\\csc 1", 1 / math.sin(1)),
        ("\\arctan 3", math.atan(3)),
        ("\\sqrt[3]{-5}", -math.cbrt(5)),
        ("e^{2i}", complex(math.cos(2), math.sin(2))),
        ("\\log_3 7", math.log(7, 3)),
        ("(2/3)^{1/3}", math.cbrt(2 / 3)),
        ("|1-\\pi|", math.pi - 1),
        ("\\cosh 2", math.cosh(2)),
    ],
)
def test_functions_have_their_values(text: str, value: complex) -> None:
    for digits in (150, 1000):
        assert complex(arithmetic(digits).value(read_term(text), {})) == pytest.approx(value)


def test_rational_values_are_exact() -> None:
    assert exact_value(read_term("(\\frac{2}{3})^{2}+0.1")) == Fraction(49, 90)
    assert exact_value(read_term("\\sqrt2")) is None
