"""The report page: whole, self-contained, and safe against what a model or a page wrote."""

import dataclasses
import json
import math
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from obs_trees import HOSTILE, SMALL_REWARDS, big_tree, small_tree

from ramify.core.draws import stream, uniform
from ramify.core.records import Reward
from ramify.core.tree import Cut
from ramify.obs.report import Curves, draw_tree, write_report
from ramify.obs.trace import TracedTree
from random_trees import random_tree

VOID = {"meta", "br", "img", "link", "input"}
KEYS = {
    "seed", "base", "seconds", "pass_at_1", "by_kind", "greedy", "train_entities", "tool_calls_per_answer", "branches",
    "steps", "peak_memory_bytes", "config", "versions", "sandbox_level",
}  # fmt: skip


class Page(HTMLParser):
    """Checks nesting and collects tags, attributes and text."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.attributes, self.text, self._open = [], [], [], []
        self.feed(html)
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes.extend(attrs)
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes.extend(attrs)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def estimate(value, n=500):
    half = 1.96 * math.sqrt(value * (1 - value) / n)
    return {"value": value, "ci95": (value - half, value + half), "n": n}


def stages(base, sft, rl, n=500):
    return {"base": estimate(base, n), "sft": estimate(sft, n), "rl": estimate(rl, n)}


def plausible_report():
    kinds = {
        "lookup": (0.84, 0.97),
        "arith": (0.5, 0.98),
        "hop2": (0.26, 0.87),
        "calc": (0.33, 0.85),
        "compare": (0.53, 0.91),
    }
    return {
        "seed": 1,
        "base": "Untrained",
        "seconds": {"data": 8.4, "sft": 118.0, "rl": 62.5, "eval": 16.3},
        "pass_at_1": stages(0.002, 0.484, 0.926),
        "by_kind": {kind: stages(0.01, sft, rl, 100) for kind, (sft, rl) in kinds.items()},
        "greedy": {"sft": 0.842, "rl": 0.972},
        "train_entities": {"sft": 0.534, "rl": 0.932},
        "tool_calls_per_answer": {"sft": 1.81, "rl": 2.37},
        "branches": {"planned": 4211, "taken": 3620, "by_entropy": 271, "rate": 0.31, "p_std": 0.12},
        "steps": {"sft": 2500, "rl": 60},
        "peak_memory_bytes": 1_234_567_890,
        "config": {"run": {"seed": 1, "dir": "out"}, "rollout": {"n": 16, "m": 8, "branching": {"name": "bernoulli"}}},
        "versions": {"ramify": "0.1.0", "python": "3.11.2", "torch": "2.13.0", "transformers": "5.17.0"},
        "sandbox_level": 2,
        "warnings": [],
    }  # fmt: skip


def plausible_curves():
    def noise(name, step):
        return uniform(stream(name), step) - 0.5

    def rise(step):
        return 0.48 + 0.44 * (1 - math.exp(-step / 12))

    rl = range(1, 61)
    return Curves(
        sft_loss=tuple((s, 0.4 + 4.5 * math.exp(-s / 200) + 0.2 * noise("loss", s)) for s in range(1, 2501)),
        rl_reward=tuple((s, 1.1 * rise(s) - 0.05 + 0.1 * noise("reward", s)) for s in rl),
        rl_pass_rate=tuple((s, min(1.0, rise(s) + 0.1 * noise("pass", s))) for s in rl),
        entropy_root=tuple((s, 0.5 - 0.004 * s + 0.05 * noise("root", s)) for s in rl),
        entropy_after_result=tuple((s, 0.72 - 0.006 * s + 0.05 * noise("after", s)) for s in rl),
    )


def written_page(folder, tree):
    write_report(plausible_report(), plausible_curves(), tree, folder)
    return (folder / "report.html").read_text(encoding="utf-8")


def test_report_json_has_its_keys_and_values(tmp_path):
    written_page(tmp_path, None)
    report = json.loads((tmp_path / "report.json").read_text())
    assert set(report) >= KEYS
    assert report["pass_at_1"]["rl"]["value"] == 0.926
    assert len(report["pass_at_1"]["sft"]["ci95"]) == 2


def test_page_shows_every_part(tmp_path):
    html = written_page(tmp_path, big_tree())
    page = Page(html)
    text = " ".join(" ".join(page.text).split())
    for shown in (
        "92.6 %", "48.4 %", "0.2 %", "+44.2 points", "do not overlap", "SFT: loss", "RL: success in training",
        "Success by kind of question", "compare", "entropy before and after tool results", "2.37", "84.2 %", "93.2 %",
        "4211", "3620", "271", "0.310", "0.120", "Trajectory 7.0.0.0.1", "205.2", "1.15 GiB", "L2", "rollout.branching.name",
        "bernoulli", "5.17.0",
    ):  # fmt: skip
        assert shown in text, shown
    assert page.tags.count("svg") == 6
    assert html.startswith("<!doctype html>")


def test_page_asks_nothing_of_the_network_and_runs_no_script(tmp_path):
    html = written_page(tmp_path, TracedTree(small_tree(), SMALL_REWARDS))
    page = Page(html)
    assert not {"script", "link", "img", "iframe", "object", "base"} & set(page.tags)
    assert not {
        name for name, _ in page.attributes if name.startswith("on") or name in ("src", "href", "xlink:href")
    }
    assert not re.search(r"https?:|url\(|@import", html)


def test_text_of_nodes_tools_and_settings_is_escaped(tmp_path):
    tree = small_tree(HOSTILE, tool_text=HOSTILE + "\ud800\x00")
    hostile_problem = dataclasses.replace(tree.problem, answer=(HOSTILE,))
    traced = TracedTree(dataclasses.replace(tree, problem=hostile_problem), SMALL_REWARDS, (0.0, 1.0, -1.0))
    report = plausible_report()
    report["config"] = {"model": {HOSTILE: HOSTILE}}
    report["by_kind"] = {HOSTILE: stages(0.0, 0.5, 1.0)}
    report["warnings"] = [HOSTILE]
    write_report(report, plausible_curves(), traced, tmp_path)
    page = Page((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert not {"script", "img"} & set(page.tags)
    assert not any(name == "onerror" for name, _ in page.attributes)
    assert "".join(page.text).count(HOSTILE) >= 5


def test_page_of_a_run_without_branches_and_curves(tmp_path):
    report = plausible_report()
    report["branches"] = {"planned": 0, "taken": 0, "by_entropy": 0, "rate": None, "p_std": None}
    report["by_kind"] = {}
    report["pass_at_1"]["rl"] = report["pass_at_1"]["sft"]
    write_report(report, Curves((), (), (), (), ()), None, tmp_path)
    text = "".join(Page((tmp_path / "report.html").read_text()).text)
    assert text.count("No data for") == 5
    assert "overlap, so this may be chance" in text
    assert "wanted: none" in text


def test_number_that_is_not_finite_is_refused_before_anything_is_written(tmp_path):
    report = plausible_report()
    report["greedy"]["rl"] = float("nan")
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_report(report, plausible_curves(), None, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_tree_drawing_has_a_box_for_each_node_and_marks_decisions():
    traced = big_tree()
    drawing = draw_tree(traced)
    Page(drawing)
    assert drawing.count('<g class="node ') == len(traced.tree.nodes)
    assert drawing.count('class="edge"') == len(traced.tree.nodes) - 1
    assert drawing.count('class="mark taken"') == 8
    assert drawing.count('class="mark wanted"') == sum(d.planned > d.taken for d in traced.tree.decisions)
    assert drawing.count('class="reward ') == len(traced.tree.trajectories) == 16
    assert drawing.count("<details") == 16


def test_the_drawing_shows_where_contexts_go_on():
    tree = random_tree(np.random.default_rng(0), depth=4)
    cuts = [n.context for n in tree.nodes if isinstance(n.context, Cut)]
    fresh = [n for n in tree.nodes if n.context == "fresh"]
    drawing = draw_tree(TracedTree(tree, (Reward(0.0, {}),) * len(tree.trajectories)))
    assert cuts
    assert fresh
    assert drawing.count('class="context"') == len(cuts)
    assert drawing.count("a fresh context") == len(fresh)
    for cut in cuts:
        assert f"continues after {cut.tokens} tokens of {cut.node or 'the prompt'}" in drawing


def test_boxes_of_the_drawing_do_not_overlap():
    rects = re.findall(r'<rect x="([\d.]+)" y="([\d.]+)" width="(\d+)" height="(\d+)"', draw_tree(big_tree()))
    boxes = [tuple(map(float, rect)) for rect in rects]
    for index, (x, y, width, height) in enumerate(boxes):
        for other_x, other_y, _, _ in boxes[:index]:
            assert abs(x - other_x) >= width or abs(y - other_y) >= height
