from fractions import Fraction

import pytest

from ramify.rewards.math_equal import decide, is_mathematical, math_equal
from ramify.rewards.math_units import without_unit

SAME = [
    ("12 m", r"12 \text{ m}"),
    ("12 m", "12"),
    ("12 m", "12m"),
    ("12m", "12 m"),
    ("3 m", "m+2m"),
    ("4.4 million", "4400000"),
    (r"4.4 \text{ million}", "4400000"),
    (r"4 million \text{ dollars}", "4000000"),
    ("5 million dollars", r"\$5,000,000"),
    ("5 dozen", "60"),
    ("5 cm", "5"),
    ("5 cm^2", "5 square centimeters"),
    ("5 sq. cm", r"5 \text{ cm}^2"),
    ("320 km/h", "320 kilometers per hour"),
    ("320 km/h", "320"),
    ("60 mph", r"60 \text{ miles per hour}"),
    (r"5 \text{ m}/\text{s}", "5 m/s"),
    (r"5 \text{ m/s}^2", r"5 \text{ m}/\text{s}^2"),
    (r"30^\circ C", "30 degrees Celsius"),
    (r"30^\circ\text{C}", "30"),
    ("90 degrees", r"90^\circ"),
    (r"385\text{ units}", "385"),
    (r"7 \text{ apples}", "7"),
    ("36 square units", "36"),
    ("2xy", "2yx"),
    (r"\frac12 ab", r"\frac{ab}{2}"),
    ("5 inches", r"5 \text{ in}"),
    ("3 feet", "3 ft."),
    ("10 percent", r"10\%"),
    ("10 percent", "0.1"),
    (r"2\sqrt{3} cm", r"2\sqrt3"),
    ("1,2 cm", "1,2"),
]
OTHER = [
    ("4ab", "4"),
    ("2xy", "2ab"),
    ("x^2+2xy", "x^2+2yz"),
    (r"\frac12 ab", r"\frac12 xy"),
    ("y=3x^2ab", "y=3x^2"),
    ("5 million", "5"),
    ("5 dozen", "5"),
    ("5 kg", "5 cm"),
    ("5 cm^2", "5 cm"),
    ("5 is wrong", "5"),
    ("9 am", "9"),
    ("44 BC", "44"),
    ("32 Celsius", "32 Fahrenheit"),
    ("5 billion", "5 million"),
    ("2xy", "2"),
    ("5 m", "5 g"),
    ("5 km/h", "5 m/s"),
    (r"5 \text{ m}/\text{s}", r"5 \text{ m}/\text{s}^2"),
    ("12m", "12"),
    ("12 m", "12x"),
    ("12 m", "13 m"),
    (r"30^\circ C", r"30^\circ F"),
    (r"5\%", r"5 \text{ cm}"),
    ("x+2 m", "x+2"),
    ("4.4 million", "4.4"),
]


@pytest.mark.parametrize(("left", "right"), SAME)
def test_a_unit_may_be_left_out_and_spelled_in_many_ways(left: str, right: str) -> None:
    assert decide(left, right) is decide(right, left) is True


@pytest.mark.parametrize(("left", "right"), OTHER)
def test_letters_are_factors_and_two_units_must_agree(left: str, right: str) -> None:
    assert decide(left, right) is decide(right, left) is False


@pytest.mark.parametrize(
    ("text", "number", "scale", "unit"),
    [
        ("12", "12", 1, ""),
        ("12 sq. cm", "12", 1, "cm^2"),
        ('12 "cm"^{3}', "12", 1, "cm^3"),
        ("4.4 million dollars", "4.4", 10**6, "dollar"),
        ('2 "dozen eggs"', "2", 12, "egg"),
        ("60 mph", "60", 1, "mi/h"),
        ("2xy", "2xy", 1, ""),
        ("44 BC", "44 BC", 1, ""),
        ("x^2+3mi", "x^2+3mi", 1, ""),
        ("x^2+3 mi", "x^2+3", 1, "mi"),
        ("cm", "cm", 1, ""),
    ],
)
def test_what_a_number_is_a_number_of(text: str, number: str, scale: int, unit: str) -> None:
    assert without_unit(text) == (number, Fraction(scale), unit)


def test_golds_with_measures_are_mathematics_and_with_counted_things_are_not() -> None:
    assert all(map(is_mathematical, ["320 km/h", "5 kg", "3 hours"]))
    assert not any(
        map(is_mathematical, ["44 BC", "9 am", "2 medals", "25 years", "4.4 million", "10 percent"])
    )


def test_text_that_says_something_is_no_unit() -> None:
    assert math_equal("5 \\text{ is wrong}", ["5"]) == math_equal("5 \\text{ or not}", ["5"]) == 0.0
    assert math_equal("5 \\text{ wolves}", ["5"]) == 1.0
