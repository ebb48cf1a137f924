"""Spellings that differ by a sign, a blank or a comma: some are the same answer, others are not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.rewards.qa import contains_words, exact_words, word_f1

FRAGMENTS = [
    *(
        "one",
        "hundred",
        "million",
        "and",
        "second",
        "minus",
        "-",
        "<",
        ">=",
        "+",
        "1,2,3",
        "1,000",
        ".5",
        "12",
        ",",
    ),
    *(
        "❶",
        "٣",
        "²",
        "½",
        "五",
        "\u3007",
        "百",
        "万",
        "年",
        "月",
        "日",
        "不",
        "是",
        "或",
        "yes",
        "no",
        "not",
        "or",
        "A",
        "a",
    ),
    *("the", ".", "#", "May", "2nd", "km", " ", " ", " ", "\n", "\u3000", "\u0338", "\\text{", "}"),
]


@pytest.mark.parametrize(
    ("prediction", "gold", "same"),
    [
        ("1912,", "1912", 1),
        ("1,2", "1, 2", 1),
        ("1912,1913", "1912, 1913", 1),
        ("1,234", "1234", 1),
        ("12,3456", "123456", 0),
        ("1234,567", "1234567", 0),
        (".5", "0.5", 1),
        (".5", "5", 0),
        ("١٩١٢", "1912", 1),
        ("二〇〇三年", "2003年", 1),
    ],
)
def test_commas_and_points_of_numbers(prediction: str, gold: str, same: float) -> None:
    assert exact_words(prediction, [gold]) == same


@pytest.mark.parametrize(
    ("prediction", "gold"), [("In 1912, he died", "1912"), ("Paris, 1912, France", "1912")]
)
def test_a_comma_ends_a_number(prediction: str, gold: str) -> None:
    assert contains_words(prediction, [gold]) == 1.0
    assert word_f1(prediction, [gold]) == pytest.approx(2 / (1 + len(prediction.split())))


@pytest.mark.parametrize(
    ("prediction", "gold", "same"),
    [
        ("C#", "C++", 0),
        ("C", "C++", 0),
        ("c++", "C++", 1),
        ("F♯", "F#", 1),
        ("AB-", "AB+", 0),
        ("AB", "AB+", 0),
        ("AB\N{MINUS SIGN}", "AB-", 1),
        ("Ca²\N{SUPERSCRIPT PLUS SIGN}", "Ca2+", 1),
        ("pre- and post-war", "pre and post war", 1),
        (">5", "<5", 0),
        ("> 5", ">5", 1),
        ("< 1,000", "<1000", 1),
        (">= 5", "≥5", 1),
        ("18+", "18", 0),
        ("1,000+ people", "1000+ people", 1),
        ("5+ km", "5+ kilometers", 1),
        ("+5", "5", 1),
        ("-> 5", "5", 1),
        ("<b>5</b>", "5", 1),
    ],
)
def test_symbols_that_are_part_of_the_answer(prediction: str, gold: str, same: float) -> None:
    assert exact_words(prediction, [gold]) == same


@pytest.mark.parametrize(
    ("prediction", "gold", "same"),
    [
        ("therapist", "the rapist", 0),
        ("noanswer", "no answer", 0),
        ("EH Shepard", "E. H. Shepard", 1),
        ("E H Shepard", "E.H. Shepard", 1),
        ("A.P.J. Abdul Kalam", "APJ Abdul Kalam", 1),
        ("the U.S.", "US", 1),
        ("Spider-Man", "Spiderman", 1),
        ("AC/DC", "ACDC", 1),
    ],
)
def test_letters_are_joined_across_punctuation_and_not_across_blanks(
    prediction: str, gold: str, same: float
) -> None:
    assert exact_words(prediction, [gold]) == same


@pytest.mark.parametrize("prediction", ["A. Paris", "A: Paris", "A) Paris", "The answer is A.", "(A)"])
def test_the_letter_of_an_option_is_no_article(prediction: str) -> None:
    assert contains_words(prediction, ["A"]) == 1.0


@pytest.mark.parametrize(
    ("prediction", "gold", "same"),
    [
        ("2nd", "second", 1),
        ("second", "2nd", 1),
        ("the 2nd Amendment", "Second Amendment", 1),
        ("21st", "twenty-first", 1),
        ("the one hundred and fifth", "105th", 1),
        ("the 12th", "twelfth", 1),
        ("20th", "the twentieth", 1),
        ("third", "second", 0),
        ("two", "second", 0),
        ("second", "2", 0),
        ("1 second", "one second", 1),
        ("5 seconds", "5 sec", 1),
    ],
)
def test_ordinals(prediction: str, gold: str, same: float) -> None:
    assert exact_words(prediction, [gold]) == same


def test_an_ordinal_is_no_count() -> None:
    assert contains_words("He was the first to win", ["1"]) == 0.0
    assert contains_words("It is the second amendment", ["2nd Amendment"]) == 1.0


@pytest.mark.parametrize(
    ("prediction", "gold", "same"),
    [
        ("minus 5", "-5", 1),
        ("minus five", "-5", 1),
        ("negative 5 km", "-5 kilometers", 1),
        ("负5", "-5", 1),
        ("minus 5", "5", 0),
        ("minus 0", "0", 1),
        ("10 minus 5", "10 -5", 0),
    ],
)
def test_signs_in_words(prediction: str, gold: str, same: float) -> None:
    assert exact_words(prediction, [gold]) == same


@given(
    st.text() | st.lists(st.sampled_from(FRAGMENTS)).map("".join),
    st.lists(st.sampled_from(FRAGMENTS)).map("".join),
)
def test_no_text_is_too_odd(left: str, right: str) -> None:
    for prediction, gold in ((left, right), (right, left)):
        em = exact_words(prediction, [gold])
        assert em <= word_f1(prediction, [gold]) <= 1.0
        assert em <= contains_words(prediction, [gold]) <= 1.0
