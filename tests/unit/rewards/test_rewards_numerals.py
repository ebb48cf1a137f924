import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.rewards.numerals import in_digits, is_number


@pytest.mark.parametrize("token", ["5", "-5", "007", "1,000", "12,345.60", "0.5"])
def test_numbers(token: str) -> None:
    assert is_number(token)


@pytest.mark.parametrize(
    "token", ["", "-", "--5", "1,2,3", "5,", "5.", "1.2.3", "1999-2004", "❶", "1❶", "٣", "five"]
)
def test_no_numbers(token: str) -> None:
    assert not is_number(token)


def test_number_words_beside_what_only_looks_like_a_number() -> None:
    assert in_digits(["1,2,3", "and", "one"]) == ["1,2,3", "and", "1"]
    assert in_digits(["❶", "one"]) == ["❶", "1"]
    assert in_digits(["1,250", "thousand"]) == ["1250000"]
    assert in_digits(["4.4", "million"]) == ["4400000"]


def test_hundreds_of_hundreds_are_two_numbers() -> None:
    assert in_digits(["twelve", "hundred"]) == ["1200"]
    assert in_digits(["ninety", "nine", "hundred", "and", "five"]) == ["9905"]
    assert in_digits(["one", "hundred", "hundred"]) == ["100", "hundred"]


_WORDS = [
    "one",
    "twenty",
    "and",
    "hundred",
    "thousand",
    "million",
    "billion",
    "dozen",
    "9" * 40,
    "1,000",
    "0.5",
    "-7",
    "half",
]


@given(st.lists(st.sampled_from(_WORDS), max_size=30))
def test_any_run_of_number_words_is_read(tokens: list[str]) -> None:
    assert all(in_digits(tokens)) or not tokens
