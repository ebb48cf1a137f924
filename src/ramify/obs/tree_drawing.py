"""One tree as inline SVG, with the full text of its trajectories below."""

import re
from collections.abc import Mapping

from markupsafe import Markup

from ramify.core.messages import ToolCall
from ramify.core.records import Reward
from ramify.core.tree import BranchDecision, Node, Source, Trajectory, Tree
from ramify.obs.trace import TracedTree

BOX_WIDTH, BOX_HEIGHT = 142, 22
COLUMN, ROW = 172, 42
MARGIN = 14
END_WIDTH = 200
SNIPPET_CHARS = 20
TOOLTIP_CHARS = 500
TEXT_CHARS = 4000
_TAG = re.compile(r"</?\w+>")


def draw_tree(traced: TracedTree) -> Markup:
    """Draw a tree: nodes from left to right by depth, one row per leaf, a branch below the path that it left.

    Boxes are coloured by who wrote them. A policy box shows its entropy, a leaf its reward, advantage and stop reason. A
    tool box has a mark if the branching rule decided there (filled: branched; hollow: wanted to, but no budget was left;
    dot: did not want to). Hovering over a box shows its text; each trajectory below unfolds to its full text.
    """
    tree = traced.tree
    rows = _rows(tree)
    columns = {node.id: len(node.path) for node in tree.nodes}
    decisions = {decision.node: decision for decision in tree.decisions}
    body: list[Markup] = []
    for node in tree.nodes:
        x, y = MARGIN + columns[node.id] * COLUMN, MARGIN + 12 + rows[node.id] * ROW
        if node.parent is not None:
            parent_x = MARGIN + columns[node.parent] * COLUMN + BOX_WIDTH
            body.append(_edge(parent_x, MARGIN + 12 + rows[node.parent] * ROW, x, y))
        body.append(_box(node, x, y))
        if node.id in decisions:
            body.append(_mark(decisions[node.id], x + BOX_WIDTH, y))
    for index, trajectory in enumerate(tree.trajectories):
        leaf = trajectory.leaf
        x, y = MARGIN + columns[leaf.id] * COLUMN + BOX_WIDTH, MARGIN + 12 + rows[leaf.id] * ROW
        body.append(_end(traced, index, trajectory, x, y))
    return Markup(
        '<div class="tree"><svg width="{0}" height="{1}" viewBox="0 0 {0} {1}" role="img" aria-label="{2}">'
        "<title>{2}</title>{3}</svg></div>{4}"
    ).format(
        MARGIN + max(columns.values()) * COLUMN + BOX_WIDTH + END_WIDTH,
        2 * MARGIN + len(tree.trajectories) * ROW,
        f"Tree of problem {tree.problem.id}: {len(tree.children[''])} roots, {len(tree.trajectories)} leaves",
        Markup("").join(body),
        _texts(traced),
    )


def _rows(tree: Tree) -> Mapping[str, float]:
    """The row of each node: a leaf's own, else that of its first child; the prompt is at the middle of its roots."""
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
    return Markup('<path class="edge" d="M{} {}C{} {} {} {} {} {}"/>').format(
        x1, y1, middle, y1, middle, y2, x2, y2
    )


def _box(node: Node, x: float, y: float) -> Markup:
    entropy = Markup("")
    if node.entropy is not None:
        entropy = Markup('<text class="entropy" x="{}" y="{}">H {:.2f}</text>').format(
            x + 2, y - BOX_HEIGHT / 2 - 3, node.entropy.lower
        )
    return Markup(
        '<g class="node {}"><title>{}</title><rect x="{}" y="{}" width="{}" height="{}" rx="4"/>'
        '<text x="{}" y="{}">{}</text></g>{}'
    ).format(
        node.source,
        f"{_name(node)}\n{_cut(node.text, TOOLTIP_CHARS)}",
        x,
        y - BOX_HEIGHT / 2,
        BOX_WIDTH,
        BOX_HEIGHT,
        x + 6,
        y + 4,
        _snippet(node),
        entropy,
    )


def _mark(decision: BranchDecision, x: float, y: float) -> Markup:
    kind = "taken" if decision.taken else "wanted" if decision.planned else "straight"
    size = 3 if kind == "straight" else 7
    return Markup('<path class="mark {}" d="{}"><title>{}</title></path>').format(
        kind,
        f"M{x} {y - size}L{x + size} {y}L{x} {y + size}L{x - size} {y}Z",
        f"entropy rise {decision.rise:+.2f} nats, P {decision.probability:.2f}, "
        f"wanted {decision.planned}, took {decision.taken}{'' if decision.had_budget else ', no budget left'}",
    )


def _end(traced: TracedTree, index: int, trajectory: Trajectory, x: float, y: float) -> Markup:
    reward = traced.rewards[index]
    return Markup('<text class="reward {}" x="{}" y="{}"><title>{}</title>{}</text>').format(
        "good" if reward.value > 0 else "bad",
        x + 8,
        y + 4,
        _parts(reward),
        _verdict(traced, index, trajectory),
    )


def _verdict(traced: TracedTree, index: int, trajectory: Trajectory) -> str:
    advantage = "" if traced.advantages is None else f"  A {traced.advantages[index]:+.2f}"
    return f"{traced.rewards[index].value:+.2f}{advantage}  {trajectory.stop}"


def _parts(reward: Reward) -> str:
    return ", ".join(f"{name} {value:.3g}" for name, value in reward.parts.items()) or "reward"


def _texts(traced: TracedTree) -> Markup:
    return Markup("").join(
        Markup(
            '<details class="trajectory"><summary>{} <b>reward {}</b></summary><pre>{}</pre></details>'
        ).format(
            f"Trajectory {trajectory.leaf.id}",
            _verdict(traced, index, trajectory),
            Markup("").join(
                Markup('<span class="{}">{}</span>').format(node.source, _cut(node.text, TEXT_CHARS))
                for node in trajectory.nodes
            ),
        )
        for index, trajectory in enumerate(traced.tree.trajectories)
    )


def _name(node: Node) -> str:
    where = f"node {node.id}" if node.id else "prompt"
    return f"{where}: {node.source}, {len(node.token_ids)} tokens"


def _snippet(node: Node) -> str:
    """The text in a box: a turn's calls, a leaf's last words, or else the first words."""
    if node.calls:
        return _cut_line("; ".join(map(_call, node.calls)))
    words = " ".join(_TAG.sub(" ", node.text).split())
    if node.source is Source.POLICY and len(words) > SNIPPET_CHARS:
        return "\u2026" + words[-SNIPPET_CHARS + 1 :]
    return _cut_line(words)


def _call(call: ToolCall) -> str:
    values = " ".join(map(str, call.arguments.values()))
    return f"{call.name}: {' '.join(values.split())}"


def _cut_line(text: str) -> str:
    return text if len(text) <= SNIPPET_CHARS else text[: SNIPPET_CHARS - 1] + "\u2026"


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]} \u2026 ({len(text) - limit} characters more)"
