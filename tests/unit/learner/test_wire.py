"""The format of messages between ranks: it brings back every value exactly, and anything else is refused."""

import dataclasses
import json
import math
import os
import pickle
import struct
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from ramify.core.config import Config
from ramify.learner.pack import pack
from ramify.learner.report import Totals
from ramify.learner.wire import DTYPES, RECORDS, WireError, decode, encode
from ramify.modeling.configs import AdapterConfig
from random_trees import credited, random_tree, supervised_credit

arrays = st.sampled_from(list(DTYPES.values())).flatmap(
    lambda dtype: npst.arrays(dtype, npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
)
leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | arrays
keys = st.integers() | st.text()


def containers(values):
    return (
        st.lists(values, max_size=4)
        | st.lists(values, max_size=4).map(tuple)
        | st.dictionaries(keys, values, max_size=4)
        | st.lists(values, min_size=3, max_size=3).map(lambda fields: RECORDS["PassSettings"](*fields))
    )


values = st.recursive(leaves, containers, max_leaves=12)


def same(value, other):
    """Equal in type and in every bit."""
    if type(value) is not type(other):
        return False
    if isinstance(value, np.ndarray):
        return (value.dtype, value.shape, value.tobytes()) == (other.dtype, other.shape, other.tobytes())
    if isinstance(value, float):
        return struct.pack("d", value) == struct.pack("d", other) or (math.isnan(value) and math.isnan(other))
    if isinstance(value, dict):
        return list(value) == list(other) and all(same(value[key], other[key]) for key in value)
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        return all(same(getattr(value, name), getattr(other, name)) for name in names)
    if isinstance(value, list | tuple):
        return len(value) == len(other) and all(map(same, value, other))
    return value == other


@settings(max_examples=60, deadline=None)
@given(values)
def test_what_comes_back_is_what_was_sent(value):
    assert same(decode(encode(value)), value)


@pytest.mark.parametrize("number", range(3))
def test_rows_of_trees_come_back_in_every_bit(number):
    tree = random_tree(np.random.default_rng(number), contexts=False)
    rows = pack(credited([tree], [supervised_credit(tree)]), 40)
    (back,) = decode(encode((tuple(rows),)))
    assert same(back, tuple(rows))
    assert all(part.flags.writeable for row in back for part in (row.token_ids, row.s_plus))


REQUIRED = {
    "OptimizerConfig": {"rate": 1e-3, "decay": "cosine", "final_rate": 0.5},
    "TrainedModelConfig": {"path": Path("m"), "lora": AdapterConfig(rank=3)},
    "CispoSurrogate": {"clip_high": 0.3},
    "FunctionLoss": {
        "path": Path("a.py"),
        "function": "f",
        "args": {"edges": [0.1, {"b": None}]},
        "sha256": "0f",
    },
}


def example(record):
    if issubclass(record, Config):
        return record(**REQUIRED.get(record.__name__, {}))
    return record(**{field.name: i for i, field in enumerate(dataclasses.fields(record))})


def test_every_record_comes_back():
    records = [example(record) for record in RECORDS.values()]
    assert all(map(same, decode(encode(records)), records))
    assert {type(loss) for loss in decode(encode(tuple(r for r in records)))} == set(RECORDS.values())


class _Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize(
    "value",
    [print, {1, 2}, b"bytes", np.ones(2, np.float32), np.array(["text"]), np.array([{}], object), Path, 1j, _Evil("x")],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_what_the_format_cannot_express_is_not_sent(value):
    with pytest.raises(TypeError, match="do not cross between ranks"):
        encode([value])


def test_a_pickle_is_refused_and_runs_nothing(tmp_path):
    for protocol in range(6):
        with pytest.raises(WireError):
            decode(bytearray(pickle.dumps(_Evil(str(tmp_path / "ran")), protocol)))
    assert not (tmp_path / "ran").exists()


def message(tree, tail=b""):
    text = json.dumps(tree).encode()
    start = struct.pack("<Q", len(text)) + text
    return bytearray(start + bytes(-len(start) % 8) + tail)


@pytest.mark.parametrize(
    "tree",
    [
        {"Worker": []}, {"Path": ["x"]}, {"os.system": ["true"]}, {"__class__": []}, {"PassSettings": [1.0]}, {"Totals": 3},
        {"array": ["<f8", 2**62]}, {"array": ["<f8", 2**31, 2**31]}, {"array": ["<f8", -1]}, {"array": ["<f8", True]},
        {"array": ["<f8", 1.0]}, {"array": ["|O", 1]}, {"array": ["<U9", 1]}, {"array": ["<f8", *[1] * 9]}, {"array": []},
        {"array": ["<f8", 3]}, {"array": {}}, {"map": [1]}, {"map": [[{"list": []}, 1]]}, {"map": [[1, 2, 3]]}, {"path": 3},
        {"list": "text"}, {}, {"list": [], "map": []}, {"path": {"x": 1}},
    ],
    ids=str,
)  # fmt: skip
def test_trees_that_say_something_else_are_refused(tree):
    with pytest.raises(WireError):
        decode(message(tree, bytes(8)))


def test_settings_out_of_bounds_are_refused():
    sent = encode(AdapterConfig(rank=16))
    assert decode(sent) == AdapterConfig(rank=16)
    with pytest.raises(WireError):
        decode(sent.replace(b"16", b"-1"))


def test_deep_trees_and_long_numbers_are_refused():
    for text in (b"[" * 100_000, b"9" * 10_000, b'{"list":' * 50_000, b"\xff", b""):
        with pytest.raises(WireError):
            decode(bytearray(struct.pack("<Q", len(text)) + text))


def test_a_boolean_is_nought_or_one():
    with pytest.raises(WireError):
        decode(message({"array": ["|b1", 8]}, bytes([2] * 8)))


@settings(max_examples=80, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_are_refused(content):
    for start in (b"", struct.pack("<Q", len(content))):
        with suppress(WireError):
            decode(bytearray(start + content))


@settings(max_examples=60, deadline=None)
@given(values, st.data())
def test_a_damaged_message_is_refused_or_is_data(value, data):
    whole = encode(value)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(WireError):
        decode(whole[:cut])
    flipped = bytearray(whole)
    flipped[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    with suppress(WireError):
        decode(flipped)


def test_totals_of_other_ranks_are_joined_as_they_are():
    totals, back = Totals(), Totals(0.5, {"rows": 1.0}, [np.array([0.25])], {3: -0.5})
    totals.join(decode(encode(back)))
    assert same(totals, back)
