"""The trace: every tree of a step as JSON lines, with deterministic fields only (times are in `metrics.TimingLog`)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ramify.core.errors import DataError
from ramify.core.json_text import MAX_ECHO
from ramify.core.json_types import (
    FieldError,
    count,
    each,
    mapping,
    numbers,
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
    ParsedTurn,
    Problem,
    Say,
)
from ramify.core.records import Reward, ScoredTree
from ramify.core.tree import (
    BranchDecision,
    Cut,
    Entropy,
    Node,
    TreeKey,
    make_tree,
)
from ramify.files.durable import dump_line, parse_line, replace_pieces
from ramify.files.untrusted import MAX_BYTES
from ramify.obs.trace_fields import (
    defaults,
    packed,
    read_decision,
    read_node,
    read_packed,
    read_problem,
    read_reward,
    unpacked,
)

SCHEMA = 7
_LAST_READERS = {5: "0.1.0 at commit 8eea476", 6: "0.1.0 at commit 6e97799"}
"""The last ramify that reads traces of an older schema."""
_MAX_REASON = 300
"""Characters of a reason, which may quote ids of any length."""


@dataclass(frozen=True, slots=True)
class TracedTree(ScoredTree):
    """A scored tree with the values that it was trained on.

    Attributes:
        advantages: Mean advantage over the written tokens of each trajectory, 0 if it does not count; None if the tree was
            not trained on. [G]
        mask: The loss mask: False for each trajectory that carried no loss, because it does not count or its end was masked.
            None: all did, or the tree was not trained on. [G]
        old_logprobs: The learner's logprobs before the update, by policy node, if the run computed them; else the old
            logprobs are the engine's. [N] each
    """

    advantages: tuple[float, ...] | None = None
    mask: tuple[bool, ...] | None = None
    old_logprobs: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        ScoredTree.__post_init__(self)
        for name, values in (("advantages", self.advantages), ("values of its mask", self.mask)):
            if values is not None and len(values) != len(self.rewards):
                raise ValueError(
                    f"problem {self.tree.problem.id!r}: {len(self.rewards)} rewards, {len(values)} {name}"
                )
        for node, old in self.old_logprobs.items():
            if len(old) != len(self.tree.by_id[node].behavior_logprobs):
                raise ValueError(f"node {node!r}: {len(old)} old logprobs, and others of the engine")


def write_trees(path: Path, graded: Iterable[TracedTree]) -> tuple[int, ...]:
    """Write one tree per line; the file appears as a whole or not at all. Returns the bytes of each line with its end.

    Raises:
        DataError: A problem's info, a call's arguments or a result's info holds something that JSON would not
            give back unchanged (a tuple, an array, NaN, a key that is not a string).
    """
    sizes: list[int] = []

    def lines() -> Iterator[bytes]:
        for traced in graded:
            line = f"{_dump(traced)}\n".encode("ascii")
            sizes.append(len(line))
            yield line

    replace_pieces(path, lines())
    return tuple(sizes)


def tree_record(traced: TracedTree) -> dict[str, Any]:
    """Return one line of a trace, before it becomes text.

    Raises:
        DataError: As for `write_trees`.
    """
    problem = traced.tree.problem
    record = {
        "schema": SCHEMA,
        "key": asdict(traced.tree.key),
        "problem": {
            "id": problem.id,
            "messages": [asdict(message) for message in problem.messages],
            "answer": list(problem.answer),
            "info": _plain(problem.info, f"info of problem {problem.id!r}"),
        },
        "start": traced.tree.start,
        "nodes": [node_record(node) for node in traced.tree.nodes],
        "decisions": [_sparse(decision) for decision in traced.tree.decisions],
        "rewards": [
            _sparse(reward, parts=dict(reward.parts), events=dict(reward.events)) for reward in traced.rewards
        ],
    }
    if traced.advantages is not None:
        record["advantages"] = traced.advantages
    if traced.mask is not None:
        record["mask"] = traced.mask
    if traced.old_logprobs:
        record["old_logprobs"] = {key: packed(values) for key, values in traced.old_logprobs.items()}
    return record


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


def node_record(node: Node) -> dict[str, Any]:
    """Return a node as JSON, as `trace_fields.read_node` reads it.

    Raises:
        DataError: As for `write_trees`.
    """
    where = f"of node {node.id!r}"
    entropy, context = node.entropy, node.context
    record = _sparse(
        node,
        behavior_logprobs=packed(node.behavior_logprobs),
        entropy=None if entropy is None else _entropy_record(entropy),
        turn=_turn_record(node.turn, f"arguments {where}"),
        results=[
            _sparse(result, info=_plain(result.info, f"result info {where}")) for result in node.results
        ],
        messages=[asdict(message) for message in node.messages],
        context=asdict(context) if isinstance(context, Cut) else context,
        token_entropies=packed(node.token_entropies),
    )
    # The id says both.
    del record["path"], record["parent"]
    return record


def _entropy_record(entropy: Entropy) -> dict[str, Any]:
    record = asdict(entropy)
    if entropy.lower == entropy.upper:
        del record["upper"]
    return record


def _sparse(item: Any, **values: Any) -> dict[str, Any]:  # noqa: ANN401 - any record
    """Return the fields of a record that differ from their defaults; `values` are those to write instead of its own."""
    usual = defaults(item.__class__)
    return {
        name: values.get(name, value)
        for name, value in ((field.name, getattr(item, field.name)) for field in fields(item))
        if name not in usual or value != usual[name]
    }


def _turn_record(turn: ParsedTurn | None, where: str) -> dict[str, Any] | None:
    """Return a parsed turn with its kind: "calls", "final", "say" or "malformed"."""
    match turn:
        case None:
            return None
        case Calls(calls):
            records = [_sparse(call, arguments=_plain(call.arguments, where)) for call in calls]
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
    content = _content(path, row, line)
    try:
        return _READ_TREE(content)
    except ValueError as error:
        raise DataError(f"{path} row {row}: not a tree: {f'{error}'[:_MAX_REASON]}") from None


def each_decided(path: Path) -> Iterator[tuple[TreeKey, str, tuple[BranchDecision, ...]]]:
    """Yield key, problem and decisions of each tree, without reading its nodes; raises the errors of `each_tree`."""
    for row, line in enumerate(lines_of(path), start=1):
        content = _content(path, row, line)
        try:
            key, problem = _READ_KEY(content["key"]), text(content["problem"]["id"])
            yield key, problem, tuple(each(read_decision)(content["decisions"]))
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(f"{path} row {row}: not a tree: {f'{error}'[:_MAX_REASON]}") from None


def _content(path: Path, row: int, line: str | bytes) -> dict[str, Any]:
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
    return content


def _traced_tree(
    problem: Problem,
    key: TreeKey,
    start: str,
    nodes: Sequence[Node],
    decisions: Sequence[BranchDecision],
    rewards: tuple[Reward, ...],
    advantages: tuple[float, ...] | None = None,
    mask: tuple[bool, ...] | None = None,
    old_logprobs: Mapping[str, bytes] = MappingProxyType({}),
    **_: int,
) -> TracedTree:
    known = {node.id for node in nodes}
    for name in (start, *(decision.node for decision in decisions), *old_logprobs):
        if name not in known:
            raise ValueError(f"there is no node {name[:MAX_ECHO]!r}")
    tree = make_tree(problem, key, list(nodes), list(decisions), start)
    for node in nodes:
        turn = node if node.stop is not None else tree.by_id[node.parent or ""]
        if node.results and len(turn.calls) != len(node.results):
            raise ValueError(f"node {node.id!r}: {len(node.results)} results of {len(turn.calls)} calls")
    old = {name: unpacked(data, len(tree.by_id[name].token_ids)) for name, data in old_logprobs.items()}
    return TracedTree(tree, rewards, advantages, mask, old)


_READ_KEY = record(TreeKey, step=count, slot=count, attempt=count)
_READ_TREE = sparse(
    _traced_tree,
    ("advantages", "mask", "old_logprobs"),
    schema=whole,
    key=_READ_KEY,
    problem=read_problem,
    start=text,
    nodes=each(read_node),
    decisions=each(read_decision),
    rewards=each(read_reward),
    advantages=numbers,
    mask=each(truth),
    old_logprobs=mapping(read_packed),
)
