"""Names in other forms, as whole answers, and names that look alike and are others."""

import pytest

from ramify.rewards.qa import contains_words, exact_words

SAME = [
    ("Upendra Kaul", "Dr Upendra Kaul"),
    ("Doctor Upendra Kaul", "Dr Upendra Kaul"),
    ("George IV", "King George IV"),
    ("Rear Admiral J. Edward Snyder", "Rear Adm. J. Edward Snyder"),
    ("Charles Tupper Senior", "Charles Tupper Sr."),
    ("Davis, Don S.", "Don S. Davis"),
    ("Handel, George Frideric", "George Frideric Handel"),
    ("Irving Langmuir", "Langmuir Irving"),
    ("FSMA", "Food Safety Modernization Act (FSMA)"),
    ("Food Safety Modernization Act", "Food Safety Modernization Act (FSMA)"),
    ("National Institute of Dramatic Art (NIDA)", "NIDA"),
    ("World War 2", "World War II"),
    ("World War Two", "World War II"),
    ("Apollo XI", "Apollo 11"),
    ("Louis 14", "Louis XIV"),
    ("Katharina Mueller", "Katharina Müller"),
    ("USA", "United States"),
    ("U.S.A.", "the United States of America"),
    ("UK", "United Kingdom"),
    ("St. Petersburg", "Saint Petersburg"),
    ("Mt Everest", "Mount Everest"),
    ("Craig vs. Boren", "Craig v. Boren"),
    ("World Health Organisation", "World Health Organization"),
    ("Theatre Royal", "Theater Royal"),
    ("vitamin B-12", "Vitamin B12"),
    ("教授蒋杰", "蒋杰教授"),
    ("蒋杰", "蒋杰教授"),
    ("蒋斌党委书记", "党委书记蒋斌"),
    ("副院长王萍", "王萍副院长"),
]

OTHER = [
    ("王萍副院长", "王萍院长"),
    ("蒋斌书记", "蒋斌党委书记"),
    ("Elizabeth", "Queen Elizabeth"),
    ("Mrs. John Smith", "Mr. John Smith"),
    ("King George III", "King George IV"),
    ("Don T. Davis", "Don S. Davis"),
    ("Louis XVI", "Louis XIV"),
    ("Henry VII", "Henry VIII"),
    ("ABC", "Food Safety Modernization Act (ABC)"),
    ("IKA", "Food Safety Modernization Act (FSMA)"),
    ("Miller", "Müller"),
    ("United Kingdom", "USA"),
    ("清华", "清华校长"),
    ("李杰教授", "蒋杰教授"),
    ("Labour Party", "Labor Party"),
    ("Jane Gray", "Jane Grey"),
]


@pytest.mark.parametrize(("prediction", "gold"), SAME)
def test_same_name(prediction: str, gold: str) -> None:
    assert exact_words(prediction, [gold]) == 1.0


@pytest.mark.parametrize(("prediction", "gold"), OTHER)
def test_other_name(prediction: str, gold: str) -> None:
    assert exact_words(prediction, [gold]) == 0.0


def test_roman_numbers_are_read_in_whole_answers_alone() -> None:
    assert contains_words("Henry VIII reigned then", ["8"]) == 0.0
