"""Values as bytes, for messages between ranks: a closed format that can hold data and no code.

A message is a JSON tree, then the bytes of its arrays in the order in which the tree names them. In the tree a number, a text,
true, false and null stand for themselves, and a JSON array for a tuple; everything else is an object with one key, its kind:
`list`, `map` (pairs), `path`, `array` (type and shape), or the name of a record with its fields in order. Only the records of
`RECORDS` exist. A `FunctionLoss` names a file and its checksum; each rank reads the file by itself.
"""

import json
import math
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeAlias, get_args

import numpy as np

from ramify.algos.catalog import AnyLoss
from ramify.algos.file_parts import FileLoss, FunctionLoss
from ramify.algos.kl import EntropyBonus, KlPenalty
from ramify.algos.sft import NegativeLogLikelihood
from ramify.core.errors import ConfigError, RamifyError
from ramify.core.records import PackedRow, SegmentSpan, WrittenSpan
from ramify.learner.configs import OptimizerConfig
from ramify.learner.forward import PassSettings
from ramify.learner.report import Totals
from ramify.learner.worker import RowGradients
from ramify.modeling.configs import AdapterConfig, TrainedModelConfig
from ramify.modeling.memory_plan import Layout

TOKEN_LOSSES = (
    *(FunctionLoss if loss is FileLoss else loss for loss in get_args(AnyLoss) if not loss.sequence_loss),
    NegativeLogLikelihood, KlPenalty, EntropyBonus,
)  # fmt: skip
RECORDS: Mapping[str, type] = {
    record.__name__: record
    for record in (
        PackedRow, SegmentSpan, WrittenSpan, PassSettings, RowGradients, Totals, OptimizerConfig, Layout,
        AdapterConfig, TrainedModelConfig,
        *TOKEN_LOSSES,
    )
}  # fmt: skip
"""The records that cross between ranks, by name."""

DTYPES = {dtype.str: dtype for dtype in (np.dtype("<f8"), np.dtype("<i8"), np.dtype("bool"))}
_MOST_DIMENSIONS = 8
_ALIGNMENT = 8
_HEAD = struct.Struct("<Q")

Node: TypeAlias = Any
"""A node of the JSON tree."""


class WireError(RamifyError):
    """Bytes that are no message of this format."""


def encode(value: Any) -> bytearray:  # noqa: ANN401 - any value of the format
    """Return the message of a value.

    Raises:
        TypeError: The value holds something that the format cannot express.
    """
    arrays: list[np.ndarray[Any, Any]] = []
    tree = json.dumps(_encoded(value, arrays), separators=(",", ":")).encode()
    message = bytearray(_HEAD.pack(len(tree)) + tree)
    for array in arrays:
        message += bytes(-len(message) % _ALIGNMENT)
        message += np.ascontiguousarray(array).tobytes()
    return message


def decode(message: bytearray | memoryview) -> Any:  # noqa: ANN401 - any value of the format
    """Return the value of a message. Its arrays are views of the message's memory.

    Raises:
        WireError: The bytes are no message of this format. Nothing larger than the message was allocated.
    """
    try:
        return _decode(memoryview(message).cast("B"))
    # A constructor of a record may refuse a value with an error of its own; deep trees end in a RecursionError.
    except (
        ConfigError,
        ValueError,
        TypeError,
        KeyError,
        OverflowError,
        RecursionError,
        struct.error,
    ) as error:
        raise WireError(f"not a message between ranks: {type(error).__name__}") from error


def _decode(message: memoryview) -> Any:  # noqa: ANN401
    (length,) = _HEAD.unpack(message[: _HEAD.size])
    end = _HEAD.size + length
    if end > len(message):
        raise ValueError("the tree is longer than the message")
    tree = json.loads(bytes(message[_HEAD.size : end]))
    arrays = _Arrays(message, end)
    value = _decoded(tree, arrays)
    if arrays.position != len(message):
        raise ValueError("bytes behind the last array")
    return value


def _encoded(value: Any, arrays: list[np.ndarray[Any, Any]]) -> Node:  # noqa: ANN401
    kind = type(value)
    if value is None or kind in (bool, str, int, float):
        return value
    if isinstance(value, np.integer | np.floating):
        return value.item()
    if kind is np.ndarray:
        if value.dtype.str not in DTYPES:
            raise TypeError(f"arrays of type {value.dtype} do not cross between ranks")
        arrays.append(value)
        return {"array": [value.dtype.str, *value.shape]}
    if kind in (tuple, list):
        parts = [_encoded(part, arrays) for part in value]
        return parts if kind is tuple else {"list": parts}
    if kind is dict:
        return {"map": [[_encoded(key, arrays), _encoded(part, arrays)] for key, part in value.items()]}
    if isinstance(value, Path):
        return {"path": str(value)}
    if RECORDS.get(kind.__name__) is kind:
        return {kind.__name__: [_encoded(getattr(value, f.name), arrays) for f in fields(kind)]}
    raise TypeError(f"values of type {kind.__name__} do not cross between ranks")


def _decoded(node: Node, arrays: "_Arrays") -> Any:  # noqa: ANN401
    if isinstance(node, list):
        return tuple(_decoded(part, arrays) for part in node)
    if not isinstance(node, dict):
        return node
    ((kind, content),) = node.items()
    if kind in _KINDS:
        return _KINDS[kind](content, arrays)
    record = RECORDS[kind]
    names = [field.name for field in fields(record)]
    return record(**dict(zip(names, _parts(content, arrays), strict=True)))


def _parts(content: Node, arrays: "_Arrays") -> Iterator[Any]:
    if not isinstance(content, list):
        raise TypeError("expected a JSON array")
    return (_decoded(part, arrays) for part in content)


def _map(content: Node, arrays: "_Arrays") -> dict[Any, Any]:
    pairs = list(_parts(content, arrays))
    if any(not isinstance(pair, tuple) for pair in pairs):
        raise TypeError("expected pairs")
    return dict(pairs)


class _Arrays:
    """The arrays of a message, which are taken in order."""

    def __init__(self, message: memoryview, position: int) -> None:
        self._message, self.position = message, position

    def take(self, content: Node) -> np.ndarray[Any, Any]:
        """Return the next array, after checking that the message holds all of it."""
        code, *shape = content
        dtype = DTYPES[code]
        if len(shape) > _MOST_DIMENSIONS or any(type(size) is not int or size < 0 for size in shape):
            raise ValueError("not a shape")
        start = self.position + -self.position % _ALIGNMENT
        count = math.prod(shape)
        stop = start + count * dtype.itemsize
        if stop > len(self._message):
            raise ValueError("an array is longer than the message")
        data = self._message[start:stop]
        # numpy takes any byte for a boolean and computes nonsense with values above 1.
        if dtype.kind == "b" and np.frombuffer(data, np.uint8).max(initial=0) > 1:
            raise ValueError("not a boolean")
        self.position = stop
        return np.frombuffer(data, dtype, count).reshape(shape)


_KINDS: Mapping[str, Callable[[Node, _Arrays], Any]] = {
    "list": lambda content, arrays: list(_parts(content, arrays)),
    "map": _map,
    "path": lambda content, _: Path(content),
    "array": lambda content, arrays: arrays.take(content),
}
