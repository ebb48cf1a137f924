"""The parts of a trace's line: readers of nodes, decisions, rewards and problems, and numbers in base64.

A field that has its default value is left out of a line. Lists of floats are base64, because half of a line's length and
most of the time to read it were their digits.
"""

import base64
import math
import re
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields
from functools import cache
from typing import Any, get_args

from ramify.core.json_types import (
    FieldError,
    by_kind,
    count,
    each,
    ids,
    json_object,
    mapping,
    member,
    number,
    one_of,
    optional,
    record,
    sparse,
    text,
    truth,
    whole,
)
from ramify.core.messages import (
    Calls,
    Final,
    MalformedTurn,
    Message,
    Problem,
    Role,
    Say,
    TextPart,
    ToolCall,
    ToolResult,
    ToolStatus,
)
from ramify.core.records import Reward
from ramify.core.tree import BranchDecision, Context, Cut, Entropy, Node, Source, StopReason, tree_path


@cache
def defaults(kind: type) -> Mapping[str, Any]:
    """Return the default values of a record's fields, which a line leaves out."""
    return {
        field.name: field.default if field.default_factory is MISSING else field.default_factory()
        for field in fields(kind)
        if field.default is not MISSING or field.default_factory is not MISSING
    }


def packed(values: Sequence[float]) -> str:
    """Return numbers in base64: little-endian, of 4 bytes each if that loses nothing, else of 8.

    Raises:
        ValueError: A number is not finite.
    """
    if not all(map(math.isfinite, values)):
        raise ValueError("a number is not finite")
    try:
        data = struct.pack(f"<{len(values)}f", *values)
        exact = struct.unpack(f"<{len(values)}f", data) == tuple(values)
    except OverflowError:
        exact = False
    return base64.b64encode(data if exact else struct.pack(f"<{len(values)}d", *values)).decode("ascii")


def _node(
    id: str,
    token_ids: tuple[int, ...],
    behavior_logprobs: bytes = b"",
    token_entropies: bytes = b"",
    **others: Any,  # noqa: ANN401 - fields of a node
) -> Node:
    return Node(
        id,
        tree_path(id),
        id.rpartition(".")[0] if id else None,
        token_ids=token_ids,
        behavior_logprobs=unpacked(behavior_logprobs, len(token_ids)),
        token_entropies=unpacked(token_entropies, len(token_ids)),
        **others,
    )


def unpacked(data: bytes, count: int) -> tuple[float, ...]:
    """Return the numbers of `packed`: none, or `count`.

    Raises:
        FieldError: There are others, or one is not finite.
    """
    if not data:
        return ()
    if len(data) not in (4 * count, 8 * count):
        raise FieldError(f"expected {count} numbers in base64, got {len(data)} bytes")
    values = struct.unpack(f"<{count}{'d' if len(data) == 8 * count else 'f'}", data)
    if not all(map(math.isfinite, values)):
        raise FieldError("holds a number that is not finite")
    return values


def read_packed(value: object) -> bytes:
    """Read the bytes of `packed` numbers, for `unpacked`."""
    if type(value) is str:
        with suppress(ValueError):
            return base64.b64decode(value, validate=True)
    raise FieldError.of("numbers in base64", value)


def _read_id(value: object) -> str:
    if type(value) is str and _ID.fullmatch(value):
        return value
    raise FieldError.of("the id of a node", value)


_ID = re.compile(r"(?:(?:0|[1-9][0-9]{0,8})(?:\.(?:0|[1-9][0-9]{0,8}))*)?")


def _entropy(lower: float, upper: float | None = None, count: int = 1) -> Entropy:
    return Entropy(lower, lower if upper is None else upper, count)


def _read_context(value: object) -> Context:
    match value:
        case "parent" | "fresh":
            return value
        case dict():
            return _READ_CUT(value)
    raise FieldError.of('"parent", "fresh", or a node and a number of its tokens', value)


_READ_CUT = record(Cut, node=text, tokens=count)
_READ_MESSAGE = record(Message, role=one_of(get_args(Role)), content=each(record(TextPart, text=text)))
_READ_CALL = sparse(
    ToolCall, defaults(ToolCall), id=text, name=text, arguments=json_object, malformed=optional(text)
)
_READ_TURN = by_kind(
    calls=record(Calls, calls=each(_READ_CALL)),
    final=record(Final, answer=text),
    say=record(Say, text=text),
    malformed=record(MalformedTurn, reason=text, answer=text),
)
_READ_RESULT = sparse(
    ToolResult,
    defaults(ToolResult),
    call_id=text,
    status=member(ToolStatus),
    text=text,
    info=json_object,
    reward=number,
    ends=truth,
    ambiguous=truth,
)
read_node = sparse(
    _node,
    defaults(Node),
    id=_read_id,
    source=member(Source),
    token_ids=ids,
    text=text,
    behavior_logprobs=read_packed,
    entropy=sparse(_entropy, ("upper", "count"), lower=number, upper=number, count=count),
    turn=_READ_TURN,
    results=each(_READ_RESULT),
    messages=each(_READ_MESSAGE),
    reward=number,
    policy_version=whole,
    stop=member(StopReason),
    context=_read_context,
    rewriter=text,
    token_entropies=read_packed,
    exact_ids=truth,
    call_from=whole,
)
read_problem = record(Problem, id=text, messages=each(_READ_MESSAGE), answer=each(text), info=json_object)
"""Reads the problem of a trace's line."""
read_decision = sparse(
    BranchDecision,
    defaults(BranchDecision),
    node=text,
    depth=count,
    entropy_delta=number,
    probability=number,
    planned=count,
    taken=count,
    entropy_acted=truth,
    undecided=truth,
    budget_left=whole,
    draw=number,
)
read_reward = sparse(
    Reward, defaults(Reward), value=number, parts=mapping(number), events=mapping(number), counts=truth
)
