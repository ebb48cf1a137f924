"""Trees as spans: a trace a trajectory, with the tree's own times, texts and failures."""

import json
from itertools import count, cycle

import pytest

from ramify.view.payload import RunView
from ramify.view.spans import write_spans
from viewed_runs import HOSTILE, two_calls, write_json_lines, write_training


def spans_of(view, path):
    """The spans of a file by trace, in their order."""
    assert write_spans(view, path, lambda: None) > 0
    traces = {}
    for line in path.read_text().splitlines():
        ((resource,),) = json.loads(line).values()
        ((scope,),) = (resource["scopeSpans"],)
        for span in scope["spans"]:
            traces.setdefault(span["traceId"], []).append(span)
    return list(traces.values())


def value_of(span, key):
    (value,) = (each["value"] for each in span["attributes"] if each["key"] == key)
    ((_, content),) = value.items()
    return content


def test_a_trajectory_is_a_trace_with_the_times_of_its_turns_and_calls(tmp_path):
    folder = write_training(tmp_path / "rl", {1: [two_calls(f"word{n}" for n in count())]})
    event = {"kind": "turn", "tree": [0, 0], "node": "0", "begin": 1.0, "seconds": 0.5, "fields": {}}
    call = event | {"kind": "tool/search", "begin": 1.75, "seconds": 0.25}
    (folder / "timing").mkdir()
    write_json_lines(folder / "timing" / "000001.jsonl", [event, call])
    traces = spans_of(RunView([folder]), tmp_path / "spans.jsonl")
    assert [[span["name"] for span in spans] for spans in traces] == [
        ["invoke_agent rl", "chat", "execute_tool search", "execute_tool search", "chat"],
        ["invoke_agent rl", "chat", "execute_tool search", "execute_tool search", "chat"],
        ["invoke_agent rl", "chat"],
    ]
    start = (folder / "trees" / "000001.jsonl").stat().st_mtime_ns
    for spans in traces:
        agent, *below = spans
        assert (len(agent["traceId"]), agent["parentSpanId"]) == (32, "")
        assert {span["parentSpanId"] for span in below} == {agent["spanId"]}
        assert len({span["spanId"] for span in spans}) == len(spans)
        assert int(agent["endTimeUnixNano"]) == max(int(span["endTimeUnixNano"]) for span in below)
    _, turn, unread, searched, answer = traces[0]
    times = [int(turn["startTimeUnixNano"]), int(turn["endTimeUnixNano"]), int(searched["endTimeUnixNano"])]
    assert [time - start for time in times] == [1_000_000_000, 1_500_000_000, 2_000_000_000]
    assert [span["status"] for span in (turn, unread, searched, answer)] == [{}, {"code": 2}, {}, {}]
    assert traces[1][-1]["status"] == {"code": 2}
    tree = RunView([folder]).tree("trees/000001", 0)
    assert value_of(searched, "gen_ai.tool.call.result") == tree["nodes"][2]["results"][1]["text"]
    assert value_of(traces[1][0], "ramify.reward") == -1.0
    assert value_of(turn, "ramify.policy_version") == "3"


@pytest.mark.parametrize("redact", [False, True])
def test_hostile_texts_stay_attributes(tmp_path, redact):
    trees = [two_calls(cycle((text, *HOSTILE)), text, 0, slot, text) for slot, text in enumerate(HOSTILE)]
    # Names of folders are bytes, which need not be text.
    view = RunView([write_training(tmp_path / "rl\udcff\x1b", {1: trees})], redact=redact)
    traces = spans_of(view, tmp_path / "spans.jsonl")
    assert len(traces) == 3 * len(HOSTILE)
    shown = json.dumps(traces, ensure_ascii=False)
    assert "hunter2" not in shown
    assert ("onerror" in json.dumps([span["attributes"] for spans in traces for span in spans[1:]])) != redact
