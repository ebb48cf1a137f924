"""SFT, RL, DPO and evaluation in the hermes dialect, with a real small model that makes two calls in one turn."""

import pytest

from e2e_runs import DPO, EVAL, SFT, TRAIN, overrides, write_lines
from hermes_folders import QWEN3, write_hermes_tokenizer
from model_folders import write_model
from ramify.assemble.model import build_tokenizer
from ramify.assemble.tools import show_tools
from ramify.chat.renderers import renderer_for
from ramify.cli import main
from ramify.config.load import load_recipe
from ramify.config.schema_examples import SftRecipe
from ramify.core.messages import Calls, Final, ToolStatus
from ramify.core.tree import Source, StopReason
from ramify.data.example_formats import COMPLETION
from ramify.data.examples import read_examples
from ramify.obs.metrics import read_metrics
from ramify.obs.trace import read_trees
from ramify.obs.trace_index import trace_files

QUESTIONS = ("tool city ?", "search city ?")
CALLS = (
    '<tool_call>\n{"name": "search", "arguments": {"query": "city"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "python", "arguments": {"code": "6*7"}}\n</tool_call>'
)
RESULTS = "<tool_response>\nPage 1: Paris city.\n</tool_response>\n<tool_response>\n42\n</tool_response>"
SOLVED = f"{CALLS}{RESULTS}<think>\nParis\n</think>\n\n\\boxed{{Paris}}"
GUESSED = "\\boxed{Rome}"

SETTINGS = {
    "sft": (
        *("data.epochs=60", "data.max_tokens=1200", "learner.batch_size=4"),
        *("learner.optimizer.rate=4e-3", "learner.optimizer.warmup_steps=5"),
    ),
    "dpo": (
        *("data.epochs=1", "data.max_tokens=1200", "learner.batch_size=2", "learner.token_budget=8192"),
        "learner.optimizer.rate=1e-4",
    ),
    "train": (
        *("data.epochs=2", "data.max_prompt_tokens=1000", "rollout.n=8", "rollout.m=4", "rollout.max_tokens=200"),
        *("rollout.branching={name='random', rate=0.5, probe_tokens=4}", "engine.slots=16", "sandbox.min_level=0"),
        *("reward.name=hierarchical", "learner.token_budget=8192"),
    ),
    "eval": (
        *("data.max_prompt_tokens=1000", "sampling.max_tokens=200", "sampling.max_calls=2", "engine.slots=4"),
        *("sampling.attempts=1", "sampling.k=[1]", "sandbox.min_level=0"),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    """A random model of Qwen3's form with its files, and data for each kind of run."""
    folder = tmp_path_factory.mktemp("hermes")
    model = write_model(folder / "model")
    write_hermes_tokenizer(model, QWEN3)
    (model / "generation_config.json").unlink()
    rows = [
        {"prompt": [{"role": "user", "content": text}], "answer": ["Paris"], "id": text} for text in QUESTIONS
    ]
    write_lines(folder / "problems.jsonl", rows)
    write_lines(folder / "passages.jsonl", [{"text": "Paris city."}])
    write_lines(
        folder / "demonstrations.jsonl",
        [{"prompt": row["prompt"], "completion": text} for row in rows for text in (SOLVED, GUESSED)],
    )
    write_lines(
        folder / "pairs.jsonl",
        [{"prompt": row["prompt"], "chosen": SOLVED, "rejected": GUESSED} for row in rows],
    )
    return folder


def ran(task, command, text, model, *arguments):
    """The run folder of a recipe that was run to its end, with the dialect and the tools that all of them have."""
    recipe, run = task / f"{command}.toml", task / command
    recipe.write_text(text.format(model=model, folder=task))
    shared = (
        *('model.dialect="hermes"', f"run.dir={run}", "run.seed=3", "run.threads=1"),
        *(f"tools.search.corpus={task}/passages.jsonl", "tools.search.top_k=1", "tools.python.timeout_seconds=10"),
    )  # fmt: skip
    assert main([command, str(recipe), *overrides(*shared, *SETTINGS[command]), *arguments]) == 0
    return run


@pytest.fixture(scope="module")
def started(task):
    """The checkpoint of the cold start."""
    return max((ran(task, "sft", SFT, task / "model") / "checkpoints").iterdir())


@pytest.fixture(scope="module")
def trained(task, started):
    """Two steps of RL."""
    return ran(task, "train", TRAIN, started, "--max-steps", "2")


def trees_of(run):
    return [item for path in trace_files(run / "trees") for item in read_trees(path)]


def test_rl_trains_on_turns_with_two_calls(trained):
    graded = trees_of(trained)
    trajectories = [trajectory for item in graded for trajectory in item.tree.trajectories]
    solved = [each for each in trajectories if len(each.exchanges) == 2 and each.stop is StopReason.ANSWERED]
    assert len(solved) >= 4
    for trajectory in solved:
        _, turn, tool, *_ = trajectory.nodes
        assert isinstance(turn.turn, Calls)
        assert [call.name for call in turn.calls] == ["search", "python"]
        assert [result.status for result in tool.results] == [ToolStatus.OK] * 2
        assert [result.text for result in tool.results] == ["Page 1: Paris city.", "42"]
        assert isinstance(trajectory.leaf.turn, Final)
    right = [reward.value for item in graded for reward in item.rewards]
    assert max(right) == pytest.approx(1.1)
    metrics = read_metrics(trained / "metrics.jsonl")
    assert [row["step"] for row in metrics] == [1, 2]
    assert any(row["update/grad_norm"] > 0 for row in metrics)


def test_every_kind_of_run_shows_the_same_prompt(task, started, trained):
    """SFT, DPO, RL and evaluation: token by token."""
    ran(task, "dpo", DPO, started)
    evaluated = ran(task, "eval", EVAL, started)
    recipe = load_recipe(SftRecipe, task / "sft" / "recipe.toml", [])
    renderer = renderer_for("hermes", build_tokenizer(started))
    prompts = {}
    for _, item in read_examples(task / "demonstrations.jsonl", COMPLETION):
        prompts[item.problem.messages] = renderer.render_prompt(item.problem, show_tools(recipe.tools).specs)
    assert len(prompts) == len(QUESTIONS)
    trees = [item.tree for item in (*trees_of(trained), *read_trees(evaluated / "trees.jsonl"))]
    assert len(trees) == 6
    for tree in trees:
        assert tree.nodes[0].token_ids == prompts[tree.problem.messages]
        assert [node.source for node in tree.nodes].count(Source.PROMPT) == 1


def test_an_evaluation_without_a_recipe_takes_the_dialect_that_the_model_was_taught(task, started, capsys):
    words = ["--model", str(started), "--dataset", str(task / "problems.jsonl"), "--dry-run"]
    assert main(["eval", *words]) == 0
    assert 'dialect = "hermes"' in capsys.readouterr().out
    assert main(["eval", *words, "-s", "model.dialect=tags"]) == 0
    assert 'dialect = "tags"' in capsys.readouterr().out
