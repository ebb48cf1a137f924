import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.rewards.math_equal import decide, is_mathematical, math_equal, math_equal_quickly

EQUAL = [
    ("204.0", "204"),
    ("$204$", "204"),
    ("25", "025"),
    ("385 dollars", "385"),
    ("385\\text{ units}", "385"),
    ("x = 025", "025"),
    ("total = 025", "025"),
    ("\nThe value is 025.\n", "025"),
    ("three", "3"),
    ("2,125", "2125"),
    ("2{,}125", "2125"),
    ("12\\,345\\,678", "12345678"),
    ("x + 1 - y", "x+1-y"),
    ("11,\\! 111,\\! 111,\\! 100", "11111111100"),
    ("\\$18.90", "18.9"),
    ("(3, \\pi/2)", "\\left( 3, \\frac{\\pi}{2} \\right)"),
    ("-q + p", "p - q"),
    ("4\\frac{2}{3}", "\\frac{14}{3}"),
    ("4 2/3", "\\frac{14}{3}"),
    ("\\frac{28}{6}", "\\frac{14}{3}"),
    ("\\frac{14}3", "\\frac{14}{3}"),
    ("\\mathrm{\\frac{14}{3}}", "\\frac{14}{3}"),
    ("\N{FULLWIDTH DIGIT ONE}\N{FULLWIDTH DIGIT FOUR}/3", "\\frac{14}{3}"),
    ("0.\\overline{3}", "\\frac13"),
    ("evelyn", "\\text{Evelyn}"),
    ("(C)", "\\text{(C)}"),
    ("C", "\\text{(C)}"),
    ("90°", "90^\\circ"),
    ("90\\degree", "90^\\circ"),
    ("\\sqrt{117}", "3\\sqrt{13}"),
    ("3*sqrt(13)", "3\\sqrt{13}"),
    ("-5i + 6", "6 - 5i"),
    ("5", "x=5"),
    ("-2,1", "1,-2"),
    ("1 \\text{ and } -2", "1,-2"),
    ("\\{1,-2\\}", "1,-2"),
    ("x=1, x=-2", "1,-2"),
    ("1+\\sqrt{19}, 1-\\sqrt{19}", "1 \\pm \\sqrt{19}"),
    ("52_{8}", "52_8"),
    ("(x-1)(x^4+x^2+1)", "x^5 - x^4 + x^3 - x^2 + x - 1"),
    ("(b+2)(a+5)", "(a+5)(b+2)"),
    ("3 < x \\le 4", "(3,4]"),
    ("x \\le 0", "(-\\infty, 0]"),
    ("[-2,7]", "x \\in [-2,7]"),
    ("x<-1 \\text{ or } x>1", "(-\\infty,-1)\\cup(1,\\infty)"),
    ("\\{x \\mid x > 3\\}", "x>3"),
    ("6.72 \\times 10^{-5}", ".0000672"),
    ("5x-7y+11z=-4", "5x - 7y + 11z + 4 = 0"),
    ("2x+y=0", "y = -2x"),
    ("10%", "10\\%"),
    ("10", "10\\%"),
    ("5\\%", "0.05"),
    (
        "\\begin{bmatrix} -1/3 \\\\ 2/3 \\end{bmatrix}",
        "\\begin{pmatrix} -\\frac{1}{3} \\\\ \\frac{2}{3} \\end{pmatrix}",
    ),
    ("(1,2)", "\\begin{pmatrix}1\\\\2\\end{pmatrix}"),
    ("(2, 1, 4)", "(x, y, z) = (2, 1, 4)"),
    ("5\\text{ cm}^2", "5 \\text{ square centimeters}"),
    ("\\sin^2 x + \\cos^2 x", "1"),
    ("\\tan^{-1}(1)", "\\pi/4"),
    ("e^{i\\pi}", "-1"),
    ("\\sqrt[3]{-8}", "-2"),
    ("\\log_2 8", "3"),
    ("\\binom{5}{2}", "10"),
    ("5!", "120"),
    ("\\sqrt{x^2}", "|x|"),
    ("\\varnothing", "\\emptyset"),
    ("3:5", "3 : 5"),
    ("m\\angle ABC = 30^\\circ", "30"),
    ("f'(x) = 2x", "2x"),
    ("\\sum_{k=1}^{5} k", "15"),
    ("\\lim_{x\\to 0} \\frac{\\sin x}{x}", "1"),
]
DIFFERENT = [
    ("-5", "5"),
    ("-385", "385"),
    ("12047", "204"),
    ("P-Q", "p-q"),
    ("q - p", "p - q"),
    ("4.67", "\\frac{14}{3}"),
    ("\\frac{3}{14}", "\\frac{14}{3}"),
    ("3\\sqrt{3} + 6", "3\\sqrt{3} - 6"),
    ("3\\sqrt13", "3\\sqrt{13}"),
    ("15.56", "11\\sqrt2"),
    ("1+\\sqrt{19}", "1 \\pm \\sqrt{19}"),
    ("1", "1,-2"),
    ("-1,2", "1,-2"),
    ("(2,1)", "(1,2)"),
    ("[1,2]", "(1,2)"),
    ("(3,4)", "(3,4]"),
    ("x<3", "x\\le 3"),
    ("(3,\\infty)", "(-\\infty,3)"),
    ("x=-5", "x=5"),
    ("y=5", "x=5"),
    ("2x+y=1", "2x+y=0"),
    ("x+1", "x+1=2"),
    ("ab+2a+5b+10", "(a+5)(b+2)"),
    ("52_7", "52_8"),
    ("5 \\text{ m}", "5 \\text{ cm}"),
    ("0.1\\%", "0.1"),
    (
        "\\begin{pmatrix} 0 & -1 \\\\ -1 & 0 \\end{pmatrix}",
        "\\begin{pmatrix} -1 & 0 \\\\ 0 & -1 \\end{pmatrix}",
    ),
    ("frac52", "-\\frac{5}{2}"),
    ("\\frac{25}{}", "\\frac{2}{5}"),
    ("-1.00", "-100"),
    ("\\sqrt{x^2}", "x"),
    ("(-1)^n", "1"),
    ("\\text{odd}", "\\text{even}"),
    ("x", "X"),
    ("2 3", "6"),
    ("2 3", "23"),
    ("1 2 3 4", "1234"),
    ("2 3", "5"),
    ("2004-2009", "1999-2004"),
    ("1+__import__('os').mkdir('a')", "1"),
    ("5 apples and pears x", "5"),
    ("", "5"),
    ("5", ""),
]


