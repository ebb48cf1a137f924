"""Whatever is wrong with JSON from outside is a ValueError of one line."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.core.json_text import MAX_DEPTH, parse_json, parse_object

VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text()),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)),
)


@given(VALUES)
def test_json_is_read_as_python_reads_it(value):
    text = json.dumps(value)
    assert parse_json(text) == parse_json(text.encode(), unique_keys=True) == json.loads(text)


@given(st.one_of(st.text(), st.binary()))
def test_anything_else_is_a_value_error_of_one_line(text):
    told = ""
    try:
        parse_json(text)
    except ValueError as error:
        told = str(error)
    assert "\n" not in told


@pytest.mark.parametrize("pair", ["[]", "{}"])
def test_how_deep_is_too_deep(pair):
    def nest(depth):
        return ("[" if pair == "[]" else '{"a":') * depth + "1" + pair[1] * depth

    assert parse_json(nest(MAX_DEPTH))
    for depth in (MAX_DEPTH + 1, 900, 100_000):
        with pytest.raises(ValueError, match="nested more than 100 deep"):
            parse_json(nest(depth))
    assert parse_json(nest(MAX_DEPTH + 1), max_depth=MAX_DEPTH + 1)
    assert parse_json("[" + "[1]," * 500 + "[1]]")


def test_keys_that_stand_twice_and_endless_numbers():
    assert parse_json('{"a": 1, "a": 2}') == {"a": 2}
    with pytest.raises(ValueError, match="key 'a' stands in one object twice"):
        parse_json('[{"b": {"a": 1, "a": 2}}]', unique_keys=True)
    with pytest.raises(ValueError, match="a number has too many digits"):
        parse_json("9" * 5000)


@pytest.mark.parametrize(
    ("text", "kind"), [("[]", "a list"), ("null", "null"), ("3", "a number"), ('""', "a text")]
)
def test_an_object_is_asked_for(text, kind):
    with pytest.raises(ValueError, match=f"expected a JSON object, found {kind}"):
        parse_object(text)
