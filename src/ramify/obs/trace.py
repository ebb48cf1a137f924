"""The trace: every tree of a step as JSON lines, with deterministic fields only (times are in `metrics.TimingLog`)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

from ramify.core.errors import DataError
from ramify.core.json_text import MAX_ECHO
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
    numbers,
    one_of,
    optional,
    record,
    text,
    truth,
    whole,
)
from ramify.core.messages import (
    Calls,
    Final,
    MalformedTurn,
    Message,
    ParsedTurn,
    Problem,
    Role,
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
from ramify.files.durable import dump_line, parse_line, replace_lines
from ramify.files.untrusted import MAX_BYTES

SCHEMA = 6
_LAST_READERS = {5: "0.1.0 at commit 8eea476"}
"""The last ramify that reads traces of an older schema."""
_MAX_REASON = 300
"""Characters of a reason, which may quote ids of any length."""


@dataclass(frozen=True, slots=True)
class TracedTree(ScoredTree):
    """A scored tree with the advantages that it was trained on.

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
    """Return one line of a trace, before it becomes text.

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
    """Yield the trees of `read_trees` one by one, for files larger than the memory; raises the same errors."""
    for row, line in enumerate(lines_of(path), start=1):
        if not line.endswith(b"\n"):
            raise DataError(f"{path} row {row}: the line is cut off (no end of line)")
        yield parse_tree(path, row, line)


def lines_of(path: Path, offset: int = 0) -> Iterator[bytes]:
    """Yield the lines of a file from a byte on, with their ends; the last one may be cut off.

    Raises:
        DataError: The file is missing or cannot be read, or a line has more than `MAX_BYTES`.
    """
    try:
        with path.open("rb") as file:
            file.seek(offset)
            while line := file.readline(MAX_BYTES):
                if len(line) == MAX_BYTES:
                    raise DataError(
                        f"{path}: a line has more than {MAX_BYTES:,} bytes. No tree is that large."
                    )
                yield line
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise DataError(f"{path}: no such file") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None


def _dump(traced: TracedTree) -> str:
    try:
        return dump_line(tree_record(traced))
    except ValueError:
        raise DataError(f"problem {traced.tree.problem.id!r}: a number of its tree is not finite") from None


def _node_record(node: Node) -> dict[str, Any]:
    where = f"of node {node.id!r}"
    return {
        "id": node.id,
        "path": node.path,
        "parent": node.parent,
        "source": node.source,
        "token_ids": node.token_ids,
        "text": node.text,
        "behavior_logprobs": node.behavior_logprobs,
        "entropy": None if node.entropy is None else asdict(node.entropy),
        "turn": _turn_record(node.turn, f"arguments {where}"),
        "results": [
            {
                "call_id": result.call_id,
                "status": result.status,
                "text": result.text,
                "info": _plain(result.info, f"result info {where}"),
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


def _turn_record(turn: ParsedTurn | None, where: str) -> dict[str, Any] | None:
    """Return a parsed turn with its kind: "calls", "final", "say" or "malformed"."""
    match turn:
        case None:
            return None
        case Calls(calls):
            records = [
                {
                    "id": call.id,
                    "name": call.name,
                    "arguments": _plain(call.arguments, where),
                    "malformed": call.malformed,
                }
                for call in calls
            ]
            return {"kind": "calls", "calls": records}
        case Final(answer):
            return {"kind": "final", "answer": answer}
        case Say(text):
            return {"kind": "say", "text": text}
        case MalformedTurn(reason, answer):
            return {"kind": "malformed", "reason": reason, "answer": answer}


def _plain(value: object, where: str) -> object:
    """Return the value in JSON types, equal to the original."""
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise DataError(f"{where}: keys must be strings")
        return {key: _plain(item, f"{where}, {key!r}") for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item, where) for item in value]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise DataError(f"{where}: expected JSON values, got {type(value).__name__}")


def parse_tree(path: Path, row: int, line: str | bytes) -> TracedTree:
    """Read one line of a trace; `row` counts from 1.

    Raises:
        DataError: As for `read_trees`.
    """
    content = parse_line(path, row, line)
    try:
        schema = count(content.get("schema"))
    except FieldError:
        raise DataError(f"{path} row {row}: expected a tree with a 'schema' number") from None
    if schema != SCHEMA:
        age = "newer" if schema > SCHEMA else "older"
        raise DataError(
            f"{path} row {row}: tree trace schema {schema} is {age} than schema {SCHEMA}, which this ramify reads"
            + (
                f". The last version that reads it is {_LAST_READERS[schema]}"
                if schema in _LAST_READERS
                else ""
            )
        )
    try:
        return _READ_TREE(content)
    except ValueError as error:
        raise DataError(f"{path} row {row}: not a tree: {f'{error}'[:_MAX_REASON]}") from None


def _traced_tree(
    problem: Problem,
    key: TreeKey,
    start: str,
    nodes: Sequence[Node],
    decisions: Sequence[BranchDecision],
    rewards: tuple[Reward, ...],
    advantages: tuple[float, ...] | None,
    **_: int,
) -> TracedTree:
    known = {node.id for node in nodes}
    for name in (start, *(decision.node for decision in decisions)):
        if name not in known:
            raise ValueError(f"there is no node {name[:MAX_ECHO]!r}")
    tree = make_tree(problem, key, list(nodes), list(decisions), start)
    for node in nodes:
        turn = node if node.stop is not None else tree.by_id[node.parent or ""]
        if node.results and len(turn.calls) != len(node.results):
            raise ValueError(f"node {node.id!r}: {len(node.results)} results of {len(turn.calls)} calls")
    return TracedTree(tree, rewards, advantages)


def _read_context(value: object) -> Context:
    match value:
        case "parent" | "fresh":
            return value
        case dict():
            return _READ_CUT(value)
    raise FieldError.of('"parent", "fresh", or a node and a number of its tokens', value)


_READ_CUT = record(Cut, node=text, tokens=count)
_READ_MESSAGE = record(Message, role=one_of(get_args(Role)), content=each(record(TextPart, text=text)))
_READ_TURN = by_kind(
    calls=record(
        Calls,
        calls=each(record(ToolCall, id=text, name=text, arguments=json_object, malformed=optional(text))),
    ),
    final=record(Final, answer=text),
    say=record(Say, text=text),
    malformed=record(MalformedTurn, reason=text, answer=text),
)
_READ_RESULT = record(
    ToolResult,
    call_id=text,
    status=member(ToolStatus),
    text=text,
    info=json_object,
    reward=number,
    ends=truth,
)
_READ_NODE = record(
    Node,
    id=text,
    path=ids,
    parent=optional(text),
    source=member(Source),
    token_ids=ids,
    text=text,
    behavior_logprobs=numbers,
    entropy=optional(record(Entropy, lower=number, upper=number, count=count)),
    turn=optional(_READ_TURN),
    results=each(_READ_RESULT),
    messages=each(_READ_MESSAGE),
    reward=number,
    policy_version=optional(whole),
    stop=optional(member(StopReason)),
    context=_read_context,
    rewriter=text,
    token_entropies=numbers,
    exact_ids=truth,
)
read_problem = record(Problem, id=text, messages=each(_READ_MESSAGE), answer=each(text), info=json_object)
"""Reads the problem of a trace's line."""
_READ_TREE = record(
    _traced_tree,
    schema=whole,
    key=record(TreeKey, step=count, slot=count, attempt=count),
    problem=read_problem,
    start=text,
    nodes=each(_READ_NODE),
    decisions=each(
        record(
            BranchDecision,
            node=text,
            depth=count,
            entropy_delta=number,
            probability=number,
            planned=count,
            taken=count,
            entropy_acted=truth,
            undecided=truth,
            budget_left=whole,
        )
    ),
    rewards=each(record(Reward, value=number, parts=mapping(number), events=mapping(number), counts=truth)),
    advantages=optional(numbers),
)
