"""Answers of a server gone bad: valid ones of the stand-in, changed at random (tests/vllm_stand_in.py)."""

import json
import random
from dataclasses import replace

from loopback import Reply

_WRONG = (
    None, True, False, 0, 1, -1, 3, 606, 2**31, 2**63, 2**70, 10**9, 10**400, -(10**400), 0.5, -0.5, 5.0, 1e308, -1e308,
    -9999.0, -10_000.0, float("nan"), float("inf"), float("-inf"), "", "x", "default", "ramify-ffffffff-1", "stop", "length",
    "abort", "error", "9" * 5000 + "." + "9" * 5000, "a\nb\x1b[31m", "\ud800", "y" * 100_000, [], {}, [[]], [{}], [None], [0],
    {"a": 1}, [[[[[]]]]],
)  # fmt: skip
_STATUSES = (200, 201, 204, 301, 400, 401, 402, 403, 404, 409, 429, 500, 502, 503)


def wrong(draw: random.Random, reply: Reply) -> Reply:
    """A reply that differs from a valid one in a few places of its JSON, or as a whole."""
    if not reply.body or draw.random() < 0.2:
        return _as_a_whole(draw, reply)
    value = json.loads(reply.body)
    for _ in range(draw.choice((1, 1, 1, 2, 5))):
        value = _changed(draw, value)
    return replace(reply, body=json.dumps(value).encode())


def _as_a_whole(draw, reply):
    body = reply.body
    bodies = (
        b"", b"null", b"[]", b"{}", b"true", b"NaN", b'"text"', b"<html>busy</html>", b"\xff\xfe\x00", b"1" * 5000,
        b"[" * 100_000, b'{"a":' * 50_000, body[: len(body) // 2], body + body, b'{"choices": ' + body + b"}",
        b"[" + b"[]," * 1_500_000 + b"[]]", b" " * 3_000_000 + body, b'{"choices": [' + b"{}," * 400_000 + b"{}]}",
    )  # fmt: skip
    kind = draw.choice(("body", "body", "status", "header", "cut"))
    if kind == "body":
        return replace(reply, body=draw.choice(bodies))
    if kind == "status":
        return replace(reply, status=draw.choice(_STATUSES))
    if kind == "header":
        return replace(reply, headers={**reply.headers, "content-encoding": draw.choice(("gzip", "br", "x"))})
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100000\r\n\r\n"
    return Reply(write=lambda stream: stream.write(head + body[: len(body) // 2]))


def _changed(draw, value):
    """A copy that differs at one place, which may be deep."""
    if isinstance(value, dict) and value and draw.random() < 0.9:
        return _changed_object(draw, value)
    if isinstance(value, list) and value and draw.random() < 0.9:
        return _changed_list(draw, value)
    if isinstance(value, int | float) and not isinstance(value, bool) and draw.random() < 0.4:
        return draw.choice((value + 1, value - 1, -value, value * 2, value * 10**6, float(value), str(value)))
    return draw.choice(_WRONG)


def _changed_object(draw, value):
    key = draw.choice(sorted(value))
    match draw.choice(("deeper", "deeper", "deeper", "drop", "rename")):
        case "deeper":
            return {**value, key: _changed(draw, value[key])}
        case "drop":
            return {other: v for other, v in value.items() if other != key}
        case _:
            return {f"{other}x" if other == key else other: v for other, v in value.items()}


def _changed_list(draw, value):
    index = draw.randrange(len(value))
    match draw.choice(("deeper", "deeper", "deeper", "drop", "twice", "many", "swap", "reverse")):
        case "deeper":
            return [*value[:index], _changed(draw, value[index]), *value[index + 1 :]]
        case "drop":
            return [*value[:index], *value[index + 1 :]]
        case "twice":
            return [*value[: index + 1], *value[index:]]
        case "many":
            return value * draw.choice((2, 50, 2000))
        case "swap":
            return [*value[:index], draw.choice(value), *value[index + 1 :]]
        case _:
            return value[::-1]
