import pytest

from ramify.rewards.math_equal import decide

SAME = [
    ("1,2", "(1,2)"),
    ("1 and 2", "(1,2)"),
    ("1 or 2", "1,2"),
    ("1 or 2", r"\{2,1\}"),
    ("1;2", "1,2"),
    (r"x=1 \text{ or } x=2", "1,2"),
    (r"x<-1 \text{ or } x>1", r"(-\infty,-1)\cup(1,\infty)"),
    ("No solution", "no solution"),
    ("No real solutions", r"\text{no real solutions}"),
    ("2A", "2A_{16}"),
    ("2a", "2A_{16}"),
    ("[[1,2],[3,4]]", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}"),
    ("((1,2),(3,4))", r"\begin{bmatrix}1&2\\3&4\end{bmatrix}"),
    (r"\mathbb{R}", r"(-\infty,\infty)"),
    (r"\mathbb R", r"(-\infty,\infty)"),
    (r"x\in\mathbb{R}", r"(-\infty, \infty)"),
    ("all real numbers", r"(-\infty, \infty)"),
    (r"\text{all real numbers}", r"\mathbb{R}"),
    ("\N{DOUBLE-STRUCK CAPITAL R}", r"\mathbb{R}"),
    (r"x \in R", r"\mathbb{R}"),
    (r"\{x\in\mathbb{R} \mid x>3\}", r"(3,\infty)"),
    ("one half", "1/2"),
    ("two thirds", r"\frac23"),
    ("three halves", "1.5"),
    ("one-quarter", "0.25"),
]
OTHER = [
    (r"\{1,2\}", "[1,2]"),
    ("1,2", "[1,2]"),
    (r"\{1,2\}", "(1,2)"),
    ("1 or 2", "(1,2)"),
    ("1 or 2", "[1,2]"),
    ("1,2", "(1,2]"),
    ("1,2", "1<x<2"),
    (r"\{1,2\}", "1<x<2"),
    (r"1 \pm 2", "(3,-1)"),
    ("3,5", "3:5"),
    (r"(1,2)\cup(3,4)", "((1,2),(3,4))"),
    ("1,2", r"\{1,3\}"),
    ("no solution", "5"),
    ("2B", "2A_{16}"),
    ("[[1,2],[3,4]]", r"\begin{pmatrix}1&2\\3&5\end{pmatrix}"),
    ("[[1,2],[3,4]]", r"\begin{vmatrix}1&2\\3&4\end{vmatrix}"),
    ("[(1,2),(3,4)]", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}"),
    ("[1,2]", r"\begin{pmatrix}1\\2\end{pmatrix}"),
    (r"\mathbb{R}", r"(-\infty,0)"),
    (r"\mathbb{R}", r"[-\infty,\infty]"),
    ("one half", "1/3"),
    ("half past one", "1/2"),
    ("one third", "3"),
]


@pytest.mark.parametrize(("left", "right"), SAME)
def test_one_form_in_two_writings(left: str, right: str) -> None:
    assert decide(left, right) is decide(right, left) is True


@pytest.mark.parametrize(("left", "right"), OTHER)
def test_forms_that_only_look_alike(left: str, right: str) -> None:
    assert decide(left, right) is decide(right, left) is False
