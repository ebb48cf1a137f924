"""Runs for a browser to look at: a small one that has something of everything, and one of any number of trees."""

from collections.abc import Mapping
from dataclasses import replace

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
from ramify.core.tree import BranchDecision, Entropy, Source, StopReason, TreeKey, make_tree
from ramify.obs.trace import TracedTree
from ramify.view.payload import RunView
from train_recipes import RECIPE
from viewed_runs import node, write_json_lines, write_training


def small_run(folder):
    """Two steps of one problem, which got worse, and of another one; with times and a recipe. The slowest call is in 1.0."""
    steps = {
        1: [contested("capital", 0, 0, right=True), contested("river", 0, 1, right=True)],
        2: [contested("capital", 1, 0, right=False)],
    }
    write_training(folder, steps)
    (folder / "recipe.toml").write_text(RECIPE)
    (folder / "timing").mkdir()
    for step, trees in steps.items():
        write_json_lines(folder / "timing" / f"{step:06d}.jsonl", [
            {"kind": kind, "tree": [step - 1, slot], "node": where, "begin": begin, "seconds": seconds, "fields": fields}
            for slot in range(len(trees))
            for kind, where, begin, seconds, fields in (
                ("turn", "0", 0.0, 0.5, {"tokens": 3}),
                ("tool/search", "0", 0.5, 0.25, {"status": "ok", "issued": 2, "queued_seconds": 0.125}),
                ("tool/python", "1", 0.5, 2.0, {"status": "error", "issued": 1, "queued_seconds": 0.0}),
            )
        ])  # fmt: skip
    return folder


def contested(identifier, step, slot, right):
    """A search whose result branches into Paris and Rome, a failed call that ends for want of tokens, a malformed turn. [G = 4]"""
    answers = [("Paris", 1.0 if right else 0.0), ("Rome", 0.0)]
    search = Calls((ToolCall("c0", "search", {"query": f"the {identifier} of France"}),))
    python = Calls((ToolCall("c1", "python", {"code": "print(capital)"}),))
    passages = (ToolResult("c0", ToolStatus.OK, "Paris is the capital of France", {"passages": ["p/1"]}),)
    failed = (ToolResult("c1", ToolStatus.ERROR, "NameError: capital is not defined"),)
    nodes = [
        node((), Source.PROMPT, f"user: which {identifier}?", 5),
        node((0,), Source.POLICY, "<think> look it up </think><search>France</search>", 3, turn=search, entropy=Entropy(0.2, 0.2, 3)),
        node((0, 0), Source.TOOL, "Paris is the capital of France", 4, results=passages),
        *(
            replace(node((0, 0, at), Source.POLICY, f"so {answer}", 3, turn=Final(answer), entropy=Entropy(0.8, 0.8, 3)),
                    token_ids=(7, 20 + at, 8), stop=StopReason.ANSWERED)
            for at, (answer, _) in enumerate(answers)
        ),
        node((1,), Source.POLICY, "<python>print(capital)</python>", 2, turn=python),
        node((1, 0), Source.TOOL, "NameError: capital is not defined", 2, results=failed),
        node((1, 0, 0), Source.POLICY, "I do not", 2, stop=StopReason.TOKENS),
        node((2,), Source.POLICY, "<search>", 1, turn=MalformedTurn("the call has no end", ""), stop=StopReason.MALFORMED),
    ]  # fmt: skip
    problem = Problem(
        identifier, (Message.of("user", f"which {identifier}?"),), ("Paris",), {"kind": "lookup"}
    )
    decisions = [
        BranchDecision("0.0", 1, 0.6, 0.7, 1, 1, True, budget_left=1),
        BranchDecision("1.0", 1, -0.2, 0.1, 0, 0, False),
    ]
    rewards = tuple(
        Reward(value, {"correct": float(value > 0), "format": float(value >= 0)})
        for value in (*(value for _, value in answers), 0.0, -1.0)
    )
    tree = make_tree(problem, TreeKey(step, slot), nodes, decisions)
    return TracedTree(tree, rewards, (0.9, -0.1, -0.1, -0.7))


class CopiedTrees(RunView):
    """A run as it would be with `copies` trees for each that it has."""

    def __init__(self, folder, copies):
        super().__init__([folder])
        self._copies, self._trees = copies, {}

    def num_trees(self, source_id):
        return super().num_trees(source_id) * self._copies

    def run(self):
        value = super().run()
        return value | {
            "sources": [each | {"trees": each["trees"] * self._copies} for each in value["sources"]]
        }

    def index(self, source_id):
        value = super().index(source_id)
        question = self.run()["columns"].index("question")
        rows = [
            [number, *row[1:question], f"{row[question]} number {number}", *row[question + 1 :]]
            for number, row in enumerate(value["rows"] * self._copies)
        ]
        return value | {"rows": rows}

    def tree(self, source_id, row, *, with_credits=False):
        count = super().num_trees(source_id)
        key = (source_id, row % count)
        if key not in self._trees:
            self._trees[key] = super().tree(*key, with_credits=with_credits)
        tree: Mapping = self._trees[key]
        return tree | {"row": row}
