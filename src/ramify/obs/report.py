"""The report of a whole run: report.json for programs and a self-contained report.html for people, with one tree drawn."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from markupsafe import Markup

from ramify.core.messages import ToolCall
from ramify.core.tree import BranchDecision, Cut, Node, Source, Trajectory, Tree
from ramify.files.durable import replace_file
from ramify.obs.metrics import Curve
from ramify.obs.page import Bar, BarGroup, Line, bar_chart, flat, line_chart, render_template
from ramify.obs.trace import TracedTree

BOX_WIDTH, BOX_HEIGHT = 142, 22
COLUMN, ROW = 172, 42
MARGIN = 14
END_WIDTH = 200
SNIPPET_CHARS = 20
TOOLTIP_CHARS = 500
TEXT_CHARS = 4000
_TAG = re.compile(r"</?\w+>")


class Estimate(TypedDict):
    """A mean over `n` problems with its 95 % confidence interval."""

    value: float
    ci95: tuple[float, float]
    n: int


class ByStage(TypedDict):
    """One measure before training, after supervised training and after reinforcement learning."""

    base: Estimate
    sft: Estimate
    rl: Estimate


class AfterTraining(TypedDict):
    """A number after each kind of training."""

    sft: float
    rl: float


class PhaseSeconds(TypedDict):
    """Wall-clock seconds of each phase."""

    data: float
    sft: float
    rl: float
    eval: float


class NumSteps(TypedDict):
    """Optimizer steps of each kind of training."""

    sft: int
    rl: int


class BranchSummary(TypedDict):
    """Totals of the branching rule in RL: see `branch_metrics.BranchTotals`.

    `rate` and `p_std` (standard deviation of the probability) are None in a run without decisions.
    """

    planned: int
    taken: int
    by_entropy: int
    rate: float | None
    p_std: float | None


class Report(TypedDict):
    """The content of report.json. Shares are 0 to 1; `base` names the initial model on the page."""

    seed: int
    base: str
    seconds: PhaseSeconds
    pass_at_1: ByStage
    by_kind: Mapping[str, ByStage]
    greedy: AfterTraining | None
    train_entities: AfterTraining | None
    tool_calls_per_answer: AfterTraining
    branches: BranchSummary
    steps: NumSteps
    peak_memory_bytes: int
    config: Mapping[str, object]
    versions: Mapping[str, str]
    sandbox_level: int
    warnings: Sequence[str]


@dataclass(frozen=True, slots=True)
class Curves:
    """The curves of the page, by step; entropies are nats per token, see `obs.tree_metrics`."""

    sft_loss: Curve
    rl_reward: Curve
    rl_pass_rate: Curve
    entropy_root: Curve
    entropy_after_result: Curve


def write_report(report: Report, curves: Curves, tree: TracedTree | None, folder: Path) -> None:
    """Write report.json and report.html into `folder`.

    Raises:
        ValueError: A number that is not finite.
    """
    text = json.dumps(report, indent=2, allow_nan=False)
    replace_file(folder / "report.json", (text + "\n").encode("ascii"))
    replace_file(folder / "report.html", _page(report, curves, tree).encode("utf-8", "replace"))


def _page(report: Report, curves: Curves, tree: TracedTree | None) -> str:
    return render_template(
        "report.html.jinja",
        report=report,
        charts=_charts(report, curves),
        drawing=None if tree is None else draw_tree(tree),
        traced=tree,
        settings=flat(report["config"]),
        stages=[(report["base"], "base"), ("After SFT", "sft"), ("After RL", "rl")],
        lift=_lift(report["pass_at_1"]),
    )


def _charts(report: Report, curves: Curves) -> Mapping[str, Markup]:
    return {
        "by_kind": bar_chart(
            "Success by kind of question",
            [
                BarGroup(kind, _bars(report["base"].lower(), stages))
                for kind, stages in report["by_kind"].items()
            ],
            "pass@1, percent",
        ),
        "sft_loss": line_chart(
            "SFT: loss", [Line("loss", curves.sft_loss, 1)], "optimiser step", "nats per token"
        ),
        "rl_reward": line_chart(
            "RL: mean reward", [Line("reward", curves.rl_reward, 2)], "optimiser step", "reward"
        ),
        "rl_pass_rate": line_chart(
            "RL: success in training",
            [Line("success", curves.rl_pass_rate, 2)],
            "optimiser step",
            "share",
            (0.0, 1.0),
        ),
        "entropy": line_chart(
            "RL: entropy before and after tool results",
            [
                Line("first turn", curves.entropy_root, 0),
                Line("after a result", curves.entropy_after_result, 3),
            ],
            "optimiser step",
            "nats per token",
        ),
    }


def _bars(base: str, stages: ByStage) -> tuple[Bar, ...]:
    named = ((base, stages["base"]), ("SFT", stages["sft"]), ("RL", stages["rl"]))
    return tuple(
        Bar(name, estimate["value"], *estimate["ci95"], colour)
        for colour, (name, estimate) in enumerate(named)
    )


def _lift(stages: ByStage) -> str:
    """Return one sentence about RL against SFT."""
    points = 100 * (stages["rl"]["value"] - stages["sft"]["value"])
    sft, rl = stages["sft"]["ci95"], stages["rl"]["ci95"]
    apart = sft[1] < rl[0] or rl[1] < sft[0]
    return (
        f"Reinforcement learning changes pass@1 by {points:+.1f} points over supervised training; "
        f"the 95 % intervals {'do not overlap' if apart else 'overlap, so this may be chance'}."
    )


def draw_tree(traced: TracedTree) -> Markup:
    """Draw a tree: nodes from left to right by depth, one row per leaf, a branch below the path that it left.

    Boxes are coloured by their writer. A dashed line shows where a context continues from inside an ancestor. A policy box
    shows its entropy, a leaf its reward, advantage and stop reason. A tool box has a mark if the branching rule decided
    there (filled: branched; hollow: no budget was left; dot: no branch wanted). Hovering over a box shows its text; each
    trajectory below unfolds to its full text.
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
        if isinstance(node.context, Cut):
            # From the point in the ancestor's box at which its tokens are cut.
            above = tree.by_id[node.context.node]
            share = node.context.tokens / len(above.token_ids)
            from_x = MARGIN + columns[above.id] * COLUMN + share * BOX_WIDTH
            body.append(_context(node, from_x, MARGIN + 12 + rows[above.id] * ROW + BOX_HEIGHT / 2, x, y))
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
        f"Tree of problem {tree.problem.id}: {len(tree.roots)} roots, {len(tree.trajectories)} leaves",
        Markup("").join(body),
        _texts(traced),
    )


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
    return Markup('<path class="edge" d="M{} {}C{} {} {} {} {} {}"/>').format(
        x1, y1, middle, y1, middle, y2, x2, y2
    )


