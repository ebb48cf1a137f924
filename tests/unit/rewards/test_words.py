"""Answers in words: which the lenient score takes for the gold, and which assert it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.rewards.answer_scores import contains, lenient_f1
from ramify.rewards.words import canonical, chinese_number, in_digits, words

SAME = [
    ("Frank Lowy.", "Frank Lowy"), ('"Frank Lowy"', "Frank Lowy"), ("**Frank Lowy**", "Frank Lowy"), ("FRANK LOWY", "Frank Lowy"),
    (r"\textbf{Frank Lowy}", "Frank Lowy"), ("Frank\\ Lowy", "Frank Lowy"), ("the Frank Lowy", "Frank Lowy"),
    ("Bronx Tale", "A Bronx Tale"), ("the A.P.J. Abdul Kalam", "APJ Abdul Kalam"), ("E.H. Shepard", "E. H. Shepard"), ("US", "U.S."),
    ("Spider-Man", "Spiderman"), ("Ball and socket joints", "Ball-and-socket joints"), ("Motorhead", "Motörhead"),
    ("Johanna Sigurdardottir", "Jóhanna Sigurðardóttir"), ("Toghon Temu\u0308r", "Toghon Temür"), ("We\u2019ll Burn", "We'll Burn"),
    ("1.95m", "1.95 m"), ("6,300 KM", "6300 kilometres"), ("728000 square feet", "728,000 ft²"), ("7 mi", "seven miles"),
    ("200", "200.00"), ("3384569", "3,384,569"), ("2 medals", "two medals."), ("one hundred and five", "105"), (".5", "0.5"),
    ("4,400,000", "4.4 million"), ("155 million dollars", "$155 million"), ("48.8%", "48.8 percent"), ("5th", "fifth"),
    ("the 21st", "twenty-first"), ("1903\u20131904", "1903 to 1904"), ("from 1903 until 1904", "1903-1904"), ("21 to 14", "21-14"), ("5 \u2013 7", "from 5 to 7"), ("May 14 -19 2024", "May 14 -19, 2024"),
    ("November 23, 1946", "23 November 1946"), ("1946-11-23", "23 November 1946"), ("April 30th, 1789", "the 30th of April, 1789"),
    ("Oct 1990", "October 1990"), ("2004年3月25日", "2004-03-25"), ("04月14日", "April 14"), ("十月二十号", "20 October"),
    ("三十二小时", "32小时"), ("4个", "四个"), ("王莉和陈俊亮", "陈俊亮、王莉"), ("主任王萍", "王萍主任"), ("相隔26个月", "相隔26个月。"),
    ("London and Paris", "Paris, London"), ("Irving Langmuir", "Langmuir Irving"), ("Charles Tupper Senior", "Charles Tupper Sr."),
    ("Theater Royal", "Theatre Royal"), ("St Petersburg", "Saint Petersburg"), ("c++", "C++"), ("F♯", "F#"), ("!", "!"), ("🇩🇪", "🇩🇪"),
]  # fmt: skip
OTHER = [
    ("Vitamin", "Vitamin A"), ("Vitamin deficiency", "Vitamin A deficiency"), ("Grade", "Grade A"), ("The", "The The"), ("-5", "5"),
    ("3.14", "314"), ("123", "12 3"), ("1999-2004", "1999"), ("twenty", "21"), ("24 November 1946", "23 November 1946"),
    ("5月3日", "3月5日"), ("132小时", "32小时"), ("陈俊亮", "陈俊亮和王莉"), ("no one", "no"), ("", "Paris"), ("12+hour", "12-hour"),
    ("C", "C++"), ("C#", "C++"), (">5", "<5"), ("5²", "52"), ("2½", "21/2"), ("$155", "$155 million"), ("noanswer", "no answer"),
    ("Louis XVI", "Louis XIV"), ("185 to 190", "185,000 to 190,000"), ("!", "?"),
]  # fmt: skip


@pytest.mark.parametrize(("prediction", "gold"), SAME)
def test_the_same_answer_in_another_notation(prediction: str, gold: str) -> None:
    assert lenient_f1(prediction, ["x", gold]) == lenient_f1(gold, [prediction]) == 1.0
    assert contains(prediction, [gold, "x"]) == 1.0


@pytest.mark.parametrize(("prediction", "gold"), OTHER)
def test_another_answer(prediction: str, gold: str) -> None:
    assert lenient_f1(prediction, [gold]) < 1.0


def test_f1_counts_shared_words_and_characters() -> None:
    assert lenient_f1("It is Frank Lowy", ["Frank Lowy"]) == pytest.approx(2 / 3)
    assert lenient_f1("New York City", ["Rome", "New York"]) == pytest.approx(0.8)
    assert lenient_f1("北京市", ["北京"]) == pytest.approx(0.8)
    assert lenient_f1("E.", ["E. H. Shepard"]) == pytest.approx(0.5)
    assert lenient_f1("Rome", ["Paris"]) == lenient_f1("x", []) == 0.0


@pytest.mark.parametrize(
    ("prediction", "gold", "met"),
    [
        ("Yes they are", "yes", 1), ("Yes they are", "no", 0), ("No, that is so", "no", 1), ("**Yes**, both", "yes", 1),
        ("Yes (both American)", "yes", 1), ("No. They differ.", "no", 1), ("No. 5", "no", 0), ("No one knows", "no", 0),
        ("yes or no", "no", 0), ("yes, or no", "yes", 0), ("Yes/no", "no", 0), ("It is not known", "no", 0),
    ],
)  # fmt: skip
def test_a_verdict_that_is_explained(prediction: str, gold: str, met: int) -> None:
    assert contains(prediction, [gold]) == met
    assert (lenient_f1(prediction, [gold]) == 1.0) is bool(met)


@pytest.mark.parametrize(
    ("prediction", "gold", "asserted"),
    [
        ("It is Frank Lowy", "Frank Lowy", 1), ("He was born on 4 March 1990 in Rome", "March 4, 1990", 1), ("肖亮教授", "肖亮", 1),
        ("It lies in the U.S. today", "US", 1), ("Paris (France)", "Paris", 1), ("Not London. Paris", "Paris", 1),
        ("It is Paris. Rome or London are wrong", "Paris", 1), ("不是上海。是北京", "北京", 1),
        ("Tokyo", "OK", 0), ("well", "l", 0), ("1999-2004", "1999", 0), ("1832", "3", 0), ("anything", "", 0),
        ("not Frank Lowy but Ron Walker", "Frank Lowy", 0), ("Frank Lowy or Ron Walker", "Frank Lowy", 0), ("不是北京", "北京", 0),
        ("London rather than Paris", "Paris", 0), ("anything but Paris", "Paris", 0), ("Paris is wrong", "Paris", 0),
        ("It cannot be Paris", "Paris", 0), ("北京、上海或广州", "北京", 0), ("副院长", "院长", 0),
        ("Rome, although Paris is also possible", "Paris", 0), ("Rome; alternatively Paris", "Paris", 0), ("Rome / Paris", "Paris", 0),
        ("Maybe Paris", "Paris", 0), ("Don Davis Jr.", "Don Davis", 0), ("Henry Ford II", "Henry Ford", 0),
        ("Paris/Rome", "Paris", 0), ("Paris | Rome", "Paris", 0), ("Paris? Or Rome", "Paris", 0), ("Rome vs. Paris", "Paris", 0),
        ("Paris. However, Rome is also possible.", "Paris", 0), ("Rome. Perhaps not. Paris.", "Paris", 0), ("probably Paris", "Paris", 0),
        ("Paris\n\nor\n\nRome", "Paris", 0), ("by AC/DC", "AC/DC", 1), ("Barack Obama. He could win.", "Barack Obama", 1),
    ],
)  # fmt: skip
def test_an_answer_asserts_a_gold_that_nothing_denies_or_doubts(prediction, gold, asserted) -> None:
    assert contains(prediction, [gold]) == asserted


@pytest.mark.parametrize(
    ("prediction", "met"),
    [
        ("Warner Music Group or Sony", 0),
        ("not Warner Music Group", 0),
        ("It belongs to Warner Music Group", 1),
    ],
)
def test_golds_within_golds(prediction: str, met: float) -> None:
    assert contains(prediction, ["Warner Music Group", "Warner Music", "Music Group"]) == met


def test_numbers_in_words() -> None:
    assert in_digits(["ninety", "nine", "hundred", "five"]) == ["9905"]
    assert in_digits(["nineteen", "ten"]) == ["19", "10"]
    assert in_digits(["one", "hundred", "hundred"]) == ["100", "hundred"]
    assert in_digits(["1250", "thousand", "apples"]) == ["1250000", "apples"]
    assert [canonical(text) for text in ("007", "-0", "1,000.50", "1,2,3", "0.0", "x")] == [
        "7",
        "0",
        "1000.5",
        "1,2,3",
        "0",
        "x",
    ]
    assert [chinese_number(text) for text in ("三十二", "十", "二百零五", "二零二零", "两")] == [
        32,
        10,
        205,
        2020,
        2,
    ]


@given(
    st.lists(
        st.sampled_from([*["one", "twenty", "and", "hundred", "thousand", "million"], "9" * 40, "0.5", "-7"]),
        max_size=30,
    )
)
def test_any_run_of_number_words_is_read(tokens: list[str]) -> None:
    assert all(in_digits(tokens)) or not tokens


@given(st.text(alphabet="abc XYZ 012.,'-é一二"), st.text(alphabet="abc XYZ 012.,'-é一二"))
def test_shared_words_have_no_direction(left: str, right: str) -> None:
    assert lenient_f1(left, [right]) == pytest.approx(lenient_f1(right, [left]))
    assert lenient_f1(left, [right]) <= 1.0
    assert contains(left, [right]) >= float(lenient_f1(left, [right]) == 1.0)
    assert all(words(left)) or not words(left)
