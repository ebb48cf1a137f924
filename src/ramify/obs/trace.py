"""The trace: every tree of a step as JSON lines, with deterministic fields only (times are in `metrics.TimingLog`)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ramify.core.errors import DataError
from ramify.core.messages import (
    Calls,
    Final,
    Malformed,
    Message,
    ParsedTurn,
    Problem,
    Say,
    TextPart,
    ToolCall,
    ToolResult,
    ToolStatus,
)
from ramify.core.records import Reward, ScoredTree
from ramify.core.tree import (
    BranchDecision,
    Context,
    Cut,
    Entropy,
    Node,
    Source,
    StopReason,
    TreeKey,
    make_tree,
)
from ramify.obs.files import dump_line, parse_line, replace_lines

SCHEMA = 6


@dataclass(frozen=True, slots=True)
class TracedTree(ScoredTree):
    """A scored tree, with what it was trained on.

    Attributes:
        advantages: Mean advantage over the written tokens of each trajectory, 0 if it does not count; None if the tree was
            not trained on. [G]
    """

    advantages: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        ScoredTree.__post_init__(self)
        if self.advantages is not None and len(self.advantages) != len(self.rewards):
            raise ValueError(
                f"problem {self.tree.problem.id!r}: {len(self.rewards)} rewards, {len(self.advantages)} advantages"
            )


def write_trees(path: Path, graded: Sequence[TracedTree]) -> None:
    """Write one tree per line; the file appears as a whole or not at all.

    Raises:
        DataError: A problem's info, a call's arguments or a result's info holds something that JSON would not
            give back unchanged (a tuple, an array, NaN, a key that is not a string).
    """
    replace_lines(path, [_dump(traced) for traced in graded])


def tree_record(traced: TracedTree) -> dict[str, Any]:
    """One line of a trace, before it becomes text.

    Raises:
        DataError: As for `write_trees`.
    """
    problem = traced.tree.problem
    return {
        "schema": SCHEMA,
        "key": asdict(traced.tree.key),
        "problem": {
            "id": problem.id,
            "messages": [asdict(message) for message in problem.messages],
            "answer": list(problem.answer),
            "info": _plain(problem.info, f"info of problem {problem.id!r}"),
        },
        "start": traced.tree.start,
        "nodes": [_node_record(node) for node in traced.tree.nodes],
        "decisions": [asdict(decision) for decision in traced.tree.decisions],
        "rewards": [
            {
                "value": reward.value,
                "parts": dict(reward.parts),
                "events": dict(reward.events),
                "counts": reward.counts,
            }
            for reward in traced.rewards
        ],
        "advantages": traced.advantages,
    }


def read_trees(path: Path) -> tuple[TracedTree, ...]:
    """Read what `write_trees` wrote; every tree equals the one written.

    Raises:
        DataError: A missing file, another schema, or a line that is cut off or lacks a field; names file and row.
    """
    return tuple(each_tree(path))


def each_tree(path: Path) -> Iterator[TracedTree]:
    """As `read_trees`, one tree after the other, for files that are larger than the memory; raises as it does."""
    try:
        with path.open(encoding="utf-8") as file:
            for row, line in enumerate(file, start=1):
                if not line.endswith("\n"):
                    raise DataError(f"{path} row {row}: the line is cut off (no end of line)")
                yield parse_tree(path, row, line)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise DataError(f"{path}: no such file") from None
    except UnicodeDecodeError:
        raise DataError(f"{path}: it is not UTF-8 text") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None


def _dump(traced: TracedTree) -> str:
    try:
        return dump_line(tree_record(traced))
    except ValueError:
        raise DataError(f"problem {traced.tree.problem.id!r}: a number of its tree is not finite") from None


def _node_record(node: Node) -> dict[str, Any]:
    place = f"of node {node.id!r}"
    return {
        "id": node.id,
        "path": node.path,
        "parent": node.parent,
        "source": node.source,
        "token_ids": node.token_ids,
        "text": node.text,
        "behavior_logprobs": node.behavior_logprobs,
        "entropy": None if node.entropy is None else asdict(node.entropy),
        "turn": _turn_record(node.turn, f"arguments {place}"),
        "results": [
            {
                "call_id": result.call_id,
                "status": result.status,
                "text": result.text,
                "info": _plain(result.info, f"result info {place}"),
                "reward": result.reward,
                "ends": result.ends,
            }
            for result in node.results
        ],
        "messages": [asdict(message) for message in node.messages],
        "reward": node.reward,
        "policy_version": node.policy_version,
        "stop": node.stop,
        "context": asdict(node.context) if isinstance(node.context, Cut) else node.context,
        "rewriter": node.rewriter,
        "token_entropies": node.token_entropies,
        "exact_ids": node.exact_ids,
    }


def _turn_record(turn: ParsedTurn | None, place: str) -> dict[str, Any] | None:
    """A parsed turn with its kind: "calls", "final", "say" or "malformed"."""
    match turn:
        case None:
            return None
        case Calls(calls):
            made = [
                {
                    "id": call.id,
                    "name": call.name,
                    "arguments": _plain(call.arguments, place),
                    "malformed": call.malformed,
                }
                for call in calls
            ]
            return {"kind": "calls", "calls": made}
        case Final(answer):
            return {"kind": "final", "answer": answer}
        case Say(text):
            return {"kind": "say", "text": text}
        case Malformed(reason, answer):
            return {"kind": "malformed", "reason": reason, "answer": answer}


def _plain(value: object, place: str) -> object:
    """The value in JSON types, equal to the original."""
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise DataError(f"{place}: keys must be strings")
        return {key: _plain(item, f"{place}, {key!r}") for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item, place) for item in value]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise DataError(f"{place}: expected JSON values, found {type(value).__name__}")


def parse_tree(path: Path, row: int, line: str) -> TracedTree:
    """Read one line of a trace; `row` counts from 1.

    Raises:
        DataError: As for `read_trees`.
    """
    record = parse_line(path, row, line)
    schema = record.get("schema")
    if not isinstance(schema, int):
        raise DataError(f"{path} row {row}: expected a tree with a 'schema' number")
    if schema != SCHEMA:
        age = "newer" if schema > SCHEMA else "older"
        raise DataError(
            f"{path} row {row}: tree trace schema {schema} is {age} than schema {SCHEMA}, which this ramify reads"
        )
    try:
        return _traced_tree(record)
    except KeyError as error:
        raise DataError(f"{path} row {row}: the tree lacks the field {error}") from None
    except Exception as error:  # noqa: BLE001 - the line may hold anything, and whatever it makes of that says no more
        raise DataError(f"{path} row {row}: not a tree: {error}") from None


def _traced_tree(record: Mapping[str, Any]) -> TracedTree:
    problem = record["problem"]
    tree = make_tree(
        Problem(
            problem["id"],
            tuple(map(_message, problem["messages"])),
            tuple(problem["answer"]),
            problem["info"],
        ),
        TreeKey(**record["key"]),
        [_node(node) for node in record["nodes"]],
        [BranchDecision(**decision) for decision in record["decisions"]],
        record["start"],
    )
    advantages = record["advantages"]
    return TracedTree(
        tree,
        tuple(map(_reward, record["rewards"])),
        None if advantages is None else tuple(advantages),
    )


def _node(record: Mapping[str, Any]) -> Node:
    return Node(
        id=record["id"],
        path=tuple(record["path"]),
        parent=record["parent"],
        source=Source(record["source"]),
        token_ids=tuple(record["token_ids"]),
        text=record["text"],
        behavior_logprobs=tuple(record["behavior_logprobs"]),
        entropy=None if record["entropy"] is None else Entropy(**record["entropy"]),
        turn=_turn(record["turn"]),
        results=tuple(
            ToolResult(**{**result, "status": ToolStatus(result["status"])}) for result in record["results"]
        ),
        messages=tuple(map(_message, record["messages"])),
        reward=record["reward"],
        policy_version=record["policy_version"],
        stop=None if record["stop"] is None else StopReason(record["stop"]),
        context=_context(record["context"]),
        rewriter=record["rewriter"],
        token_entropies=tuple(record["token_entropies"]),
        exact_ids=record["exact_ids"],
    )


def _reward(record: Mapping[str, Any]) -> Reward:
    match record:
        case {
            "value": int() | float() as value,
            "parts": dict(parts),
            "events": dict(events),
            "counts": bool(counts),
        }:
            numbers = (value, *parts.values(), *events.values())
            if all(isinstance(number, int | float) and not isinstance(number, bool) for number in numbers):
                return Reward(value, parts, events, counts)
    raise ValueError("a reward has a value, parts and events, which are numbers, and says whether it counts")


def _message(record: Mapping[str, Any]) -> Message:
    return Message(record["role"], tuple(TextPart(part["text"]) for part in record["content"]))


def _context(record: Mapping[str, Any] | str) -> Context:
    match record:
        case "parent" | "fresh":
            return record
        case {"node": str(node), "tokens": int(tokens)}:
            return Cut(node, tokens)
    raise ValueError('a context is "parent", "fresh", or a node and a number of its tokens')


def _turn(record: Mapping[str, Any] | None) -> ParsedTurn | None:
    match record:
        case None:
            return None
        case {"kind": "calls", "calls": calls}:
            return Calls(tuple(ToolCall(**call) for call in calls))
        case {"kind": "final", "answer": answer}:
            return Final(answer)
        case {"kind": "say", "text": text}:
            return Say(text)
        case {"kind": "malformed", "reason": reason, "answer": answer}:
            return Malformed(reason, answer)
    raise ValueError("a turn is neither calls, an answer, words nor malformed")
