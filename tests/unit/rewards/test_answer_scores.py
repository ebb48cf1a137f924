import pytest

from ramify.rewards.answer_scores import SCORES, qa_scores


@pytest.mark.parametrize(
    ("prediction", "gold"),
    [
        ("-\\frac{1}{2}", "\\frac{1}{2}"),
        ("x+1", "x-1"),
        ("3\\sqrt{3}+6", "3\\sqrt{3} - 6"),
        ("[1,2)", "(1,2]"),
        ("\\sqrt{5}", "5"),
    ],
)
def test_words_do_not_stand_for_formulas(prediction: str, gold: str) -> None:
    assert {name: score(prediction, [gold]) for name, score in SCORES.items()} == dict.fromkeys(SCORES, 0.0)
    assert qa_scores(prediction, [gold])["math_equal"] == 0.0


@pytest.mark.parametrize(
    ("prediction", "gold", "em"),
    [
        ("\\dfrac12", "\\frac12", 1.0),
        ("\\left( 1, 2 \\right]", "(1,2]", 1.0),
        ("1,250", "1250", 1.0),
        ("1 \\text{ or } 2", "1,2", 1.0),
        ("0.5", "\\frac12", 0.0),
    ],
)
def test_a_formula_is_exact_but_for_typesetting_and_else_equal_by_value(
    prediction: str, gold: str, em: float
) -> None:
    found = {name: score(prediction, [gold]) for name, score in SCORES.items()}
    assert found == {**dict.fromkeys(SCORES, 1.0), "em": em}


def test_each_gold_has_its_own_measure() -> None:
    golds = ["\\frac12", "one half"]
    assert SCORES["em"]("One half.", golds) == 1.0
    assert SCORES["f1"]("about one half", golds) == pytest.approx(0.8)
    assert SCORES["acc"]("0.5", golds) == 1.0
    assert SCORES["f1"]("0.5", []) == 0.0


@pytest.mark.parametrize(("said", "gold"), [("2½", "21/2"), ("5²", "52"), ("10⁶", "106")])
def test_small_digits_are_no_further_digits(said: str, gold: str) -> None:
    assert {SCORES[name](said, [gold]) for name in SCORES} == {0.0}
    assert {SCORES[name](said, [said]) for name in SCORES} == {1.0}


def test_a_number_may_be_met_in_words() -> None:
    assert SCORES["em"]("twelve", ["12"]) == SCORES["acc"]("It has 5 moons.", ["5"]) == 1.0
    assert (
        SCORES["acc"]("\\sqrt{5}", ["5"]) == SCORES["acc"]("15", ["5"]) == SCORES["em"]("5!!!!", ["5"]) == 0.0
    )
    assert SCORES["f1"]("It has 5 moons.", ["5"]) == 0.0
