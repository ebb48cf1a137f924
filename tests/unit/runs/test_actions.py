"""Commands for recorded trees: whose recipe and whose weights they name, and what they leave out."""

import shlex

import pytest

from ramify.runs.recorded_trees import tree_actions

TABLES = "[rollout]\nn = 4\n[environments]\n"


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "my $(run)"
    for step in (2, 4):
        (folder / "checkpoints" / f"step-{step:06d}").mkdir(parents=True)
    (folder / "recipe.toml").write_text(TABLES)
    return folder


def commands(trace, tree=0):
    return {action.name: shlex.split(action.template) for action in tree_actions(trace, tree)}


@pytest.mark.parametrize(
    ("trace", "weights"),
    [
        ("trees/000002.jsonl", None),
        ("trees/000004.jsonl", 2),
        ("trees/000007.jsonl", 4),
        ("evals/000004.jsonl", 4),
        ("preflight/trees.jsonl", None),
    ],
)
def test_a_tree_grows_again_with_the_weights_that_are_nearest_to_its_own(run, trace, weights):
    words = commands(run / trace, 3)["grow again from here"]
    assert words[:5] == ["ramify", "rollout", f"{run}/recipe.toml", "--from", f"{run}/{trace}:3/{{node}}"]
    model = [word for word in words if word.startswith("model.path=")]
    assert model == ([] if weights is None else [f"model.path={run}/checkpoints/step-{weights:06d}"])


def test_the_run_of_a_cycle_has_the_recipe_of_the_whole(run):
    words = commands(run / "cycle-01" / "rl" / "trees" / "000001.jsonl")["rescore"]
    assert words[-2:] == ["--reward", f"{run}/recipe.toml"]


def test_a_test_is_offered_only_where_a_script_can_play_it(run, tmp_path):
    assert "turn into a test" in commands(run / "trees" / "000001.jsonl")
    other = tmp_path / "other"
    other.mkdir()
    (other / "recipe.toml").write_text(f"{TABLES}[environments.games]\npath = 'games.py'\n")
    assert list(commands(other / "trees" / "000001.jsonl")) == [
        "grow again from here",
        "rescore",
        "make a pair",
    ]


def test_without_a_recipe_a_pair_is_left_and_names_its_tokenizer(tmp_path):
    assert commands(tmp_path / "a" / "b" / "c" / "d" / "trees.jsonl").keys() == {"make a pair"}
