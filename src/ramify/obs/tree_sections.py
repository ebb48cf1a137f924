"""Parts of a page that are made from a step's trees: a drawn tree, its trajectories as texts that unfold, its problems,
and the trajectories that failed.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from markupsafe import Markup

from ramify.core.errors import DataError
from ramify.core.messages import MalformedTurn, ToolCall, ToolStatus
from ramify.core.tree import BranchDecision, Cut, Node, Source, StopReason, Trajectory, Tree
from ramify.obs.page import FoldedText, Section, Table, in_a_line
from ramify.obs.trace import TracedTree
from ramify.obs.trace_index import TreeSummary, read_index, read_tree

WIDTH = 1120.0
"""Of a drawing, so that it fits a page of 1,280 pixels; one of many columns is wider and scrolls."""
_BOX_HEIGHT, _RESULT_HEIGHT, _ROW = 21.0, 18.0, 58.0
_LEAST_BOX, _MOST_BOX, _PROMPT_BOX = 92.0, 250.0, 110.0
_GAP, _MARGIN, _END_WIDTH = 26.0, 14.0, 215.0
_CHAR_WIDTH = 6.7
_NAME_FROM = 20
"""Characters of a box from which it has the name of the called tool; the colour of the result says that a tool was called."""
TOOLTIP_CHARS = 500
TEXT_CHARS = 4000
_TAG = re.compile(r"</?\w+>")
LEGEND = (
    ("prompt", "prompt"),
    ("policy", "turn of the policy"),
    ("tool", "result of its tool"),
    ("s2", "branched here"),
    ("", "hollow mark: no budget for a branch"),
    ("", "H: mean entropy of the first tokens, nats"),
    ("", "right: reward, A: advantage, why it ended"),
)


@dataclass(frozen=True, slots=True)
class _Box:
    """The place of a node in a drawing."""

    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> float:
        """The middle of its sides."""
        return self.y + self.height / 2


def draw_tree(traced: TracedTree) -> Markup:
    """Draw a tree: turns from left to right by depth, one row per leaf, a branch below the path that it left.

    Boxes are coloured by their writer; the result of a turn's calls stands under it. A dashed line shows where a context
    continues from inside an ancestor. A policy box shows its entropy; at the right of a leaf's row stand its reward, advantage
    and stop reason. A result has a mark if the branching rule decided there (filled: branched; hollow: no budget was left;
    dot: no branch wanted). Hovering over a box shows its text; a leaf's end leads to the text of its trajectory.
    """
    tree = traced.tree
    boxes, width = _layout(tree)
    decisions = {decision.node: decision for decision in tree.decisions}
    body: list[Markup] = []
    for node in tree.nodes:
        box = boxes[node.id]
        if node.parent is not None and boxes[node.parent].x < box.x:
            parent = boxes[node.parent]
            body.append(_edge(parent.x + parent.width, parent.middle, box.x, box.middle))
        if isinstance(node.context, Cut):
            # From the point in the ancestor's box at which its tokens are cut.
            above = tree.by_id[node.context.node]
            share = node.context.tokens / len(above.token_ids)
            from_box = boxes[above.id]
            body.append(
                _context(
                    node, from_box.x + share * from_box.width, from_box.y + from_box.height, box.x, box.middle
                )
            )
        body.append(_box(node, box))
        if node.id in decisions:
            body.append(_mark(decisions[node.id], box.x + box.width, box.middle))
    for index, trajectory in enumerate(tree.trajectories):
        box = boxes[trajectory.leaf.id]
        body.append(_end(traced, index, trajectory, box.x + box.width, width - _END_WIDTH, box.middle))
    return Markup(
        '<div class="tree"><svg viewBox="0 0 {0:.0f} {1:.0f}" style="min-width: {2:.0f}px" role="img" aria-label="{3}">'
        "<title>{3}</title>{4}</svg></div>"
    ).format(
        width,
        2 * _MARGIN + len(tree.trajectories) * _ROW,
        max(900.0, width - 200.0),
        f"Tree of problem {tree.problem.id}: {len(tree.roots)} roots, {len(tree.trajectories)} leaves",
        Markup("").join(body),
    )


def trajectory_texts(traced: TracedTree) -> tuple[FoldedText, ...]:
    """Return the trajectories of a drawn tree as texts that unfold."""
    return tuple(
        FoldedText(
            f"Trajectory {index + 1}: reward {_verdict(traced, index, trajectory)}",
            conversation(trajectory.nodes, f"trajectory-{trajectory.leaf.id}"),
        )
        for index, trajectory in enumerate(traced.tree.trajectories)
    )


def conversation(nodes: tuple[Node, ...], anchor: str = "") -> Markup:
    """Return the texts of nodes, coloured by their writers; `anchor` is the name that a link may have."""
    return Markup("<pre{}>{}</pre>").format(
        Markup(' id="{}"').format(anchor) if anchor else "",
        Markup("").join(
            Markup('<span class="{}">{}</span>').format(node.source, _cut(node.text, TEXT_CHARS))
            for node in nodes
        ),
    )


def _layout(tree: Tree) -> tuple[Mapping[str, _Box], float]:
    """Return the boxes of all nodes, and the width of the drawing."""
    rows = _rows(tree)
    columns: dict[str, int] = {}
    below: set[str] = set()
    for node in tree.nodes:
        if node.parent is None:
            columns[node.id] = 0
            continue
        parent = tree.by_id[node.parent]
        is_result = (
            node.source is Source.TOOL
            and parent.source is Source.POLICY
            and len(tree.children[parent.id]) == 1
        )
        below |= {node.id} if is_result else set()
        columns[node.id] = columns[parent.id] + (not is_result)
    count = max(1, max(columns.values()))
    room = WIDTH - 2 * _MARGIN - _PROMPT_BOX - _END_WIDTH - (count + 1) * _GAP
    box = min(_MOST_BOX, max(_LEAST_BOX, room / count))
    boxes = {}
    for node in tree.nodes:
        column, y = columns[node.id], _MARGIN + 14 + rows[node.id] * _ROW
        x = _MARGIN if column == 0 else _MARGIN + _PROMPT_BOX + _GAP + (column - 1) * (box + _GAP)
        width, height = _PROMPT_BOX if column == 0 else box, _BOX_HEIGHT
        if node.id in below:
            y, height = y + _BOX_HEIGHT, _RESULT_HEIGHT
        boxes[node.id] = _Box(x, y, width, height)
    width = max(WIDTH, max(each.x + each.width for each in boxes.values()) + _GAP + _END_WIDTH)
    for trajectory in tree.trajectories:
        # Nothing stands between a leaf and its end.
        leaf = boxes[trajectory.leaf.id]
        longest = width - _END_WIDTH - _GAP - leaf.x
        boxes[trajectory.leaf.id] = replace(leaf, width=max(leaf.width, min(_MOST_BOX, longest)))
    return boxes, width


def _rows(tree: Tree) -> Mapping[str, float]:
    """Return the row of each node: a leaf's own, else that of its first child; the prompt is at the middle of its roots."""
    rows: dict[str, float] = {
        trajectory.leaf.id: float(row) for row, trajectory in enumerate(tree.trajectories)
    }
    for node in reversed(tree.nodes):
        children = tree.children[node.id]
        if children:
            first, last = rows[children[0].id], rows[children[-1].id]
            rows[node.id] = first if node.parent is not None else (first + last) / 2
    return rows


