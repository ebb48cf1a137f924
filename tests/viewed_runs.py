"""Folders of runs for the tests of the viewer, with texts that try to be more than text."""

import json

from ramify.core.messages import (
    Calls,
    Final,
    MalformedTurn,
    Message,
    Problem,
    ToolCall,
    ToolResult,
    ToolStatus,
)
from ramify.core.records import Reward
from ramify.core.tree import BranchDecision, Entropy, Node, Source, StopReason, TreeKey, make_tree, node_id
from ramify.eval.results import record_attempt
from ramify.obs.trace import TracedTree, tree_record, write_trees

HOSTILE = (
    "</script><script>alert(1)</script>", "<!--<script>", "\"><img src=x onerror='alert(1)'>",
    "a\x00b\x1b[31mc\x9bd", "lone \ud800 surrogate", "\u202ereordered\u2028line", "__proto__",
    "https://user:hunter2hunter2@example.org/path", "{{7*7}} ${7*7} javascript:alert(1)",
    "</style></textarea><svg onload=alert(1)>",
)  # fmt: skip


def node(path, source, text, tokens=2, **fields):
    written = source is Source.POLICY
    return Node(
        id=node_id(path),
        path=path,
        parent=node_id(path[:-1]) if path else None,
        source=source,
        token_ids=tuple(range(tokens)),
        text=text,
        behavior_logprobs=(-0.25,) * tokens if written else (),
        policy_version=3 if written else None,
        **fields,
    )


def two_calls(texts, identifier="p0", step=0, slot=0, part="style"):
    """A turn of two calls, of which the first cannot be read; its result branches; a second root answers. [G = 3]

    `texts` yields the next text of the data, for every field that takes one; `part` names a part of a reward.
    """
    text = iter(texts).__next__
    tool = text() if part in HOSTILE else "search"
    calls = Calls((ToolCall("c0", tool, {}, text()), ToolCall("c1", "search", {text(): text()})))
    results = (
        ToolResult("c0", ToolStatus.MALFORMED, text()),
        ToolResult("c1", ToolStatus.OK, text(), {text(): [text(), 2.5, None]}),
    )
    nodes = [
        node((), Source.PROMPT, text(), 5),
        node((0,), Source.POLICY, text(), 4, turn=calls, entropy=Entropy(0.2, 0.3, 3)),
        node((0, 0), Source.TOOL, text(), 3, results=results, rewriter=text(), messages=(Message.of("user", text()),)),
        node((0, 0, 0), Source.POLICY, text(), 2, turn=Final(text()), stop=StopReason.ANSWERED),
        node((0, 0, 1), Source.POLICY, text(), 3, turn=MalformedTurn(text(), text()), stop=StopReason.MALFORMED),
        node((1,), Source.POLICY, text(), 1, turn=Final(text()), stop=StopReason.ANSWERED),
    ]  # fmt: skip
    problem = Problem(identifier, (Message.of("user", text()),), (text(),), {"kind": text()})
    decision = BranchDecision("0.0", 1, 0.6, 0.7, 2, 1, True, budget_left=1)
    refused = BranchDecision("0.0", 1, 0.1, 0.2, 1, 0, False)
    tree = make_tree(problem, TreeKey(step, slot), nodes, [decision, refused])
    rewards = (
        Reward(1.0, {"correct": 1.0, "format": 1.0}),
        Reward(-1.0, {"correct": 0.0, "format": 0.0, part: 0.5}, {"0.0.1": -1.0}),
        Reward(0.0, {"correct": 0.0, "format": 1.0}, counts=False),
    )
    return TracedTree(tree, rewards, (0.5, -0.5, 0.0))


def one_path(identifier, attempt, text, value):
    """The attempt of an evaluation: a call, its result, an answer. [G = 1]"""
    call = ToolCall("c1", "search", {"query": text})
    nodes = [
        node((), Source.PROMPT, "?", 3),
        node((0,), Source.POLICY, text, 2, turn=Calls((call,))),
        node((0, 0), Source.TOOL, "found", 2, results=(ToolResult("c1", ToolStatus.OK, "found"),)),
        node((0, 0, 0), Source.POLICY, text, 2, turn=Final(text), stop=StopReason.ANSWERED),
    ]
    problem = Problem(identifier, (Message.of("user", f"what is {identifier} ?"),), ("41",), {})
    tree = make_tree(problem, TreeKey(attempt, 0), nodes)
    return TracedTree(tree, (Reward(value, {"correct": value}),))


def write_training(folder, steps):
    """A training run with the trees of each step."""
    folder.mkdir(parents=True)
    rows = [{"step": step, "time": 1.0, "reward/mean": 0.5 * step} for step in steps]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for step, trees in steps.items():
        write_trees(folder / "trees" / f"{step:06d}.jsonl", trees)
    return folder


def write_evaluation(folder, attempts, verdicts=()):
    """An evaluation of these trees; `verdicts` are lines of a later judge."""
    folder.mkdir(parents=True)
    lines = {
        "trees": [tree_record(traced) for traced in attempts],
        "results": [record_attempt(traced.tree, traced.rewards[0]).to_json() for traced in attempts],
        "times": [
            {"problem": t.tree.problem.id, "attempt": t.tree.key.step, "seconds": 2.0, "events": []} for t in attempts
        ],
    }  # fmt: skip
    for name, records in lines.items():
        write_json_lines(folder / f"{name}.jsonl", records)
    if verdicts:
        (folder / "judge").mkdir()
        write_json_lines(folder / "judge" / "verdicts.jsonl", verdicts)
    return folder


def write_json_lines(path, records):
    path.write_text("".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records))


def texts_in(value):
    """All texts of a JSON value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from texts_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from texts_in(inner)