@pytest.mark.parametrize(("prediction", "gold"), EQUAL)
def test_equal(prediction: str, gold: str) -> None:
    assert math_equal(prediction, [gold]) == 1.0


@pytest.mark.parametrize(("prediction", "gold"), DIFFERENT)
def test_different(prediction: str, gold: str) -> None:
    assert math_equal(prediction, [gold]) == 0.0


def test_any_gold_will_do_and_none_does_not() -> None:
    assert math_equal("0.5", ["7", "\\frac12"]) == 1.0
    assert math_equal("0.5", []) == 0.0


def test_what_values_cannot_tell_is_asked_of_math_verify() -> None:
    assert decide("\\int_0^1 x dx", "0.5") is None
    assert math_equal("\\int_0^1 x dx", ["0.5"]) == 1.0
    assert math_equal("\\int_0^1 x dx", ["0.6"]) == 0.0
    assert math_equal_quickly("\\int_0^1 x dx", ["0.5"]) == 0.0


@pytest.mark.parametrize(
    "bomb",
    [
        "9^{9^{9^9}}",
        "2^{2^{2^{2^{2^2}}}}",
        "((((9)!)!)!)!",
        "9" * 900 + "^" + "9" * 90,
        "{" * 3_000_000,
        "\\frac{" * 500_000,
        "(" * 100_000,
        "1" * 3_000_000,
        "1," * 1_900,
        "\\sqrt{" * 300,
        "\\text{" * 600,
        "x^" * 400 + "2",
        '"' * 4_000,
        " is" * 1_300,
        "\\end{matrix}" * 300,
    ],
)
def test_bombs_are_unequal(bomb: str) -> None:
    assert decide(bomb, "5") in (False, None)
    assert math_equal(bomb, ["5"]) == math_equal("5", [bomb]) == 0.0


@given(
    st.text(alphabet='0123456789xy+-*/^(){}[]\\,.= frac sqrt"%|_!<>'),
    st.text(alphabet="0123456789xy+-/^(){},.=%"),
)
def test_any_two_texts_are_compared(left: str, right: str) -> None:
    assert decide(left, right) in (True, False, None)
    if left.strip() and decide(left, left) is not False:
        assert decide(left, left) is True


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


def test_golds_that_are_mathematics() -> None:
    assert all(
        map(
            is_mathematical,
            [
                "-5",
                "\\frac12",
                "x=5",
                "(3,4]",
                "10\\%",
                "3 \\text{ cm}",
                "1,-2",
                "3 hours",
                "2x+1",
                "10-2n",
                "-a - b",
            ],
        )
    )
    assert not any(
        map(
            is_mathematical,
            [
                "Paris",
                "April 4, 2016",
                "7 November 1959",
                "\\text{Evelyn}",
                "",
                "A41",
                "B-52",
                "AC/DC",
                "1892\u201394",
                "1999-2004",
                "School 2013",
            ],
        )
    )
