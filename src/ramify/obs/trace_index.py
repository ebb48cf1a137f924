"""The index of a trace: a line of summary for each tree, and where the tree lies in the file.

`trees/000005.index.jsonl` lies beside `trees/000005.jsonl`. A page reads it first and single trees later. It holds nothing
that the trace does not: without it, or if it does not fit the trace, the summaries are made from the trees.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from ramify.core.errors import DataError
from ramify.core.json_types import FieldError, count, each, mapping, number, optional, record, text
from ramify.core.messages import MalformedTurn, ToolResult, ToolStatus
from ramify.core.tree import Node, Source, Tree
from ramify.files.durable import dump_line, parse_line, replace_lines
from ramify.obs.trace import SCHEMA, TracedTree, lines_of, parse_tree, write_trees

_SUFFIX = ".index.jsonl"
_LONGEST = 1 << 20
"""Bytes of the longest line of an index: a problem has few golds."""
QUESTION_CHARS = 200
"""Characters of a question in a summary."""
_NO_FAILURE = {ToolStatus.OK, ToolStatus.EMPTY}


@dataclass(frozen=True, slots=True)
class TreeSummary:
    """A line of an index.

    Attributes:
        row: Line of the tree in the trace, from 1.
        offset, length: Bytes of the trace before the line, and of the line with its end.
        step, slot, attempt: Key of the tree.
        problem, answer: Id and golds of the problem.
        question: First `QUESTION_CHARS` characters of its last message from the user.
        kind: `info["kind"]` of the problem if it is a text; "" otherwise.
        mean, spread: Mean, and largest minus smallest, of the rewards that count; None if none counts.
        right: Trajectories that count and have a reward above 0.
        trajectories: Number of trajectories.
        stops: Trajectories by the reason of their end.
        flags: Sorted names: "right" and "wrong" if a trajectory that counts has a reward above 0, or not above 0; "mixed" if
            both are there; "malformed" if a turn or a call could not be read; "truncated" if a limit or a failure cut a
            trajectory; "tool_failed" if a call failed, timed out or was not run; "entropy_flipped" if entropy changed a
            decision to branch; "mask" if a trajectory carried no loss.
        written, prompt, results: Tokens of the policy, the prompt and tool results, each counted once; without what lies
            above the start of a tree that goes on from another one.
        shared: Tokens that computing each trajectory alone would add.
        calls, failed_calls: Results of calls, and those that are neither "ok" nor "empty".
        branches: Children that the branch budget granted.
        depth: Most tool results on a path.
    """

    row: int
    offset: int
    length: int
    step: int
    slot: int
    attempt: int
    problem: str
    question: str
    answer: tuple[str, ...]
    kind: str
    mean: float | None
    spread: float | None
    right: int
    trajectories: int
    stops: Mapping[str, int]
    flags: tuple[str, ...]
    written: int
    prompt: int
    results: int
    shared: int
    calls: int
    failed_calls: int
    branches: int
    depth: int


def index_path(trace: Path) -> Path:
    """Return the path of a trace's index."""
    return trace.with_name(f"{trace.stem}{_SUFFIX}")


def write_indexed(path: Path, graded: Sequence[TracedTree]) -> None:
    """Write a trace and its index; each file appears as a whole or not at all. Raises as `trace.write_trees`."""
    summaries, offset = [], 0
    for row, (traced, length) in enumerate(zip(graded, write_trees(path, graded), strict=True), start=1):
        summaries.append(summarize(traced, row, offset, length))
        offset += length
    _write(path, summaries)


def write_index(path: Path) -> None:
    """Write the index of a trace that is complete; none of one that is absent or cannot be read, which its readers refuse."""
    with suppress(DataError):
        _write(path, tuple(each_summary(path)))


def _write(path: Path, summaries: Iterable[TreeSummary]) -> None:
    replace_lines(index_path(path), (dump_line(asdict(summary)) for summary in summaries))


