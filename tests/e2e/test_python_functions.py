"""Functions and classes of Python code as tools, an environment, a rewriter and rewards of each form, in a loop and in a recipe."""

import json
import random
import sys
from dataclasses import replace
from types import ModuleType

import pytest

import ramify as rf
from e2e_runs import TRAIN, write_task
from ramify.core.errors import DataError
from ramify.files.user_code import WITHOUT_FILE


def search(query: str) -> str:
    """Search for something.

    Args:
        query: The words.
    """
    return f"found {query}"


def python(code: str) -> str:
    """Run a program.

    Args:
        code: The program.
    """
    return "42"


ROWS = []


class World:
    """A world in which a program is worth a number by chance."""

    def __init__(self):
        self.reward = 0.0

    def reset(self, **row):
        ROWS.append(row)

    def python(self, code: str) -> str:
        """Run a program.

        Args:
            code: The program.
        """
        self.reward = random.random()
        return "42"


# The model knows prompts without descriptions of tools.
SILENT = [rf.tools.Function(tool, in_prompt=False) for tool in (search, python)]
WORLD = rf.tools.ClassEnvironment(World, in_prompt=False)
LIMITS = {"max_prompt_tokens": 200, "max_tokens": 64, "max_calls": 3}
QUESTIONS = [{"prompt": f"what is 12 plus {i} ?", "answer": 12 + i, "level": i} for i in range(4)]


class Frame:
    """Rows as pandas has them, which need not be installed."""

    columns = tuple(QUESTIONS[0])

    def __iter__(self):
        return iter(self.columns)

    def to_dict(self, kind):
        assert kind == "records"
        return QUESTIONS


def test_functions_as_tools_and_rewriters(caller):
    looked_at = []

    def looks(trajectory):
        looked_at.append(trajectory.leaf.id)

    policy = rf.Policy(caller, threads=1)
    with rf.Agent(policy, tools=SILENT, limits=rf.Limits(**LIMITS), rewriters=[looks]) as agent:
        trees = agent.rollout(QUESTIONS, n=6)
        texts = {result.text for tree in trees for node in tree for result in node.core.results}
        assert texts & {"42"} or any(text.startswith("found ") for text in texts)
        assert looked_at
        reply = next(
            node for tree in trees for node in tree if node.source == "tool" and node.core.stop is None
        )
        other = replace(
            reply.tree, nodes=(replace(reply.tree.nodes[0], text="another"), *reply.tree.nodes[1:])
        )
        with pytest.raises(DataError, match="rollout: start: its tokens are those of another model"):
            agent.rollout(start=replace(reply, tree=other), n=2)
        # A frame gives the names of its columns where a list gives rows.
        assert [tree.question for tree in agent.rollout(Frame(), n=1)] == [row["prompt"] for row in QUESTIONS]
    forms = {
        "batch": lambda completions, level: [float(each) for each in level],
        "single": lambda final_answer, answer, level: float(level) if answer else None,
        "verl": lambda data_source, solution_str, ground_truth, extra_info: {
            "score": float(extra_info["level"])
        },
    }
    scored = {name: rf.score(trees, form) for name, form in forms.items()}
    assert len({tuple(tree.rewards[0].value for tree in each) for each in scored.values()}) == 1
    assert [tree.mean for tree in scored["single"]] == [0.0, 1.0, 2.0, 3.0]


def test_a_rule_that_is_defined_again_acts_in_the_same_agent(caller, monkeypatch):
    monkeypatch.setitem(sys.modules, "own_cells", module := ModuleType("own_cells"))
    chances = module.chances = []
    with rf.Agent(rf.Policy(caller, threads=1), tools=SILENT, limits=rf.Limits(**LIMITS)) as agent:
        for chance in (0.25, 0.75):
            cell = f"def rule(d, chance={chance}):\n    chances.append(chance)\n    return chance"
            exec(compile(cell, "<cell>", "exec"), module.__dict__)
            agent.rollout(QUESTIONS, n=6, m=3, branching=module.rule)
            assert set(chances) == {chance}
            chances.clear()


def test_problems_that_fail_are_a_warning_and_an_error_if_none_works(caller):
    long = {"prompt": "why " * 400, "answer": "so", "level": 0}
    policy = rf.Policy(caller, threads=1)
    with rf.Agent(policy, tools=SILENT, limits=rf.Limits(**LIMITS)) as agent:
        with pytest.warns(RuntimeWarning, match="rollout: failed and skipped: .* the engine's context 264"):
            trees = agent.rollout([long, *QUESTIONS], n=2)
        assert [tree.core.has_failed for tree in trees] == [True, False, False, False, False]
        with pytest.raises(DataError, match="rollout: none of 1 problems worked; the first: "):
            agent.rollout([long], n=2)


def test_a_class_as_an_environment(caller):
    policy = rf.Policy(caller, learner=rf.Learner(rate=1e-3), threads=1)
    with rf.Agent(policy, environment=WORLD, limits=rf.Limits(**LIMITS)) as agent:
        trees = rf.score(agent.rollout(QUESTIONS, n=8), "environment")
        assert {row["level"] for row in ROWS} == {0, 1, 2, 3}
        assert len({reward.value for tree in trees for reward in tree.rewards}) > 4
        assert policy.update(trees).num_steps == 1


def test_the_manifest_of_a_run_has_the_hash_of_each_function(tmp_path, caller):
    task = write_task(tmp_path / "task", caller, TRAIN)
    source = "def polite(completions):\n    return [float('so' in text) for text in completions]\n"
    names = {}
    exec(compile(source, "<cell 3>", "exec"), names)
    trainer = rf.Trainer.from_recipe(
        task,
        tools=[search, rf.tools.Python(timeout_seconds=10)],
        reward=["answer", (names["polite"], 0.5)],
        algorithm=rf.algorithms.ARPO(estimator=lambda rewards, tree: rewards - rewards.mean()),
    )
    run = trainer.train(steps=1)
    made_from = json.loads((run.dir / "manifest.json").read_text())["made_from"]
    assert made_from["tools"]["search"] == {
        "file": __file__,
        "sha256": made_from["tools"]["search"]["sha256"],
    }
    assert len(made_from["rewards"]["polite"]["sha256"]) == 64
    assert made_from["functions"].keys() == {"algorithm.estimator"}
    assert trainer.config.reward.own[0].path == WITHOUT_FILE
