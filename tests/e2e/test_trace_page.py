"""The tables of docs/trace.md against what a run writes, and the values that a trace has besides the tree."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from e2e_runs import TRAIN, read_lines, write_task
from ramify.chat.token_texts import run_tokenizer, token_texts
from ramify.core.messages import Calls
from ramify.core.tree import Source
from ramify.obs.trace import read_trees
from ramify.obs.trace_index import index_path, read_index, read_tree, trace_files

PAGE = (Path(__file__).parents[2] / "docs" / "trace.md").read_text()
RECOMPUTED = 'loss = {{ name = "clip" }}\nold = "recompute"\ntruncated = "mask"\n'
RARE = {"nodes.messages", "nodes.reward", "nodes.context", "nodes.rewriter", "nodes.exact_ids", "decisions.undecided"}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory, caller, forked):
    text = TRAIN.replace('loss = {{ name = "clip" }}\n', RECOMPUTED)
    task = write_task(tmp_path_factory.mktemp("traced"), caller, text)
    status, _, err = forked("train", task, "-s", "run.steps=2")
    assert status == 0, err
    return task.parent / "run"


def documented(title):
    """Fields that a table of the page names."""
    table = PAGE.split(f"## Fields of {title}")[1].partition("\n## ")[0]
    cells = re.findall(r"^\| (`[^|]+) \|", table, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def test_the_page_names_every_field_of_a_trace(run):
    lines = [line for path in trace_files(run / "trees") for line in read_lines(path)]
    names = {name for line in lines for name in line} - {"nodes", "decisions"}
    for part in ("nodes", "decisions"):
        names |= {f"{part}.{name}" for line in lines for item in line[part] for name in item}
    assert names == documented("a trace") - RARE


def test_the_page_names_every_field_of_an_index_and_of_times(run):
    (path, _) = trace_files(run / "trees")
    assert {name for line in read_lines(index_path(path)) for name in line} == documented("an index")
    assert [read_tree(path, summary) for summary in read_index(path)] == list(read_trees(path))
    first, *events = [json.loads(line) for line in (run / "timing" / path.name).open()]
    assert first["kind"] == "event_loop"
    assert {name for event in events for name in event} == documented("times")
    assert all(event["begin"] >= 0 for event in events)
    turns = {(tuple(e["tree"]), e["node"]): e["fields"]["tokens"] for e in events if e["kind"] == "turn"}
    written = {
        ((each.tree.key.step, each.tree.key.slot), node.id): len(node.token_ids)
        for each in read_trees(path)
        for node in each.tree.nodes
        if node.source is Source.POLICY and node.token_ids
    }
    assert turns == written


def test_what_was_trained_on_is_in_the_trace(run):
    trees = [traced for path in trace_files(run / "trees") for traced in read_trees(path)]
    trained = [traced for traced in trees if traced.advantages is not None]
    masked = 0
    for traced in trained:
        policy = [node for node in traced.tree.nodes if node.source is Source.POLICY and node.token_ids]
        assert traced.old_logprobs.keys() == {node.id for node in policy}
        for node in policy:
            # The run is on one weight version at its first step, so both passes are those of the same weights.
            assert np.allclose(traced.old_logprobs[node.id], node.behavior_logprobs, atol=1e-3)
            assert len(node.token_entropies) == len(node.token_ids)
        truncated = [each.stop.truncated for each in traced.tree.trajectories]
        assert traced.mask == (None if not any(truncated) else tuple(not each for each in truncated))
        masked += traced.mask is not None
    assert trained
    assert masked


def test_the_tokenizer_of_a_run_gives_the_text_of_each_token(run):
    tokenizer = run_tokenizer(run)
    nodes = [node for each in read_trees(trace_files(run / "trees")[0]) for node in each.tree.nodes]
    calls = [node for node in nodes if isinstance(node.turn, Calls)]
    for node in nodes:
        assert "".join(token_texts(tokenizer, node.token_ids)) == tokenizer.decode(node.token_ids)
    for node in calls:
        texts = token_texts(tokenizer, node.token_ids)
        assert "<" in texts[node.call_from]
        assert "<" not in "".join(texts[node.call_from :])[1:].partition("</")[0]
