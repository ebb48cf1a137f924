"""Evaluations whose browser reads some pages, or none: counted, said, and stopped."""

import itertools
import json
from collections import Counter

import pytest

from e2e_runs import EVAL, overrides, read_lines, write_task
from loopback import as_json, serve
from ramify.cli import main

SCRIPT = r"""
[[turns]]
after = 0
text = "<search> capital of France </search>"
entropies = [0.5]
[[turns]]
after = 1
text = "<answer> \\boxed{ Paris } </answer>"
entropies = [0.5]
ends = true
"""
TEXT = "Paris is the capital of France. " * 20


class Services:
    """A search whose ten hits are new pages each time, and a reader of which each `good`-th read works; 0: none."""

    def __init__(self, good):
        self.good, self.reads, self.searches = good, itertools.count(1), itertools.count()

    def __call__(self, request):
        if request.path.startswith("/search"):
            first = 10 * next(self.searches)
            hits = [
                {"url": f"https://a.test/{first + i}", "title": "France", "content": "Paris"}
                for i in range(10)
            ]
            return as_json({"results": hits, "unresponsive_engines": []})
        return (
            as_json({"data": {"title": "France", "content": TEXT}})
            if self.reads_well(request)
            else as_json({}, 422)
        )

    def reads_well(self, request):
        return self.good and next(self.reads) % self.good == 0


@pytest.fixture
def evaluate(tmp_path, model_folder):
    def run(services, problems, *settings):
        rows = [{"id": f"p{i}", "prompt": f"what is {i} ?", "answer": "Paris"} for i in range(problems)]
        task = write_task(tmp_path / "task", model_folder, EVAL, problems=rows, script=SCRIPT)
        with serve(services) as server:
            common = (
                f'engine={{name="scripted",script="{task.parent / "script.toml"}"}}',
                "sampling.attempts=1",
                "sampling.k=[1]",
                "sampling.max_tokens=4000",
                "tools.search.corpus=",
                f'tools.search={{provider="searxng",url="{server.url}"}}',
                f'tools.browser={{source="jina",url="{server.url}/read"}}',
                *settings,
            )
            return main(["eval", str(task), *overrides(*common)]), task.parent / "run"

    return run


def test_a_browser_that_reads_nothing_ends_the_run(evaluate, capsys):
    """40 searches would have read 400 pages."""
    status, run = evaluate(Services(good=0), 40)
    assert status == 2
    assert "page reads all failed (client" in capsys.readouterr().err
    assert not (run / "summary.json").exists()


def test_failed_reads_are_counted_and_said(evaluate, tmp_path, capsys):
    cache = f'tools.cache={{path="{tmp_path / "cache.sqlite"}"}}'
    status, run = evaluate(Services(good=2), 4, cache)
    assert status == 0
    summary = json.loads((run / "summary.json").read_text())
    pages, cached = summary["services"]["pages"], summary["services"]["cache"]
    assert sum(pages.values()) == cached["page/misses"] + cached["page/hits"] == 40
    assert (cached["search/misses"], cached["search/hits"]) == (1, 3)
    assert (
        f"warning: {pages['client']} of 40 page reads failed (client {pages['client']})"
        in capsys.readouterr().out
    )
    assert "Pages, summaries, cache" in (run / "report.html").read_text()
    counted = Counter()
    for line in read_lines(run / "times.jsonl"):
        for event in line["events"]:
            counted.update(event["fields"].get("services", {}))
    assert (counted["pages/ok"], counted["pages/client"]) == (pages["ok"], pages["client"])


def test_nothing_is_said_of_a_tenth(evaluate, capsys):
    class Mostly(Services):
        def reads_well(self, request):
            return not request.path.endswith("0")

    status, run = evaluate(Mostly(good=1), 4)
    assert (status, "page reads failed" in capsys.readouterr().out) == (0, False)
    assert json.loads((run / "summary.json").read_text())["services"]["pages"] == {"client": 4, "ok": 36}