def trace_files(folder: Path) -> tuple[Path, ...]:
    """Return the traces in a folder in order, without their indexes."""
    return tuple(sorted(path for path in folder.glob("*.jsonl") if not path.name.endswith(_SUFFIX)))


def read_index(path: Path, note: Callable[[str], None] | None = None) -> tuple[TreeSummary, ...]:
    """Return the summaries of a trace's trees, from the index as far as there is one, and otherwise from the trees.

    Args:
        path: The trace.
        note: Gets a line if the trace ends within a line: that tree is left out.

    Raises:
        DataError: As for `trace.each_tree`, but not for a last line that is cut off.
    """
    return tuple(each_summary(path, note))


def each_summary(path: Path, note: Callable[[str], None] | None = None) -> Iterator[TreeSummary]:
    """Yield the summaries of `read_index` one by one, for files larger than the memory; raises the same errors."""
    row, offset = 0, 0
    for summary in _indexed(path):
        row, offset = summary.row, summary.offset + summary.length
        yield summary
    for line in lines_of(path, offset):
        row += 1
        if not line.endswith(b"\n"):
            if note is not None:
                note(f"{path} row {row}: the line is cut off or still being written. Its tree is left out.")
            return
        yield summarize(parse_tree(path, row, line), row, offset, len(line))
        offset += len(line)


def read_tree(path: Path, summary: TreeSummary) -> TracedTree:
    """Read the tree of a summary without the others.

    Raises:
        DataError: As for `trace.parse_tree`, or another tree is there.
    """
    traced = parse_tree(path, summary.row, _line(path, summary))
    key = traced.tree.key
    if (key.step, key.slot, key.attempt, traced.tree.problem.id) != (
        summary.step,
        summary.slot,
        summary.attempt,
        summary.problem,
    ):
        raise DataError(
            f"{path} row {summary.row}: another tree than {index_path(path).name} lists. Remove that file; it is made again."
        )
    return traced


def summarize(traced: TracedTree, row: int, offset: int, length: int) -> TreeSummary:
    """Return the summary of a tree, whose line has `length` bytes after `offset` others."""
    tree, problem, key = traced.tree, traced.tree.problem, traced.tree.key
    kind = problem.info.get("kind")
    questions = [message.text for message in problem.messages if message.role == "user"]
    values = [reward.value for reward in traced.rewards if reward.counts]
    own = _own_nodes(tree)
    calls = [result for node in own for result in node.results]
    tokens = dict.fromkeys(Source, 0)
    for node in own:
        tokens[node.source] += len(node.token_ids)
    shared, depth = _shape(tree)
    return TreeSummary(
        row=row,
        offset=offset,
        length=length,
        step=key.step,
        slot=key.slot,
        attempt=key.attempt,
        problem=problem.id,
        question=questions[-1][:QUESTION_CHARS] if questions else "",
        answer=problem.answer,
        kind=kind if isinstance(kind, str) else "",
        mean=sum(values) / len(values) if values else None,
        spread=max(values) - min(values) if values else None,
        right=sum(value > 0 for value in values),
        trajectories=len(traced.rewards),
        stops=dict(sorted(Counter(leaf.stop.value for leaf in _leaves(tree) if leaf.stop).items())),
        flags=tuple(sorted(_flags(traced, values, calls))),
        written=tokens[Source.POLICY],
        prompt=tokens[Source.PROMPT],
        results=tokens[Source.TOOL],
        shared=shared,
        calls=len(calls),
        failed_calls=sum(result.status not in _NO_FAILURE for result in calls),
        branches=sum(decision.taken for decision in tree.decisions),
        depth=depth,
    )


def _leaves(tree: Tree) -> Iterator[Node]:
    return (node for node in tree.nodes if node.stop is not None)