def _edge(x1: float, y1: float, x2: float, y2: float) -> Markup:
    middle = (x1 + x2) / 2
    return Markup(
        '<path class="edge" d="M{0:.1f} {1:.1f}C{4:.1f} {1:.1f} {4:.1f} {3:.1f} {2:.1f} {3:.1f}"/>'
    ).format(x1, y1, x2, y2, middle)


def _context(node: Node, x1: float, y1: float, x2: float, y2: float) -> Markup:
    return Markup(
        '<path class="context" d="M{0:.1f} {1:.1f}Q{0:.1f} {3:.1f} {2:.1f} {3:.1f}"><title>{4}</title></path>'
    ).format(x1, y1, x2, y2, _context_note(node))


def _context_note(node: Node) -> str:
    """Describe the beginning of a node's context, if that is not its parent."""
    if isinstance(node.context, Cut):
        return f"continues after {node.context.tokens} tokens of {node.context.node or 'the prompt'}"
    return "a fresh context" if node.context == "fresh" else ""


def _box(node: Node, box: _Box) -> Markup:
    name = f"node {node.id}" if node.id else "prompt"
    title = f"{name}: {node.source}, {len(node.token_ids)} tokens"
    entropy = Markup("")
    if node.entropy is not None:
        entropy = Markup('<text class="entropy" x="{:.1f}" y="{:.1f}">H {:.2f}</text>').format(
            box.x + 2, box.y - 3, node.entropy.lower
        )
    return Markup(
        '<g class="node {}"><title>{}</title><rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" rx="3"/>'
        '<text x="{:.1f}" y="{:.1f}">{}</text></g>{}'
    ).format(
        node.source,
        "\n".join(filter(None, (title, _context_note(node), _cut(node.text, TOOLTIP_CHARS)))),
        box.x,
        box.y,
        box.width,
        box.height,
        box.x + 6,
        box.middle + 4,
        _snippet(node, int((box.width - 12) / _CHAR_WIDTH)),
        entropy,
    )


