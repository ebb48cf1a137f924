import pytest

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
