"""The page of a quick start: whole, self-contained, and safe against what a model or a page wrote."""

import json
import math
import re
from html.parser import HTMLParser

import pytest

from ramify.core.errors import DataError
from ramify.obs.page import render_page
from ramify.quickstart.report import quickstart_page, read_report
from ramify.quickstart.world import make_example

HOSTILE = '</pre><script>alert("x")</script><img src=x onerror=alert(1)> & \'"'
VOID = {"meta", "br", "img", "link", "input"}


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
        "options": "",
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
        "notes": ["37 of 500 problems are in the data that the model was trained on"],
    }  # fmt: skip


def page_of(report, folder):
    return render_page(quickstart_page(report, folder))


def test_a_report_reads_back_and_damaged_ones_are_refused_by_field(tmp_path):
    path = tmp_path / "report.json"
    path.write_text(json.dumps(plausible_report()))
    assert read_report(path)["pass_at_1"]["rl"]["value"] == 0.926
    for key in plausible_report():
        path.write_text(json.dumps(plausible_report() | {key: {"<b>": []}}))
        if key != "config":
            with pytest.raises(DataError, match=re.escape(str(path))):
                read_report(path)


def test_page_shows_every_part(tmp_path):
    page = Page(page_of(plausible_report(), tmp_path))
    text = " ".join(" ".join(page.text).split())
    for shown in (
        "92.6 %", "48.4 %", "0.2 %", "+44.2 points", "do not overlap", "Success by kind of question", "compare", "2.37",
        "84.2 %", "93.2 %", "4,211", "3,620", "271", "0.310", "0.120", "205.2", "1.15 GiB", "L2", "rollout.branching.name",
        "bernoulli", "5.17.0", "37 of 500 problems are in", "ramify quickstart --seed 1",
    ):  # fmt: skip
        assert shown in text, shown


def test_the_command_that_repeats_the_run_has_its_options(tmp_path):
    report = plausible_report() | {"options": make_example(2, smoke=True).options}
    assert "ramify quickstart --difficulty 2 --smoke --seed 1 --out NEW_FOLDER" in page_of(report, tmp_path)


def test_page_asks_nothing_of_the_network_and_runs_no_script(tmp_path):
    html = page_of(plausible_report(), tmp_path)
    page = Page(html)
    assert not {"script", "link", "img", "iframe", "object", "base"} & set(page.tags)
    for name, value in page.attributes:
        assert not name.startswith("on")
        assert name not in ("src", "xlink:href")
        assert name != "href" or value.startswith("#")
    assert not re.search(r"https?:|url\(|@import", html)


def test_texts_and_settings_are_escaped(tmp_path):
    report = plausible_report()
    report["config"] = {"model": {HOSTILE: HOSTILE}}
    report["by_kind"] = {HOSTILE: stages(0.0, 0.5, 1.0)}
    report["warnings"] = report["notes"] = [HOSTILE]
    page = Page(page_of(report, tmp_path))
    assert not {"script", "img"} & set(page.tags)
    assert not any(name == "onerror" for name, _ in page.attributes)
    assert "".join(page.text).count(HOSTILE) >= 4


def test_page_of_a_run_without_branches(tmp_path):
    report = plausible_report()
    report["branches"] = {"planned": 0, "taken": 0, "by_entropy": 0, "rate": None, "p_std": None}
    report["by_kind"] = {}
    report["greedy"] = report["train_entities"] = None
    report["pass_at_1"]["rl"] = report["pass_at_1"]["sft"]
    text = "".join(Page(page_of(report, tmp_path)).text)
    assert "No data for" in text
    assert "overlap, so this may be chance" in text
    assert "wanted: none" in text
