"""Whatever a file or a text from outside holds, its reader says in one line what is wrong."""

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.core.errors import DataError
from ramify.core.json_text import MAX_DEPTH, parse_json, parse_object
from ramify.files.untrusted import MAX_BYTES, read_small_file, require_plain_model

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
    message = ""
    try:
        parse_json(text)
    except ValueError as error:
        message = str(error)
    assert "\n" not in message


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
    with pytest.raises(ValueError, match="key 'a' appears twice in one object"):
        parse_json('[{"b": {"a": 1, "a": 2}}]', unique_keys=True)
    with pytest.raises(ValueError, match="a number has too many digits"):
        parse_json("9" * 5000)


@pytest.mark.parametrize(
    ("text", "kind"), [("[]", "a list"), ("null", "null"), ("3", "a number"), ('""', "a text")]
)
def test_an_object_is_asked_for(text, kind):
    with pytest.raises(ValueError, match=f"expected a JSON object, found {kind}"):
        parse_object(text)


def pipe(path):
    os.mkfifo(path)


def device(path):
    path.symlink_to("/dev/zero")


def large(path):
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1)


ODD = [(pipe, "a pipe"), (device, "a device"), (large, "bytes, expected at most")]


@pytest.mark.parametrize(("make", "message"), ODD)
def test_what_does_not_end_or_is_too_large_is_not_read(tmp_path, make, message):
    path = tmp_path / "config.json"
    make(path)
    with pytest.raises(DataError, match=rf"config\.json: .*{message}"):
        read_small_file(path)
    with pytest.raises(DataError, match=rf"config\.json: .*{message}"):
        require_plain_model(tmp_path)


def test_what_is_not_there_or_a_folder_is_named(tmp_path):
    with pytest.raises(DataError, match="cannot be read: No such file"):
        read_small_file(tmp_path / "none")
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        read_small_file(tmp_path)
    (tmp_path / "dangling").symlink_to(tmp_path / "none")
    with pytest.raises(DataError, match=r"dangling: cannot be read"):
        require_plain_model(tmp_path)


def test_links_folders_and_large_weights_are_no_harm(tmp_path):
    (tmp_path / "blob").write_bytes(b"{}")
    (tmp_path / "config.json").symlink_to(tmp_path / "blob")
    (tmp_path / "onnx").mkdir()
    large(tmp_path / "model.safetensors")
    require_plain_model(tmp_path)
    assert read_small_file(tmp_path / "config.json") == b"{}"
