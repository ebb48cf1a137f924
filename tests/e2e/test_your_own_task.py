"""docs/your-own-task.md and the project of `ramify init`: the page's commands, run in their order as they stand on it.

Shortened for time, and nothing else is changed: there are fewer rows (`FEWER`). The cold start is long enough that the model calls
the tool; what it costs to become good is on the page.
"""

import json
import re
import shutil
import subprocess
import sys

import pytest

from doc_pages import read_commands, read_page, run_command, run_example, run_notebook
from e2e_runs import read_lines
from ramify.cli import main
from ramify.commands.init import PROJECT
from ramify.core.messages import ToolStatus
from ramify.obs.trace import read_trees

pytestmark = pytest.mark.integration

PAGE = read_page("your-own-task.md")
FEWER = {
    "make_problems.py": (("TRAIN, 600", "TRAIN, 30"), ("TEST, 400", "TEST, 40")),
    "make_demonstrations.py": (("range(9600)", "range(1600)"),),
}


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    """The folder in which all of the page was done."""
    folder = tmp_path_factory.mktemp("own")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for line in read_commands(PAGE):
            run_command(line)
            if line.startswith("ramify init"):
                shorten(folder / "mytask")
    return folder / "mytask"


def shorten(project):
    for name, changes in FEWER.items():
        text = (project / name).read_text()
        for before, after in changes:
            assert before in text
            text = text.replace(before, after)
        (project / name).write_text(text)


def test_what_the_page_shows_stands_in_the_project():
    files = [path.read_text() for path in PROJECT.iterdir() if path.is_file()]
    blocks = re.findall(r"```(?:python|toml)\n(.*?)```", PAGE, re.DOTALL)
    shown = [block for block in blocks if any(block in text for text in files)]
    # The list of several sources of data is no part of the project.
    assert [block for block in blocks if block not in shown and "hf:openai/gsm8k" not in block] == []
    assert len(shown) >= 6
    commands = read_commands(PAGE)
    (steps,) = re.findall(r"```sh\n(.*?)```", (PROJECT / "README.md").read_text(), re.DOTALL)
    assert {line.partition("#")[0].strip() for line in steps.splitlines()} <= set(commands)
    named = set(re.findall(r"`(\w+\.(?:py|toml|md))`", PAGE))
    assert named >= {path.name for path in PROJECT.iterdir() if path.is_file()} - {"notebook.py"}


def test_no_training_problem_asks_for_a_price_of_the_test(task):
    prices_asked = {
        name: {(item, row["shop"]) for row in read_lines(task / f"{name}.jsonl") for _, item in row["order"]}
        for name in ("train", "test")
    }
    assert prices_asked["train"]
    assert prices_asked["test"]
    assert not prices_asked["train"] & prices_asked["test"]


def test_the_answers_are_sums_of_the_listed_prices(task):
    prices = json.loads((task / "prices.json").read_text(encoding="utf-8"))
    for row in read_lines(task / "train.jsonl"):
        assert row["answer"] == sum(number * prices[f"{item} {row['shop']}"] for number, item in row["order"])


@pytest.mark.parametrize("stage", ["sft", "rl"])
def test_an_evaluation_called_the_tool_and_paid_the_reward(task, stage):
    folder = task / "runs" / f"eval-{stage}"
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    assert summary["num_problems"] == 40
    assert set(summary["groups"]["kind"]) == {"one item", "two items"}
    assert summary["tools"]["price"]["executed"] > 0
    assert 0 < summary["parts"]["well_asked"]["value"] <= 1
    for result in read_lines(folder / "results.jsonl"):
        parts = result["parts"]
        assert result["reward"] >= -1 + 0.2 * parts["well_asked"]
    assert (folder / "report.html").stat().st_size > 0


def test_the_tool_answers_with_the_listed_prices(task):
    prices = json.loads((task / "prices.json").read_text(encoding="utf-8"))
    count = 0
    for traced in read_trees(task / "runs" / "eval-rl" / "trees.jsonl"):
        (trajectory,) = traced.tree.trajectories
        for call, result in trajectory.exchanges:
            if call.name == "price" and result.status is ToolStatus.OK:
                item = call.arguments["item"]
                known = item in prices
                assert result.text == (f"- {item} {prices[item]}" if known else "- not found")
                count += known
    assert count > 0


