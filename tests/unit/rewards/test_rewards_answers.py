import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.rewards.answers import exact_match, extract_boxed, f1


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (r"\boxed{42}", "42"),
        (r"so \[ \boxed{ 42 } \]", "42"),
        (r"\boxed {7}", "7"),
        (r"\boxed{\frac{1}{\sqrt{2}}}", r"\frac{1}{\sqrt{2}}"),
        (r"\boxed{1} or rather \boxed{2}", "2"),
        (r"\boxed{5} and \boxed{6", "5"),
        (r"\boxed{6 \boxed{5}", "5"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{a\boxed{b}c}", "b"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{[0, 1\}}", r"[0, 1\}"),
        (r"\boxed{a \\{b}}", r"a \\{b}"),
        (r"\\boxed{3}", "3"),
        (r"} \boxed{4} {", "4"),
        (r"\boxed{}", ""),
        ("boxed{4}", None),
        (r"\boxed{4", None),
        (r"\boxed 4", None),
        ("", None),
    ],
)
def test_the_last_balanced_box(answer: str, expected: str | None) -> None:
    assert extract_boxed(answer) == expected


@given(st.text(alphabet="\\{}boxed 1"))
def test_any_text_is_read(answer: str) -> None:
    found = extract_boxed(answer)
    assert found is None or found in answer
    assert extract_boxed(answer + r"\boxed{last}") == "last"


def test_long_unbalanced_text_is_read_once() -> None:
    assert extract_boxed("\\boxed{" * 50_000) is None
    assert extract_boxed("\\" * 300_001) is None


@pytest.mark.parametrize(
    ("prediction", "gold"),
    [
        ("The Eiffel Tower.", "eiffel tower"),
        ("  New\nYork ", "New York"),
        ("1,000", "1000"),
        ("204.0", "204"),
        ("025", "25"),
        ("\N{MINUS SIGN}5", "-5"),
        ("5.", "5"),
        ("Yes.", "yes"),
    ],
)
def test_equal_answers(prediction: str, gold: str) -> None:
    assert exact_match(prediction, [gold]) == f1(prediction, [gold]) == 1.0


@pytest.mark.parametrize(
    ("prediction", "gold"),
    [
        ("-5", "5"),
        ("3.14", "314"),
        ("-1.00", "-100"),
        ("no", "yes"),
        ("12", "1"),
        ("Rome", "Paris"),
        ("", "x"),
    ],
)
def test_different_answers(prediction: str, gold: str) -> None:
    assert exact_match(prediction, [gold]) == f1(prediction, [gold]) == 0.0


def test_f1_counts_shared_words_and_takes_the_best_gold() -> None:
    assert f1("It is Frank Lowy", ["Frank Lowy"]) == pytest.approx(2 / 3)
    assert f1("New York City", ["Rome", "New York"]) == pytest.approx(0.8)
    assert f1("the the cat cat", ["cat"]) == pytest.approx(2 / 3)
    assert exact_match("New York City", ["Rome", "New York"]) == 0.0


def test_verdicts_need_equality() -> None:
    assert f1("yes, that is so", ["yes"]) == 0.0
    assert f1("no answer at all", ["noanswer"]) == 0.0
    assert f1("yes", ["yes it is", "yes"]) == 1.0


def test_nothing_left_to_compare() -> None:
    assert f1("the", ["a"]) == 0.0
    assert f1("", []) == exact_match("", []) == 0.0


@given(st.text(), st.lists(st.text(), max_size=3))
def test_scores_lie_between_zero_and_one(prediction: str, golds: list[str]) -> None:
    assert 0.0 <= exact_match(prediction, golds) <= 1.0
    assert 0.0 <= f1(prediction, golds) <= 1.0
    if prediction.split():
        assert exact_match(prediction, [prediction]) == 1.0