def _own_nodes(tree: Tree) -> tuple[Node, ...]:
    """Return the nodes without those above the start, which belong to an earlier tree; the prompt is always there."""
    above = {node.id for node in tree.path_to(tree.by_id[tree.start])} - {""}
    return tuple(node for node in tree.nodes if node.id not in above)


def _flags(traced: TracedTree, values: Sequence[float], results: Sequence[ToolResult]) -> Iterator[str]:
    tree = traced.tree
    right, wrong = any(value > 0 for value in values), any(value <= 0 for value in values)
    statuses = {result.status for result in results}
    unread = any(isinstance(node.turn, MalformedTurn) for node in tree.nodes)
    yield from (
        name
        for name, holds in (
            ("right", right),
            ("wrong", wrong),
            ("mixed", right and wrong),
            ("malformed", unread or ToolStatus.MALFORMED in statuses),
            ("truncated", any(leaf.stop is not None and leaf.stop.truncated for leaf in _leaves(tree))),
            ("tool_failed", bool(statuses - _NO_FAILURE)),
            ("entropy_flipped", any(decision.entropy_acted for decision in tree.decisions)),
            ("mask", traced.mask is not None and not all(traced.mask)),
        )
        if holds
    )


def _shape(tree: Tree) -> tuple[int, int]:
    """Return the tokens that computing each trajectory alone would add, and the most tool results on a path."""
    depths: dict[str, int] = {}
    for node in tree.nodes:
        above = depths[node.parent] if node.parent is not None else 0
        depths[node.id] = above + (node.source is Source.TOOL)
    leaves, shared = dict.fromkeys(depths, 0), 0
    for node in reversed(tree.nodes):
        leaves[node.id] += node.stop is not None
        if node.parent is not None:
            leaves[node.parent] += leaves[node.id]
        shared += len(node.token_ids) * (leaves[node.id] - 1)
    return shared, max(depths.values())


def _indexed(path: Path) -> Iterator[TreeSummary]:
    """Yield the lines of a trace's index: none if its last one fits no line of the trace, else up to the first damaged one."""
    index, end = index_path(path), 0
    with suppress(DataError):
        last = _parse(index, _last_line(index))
        key = {"step": last.step, "slot": last.slot, "attempt": last.attempt}
        # As `trace.tree_record` begins a line.
        begin = dump_line({"schema": SCHEMA, "key": key, "problem": {"id": last.problem}})
        if not _line(path, last).startswith(begin.encode()[:-2]):
            return
        for row, line in enumerate(lines_of(index), start=1):
            summary = _parse(index, line)
            if (summary.row, summary.offset) != (row, end):
                return
            end += summary.length
            yield summary


def _last_line(path: Path) -> bytes:
    """Return the last line of an index; "" without one."""
    if not path.is_file():
        return b""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _LONGEST))
        return file.read().rpartition(b"\n")[0].rpartition(b"\n")[2]


def _line(path: Path, summary: TreeSummary) -> bytes:
    line = next(lines_of(path, summary.offset), b"")
    if len(line) != summary.length or not line.endswith(b"\n"):
        raise DataError(
            f"{path} row {summary.row}: {len(line)} bytes, its index says {summary.length}. Remove {index_path(path)}."
        )
    return line


def _parse(path: Path, line: bytes) -> TreeSummary:
    try:
        return _READ_SUMMARY(parse_line(path, 0, line))
    except FieldError as error:
        raise DataError(f"{path}: {error}") from None


_texts = each(text)
_READ_SUMMARY = record(
    TreeSummary,
    **dict.fromkeys(("row", "offset", "length", "step", "slot", "attempt"), count),
    problem=text,
    question=text,
    answer=_texts,
    kind=text,
    mean=optional(number),
    spread=optional(number),
    right=count,
    trajectories=count,
    stops=mapping(count),
    flags=_texts,
    **dict.fromkeys(
        ("written", "prompt", "results", "shared", "calls", "failed_calls", "branches", "depth"), count
    ),
)
