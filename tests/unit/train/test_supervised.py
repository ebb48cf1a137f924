import asyncio
import copy
import io
import json
import shutil
from dataclasses import replace
from typing import get_args

import pytest

import build
from dialect_folders import dialect_template
from harmony_folders import write_harmony_tokenizer
from ramify.algos.sft import NegativeLogLikelihood, demonstrated
from ramify.assemble.examples import run_sft
from ramify.assemble.model import build_model, build_tokenizer
from ramify.assemble.tools import build_tools, show_tools
from ramify.chat.renderers import renderer_for
from ramify.chat.tag_renderer import TagRenderer
from ramify.config.load import check_recipe
from ramify.config.schema_examples import SftRecipe
from ramify.config.schema_parts import SandboxSection, ToolsSection
from ramify.core.errors import ConfigError, DataError
from ramify.core.messages import Dialect, Message, Problem
from ramify.core.rank import Rank
from ramify.core.tree import TreeKey
from ramify.learner import optimizer_files
from ramify.learner.parallel import Ranks
from ramify.modeling.load import load_model
from ramify.obs.console import RunConsole
from ramify.obs.metrics import read_metrics
from ramify.runs import resume
from ramify.runs.recorder import Recorder
from ramify.runs.state import Saver
from said import tree_of

CALL = "<python> print(42) </python> <result>\n42\n</result>"


def rows(lengths):
    prompt = [{"role": "user", "content": "what is 12 plus 30 ?"}]
    for length in lengths:
        answer = f"<think> {'add ' * length}</think><answer> \\boxed{{ 42 }} </answer>"
        yield {"prompt": prompt, "completion": CALL + answer}


@pytest.fixture
def recipe(tmp_path, model_folder):
    """Makes a recipe over demonstrations with this many words to think."""

    def make(lengths, max_tokens=200, tools=None, model=None, **learner):
        data = tmp_path / "demonstrations.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows(lengths)))
        table = {
            "model": {"path": str(model_folder), "device": "cpu", **(model or {})},
            "data": {"train": str(data), "max_tokens": max_tokens},
            "run": {"dir": str(tmp_path / "run"), "threads": 1},
            "learner": {"batch_size": 2, "optimizer": {"rate": 1e-3}, **learner},
            "tools": tools or {},
        }
        return check_recipe(SftRecipe, table, "recipe")

    return make


def console():
    return RunConsole(io.StringIO())


def test_how_chains_are_packed_into_rows_changes_nothing_but_rounding(model_folder):
    """A row of its own for each chain, several chains in a row, all of them in one."""
    renderer = TagRenderer(build_tokenizer(model_folder))
    problem = Problem("p", (Message.of("user", "what is 12 plus 30 ?"),), ())
    trees = [
        tree_of(renderer, problem, row["completion"], (), TreeKey(0, slot))
        for slot, row in enumerate(rows([1, 9, 4, 2, 7]))
    ]
    sizes = [sum(len(node.token_ids) for node in tree.nodes) for tree in trees]
    model = load_model(model_folder)
    results = []
    for budget in (1, 2 * max(sizes), sum(sizes)):
        learner = build.learner(copy.deepcopy(model), NegativeLogLikelihood(), token_budget=budget)
        report = learner.update([demonstrated(tree) for tree in trees])
        assert (report.num_tokens, report.num_repeated) == (sum(sizes), 0)
        results.append((report.loss, report.grad_norm))
    assert results[1] == pytest.approx(results[0], rel=1e-6)
    assert results[2] == pytest.approx(results[0], rel=1e-6)


def test_a_run_that_fails_beside_its_checkpoint_leaves_nothing_of_it(recipe, tmp_path, monkeypatch):
    """As on a GPU, where threads write checkpoints: one that waits for a file that cannot be written would keep the process."""
    record = Recorder.step

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    def fails_later(recorder, step, metrics):
        if step == 6:
            raise DataError("a bad row")
        record(recorder, step, metrics)

    monkeypatch.setattr(
        resume, "Saver", lambda *of, in_background: Saver(*of, in_background=not in_background)
    )
    monkeypatch.setattr(optimizer_files, "write_tensors", full)
    monkeypatch.setattr(Recorder, "step", fails_later)
    with pytest.raises(DataError, match="a bad row"):
        run_sft(recipe([3] * 12), console(), Ranks(Rank()))
    assert not any((tmp_path / "run" / "checkpoints").iterdir())


def test_a_row_larger_than_the_token_budget_is_trained_on_whole(recipe, tmp_path):
    run_sft(recipe([3, 5, 40], token_budget=50), console(), Ranks(Rank()))
    steps = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [row["step"] for row in steps] == [1, 2]
    assert all(row["loss"] > 0 for row in steps)
    assert sum(row["tokens/written"] for row in steps) > 150


def test_what_is_too_long_is_left_out_and_counted_never_cut(recipe, tmp_path):
    output = io.StringIO()
    checked = recipe([1, 2, 60, 1, 70], max_tokens=70)
    run_sft(checked, RunConsole(output), Ranks(Rank()))
    assert "left out 2 of 5 rows with more than data.max_tokens = 70 tokens: rows 3, 5" in output.getvalue()
    steps = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [row["step"] for row in steps] == [1, 2]
    assert all(row["tokens/written"] < row["tokens/unique"] <= 2 * 70 for row in steps)


