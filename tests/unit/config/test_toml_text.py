import tomllib

import pytest

from ramify.config.toml_text import toml_text

TABLE = {
    "name": 'a "b" \\ c\nd\te\x7f\x00 \u00e9\U0001f600',
    "empty": {},
    "numbers": [1, -2, 0.5, 1e-6, 1e22, 2**53],
    "switches": {"on": True, "off": False},
    "deep": {"below": {"x": 1}, "y": 2},
    "lists": {"none": [], "nested": [[1, 2], []], "mixed": [1, {"a": "b", "c d": [{}]}]},
    "tools": [{"name": "a", "args": {"k": [1]}}, {"name": "b", "args": {}}],
    "odd key.with dots": {"k\n": 1},
}


def test_what_is_written_is_read_again():
    assert tomllib.loads(toml_text(TABLE)) == TABLE


def test_a_key_without_a_value_is_left_out():
    assert toml_text({"a": None, "b": {"c": None}}) == "[b]\n"
    assert toml_text({"a": [1, {"b": None}]}) == "a = [1, {  }]\n"


@pytest.mark.parametrize("value", [float("1e-300"), 1e308, 123456789.123456789, 0.1 + 0.2])
def test_numbers_keep_every_digit(value):
    assert tomllib.loads(toml_text({"x": value})) == {"x": value}