def _mark(decision: BranchDecision, x: float, y: float) -> Markup:
    kind = "taken" if decision.taken else "wanted" if decision.planned else "straight"
    size = 3 if kind == "straight" else 7
    return Markup('<path class="mark {}" d="{}"><title>{}</title></path>').format(
        kind,
        f"M{x} {y - size}L{x + size} {y}L{x} {y + size}L{x - size} {y}Z",
        f"entropy delta {decision.entropy_delta:+.2f} nats, P {decision.probability:.2f}, "
        f"wanted {decision.planned}, took {decision.taken}{'' if decision.had_budget else ', no budget left'}",
    )


def _end(traced: TracedTree, index: int, trajectory: Trajectory, start: float, x: float, y: float) -> Markup:
    reward = traced.rewards[index]
    return Markup(
        '<path class="lead" d="M{:.1f} {:.1f}H{:.1f}"/><a href="#trajectory-{}"><text class="reward {}" x="{:.1f}" y="{:.1f}">'
        "<title>{}</title>{}</text></a>"
    ).format(
        start,
        y,
        x,
        trajectory.leaf.id,
        "good" if reward.value > 0 else "bad",
        x + 6,
        y + 4,
        ", ".join(f"{name} {value:.3g}" for name, value in reward.parts.items()) or "reward",
        _verdict(traced, index, trajectory),
    )


def _verdict(traced: TracedTree, index: int, trajectory: Trajectory) -> str:
    advantage = "" if traced.advantages is None else f"  A {traced.advantages[index]:+.2f}"
    uncounted = "" if traced.rewards[index].counts else ", not counted"
    return f"{traced.rewards[index].value:+.2f}{advantage}  {trajectory.stop}{uncounted}"


def _snippet(node: Node, chars: int) -> str:
    """Return the text in a box of so many characters: a turn's calls, a leaf's last words, or else the first words."""
    if node.calls:
        return _cut_line("; ".join(_call(call, chars >= _NAME_FROM) for call in node.calls), chars)
    words = " ".join(_TAG.sub(" ", node.text).split())
    if node.source is Source.POLICY and len(words) > chars:
        return "\u2026" + words[1 - chars :]
    return _cut_line(words, chars)


def _call(call: ToolCall, with_name: bool) -> str:
    values = " ".join(" ".join(map(str, call.arguments.values())).split())
    return f"{call.name}: {values}" if with_name or not values else values


