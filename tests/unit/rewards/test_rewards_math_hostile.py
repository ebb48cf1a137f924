"""Answers that are no mathematics, or that no machine should work out: compared without an error, and soon."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.rewards.answer_scores import SCORES, qa_scores
from ramify.rewards.math_equal import decide, is_mathematical, math_equal_quickly, same_text

COMMANDS = r"""
\frac \sqrt \log \ln \sin \binom \pm \text{ \mathbb{R} \overline{ \{ \} \cup \in \le \infty \begin{pmatrix} \end{pmatrix}
\\ \lfloor \rfloor \left( \right) \, \% \circ \times \boxed{ 0.\overline{3} 10^{400} 1e400 km/h cm^2 no yes one
"""
FRAGMENTS = [
    *"0123456789abexyzABC+-*/^_=<>!|'\".,;:()[]{}&%$° ",
    *"❶²½٣π√∞±…\N{FULLWIDTH DIGIT FIVE}\N{MINUS SIGN}",
    *COMMANDS.split(),
    *(" and ", " or ", " half", " million"),
]


@pytest.mark.parametrize(
    "text",
    [
        "x_",
        "\\sqrt[3",
        "\\frac{1}",
        "❶",
        "0❶",
        "\\log 0",
        "\\log_0 5",
        "\\ln 0",
        "10^{400}",
        "-10^{400}+\\sqrt{3}",
        "3" + "!" * 900,
        "5!!!!",
        "\\frac" * 180,
        "\\log" * 300,
        "x^" * 450 + "2",
        "1.2.3",
        "1,2,3 and one",
        "\\binom{10^{300}}{2}",
        "e^{e^{e^{e}}}",
        "\\sin 10^{400}",
    ],
)
@pytest.mark.parametrize("other", ["5", "\\sqrt{2}", "0.36"])
def test_what_is_no_number_is_unequal(text: str, other: str) -> None:
    assert decide(text, other) is not True
    assert decide(other, text) is not True
    assert [score(text, [other]) for score in SCORES.values()] == [0.0] * len(SCORES)


def test_a_long_answer_is_neither_read_nor_waited_for() -> None:
    digits = "1" * 60_000
    assert same_text(digits + "\\overline{x}", "5") is False
    assert decide("1" * 3_900 + ".5\\overline{3}", "5") is not True
    assert same_text("1" * 3_900 + ".5\\overline{3}", "5") is False
    assert same_text(digits, digits) is True
    assert is_mathematical(digits) is False


def test_unicode_digits_are_digits_and_numbered_signs_are_not() -> None:
    assert decide("٣", "3") is True
    assert decide("\N{FULLWIDTH DIGIT FIVE}", "5") is True
    assert decide("❶", "1") is not True


@pytest.mark.integration
@settings(max_examples=500, deadline=None)
@given(
    st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join),
    st.lists(st.sampled_from(FRAGMENTS), max_size=8).map("".join),
)
def test_any_text_has_a_score(prediction: str, gold: str) -> None:
    assert decide(prediction, gold) in (True, False, None)
    assert math_equal_quickly(prediction, [gold]) in (0.0, 1.0)
    assert all(0.0 <= value <= 1.0 for value in qa_scores(prediction, [gold]).values())
    if decide(prediction, gold) is not None:
        assert all(0.0 <= score(prediction, [gold]) <= 1.0 for score in SCORES.values())
