"""Numbers with what stands around them: the same in another notation, and others that look like them."""

import time

import pytest

from ramify.rewards.qa import contains_words, exact_words

SAME = [
    ("155 million dollars", "$155 million"),
    (r"\$155 million", "$155,000,000"),
    ("72641 US dollars", "$72,641"),
    ("$5 September 2005$", "September 5, 2005"),
    (r"\text{1903\ to\ 1904}", "1903 to 1904"),
    (r"\text{S2\ E2}", "S2 E2"),
    ("between 1903 and 1904", "1903 to 1904"),
    ("533 kmh", "533 km/h"),
    ("5 mph", "five miles per hour"),
    ("5:00 a.m.", "5am"),
    ("12:00 PM \N{EN DASH} 2:30 PM", "12:00 p.m. to 2:30 p.m."),
    ("$19.1 billion", "19.1 billion dollars."),
    ("US$59,039", "$59,039"),
    ("59039", "$59,039"),
    ("5 euros", "€5"),
    ("5 pounds", "£5"),
    ("£5 million", "5 million pounds sterling"),
    ("5 GBP", "£5"),
    ("5 lb", "5 pounds"),
    ("48.8 per cent", "48.8%"),
    ("320 kilometres per hour", "320 km/h"),
    ("seven miles", "7 mi"),
    ("thirty years", "30 yrs"),
    ("79 per square kilometer", "79/km²"),
    ("79 per km2", "79/km²"),
    ("310 km^2", "310 square kilometers"),
    ("4653 degrees Fahrenheit", "4,653 °F"),
    (r"4,653^\circ F", "4,653 °F"),
    (r"480 \times 800", "480 x 800"),
    ("480\N{MULTIPLICATION SIGN}800", "480 x 800"),
    ("480x800", "480 x 800"),
    ("1903\N{EN DASH}1904", "1903 to 1904"),
    ("from 1903 to 1904", "1903-1904"),
    ("1963 - 1991", "1963 to 1991"),
    ("Season 2, Episode 2", "S2 E2"),
    (r"15\textsuperscript{th} century", "15th century"),
    (r"15^{\text{th}} century", "15th century"),
    ("10 990 502", "10,990,502"),
    ("Pa\N{ZERO WIDTH SPACE}ris", "Paris"),
    ("Pa\N{SOFT HYPHEN}ris", "Paris"),
    ("1045 BCE", "1045 B.C."),
    ("10万", "十万"),
    ("100,000元", "10万元"),
    ("1亿2000万", "1.2亿"),
    ("3,000,000", "300万"),
    ("百分之八十五", "85%"),
    ("百分之50", "50%"),
    ("2020", "2020年"),
    ("二零二零年", "2020年"),
    ("陈采军\N{FULLWIDTH COMMA}钟忺", "钟忺和陈采军"),
    ("郭建秋以及刘文中", "刘文中和郭建秋"),
    ("[3,4)", "[3, 4)"),
    ("宋凡和Jiangzhou Wang", "Jiangzhou Wang 和 宋凡"),
    ("2024年10月11日、2024年5月27日", "2024年5月27日和2024年10月11日"),
    ("GRU, CNN and MLP", "MLP, CNN, and GRU."),
]

OTHER = [
    ("$155", "$155 million"),
    ("€155 million", "$155 million"),
    ("5", "5 dollars"),
    ("5 dollars", "£5"),
    ("5 kg", "£5"),
    ("320 mph", "320 km/h"),
    ("79 square kilometers", "79/km²"),
    ("310 square miles", "310 km^2"),
    ("4,653 °C", "4,653 °F"),
    ("480 x 600", "480 x 800"),
    ("1903 to 1905", "1903-1904"),
    ("1903", "1903-1904"),
    ("S2 E3", "S2 E2"),
    ("1045 AD", "1045 BC"),
    ("1万", "十万"),
    ("12亿", "1.2亿"),
    ("百分之十五", "50%"),
    ("2021", "2020年"),
    ("2020年10月", "2020年"),
    ("10 99 502", "1,099,502"),
    ("(3, 4)", "[3, 4)"),
]


@pytest.mark.parametrize(("prediction", "gold"), SAME)
def test_same_in_another_notation(prediction: str, gold: str) -> None:
    assert exact_words(prediction, [gold]) == 1.0


@pytest.mark.parametrize(("prediction", "gold"), OTHER)
def test_another_number(prediction: str, gold: str) -> None:
    assert exact_words(prediction, [gold]) == 0.0


def test_a_price_may_be_said_without_its_currency_but_not_in_another() -> None:
    assert contains_words("The income is 59,039.", ["$59,039"]) == 1.0
    assert contains_words("The income is €59,039.", ["$59,039"]) == 0.0
    assert contains_words("There were 5 apples.", ["5 dollars"]) == 0.0


def test_a_period_is_not_its_first_year() -> None:
    assert contains_words("from 1999 to 2004", ["1999"]) == 0.0


@pytest.mark.parametrize(
    "text",
    [
        "May 5 - " + " " * 9000 + "x",
        " " * 9000 + "(",
        "{" + "\\ " * 4500,
        "{" + " \u200b" * 4500,
        "^" + " " * 9000 + "x",
        " \n" * 4500,
        "1 to " * 2000,
        "$1" + "." * 9000,
        "[" + "1" * 9000,
        "IVX" * 3000,
        "12/12/" * 1500,
    ],
)
def test_no_text_takes_long(text: str) -> None:
    started = time.process_time()
    for gold in ("Paris", "5 May 2020", "[3, 4)"):
        assert exact_words(text, [gold]) == contains_words(text, [gold]) == 0.0
    assert time.process_time() - started < 5


def test_blanks_and_lines_are_one_blank() -> None:
    assert exact_words("20 \t June\n\n1837", ["20 June 1837"]) == 1.0