def _cut_line(text: str, chars: int) -> str:
    return text if len(text) <= chars else text[: chars - 1] + "\u2026"


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]} \u2026 ({len(text) - limit} characters more)"


_MOST_PROBLEMS = 20
_MOST_FAILURES = 5
_QUESTION_CHARS = 120
_FAILED = (ToolStatus.ERROR, ToolStatus.TIMEOUT)
_FAILED_FLAGS = ("malformed", "truncated", "tool_failed")


@dataclass(frozen=True, slots=True)
class StepTrees:
    """A trace with the summaries of its trees; only the trees that a page shows are read."""

    path: Path
    summaries: tuple[TreeSummary, ...]

    @classmethod
    def read(cls, path: Path, note: Callable[[str], None]) -> "StepTrees":
        """Read the summaries; `note` gets a line if the trace is cut off or cannot be read."""
        try:
            return cls(path, read_index(path, note))
        except DataError as error:
            note(str(error))
            return cls(path, ())

    @property
    def name(self) -> str:
        """The step, for a heading."""
        return self.path.stem.lstrip("0") or "0"

    def trees(self) -> Iterator[TracedTree]:
        """Yield all trees.

        Raises:
            DataError: One cannot be read.
        """
        return (read_tree(self.path, summary) for summary in self.summaries)

    def tree_section(self, heading: str) -> Section:
        """Return the most telling tree: one with right and wrong leaves, of these one with most branches, and not a deep one.

        Raises:
            DataError: It cannot be read.
        """
        traced = read_tree(self.path, max(self.summaries, key=_interest))
        problem = traced.tree.problem
        accepted = f" Accepted: {' | '.join(problem.answer)}" if problem.answer else ""
        return Section(
            heading,
            f"{in_a_line(problem.messages[-1].text, _QUESTION_CHARS)}{accepted}",
            legend=LEGEND,
            drawing=draw_tree(traced),
            texts=trajectory_texts(traced),
        )

    def problems_table(self, title: str) -> Table:
        """Return a table of the problems with the smallest rewards."""
        ranked = [(each.mean, each) for each in self.summaries if each.mean is not None]
        ranked.sort(key=lambda pair: pair[0])
        rows = [
            (
                each.problem,
                in_a_line(each.question, _QUESTION_CHARS),
                f"{each.right} of {each.trajectories}",
                mean,
            )
            for mean, each in ranked[:_MOST_PROBLEMS]
        ]
        return Table(title, ("problem", "question", "reward above 0", "mean reward"), rows)

    def failure_texts(self) -> tuple[FoldedText, ...]:
        """Return trajectories that were malformed, cut or failed, or in which a call did, with what the policy read.

        Raises:
            DataError: A tree cannot be read.
        """
        failed = [each for each in self.summaries if not {*each.flags}.isdisjoint(_FAILED_FLAGS)]
        texts = (_failure_text(read_tree(self.path, each)) for each in failed[:_MOST_FAILURES])
        return tuple(text for text in texts if text is not None)


def _failure_text(traced: TracedTree) -> FoldedText | None:
    for trajectory in traced.tree.trajectories:
        if reason := _failure(trajectory):
            return FoldedText(f"{traced.tree.problem.id}: {reason}", conversation(trajectory.nodes))
    return None


def _failure(trajectory: Trajectory) -> str:
    turn = trajectory.leaf.turn
    if isinstance(turn, MalformedTurn):
        return f"malformed turn: {turn.reason}"
    if trajectory.stop not in (StopReason.ANSWERED, StopReason.ENDED):
        return f"ended by {trajectory.stop}"
    failed = [(call, result) for call, result in trajectory.exchanges if result.status in _FAILED]
    return f"call of {failed[0][0].name}: {failed[0][1].status}" if failed else ""


def _interest(summary: TreeSummary) -> tuple[bool, int, int]:
    return "mixed" in summary.flags, summary.branches, -summary.depth