def test_prompts_of_messages_as_the_page_has_them_for_a_real_model(tmp_path):
    """Problems were told apart by their prompts as keys, which a list of messages cannot be."""
    (lines,) = re.findall(r"((?:    .*\n)+    prompt = \[.*\n)", PAGE)
    text = (PROJECT / "make_problems.py").read_text().replace('prompt = f"what', 'question = f"what')
    end = '    return {"prompt"'
    assert text.count(end) == text.count('question = f"what') == 1
    (tmp_path / "make_problems.py").write_text(text.replace(end, lines + end))
    subprocess.run([sys.executable, "make_problems.py"], cwd=tmp_path, check=True, capture_output=True)
    for name, count in (("train", 600), ("test", 400)):
        rows = read_lines(tmp_path / f"{name}.jsonl")
        assert [message["role"] for message in rows[0]["prompt"]] == ["system", "user"]
        assert len({row["prompt"][1]["content"] for row in rows}) == count


def test_the_recipe_for_a_real_model_trains_another_model(task, model_folder, monkeypatch):
    monkeypatch.chdir(task)
    recipe = ["real_sft.toml", "-s", f"model.path={model_folder}", "-s", "run.threads=1"]
    assert main(["sft", *recipe, "--max-steps", "1"]) == 0
    assert (task / "runs" / "real" / "sft" / "checkpoints" / "step-000001").is_dir()
    manifest = json.loads((task / "runs" / "real" / "sft" / "manifest.json").read_text())
    assert set(manifest["made_from"]["tools"]) == {"price"}


def test_rl_learned_from_groups_whose_rewards_differ(task):
    preflight = json.loads((task / "runs" / "rl" / "preflight" / "report.json").read_text(encoding="utf-8"))
    assert preflight["groups_that_differ"] > 0
    assert preflight["call_rate"] > 0
    steps = read_lines(task / "runs" / "rl" / "metrics.jsonl")
    assert [row["step"] for row in steps] == [1, 2]
    assert all(row["update/grad_norm"] > 0 for row in steps)
    assert all(row["reward/part/well_asked"] > 0 for row in steps)


def test_the_notebook_goes_the_way_of_the_recipes(task, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "a price list"
    assert main(["init", str(folder), "--notebook"]) == 0
    assert f"cd '{folder}'" in capsys.readouterr().out
    written = {path.name for path in folder.iterdir()}
    assert {path.name for path in PROJECT.iterdir() if path.is_file()} - written == {"notebook.py"}
    shorten(folder)
    # The cold start of the page: the notebook's own goes on where that ended.
    shutil.copytree(task / "runs" / "sft", folder / "runs" / "sft")
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    try:
        _, names = run_notebook(json.loads((folder / "notebook.ipynb").read_text()))
    finally:
        for name in ("shop", "make_problems"):
            sys.modules.pop(name, None)
    assert names["sft"].checkpoint.name == "step-000100"
    assert names["run"].steps == (1, 2)
    assert len(names["after"]) == 40
    calls = [call.name for tree in names["before"].trees for call, _ in tree.core.trajectories[0].exchanges]
    assert "price" in calls


def test_a_cell_that_runs_again_after_a_change_of_the_problems_has_new_demonstrations(tmp_path, monkeypatch):
    folder = tmp_path / "task"
    assert main(["init", str(folder), "--notebook"]) == 0
    shorten(folder)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    notebook = json.loads((folder / "notebook.ipynb").read_text())
    cells = [
        cell for cell in notebook["cells"] if "run_path" in cell["source"] or "import runpy" in cell["source"]
    ]
    script = folder / "make_problems.py"
    try:
        for words in ("what is the price of", "how much is"):
            script.write_text(script.read_text().replace("what is the price of", words))
            run_notebook({"cells": cells})
            rows = read_lines(folder / "demonstrations.jsonl")
            assert all(row["prompt"].startswith(words) for row in rows)
    finally:
        for name in ("shop", "make_problems"):
            sys.modules.pop(name, None)


def test_the_notebook_on_trees_shows_branches_and_credit(task, tmp_path, monkeypatch, capsys):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "quickstart").symlink_to(task / "runs")
    monkeypatch.chdir(tmp_path)
    shown, names = run_example("look_at_a_tree.py")
    assert all(hasattr(value, "_repr_html_") for value in shown)
    out = capsys.readouterr().out
    assert len(re.findall(r"reward \S+  advantage [+-]\d", out)) == len(names["tree"].trajectories) == 16
    assert re.search(r"after \S+ +entropy_delta [+-]\d", out)
    assert any(row["S+"] for row in names["credited"].tokens)


def test_a_folder_that_cannot_be_written_is_refused_in_a_sentence(tmp_path, refused):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    assert "is not empty; expected a new or empty folder" in refused("init", tmp_path / "full")
    assert "cannot be created: " in refused("init", tmp_path / "full" / "mine.txt" / "below")
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine.txt"]
    assert "cannot be created: " in refused("init", "/proc/ramify")
