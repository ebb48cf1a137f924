"""The report of a whole run: report.json for programs and a self-contained report.html for people."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from markupsafe import Markup

from ramify.obs.charts import Bar, BarGroup, Line, bar_chart, line_chart
from ramify.obs.files import replace_file
from ramify.obs.metrics import Curve
from ramify.obs.page import flat, render_template
from ramify.obs.trace import TracedTree
from ramify.obs.tree_drawing import draw_tree


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
    """What the branching rule did in RL: see `branch_metrics.BranchTotals`.

    `rate` and `p_std` (standard deviation of the probability) are None in a run without decisions.
    """

    planned: int
    taken: int
    by_entropy: int
    rate: float | None
    p_std: float | None


class Report(TypedDict):
    """The content of report.json. Shares are 0 to 1; `base` is what the first model is called on the page."""

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
    """One sentence about RL against SFT."""
    points = 100 * (stages["rl"]["value"] - stages["sft"]["value"])
    sft, rl = stages["sft"]["ci95"], stages["rl"]["ci95"]
    apart = sft[1] < rl[0] or rl[1] < sft[0]
    return (
        f"Reinforcement learning changes pass@1 by {points:+.1f} points over supervised training; "
        f"the 95 % intervals {'do not overlap' if apart else 'overlap, so this may be chance'}."
    )