def test_if_all_are_too_long_nothing_is_left(recipe, tmp_path):
    with pytest.raises(DataError, match=r"demonstrations.jsonl: .*left out 2 of 2 rows") as caught:
        run_sft(recipe([1, 2], max_tokens=5), console(), Ranks(Rank()))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_the_chat_template_counts_before_the_first_step(recipe, tmp_path):
    """Prompt and completion have as many bytes as there may be tokens, each byte is a token, and the template has more."""
    checked = recipe([1, 2], max_tokens=60)
    prompt = [{"role": "user", "content": "?"}]
    long = "\u4e2d" * 19 + "a b"
    with (tmp_path / "demonstrations.jsonl").open("a") as file:
        file.write("\n" + json.dumps({"prompt": prompt, "completion": "ok"}) + "\n")
        file.write(json.dumps({"prompt": prompt, "completion": long, "id": "long"}) + "\n")
    assert len(("?" + long).encode()) <= 61
    output = io.StringIO()
    run_sft(checked, RunConsole(output), Ranks(Rank()))
    assert "left out 1 of 4 rows with more than data.max_tokens = 60 tokens: row 5" in output.getvalue()


def test_max_tokens_has_to_fit_the_models_context(recipe, tmp_path):
    with pytest.raises(ConfigError, match="8192 positions, but prompt and response may take 9000"):
        run_sft(recipe([1, 2], max_tokens=9000), console(), Ranks(Rank()))
    assert not (tmp_path / "run").exists()


def test_a_run_goes_on_from_its_checkpoint(recipe, tmp_path):
    checked = recipe([1, 2, 3, 4, 5, 6])
    run_sft(checked, console(), Ranks(Rank()), max_steps=1)
    last = run_sft(checked, console(), Ranks(Rank()), resume=True)
    assert last.name == "step-000003"
    assert [row["step"] for row in read_metrics(tmp_path / "run" / "metrics.jsonl")] == [1, 2, 3]
    assert build_model(replace(checked.model, path=last), 200).config.vocab_size == 600


@pytest.fixture
def own_tool(tmp_path):
    """The `tools` of a recipe with a function of the user's own, and its file."""
    file = tmp_path / "shop.py"
    file.write_text('def price(item: str) -> str:\n    """Says what an item costs."""\n    return "7"\n')
    return {"own": [{"path": str(file), "function": "price"}]}, file


@pytest.mark.parametrize("dialect", get_args(Dialect))
def test_prompts_show_the_tools_as_in_rl(recipe, own_tool, model_folder, tmp_path, dialect):
    """A demonstration has the number of tokens that RL's renderer gives it, tools that nothing opens included."""
    (tmp_path / "passages.jsonl").write_text('{"text": "Paris is the capital of France."}\n')
    tools = {
        **own_tool[0],
        "search": {"corpus": str(tmp_path / "passages.jsonl")},
        "python": {"stateful": True},
    }
    if dialect != "tags":
        model_folder = shutil.copytree(model_folder, tmp_path / "model")
        if dialect == "harmony":
            # It needs two tokens that end a turn.
            write_harmony_tokenizer(model_folder)
        else:
            (model_folder / "chat_template.jinja").write_text(dialect_template(dialect, "<|im_end|>"))
    toolbox = build_tools(ToolsSection.model_validate(tools), SandboxSection(min_level=0))
    asyncio.run(toolbox.close())
    assert_shown_alike(show_tools(ToolsSection.model_validate(tools)).specs, toolbox.specs)
    renderer = renderer_for(dialect, build_tokenizer(model_folder))
    (row,) = rows([1])
    completion = row["completion"] if dialect == "tags" else "<think>\nadd\n</think>\n\n\\boxed{42}"
    problem = Problem("p", (Message.of("user", row["prompt"][0]["content"]),), ())
    tree = tree_of(renderer, problem, completion, toolbox.specs)
    size = sum(len(node.token_ids) for node in tree.nodes)
    model = {"path": str(model_folder), "dialect": dialect}
    checked = recipe([1], max_tokens=size - 1, tools=tools, model=model)
    checked.data.train.write_text(json.dumps({**row, "completion": completion}) + "\n")
    with pytest.raises(DataError, match="no example is left"):
        run_sft(checked, console(), Ranks(Rank()))
    checked = recipe([1], max_tokens=size, tools=tools, model=model, batch_size=1)
    checked.data.train.write_text(json.dumps({**row, "completion": completion}) + "\n")
    run_sft(checked, console(), Ranks(Rank()))
    assert read_metrics(tmp_path / "run" / "metrics.jsonl")[0]["tokens/unique"] == size


def assert_shown_alike(specs, others):
    shown = [[(s.name, s.description, s.parameters, s.in_prompt) for s in each] for each in (specs, others)]
    assert shown[0] == shown[1]


def test_the_browser_is_shown_as_in_rl(monkeypatch):
    monkeypatch.setenv("SERPER_API_KEY", "k-1")
    section = ToolsSection.model_validate({"search": {"provider": "serper"}, "browser": {"open_page": True}})
    toolbox = build_tools(section, SandboxSection())
    asyncio.run(toolbox.close())
    assert [spec.name for spec in toolbox.specs] == ["search", "open_page"]
    assert_shown_alike(show_tools(section).specs, toolbox.specs)


def test_a_run_does_not_go_on_with_another_tool(recipe, own_tool):
    tools, file = own_tool
    checked = recipe([1, 2, 3, 4, 5, 6], tools={**tools, "python": {}})
    run_sft(checked, console(), Ranks(Rank()), max_steps=1)
    file.write_text(file.read_text().replace("an item", "a thing"))
    with pytest.raises(ConfigError, match=r"holds a run with tools\.price\.sha256"):
        run_sft(checked, console(), Ranks(Rank()), resume=True)