def _context(node: Node, x1: float, y1: float, x2: float, y2: float) -> Markup:
    return Markup('<path class="context" d="M{} {}Q{} {} {} {}"><title>{}</title></path>').format(
        x1, y1, x1, y2 + BOX_HEIGHT, x2, y2 + BOX_HEIGHT / 2, _context_note(node)
    )


def _context_note(node: Node) -> str:
    """Describe the beginning of a node's context, if that is not its parent."""
    if isinstance(node.context, Cut):
        return f"continues after {node.context.tokens} tokens of {node.context.node or 'the prompt'}"
    return "a fresh context" if node.context == "fresh" else ""


def _box(node: Node, x: float, y: float) -> Markup:
    name = f"node {node.id}" if node.id else "prompt"
    title = f"{name}: {node.source}, {len(node.token_ids)} tokens"
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
        "\n".join(filter(None, (title, _context_note(node), _cut(node.text, TOOLTIP_CHARS)))),
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
        f"entropy delta {decision.entropy_delta:+.2f} nats, P {decision.probability:.2f}, "
        f"wanted {decision.planned}, took {decision.taken}{'' if decision.had_budget else ', no budget left'}",
    )


def _end(traced: TracedTree, index: int, trajectory: Trajectory, x: float, y: float) -> Markup:
    reward = traced.rewards[index]
    return Markup('<text class="reward {}" x="{}" y="{}"><title>{}</title>{}</text>').format(
        "good" if reward.value > 0 else "bad",
        x + 8,
        y + 4,
        ", ".join(f"{name} {value:.3g}" for name, value in reward.parts.items()) or "reward",
        _verdict(traced, index, trajectory),
    )


def _verdict(traced: TracedTree, index: int, trajectory: Trajectory) -> str:
    advantage = "" if traced.advantages is None else f"  A {traced.advantages[index]:+.2f}"
    uncounted = "" if traced.rewards[index].counts else ", not counted"
    return f"{traced.rewards[index].value:+.2f}{advantage}  {trajectory.stop}{uncounted}"


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


def _snippet(node: Node) -> str:
    """Return the text in a box: a turn's calls, a leaf's last words, or else the first words."""
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
