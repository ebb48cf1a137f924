"""Answers and golds that no reader expects: every score is a number, soon, and what cannot be read is unequal."""

import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ramify.rewards.answer_scores import SCORES
from ramify.rewards.math_equal import decide, is_mathematical
from ramify.rewards.responses import answer_in, text_reward, text_scores

SCORED = [name for name in SCORES if name not in ("unread", "timeout")]
COMMANDS = r"""
\frac \sqrt \log \ln \sin \binom \pm \text{ \mathbb{R} \overline{ \{ \} \cup \in \le \infty \begin{pmatrix} \end{pmatrix}
\\ \lfloor \rfloor \left( \right) \, \% \circ \times \boxed{ 0.\overline{3} 10^{400} 1e400 km/h cm^2 no yes one
"""
FRAGMENTS = [
    *"0123456789abexyzABC+-*/^_=<>!|'\".,;:()[]{}&%$° ",
    *"❶²½٣π√∞±…\N{FULLWIDTH DIGIT FIVE}\N{MINUS SIGN}\x00\ud800\u0338五百年月日",
    *COMMANDS.split(),
    *(
        " and ",
        " or ",
        " half",
        " million",
        "second",
        "2nd",
        "the",
        " not ",
        "May ",
        "\\boxed{1} and \\boxed{2}",
    ),
]
LARGE = {
    "letters": "a" * 500_000,
    "blanks in a box": "x" + " " * 500_000 + "y",
    "words": "Paris is a town. " * 30_000,
    "digits": "1" * 500_000,
    "many numbers": "1," * 25_000,
    "nested brackets": "(" * 150_000,
    "nested fractions": "\\frac{" * 25_000,
    "nested lists": "[" * 50_000,
    "Chinese": "一" * 50_000,
    "quotes": '"' * 100_000,
}
ODD = ["", " ", "!", "\\text{}", "...", "∅", "🇩🇪", "\x00", "\ud800", "\udfff", "**", "`", "$", "\\", "{", "}", "\u200b", "½", "5²", "Aa -(AB)", "World Health Organization - (WHO)", "x_", "\\log 0", "1.2.3", "null", "9^{9^{9^9}}", "((((9)!)!)!)!", "\\sqrt[3", "x^" * 450 + "2", "1" * 3_900 + ".5\\overline{3}", "\\binom{10^{300}}{2}", "\\sin 10^{400}", "1e9999"]  # fmt: skip


@pytest.mark.parametrize("what", LARGE)
def test_a_long_text_is_scored_soon(what: str) -> None:
    text, began = LARGE[what], time.process_time()
    for prediction, golds in (
        (text, ["5"]),
        (text, ["Rome", "Rome Hilton"]),
        ("5", [text]),
        ("Rome", [text]),
    ):
        assert {SCORES[name](prediction, golds) for name in SCORED} == {0.0}
    response = f"<think> t </think><answer> \\boxed{{{text}}} </answer>"
    assert text_reward(response, "5").parts["correct"] == 0.0
    assert text_scores(response, "5", "math")["lenient"] == 0.0
    # What takes time with the square of these lengths takes hours. Ten thousand blanks, all that is read of them, take seconds.
    assert time.process_time() - began < 12


def test_boxes_without_end() -> None:
    nested = "\\boxed{" * 200_000 + "5" + "}" * 200_000
    assert answer_in(nested) == answer_in(f"<answer>{nested}</answer>") == "5"
    assert answer_in("\\boxed{1}, " * 200_000).startswith("1, 1")
    assert answer_in("\\boxed{" * 200_000) == ""


@pytest.mark.parametrize("odd", ODD)
def test_odd_answers_and_golds(odd: str) -> None:
    for name in SCORED:
        assert SCORES[name](odd, ["5"]) == SCORES[name]("5", [odd]) == 0.0
        assert 0.0 <= SCORES[name](odd, ["Paris", odd + " x", ""]) <= 1.0
    equal = {SCORES[name](odd, [odd]) for name in ("answer", "lenient", "acc", "math_equal")}
    assert equal == {float(bool(odd.strip()))}
    assert text_reward(odd, odd).value == -1.0


@pytest.mark.parametrize("gold", [None, [], {}, True, [None, [""]], 1e400, {"a": 1}, b"x"])
def test_golds_that_are_no_text(gold: object) -> None:
    assert text_scores("<answer>\\boxed{x}</answer>", gold, "qa")["lenient"] == 0.0


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join) | st.text(max_size=30),
    st.lists(st.sampled_from(FRAGMENTS), max_size=8).map("".join),
)
def test_any_text_has_a_score(prediction: str, gold: str) -> None:
    decided = decide(prediction, gold)
    assert decided in (True, False, None)
    for name in ("em", "f1", "lenient", "acc") if decided is None and is_mathematical(gold) else SCORED:
        if name in ("em", "f1") or not (is_mathematical(gold) and decided is None):
            assert 0.0 <= SCORES[name](prediction, [gold]) <= 1.0


@example("\\mathrm{}")
@given(st.text(min_size=1))
def test_a_text_equals_itself(text: str) -> None:
    if text.strip():
        assert {SCORES[name](text, [text]) for name in ("answer", "lenient", "acc", "em")} == {1.0}
