"""Classes for TRL's `environment_factory` run unchanged, after its documentation: none of their trajectories fails."""

from pathlib import Path

import pytest

from e2e_runs import overrides, write_lines
from ramify.cli import main
from ramify.obs.metrics import read_metrics
from ramify.obs.trace import read_trees
from ramify.obs.trace_index import trace_files

pytestmark = pytest.mark.integration

CLASSES = Path(__file__).parents[1] / "trl_classes.py"
RECIPE = """\
[model]
path = "{model}"
[data]
max_prompt_tokens = 900
[run]
dir = "{folder}/run"
steps = 2
threads = 1
deterministic = true
[rollout]
problems_per_step = 4
n = 6
m = 3
max_tokens = 400
max_calls = 3
branching = {{ name = "bernoulli", probe_tokens = 4 }}
[engine]
name = "scripted"
script = "{folder}/script.toml"
[reward]
name = "environment"
[algorithm]
old = "recompute"
estimator = {{ name = "group" }}
loss = {{ name = "clip" }}
[learner]
problems_per_minibatch = 4
optimizer = {{ rate = 1e-3 }}
"""
ONE = '[environment]\npath = "{classes}"\nfunction = "{name}"\n'
SEVERAL = """\
[environments.coding]
path = "{classes}"
function = "CodingEnv"
[environments.game]
path = "{classes}"
function = "GameEnv"
"""
CALLS = {
    "IncrementEnv": ('<increment> {"step": 3} </increment>', '<increment> {"step": 1} </increment>'),
    "TargetEnv": ('<increment> {"step": 3} </increment>', '<increment> {"step": 1} </increment>'),
    "EchoToolEnv": ("<echo> hello </echo>", "<echo> hello world </echo>"),
    "WordleEnv": ("<guess> [crane] </guess>", "<guess> [slate] </guess>"),
    "BrowserEnv": ("<noop> {} </noop>", "<click> 42 </click>"),
    "MultiEnv": ("<guess> [crane] </guess>", "<move> left </move>"),
    "several": ("<run_code> print(1) </run_code>", "<move> up </move>"),
}
PROMPT = [{"role": "user", "content": "Do it."}]
ROWS = {
    "TargetEnv": [{"prompt": PROMPT, "target": number} for number in range(1, 7)],
    "EchoToolEnv": [{"prompt": PROMPT}] * 6,
    "WordleEnv": [{"prompt": PROMPT}] * 6,
    "MultiEnv": [{"prompt": PROMPT, "env": name} for name in ("wordle", "catch")] * 3,
}


def turn(after, text, entropy, ends=False):
    return (
        f"[[turns]]\nafter = {after}\ntext = {text!r}\nentropies = [{entropy}]\nends = {str(ends).lower()}\n"
    )


def write(folder, model, name):
    first, second = CALLS[name]
    turns = [turn(0, first, 0.5), turn(0, second, 0.4), turn(1, second, 2.5), turn(1, first, 0.1)]
    turns += [turn(after, "<answer> done </answer>", 1.5, True) for after in (2, 3)]
    (folder / "script.toml").write_text("".join(turns))
    text = RECIPE.format(model=model, folder=folder)
    text += (SEVERAL if name == "several" else ONE).format(classes=CLASSES, name=name)
    if name in ROWS:
        rows = write_lines(folder / "rows.jsonl", ROWS[name])
        text = text.replace("[data]\n", f'[data]\ntrain = "{rows}"\n')
    recipe = folder / "recipe.toml"
    recipe.write_text(text)
    return recipe


@pytest.mark.parametrize("name", CALLS)
def test_a_class_that_trl_documents_runs_unchanged(tmp_path, model_folder, name, capsys):
    recipe = write(tmp_path, model_folder, name)
    if name in ("IncrementEnv", "several"):
        assert main(["rollout", str(recipe), "-s", f"run.dir={tmp_path / 'rollout'}"]) == 0
    assert main(["train", str(recipe)]) == 0
    assert "failed" not in capsys.readouterr().out
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [row["stop/failed"] for row in rows] == [0.0, 0.0]
    trees = [traced for path in trace_files(tmp_path / "run" / "trees") for traced in read_trees(path)]
    assert any(result.text for traced in trees for node in traced.tree.nodes for result in node.results)
    assert any(decision.taken for traced in trees for decision in traced.tree.decisions)
    texts = [traced.tree.problem.messages[-1].text for traced in trees]
    if name in ("WordleEnv", "MultiEnv"):
        assert all(text.startswith("Do it.\n\n") for text in texts)
    if name == "several":
        check_each_shows_its_own_tools([traced.tree for traced in trees])
    if name == "IncrementEnv":
        ids = {traced.tree.problem.id for traced in trees}
        assert len(ids) == 8
        assert all(1 <= int(each.removeprefix("env-")) <= 10_000 for each in ids)
        # The environment's problems do not depend on the length of the run, so it can be made longer.
        assert main(["train", str(recipe), "--resume", "-s", "run.steps=3"]) == 0
        longer = read_trees(tmp_path / "run" / "trees" / "000003.jsonl")
        assert not ids & {traced.tree.problem.id for traced in longer}
        assert len(set(texts)) > 1
        for traced, text in zip(trees, texts, strict=True):
            target = int(text.removeprefix("Increment the counter by ").rstrip("."))
            for trajectory, reward in zip(traced.tree.trajectories, traced.rewards, strict=True):
                last = int(trajectory.exchanges[-1][1].text)
                assert reward.value == float(last == target)


def check_each_shows_its_own_tools(trees):
    shown = {"coding": ("run_code", "move"), "game": ("move", "run_code")}
    assert {tree.problem.info["environment"] for tree in trees} == set(shown)
    for tree in trees:
        own, other = shown[tree.problem.info["environment"]]
        exchanges = [exchange for trajectory in tree.trajectories for exchange in trajectory.exchanges]
        assert {result.status for call, result in exchanges if call.name == own} == {"ok"}
        assert all(result.status == "unknown_tool" for call, result in exchanges if call.name == other)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("IncrementEnv", ["run.steps=none"], "run.steps: without data.train"),
        ("IncrementEnv", ["data.epochs=3"], "data.epochs: has no effect without data.train"),
        ("several", ["environment={path='x.py', function='X'}"], "environments: there is an [environment] too"),
    ],
)  # fmt: skip
def test_what_has_no_effect_is_refused(tmp_path, model_folder, refused, name, settings, message):
    recipe = write(tmp_path, model_folder, name)
    if settings == ["run.steps=none"]:
        recipe.write_text(recipe.read_text().replace("steps = 2\n", ""))
        settings = []
    assert message in refused("train", recipe, *overrides(*settings))


def test_a_row_must_name_one_of_several_environments(tmp_path, model_folder, refused):
    recipe = write(tmp_path, model_folder, "several")
    rows = write_lines(tmp_path / "rows.jsonl", [{"environment": "game"}, {"environment": "chess"}] * 4)
    message = refused("train", recipe, "-s", f"data.train={rows}")
    assert "problem 'rows-2': expected its environment, one of coding, game" in message
