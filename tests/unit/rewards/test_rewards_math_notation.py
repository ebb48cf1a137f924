"""Notations that answers use and golds do not: the same value in them is equal, and what they sit near is not."""

import pytest

from ramify.rewards.math_equal import is_mathematical, math_equal_quickly

EQUAL = [
    (r"\mathrm{(2,4)}", "(2,4)"),
    (r"\lfloor n^2/4 + 1 \rfloor", r"1 + \lfloor \frac{n^2}{4} \rfloor"),
    (r"\boxed{30^\circ}", r"30^\circ"),
    (r"\tan{60^\circ}", r"\sqrt{3}"),
    ("2\N{SUPERSCRIPT TWO}3", r"2^{2} \cdot 3"),
    (r"15\ \mathrm{cm}^2", r"15\mbox{ cm}^2"),
    (r"15 \, \mathrm{cm^2}", r"15\mbox{ cm}^2"),
    (r"5\,\mathrm{m/s}", r"5 \text{ m/s}"),
    (r"12 {\rm cm}", r"12 \text{ cm}"),
    (r"\mathrm{east}", r"\text{east}"),
    ("an ellipse", r"\text{ellipse}"),
    (r"\color{red}{7}", "7"),
    (r"\textcolor{blue}{7}", "7"),
    (r"\Large 7", "7"),
    ("=7", "7"),
    (r"\therefore 7", "7"),
    (r"\text{Thus } n = 7", "7"),
    (r"\underline{7}", "7"),
    (r"\mathtt{7}", "7"),
    ("√51", r"\sqrt{51}"),
    (r"1\colon 3", "1:3"),
    ("1{:}3", "1:3"),
    (
        r"\left(\begin{smallmatrix} -2 \\ -14 \end{smallmatrix}\right)",
        r"\begin{pmatrix} -2 \\ -14 \end{pmatrix}",
    ),
    (r"(-\infty,-1)\bigcup(3,\infty)", r"x \in (-\infty, -1) \cup (3, +\infty)"),
    (r"\text{x + y}", "x+y"),
    (r"\text{728,000 ft²}", "728,000 ft²"),
    (r"\approx 336", "336"),
    (r"n \text{ equals } 7", "7"),
    (r"\text{The answer is }\frac{14}{3}", r"\frac{14}{3}"),
    (r"\text{The amount is } 7", "7"),
    ("m+n = 70", "70"),
    ("p + q + r = 16", "16"),
    ("f(3) = 7", "7"),
    (r"a^2 + b^2 = 25", "25"),
    (r"20{,}000/\pi", r"\frac{20000}{\pi}"),
    (r"\{-2,1-\sqrt{5},1+\sqrt{5}\}", r"\{1\pm\sqrt{5},-2\}"),
    (r"x=-2, x=1\pm\sqrt{5}", r"\{1\pm\sqrt{5},-2\}"),
    (r"x=1 \lor x=-2", "1,-2"),
    (r"\left(\begin{array}{c}-2\\-14\end{array}\right)", r"\begin{pmatrix} -2 \\ -14 \end{pmatrix}"),
    (r"\frac{1}{5}\begin{pmatrix}1\\-18\end{pmatrix}", r"\begin{pmatrix} 1/5 \\ -18/5 \end{pmatrix}"),
    (r"-\begin{pmatrix} 1 & 0 \\ 0 & 1 \end{pmatrix}", r"\begin{pmatrix} -1 & 0 \\ 0 & -1 \end{pmatrix}"),
    ("(40)_9", "40_9"),
    (r"1101_{\text{two}}", "1101_2"),
    ("cot x", r"\cot x"),
    (r"\cos(40^\circ)", r"\cos 40^\circ"),
    (r"\sin 50^\circ", r"\cos 40^\circ"),
    ("6:30 PM", r"6:30 \text{ p.m.}"),
    ("四十二", "42"),
    ("5.4¢", r"5.4 \text{ cents}"),
    (r"\text{USD }18.90", r"\$18.90"),
    ("$36", "36"),
    (r"$\$36$", r"\$36.00"),
    (r"\$1,450,000", "1,450,000"),
    ("1,234 dollars", r"\$1,234"),
    ("36 pounds", "£36"),
    ("36 pounds sterling", "£36"),
    ("£36", "36 GBP"),
]

UNEQUAL = [
    (r"15\ \mathrm{m}^2", r"15\mbox{ cm}^2"),
    (r"3\mathrm{i}", "3"),
    (r"3\mathrm{e}", "3"),
    (r"3\mathbf{m}", "3"),
    ("2x = 10", "10"),
    ("3x = 12", "12"),
    ("m+n = 71", "70"),
    ("f(3) = 7", "f(2) = 7"),
    ("S_5 = 35", "S_8 = 35"),
    (r"\text{x - y}", "x+y"),
    ("x + y - 1 = 0", "0"),
    ("-x = 5", "5"),
    (r"\lfloor n^2/5 \rfloor", r"\lfloor n^2/4 \rfloor"),
    ("2\N{SUPERSCRIPT TWO}3", "2^{23}"),
    ("x^2 = 9", "3"),
    ("m+n = 70", "m+n"),
    ("I don't think it is 5", "5"),
    (r"\text{The answer is not equal to } 5", "5"),
    (r"\{1\pm\sqrt{5}\}", r"\{1\pm\sqrt{5},-2\}"),
    (r"\frac{1}{5}\begin{pmatrix}1\\18\end{pmatrix}", r"\begin{pmatrix} 1/5 \\ -18/5 \end{pmatrix}"),
    (r"2\begin{vmatrix}1&0\\0&1\end{vmatrix}", r"\begin{vmatrix}2&0\\0&2\end{vmatrix}"),
    ("(40)_8", "40_9"),
    (r"1101_{\text{three}}", "1101_2"),
    ("tan x", r"\cot x"),
    (r"\cos 40", r"\cos 40^\circ"),
    (r"\cos 50^\circ", r"\cos 40^\circ"),
    ("6:30 AM", r"6:30 \text{ p.m.}"),
    ("四十三", "42"),
    ("36 cents", r"\$36"),
    ("€36", r"\$36"),
    ("£36", r"\$36"),
    ("36 kg", "£36"),
    ("√51", r"\sqrt{5}1"),
    ("6月5日", "5月6日"),
    ("The", "The The"),
]


@pytest.mark.parametrize(("prediction", "gold"), EQUAL)
def test_equal(prediction: str, gold: str) -> None:
    assert math_equal_quickly(prediction, [gold]) == 1.0


@pytest.mark.parametrize(("prediction", "gold"), UNEQUAL)
def test_unequal(prediction: str, gold: str) -> None:
    assert math_equal_quickly(prediction, [gold]) == 0.0


def test_a_price_is_mathematics() -> None:
    assert is_mathematical("$59,039")
    assert is_mathematical(r"\$18.90")
    assert is_mathematical("£5")
    assert not is_mathematical("185,000 to 190,000 m³")
