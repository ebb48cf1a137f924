import pytest

from ramify.rewards.dates import spelled_alike
from ramify.rewards.qa import contains_words, exact_words


@pytest.mark.parametrize(
    ("prediction", "gold"),
    [
        ("二\u3007二三年五月一日", "2023-05-01"),
        ("2023年五月一日", "1 May 2023"),
        ("一九九九年十二月三十一日", "December 31, 1999"),
        ("十月二十号", "20 October"),
        ("1990.05.10", "10 May 1990"),
        ("born 1990.5.10.", "born May 10, 1990"),
        ("20/06/1837", "20 June 1837"),
        ("06/20/1837", "20 June 1837"),
        ("20.06.1837", "20 June 1837"),
        ("Tuesday, 20 June 1837", "June 20th, 1837"),
        ("December 26, 2021", "26 of December of 2021"),
        ("January of 2008", "January 2008"),
        ("TUESDAY, JUNE 20, 1837", "20 June 1837"),
        ("JANUARY OF 2008", "January 2008"),
        ("1941-06", "June 1941"),
        ("2008年1月", "January 2008"),
        ("September 23, 2021 - February 20, 2022", "23 September, 2021 to 20 February, 2022"),
    ],
)
def test_other_spellings_of_a_date(prediction: str, gold: str) -> None:
    assert exact_words(prediction, [gold]) == 1.0


@pytest.mark.parametrize(
    ("prediction", "gold"),
    [("1941-06", "July 1941"), ("1941-13", "June 1941"), ("1903-04", "1903 to 1904"), ("1941", "1941-06")],
)
def test_another_month(prediction: str, gold: str) -> None:
    assert exact_words(prediction, [gold]) == 0.0


@pytest.mark.parametrize(
    ("prediction", "gold"),
    [("110月11日", "10月11日"), ("12024年4月9日", "2024年4月9日"), ("104月14日", "4-14")],
)
def test_a_longer_number_holds_no_date(prediction: str, gold: str) -> None:
    assert contains_words(prediction, [gold]) == 0.0


def test_chinese_may_stand_before_a_date() -> None:
    assert contains_words("答案是August 30, 2022", ["30 August 2022"]) == 1.0
    assert contains_words("于1903至1904年", ["1903"]) == 1.0


@pytest.mark.parametrize(
    "text", ["1990.13.10", "1.05.10", "1990.05.10.2", "1990.0510", "十三月五日", "五月", "3/4/2016", "1/2"]
)
def test_what_is_no_date_is_left(text: str) -> None:
    assert spelled_alike(text) == text
