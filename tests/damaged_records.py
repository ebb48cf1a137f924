"""A seeded generator of damaged JSON records: each differs from a good one in one place."""

import json
import random
import zlib
from pathlib import Path
from typing import Any

DEEP: Any = 0
for _ in range(150):
    DEEP = [DEEP]

WRONG: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 1.5, -0.0, 10**18, 10**400, float("nan"), float("inf"), 1e308),
    *("", "x", "0", "0.0", "1.x", "9" * 5000, "\ud800", "../../x", "/etc", "\0", "final", "tool"),
    *([], [[]], [None], ["x"], [10**400], {}, {"a": 1}, {"kind": "calls", "calls": []}, DEEP),
)
_TWICE = "\0twice"


def damaged(line: str, rng: random.Random) -> bytes:
    """Return the text of a record with one fault."""
    match rng.randrange(20):
        case 0:
            return line.encode()[: rng.randrange(len(line))]
        case 1:
            at = rng.randrange(len(line))
            return line[:at].encode() + b"\xff" + line[at:].encode()
        case 2:
            at = rng.randrange(len(line))
            return (line[:at] + rng.choice("[]{},:\"0'\n") + line[at + 1 :]).encode()
    record = json.loads(line)
    twice = ""
    if rng.random() < 0.1 and isinstance(record.get("nodes"), list):
        _move(record["nodes"], rng)
    else:
        twice = _change(record, rng)
    text = json.dumps(record).replace(json.dumps(_TWICE), json.dumps(twice))
    return (text + "\n" if line.endswith("\n") else text).encode()


def _move(nodes: list[dict[str, Any]], rng: random.Random) -> None:
    """Give a node another place or kind: below one that is not there, or twice."""
    node, other = rng.choice(nodes), rng.choice(nodes)
    key = rng.choice(["source", "id", "context", "stop", "results", "turn", "behavior_logprobs"])
    node[key] = rng.choice(["9.9", node["id"]]) if rng.random() < 0.2 else other.get(key)


def _change(record: Any, rng: random.Random) -> str:
    """Change one value in place; returns the key that is to stand in the text twice, or nothing."""
    holder, key = record, rng.choice(list(record))
    while isinstance(holder[key], dict | list) and holder[key] and rng.random() < 0.85:
        holder = holder[key]
        key = rng.choice(list(holder)) if isinstance(holder, dict) else rng.randrange(len(holder))
    match rng.randrange(6):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder[_TWICE] = rng.choice(WRONG)
            return str(key)
        case 2 if isinstance(holder, list):
            holder.insert(key, holder[key])
        case 3:
            other = rng.choice(list(holder)) if isinstance(holder, dict) else rng.randrange(len(holder))
            holder[key], holder[other] = holder[other], holder[key]
        case _:
            holder[key] = rng.choice(WRONG)
    return ""


def sealed(file: Path) -> None:
    """Write the checksum of a checkpoint's state.json anew, as somebody would who means harm; leave what is no JSON."""
    try:
        record = json.loads(file.read_text())
        content = {key: record.get(key) for key in ("state", "files")}
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        file.write_text(json.dumps(record | {"crc32": f"{zlib.crc32(text.encode()):08x}"}))
    except (ValueError, AttributeError, TypeError):
        return
