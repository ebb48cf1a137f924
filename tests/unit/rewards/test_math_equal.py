r"""Which mathematical answers are equal: tables of pairs, by what they show."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.rewards.math_equal import (
    Symbolic,
    compare,
    decide,
    is_mathematical,
    math_equal,
    math_equal_quickly,
    timeout,
    unread,
)

EQUAL = {
    "numbers": [
        ("204.0", "204"), ("25", "025"), ("2,125", "2125"), ("2{,}125", "2125"), (r"12\,345\,678", "12345678"),
        (r"11,\! 111,\! 100", "11111100"), (".4", "0.4"), ("+33", "33"), ("-0", "0"), ("three", "3"),
        (r"6.72 \times 10^{-5}", ".0000672"), ("6.72e-05", ".0000672"), ("4.4 million", "4400000"), ("5 dozen", "60"),
        ("\N{FULLWIDTH DIGIT ONE}\N{FULLWIDTH DIGIT FOUR}/3", r"\frac{14}{3}"), ("٣", "3"),
    ],
    "fractions": [
        (r"4\frac{2}{3}", r"\frac{14}{3}"), ("4 2/3", r"\frac{14}{3}"), (r"\frac{28}{6}", r"\frac{14}{3}"),
        (r"\frac{14}3", r"\frac{14}{3}"), (r"\dfrac12", "0.5"), (r"\mathrm{\frac{14}{3}}", r"\frac{14}{3}"), ("(14)/(3)", "14/3"),
        ("0.5", "\N{VULGAR FRACTION ONE HALF}"), ("2.5", "2\N{VULGAR FRACTION ONE HALF}"), ("1 3/4", "1\N{VULGAR FRACTION THREE QUARTERS}"),
    ],
    "formulas": [
        ("x + 1 - y", "x+1-y"), ("-q + p", "p - q"), (r"\sqrt{117}", r"3\sqrt{13}"), ("3*sqrt(13)", r"3\sqrt{13}"),
        ("√51", r"\sqrt{51}"), ("-5i + 6", "6 - 5i"), ("(x-1)(x^4+x^2+1)", "x^5 - x^4 + x^3 - x^2 + x - 1"),
        ("(b+2)(a+5)", "(a+5)(b+2)"), (r"\sin^2 x + \cos^2 x", "1"), (r"\tan^{-1}(1)", r"\pi/4"), (r"e^{i\pi}", "-1"),
        (r"\sqrt[3]{-8}", "-2"), (r"\log_2 8", "3"), (r"\binom{5}{2}", "10"), ("5!", "120"), (r"\sqrt{x^2}", "|x|"),
        (r"\cosh 4x", "cosh(4x)"), ("cot x", r"\cot x"), ("x**2", "x^2"), ("2²3", r"2^{2} \cdot 3"),
        (r"\sin 50^\circ", r"\cos 40^\circ"), (r"\tan{60^\circ}", r"\sqrt{3}"), ("2xy", "2yx"),
        (r"20{,}000/\pi", r"\frac{20000}{\pi}"), (r"12\pi \approx 37.7", r"12\pi"),
        (r"2\cos^2\theta - 1", r"\cos 2\theta"), (r"0.\overline{3}", r"\frac13"), (r"-1.1\overline{6}", "-7/6"),
    ],
    "words around it": [
        ("$204$", "204"), ("\nThe value is 025.\n", "025"), (r"\text{The answer is }\frac{14}{3}", r"\frac{14}{3}"),
        (r"Therefore $x \geq 5$ is the solution.", "$x >= 5$"), (r"Answer \[ 9 \]", "$9$"), ("`4/7`", "4/7"), ("**4/7**", "4/7"),
        ("evelyn", r"\text{Evelyn}"), ("an ellipse", r"\text{ellipse}"), ("(C)", r"\text{(C)}"), ("C", r"\text{(C)}"),
        ("7", "C. 7"), ("(1, 4)", "B: (1, 4)"), ("C", "C. 7"), ("(c)", "C. 7"), ("c) 7", "C. 7"), ("one hundred and five", "105"), ("No solution", "no solution"), (r"\frac{14}{3}。", r"\frac{14}{3}"),
    ],
    "units": [
        ("385 dollars", "385"), (r"385\text{ units}", "385"), (r"7 \text{ wolves}", "7"), ("17 people", "17"), ("12 m", "12m"),
        ("5 cm", "5"), ("5 cm^2", "5 square centimeters"), ("5 sq. cm", r"5 \text{ cm}^2"), (r"15\ \mathrm{cm}^2", r"15\mbox{ cm}^2"),
        ("320 km/h", "320 kilometers per hour"), ("60 mph", r"60 \text{ miles per hour}"), (r"5 \text{ m}/\text{s}", "5 m/s"),
        ("100 cm", "1 m"), ("60 minutes", "1 hour"), ("18 km/h", "5 m/s"), (r"\$36", "3600 cents"), ("1,234 dollars", r"\$1,234"),
        ("10000 cm^2", "1 m^2"), ("728000 square feet", "728,000 ft²"), (r"\$18.90", "18.9"), ("$36", r"\$36.00"), ("90°", r"90^\circ"),
        (r"90\degree", r"90^\circ"), ("90 degrees", r"90^\circ"), (r"30^\circ\text{C}", "30 degrees Celsius"), ("10%", r"10\%"),
        ("28 pct", r"28\%"), ("10", r"10\%"), ("10 percent", "0.1"), (r"5\%", "0.05"), ("52_{8}", "52_8"), ("52", "52_8"),
        ("(40)_9", "40_9"), (r"1101_{\text{two}}", "1101_2"),
    ],
    "names and equations": [
        ("x = 025", "025"), ("total = 025", "025"), ("5", "x=5"), ("m+n = 70", "70"), ("f(3) = 7", "7"), ("f'(x) = 2x", "2x"),
        (r"m\angle ABC = 30^\circ", "30"), ("1", "|AB|=1"), (r"\frac{1}{\sqrt6}", r"\frac{NO}{BO}=\frac{1}{\sqrt6}"),
        ("5x-7y+11z=-4", "5x - 7y + 11z + 4 = 0"), ("2x+y=0", "y = -2x"), ("77", "63 + 14 = 77"), ("7:32", "S_{M}:S=7:32"),
        ("(2, 1, 4)", "(x, y, z) = (2, 1, 4)"), (r"x=1/3 \approx 0.33", "1/3"), (r"x \approx 11", "11"),
    ],
    "several values": [
        ("-2,1", "1,-2"), (r"1 \text{ and } -2", "1,-2"), ("1 or 2", r"\{2,1\}"), ("1;2", "1,2"), (r"\{1,-2\}", "1,-2"),
        ("x=1, x=-2", "1,-2"), (r"1+\sqrt{19}, 1-\sqrt{19}", r"1 \pm \sqrt{19}"), (r"x=-2, x=1\pm\sqrt{5}", r"\{1\pm\sqrt{5},-2\}"),
        (r"\{5\}", "5"), ("3:5", "3 : 5"), ("1,2", "(1,2)"), ("((1,2),(3,4))", r"\begin{bmatrix}1&2\\3&4\end{bmatrix}"),
        (r"\begin{bmatrix} -1/3 \\ 2/3 \end{bmatrix}", r"(\begin{pmatrix} -\frac{1}{3} \\ \frac{2}{3} \\ \end{pmatrix})"),
        ("(1,2)", r"\begin{pmatrix}1\\2\end{pmatrix}"), ("2, 3, and 5", "2,3,5"), (r"2, 3,\text{ and }5", "2,3,5"), (r"2 \text{, and } 3", "2,3"),
        (r"2 \mathrm{and} 3", "2,3"), (r"2 \& 3", "2,3"), ("(1,2) and (3,4)", "(1,2),(3,4)"),
    ],
    "ellipses": [
        (r"1,2,3,\ldots", r"1,2,3,\dots"), ("1, 2, 3, ...", r"1,2,3,\ldots"), ("2, 4, 6\N{HORIZONTAL ELLIPSIS}", r"2, 4, 6, \ldots"),
        (r"1+2+\cdots+n", "1 + 2 + ... + n"), (r"\{2,4,\ldots\}", r"\{2, 4, ...\}"), (r"1,0.5,\dots", r"1,\frac12,\ldots"), ("0.333...", r"0.333\ldots"),
    ],
    "ranges and scores": [
        ("5 to 7", "5-7"), ("5\u20137", "5-7"), ("5 - 7", "5-7"), ("from 5 to 7", "5-7"), ("5-7", "5 to 7"), ("10 to 12", "10\u201312"), ("21 to 14", "21-14"),
        ("1990\u20131995", "1990-1995"), ("5-7", "5\u20147"), ("2.5 to 3.5", "2.5-3.5"), ("1000 to 2000", "1,000-2,000"), ("5 to 7 km", "5-7 km"),
        ("-12", "-5-7"), ("3", "5-2x+2x-2"), ("-x+3", "3-x"), ("5-2", "3"),
    ],
    "clock times": [
        ("3:30 pm", "15:30"), ("3:30 p.m.", r"3\!:\!30 \text{ p.m.}"), ("15:30", r"3:30 \text{ p.m.}"), ("8:15 am", "8:15"), ("08:15", "8:15"),
        ("4:51:06 PM", r"4\!:\!51\!:\!06 \text{ p.m.}"),
        ("2:05 PM", "2:05"), ("02:05", "2:05"), ("2 : 05", "2:05"), ("2:5", "2 : 5"),
    ],
    "intervals": [
        (r"|x| \le 2", "[-2,2]"), ("|x|<=2", "-2<=x<=2"), (r"2 \ge |x|", "[-2,2]"), (r"|x|>1", r"(-\infty,-1)\cup(1,\infty)"),
        (r"|x-3|<2", "(1,5)"), (r"|x+1|>2", r"x<-3 \text{ or } x>1"), ("1<|x|<3", r"(-3,-1)\cup(1,3)"), ("x>1 and x<3", "(1,3)"),
        (r"-2 \le x, x \le 2", "[-2,2]"), ("x<-1, x>1", r"(-\infty,-1)\cup(1,\infty)"), ("x != 2", r"(-\infty,2)\cup(2,\infty)"),
        (r"x \ne 2", r"\mathbb{R} \setminus \{2\}"), (r"x \ne 1, x \ne 3", r"(-\infty,1)\cup(1,3)\cup(3,\infty)"), (r"\mathbb{R}", r"(-\infty,\infty)"),
        (r"3 < x \le 4", "(3,4]"), (r"x \le 0", r"(-\infty, 0]"), (r"0 \ge x", r"(-\infty, 0]"), ("[-2,7]", r"x \in [-2,7]"),
        (r"x<-1 \text{ or } x>1", r"(-\infty,-1)\cup(1,\infty)"), (r"\{x \mid x > 3\}", "x>3"),
        (r"\left( 1, +\infty \right)", r"(1,\infty)"), (r"(-\infty,-1)\bigcup(3,\infty)", r"x \in (-\infty, -1) \cup (3, +\infty)"),
    ],
}  # fmt: skip
DIFFERENT = {
    "signs and digits": [
        ("-5", "5"), ("12047", "204"), ("4.67", r"\frac{14}{3}"), ("-1.00", "-100"), ("0.1\\%", "0.1"), ("2 3", "23"), ("2 3", "6"),
        ("1 2 3 4", "1234"), ("52_7", "52_8"), ("5 million", "5"), ("5 dozen", "5"), ("2004-2009", "1999-2004"), ("", "5"), ("5", ""),
        ("0.33", r"\frac{1}{3}"), ("3.14159265358979", r"\pi"), ("four", "3"), ("frac52", r"-\frac{5}{2}"),
    ],
    "formulas": [
        ("P-Q", "p-q"), ("q - p", "p - q"), (r"3\sqrt{3} + 6", r"3\sqrt{3} - 6"), (r"3\sqrt13", r"3\sqrt{13}"),
        ("15.56", r"11\sqrt2"), (r"\sqrt{x^2}", "x"), ("(-1)^n", "1"), ("x", "X"), ("ab+2a+5b+10", "(a+5)(b+2)"), ("2xy", "2ab"),
        (r"\cos 40", r"\cos 40^\circ"), (r"\theta\cos 2", r"\cos 2\theta"), (r"0.\overline{3}", "0.33"),
        ("2²3", "2^{23}"), ("tan x", r"\cot x"), (r"3\mathrm{i}", "3"), ("√51", r"\sqrt{5}1"),
        (r"\frac{2018 \times 5^{2017}}{5^{2018} + 1}", r"\frac{2018 \times 5^{2017}}{5^{2018} - 1}"),
    ],
    "words": [
        ("I don't think it is 5", "5"), (r"\text{The answer is not equal to } 5", "5"), (r"5 \text{ is wrong}", "5"),
        (r"5 \text{ or not}", "5"), (r"\text{odd}", r"\text{even}"), ("5 apples and pears x", "5"), ("no solution", "5"),
        ("1+__import__('os').mkdir('a')", "1"), ("The", "The The"), ("8", "C. 7"), ("10 in all or 12", "12"),
    ],
    "units": [
        (r"5 \text{ m}", r"5 \text{ cm}"), ("5 cm^2", "5 cm"), ("5 kg", "5 cm"), ("101 cm", "1 m"), ("100 cm^2", "1 m^2"), ("5 km/h", "5 m/s"), ("9 am", "9"),
        ("44 BC", "44"), ("4ab", "4"), ("30 Rock", "30"), ("7 eleven", "7"), ("12m", "12"), ("12 m", "12x"), (r"30^\circ C", r"30^\circ F"), (r"36 \text{ cents}", r"\$36"),
        (r"5\%", r"5 \text{ cm}"), ("4.4 million", "4.4"), (r"1101_{\text{three}}", "1101_2"),
    ],
    "names and equations": [
        ("x=-5", "x=5"), ("y=5", "x=5"), ("2x+y=1", "2x+y=0"), ("x+1", "x+1=2"), ("2x = 10", "10"), ("-x = 5", "5"), ("x^2 = 9", "3"),
        ("f(3) = 7", "f(2) = 7"), ("S_5 = 35", "S_8 = 35"), ("0", "a^2 + b = 0"), ("11a+c", "7 = 11a+c"), ("m+n = 70", "m+n"),
    ],
    "several values": [
        ("1", "1,-2"), ("-1,2", "1,-2"), (r"1+\sqrt{19}", r"1 \pm \sqrt{19}"), ("(2,1)", "(1,2)"), (r"\{1,2\}", "(1,2)"),
        ("1 or 2", "(1,2)"), ("3,5", "3:5"), (r"(1,2)\cup(3,4)", "((1,2),(3,4))"), ("1:00", "12:00"),
        ("[[1,2],[3,4]]", r"\begin{pmatrix}1&2\\3&5\end{pmatrix}"), ("[1,2]", r"\begin{pmatrix}1\\2\end{pmatrix}"),
        (r"\begin{pmatrix} 0 & -1 \\ -1 & 0 \end{pmatrix}", r"\begin{pmatrix} -1 & 0 \\ 0 & -1 \end{pmatrix}"),
    ],
    "ellipses": [(r"1,2,3,\ldots", r"1,2,4,\ldots"), (r"1,2,3,\ldots", "1,2,3"), ("1,2,3", r"1,2,3,\ldots"), (r"1+2+\dots+n", r"1+3+\dots+n")],
    "ranges and scores": [
        ("-2", "5-7"), ("-2", "10\u201312"), ("-5", "1990-1995"), ("1999", "2019-20"), ("7", "21-14"), ("7-5", "5-7"), ("5 to 8", "5-7"), ("5", "5-7"),
        ("-2", "5 - 7"), ("-2", "$5-7$"), ("-1", "2.5-3.5"), ("-1000", "1,000-2,000"), ("-2 km", "5-7 km"), ("5-7 cm", "5-7 km"), ("1976", "2004-03-25"),
    ],
    "clock times": [("2:5", "2:05"), ("2:05", "2:5"), ("1:2:5", "1:02:05"), ("3:30 am", r"3:30 \text{ p.m.}"), ("3:31 pm", r"3:30 \text{ p.m.}"), ("15:30", "3:30"), ("4:30 pm", "15:30")],
    "choices": [("D", "C. 7"), ("D) 7", "C. 7"), ("C) 8", "C. 7"), ("p", "P"), ("f", "f (x) = 2x")],
    "intervals": [
        ("|x|<2", "[-2,2]"), (r"|x|>2", "(-2,2)"), ("|x-3|<2", "(-5,-1)"), ("x>1 or x<3", "(1,3)"), (r"x \ne 2", r"(-\infty,2)\cup(3,\infty)"),
        (r"x \ne 2", "2"), (r"x \ne 2", r"\mathbb{R}"),
        ("[1,2]", "(1,2)"), ("(3,4)", "(3,4]"), ("x<3", r"x\le 3"), (r"(3,\infty)", r"(-\infty,3)"), ("1,2", "1<x<2"), ("1,2", "(1,2]"),
    ],
}  # fmt: skip
ASKED = [
    (r"\int_0^1 x dx", "0.5", "0.6"),
    (r"\sum_{k=1}^{5} k", "15", "16"),
    (r"\lim_{x\to 0} \frac{\sin x}{x}", "1", "2"),
    (
        r"\begin{pmatrix}1 & 2\end{pmatrix} + \begin{pmatrix}5 & 6\end{pmatrix}",
        r"\begin{pmatrix}6 & 8\end{pmatrix}",
        r"\begin{pmatrix}6 & 9\end{pmatrix}",
    ),
]


@pytest.mark.parametrize("what", EQUAL)
def test_equal(what: str) -> None:
    assert [pair for pair in EQUAL[what] if math_equal(pair[0], [pair[1]]) != 1.0] == []


@pytest.mark.parametrize("what", DIFFERENT)
def test_different(what: str) -> None:
    assert [pair for pair in DIFFERENT[what] if math_equal(pair[0], [pair[1]]) != 0.0] == []


@pytest.mark.parametrize(("formula", "value", "other"), ASKED)
def test_what_values_cannot_tell_is_asked_of_math_verify(formula: str, value: str, other: str) -> None:
    assert decide(formula, value) is None
    assert math_equal(formula, [value]) == math_equal(formula, [other, value]) == 1.0
    assert math_equal(formula, [other]) == math_equal_quickly(formula, [value]) == 0.0


def test_any_gold_will_do_and_none_does_not() -> None:
    assert math_equal("0.5", ["7", "\\frac12"]) == 1.0
    assert math_equal("0.5", []) == 0.0


@pytest.mark.integration
def test_what_cannot_be_read_and_what_never_ends_is_said() -> None:
    assert compare("3 4 nothing)", "5") is Symbolic.UNREAD
    assert (unread("3 4 nothing)", ["5"]), timeout("3 4 nothing)", ["5"])) == (1.0, 0.0)
    assert (unread("6", ["5"]), unread("3 4 nothing)", ["Paris"]), unread("5", ["5", "x_"])) == (
        0.0,
        0.0,
        0.0,
    )
    bomb = r"\int_0^{\pi} \frac{\sin^{9}(x^3)}{1+x^{7}} dx"
    assert compare(bomb, r"\frac{1}{7}") is Symbolic.TIMEOUT
    # An answer is remembered, so that the time is spent once.
    assert (
        timeout(bomb, [r"\frac{1}{7}"]),
        unread(bomb, [r"\frac{1}{7}"]),
        math_equal(bomb, [r"\frac{1}{7}"]),
    ) == (
        1.0,
        0.0,
        0.0,
    )


@given(st.fractions(max_denominator=1000), st.fractions(max_denominator=1000))
def test_fractions_are_equal_when_their_values_are(left, right) -> None:
    written = f"\\frac{{{left.numerator}}}{{{left.denominator}}}"
    assert decide(written, f"{left.numerator}/{left.denominator}") is True
    assert decide(written, f"{right.numerator}/{right.denominator}") is (left == right)


@given(st.integers(-50, 50), st.integers(-50, 50), st.integers(-50, 50))
def test_expanding_and_reordering_keep_the_value(a: int, b: int, c: int) -> None:
    product = f"({a})(x)(x) + ({b})x + ({c})"
    assert decide(product, f"({c}) + x(({b}) + ({a})x)") is True
    assert decide(product, f"({a})x^2 + ({b})x + ({c}) + 1") is False


MATHEMATICS = ["-5", "\N{VULGAR FRACTION ONE HALF}", "2√3", "sqrt(2)", "sqrt(3)/2", "log 5", "2pi", "\\frac12", "x=5", "(3,4]", "10\\%", "3 \\text{ cm}", "1,-2", "3 hours", "2x+1", "10-2n", "-a - b", "320 km/h", "$59,039", "C. 7", "A", "(B)"]  # fmt: skip
WORDS = ["Paris", "①③", "Tan", "sin", "April 4, 2016", "7 November 1959", "\\text{Evelyn}", "", "A41", "B-52", "AC/DC", "1892\u201394", "1999-2004", "School 2013", "44 BC", "9 am", "N/A", "2 medals", "25 years", "4.4 million", "185,000 to 190,000 m³"]  # fmt: skip


def test_golds_that_are_mathematics() -> None:
    assert [gold for gold in MATHEMATICS if not is_mathematical(gold)] == []
    assert [gold for gold in WORDS if is_mathematical(gold)] == []
