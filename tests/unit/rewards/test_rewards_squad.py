import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.rewards.squad import exact_match, f1


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
