"""The arms of an ablation as settings of the recipe."""

import pytest

from ramify.config.load import load_recipe
from ramify.config.schema_train import TrainRecipe
from ramify.core.errors import ConfigError
from ramify.study.arms import plan_ablation
from train_recipes import RECIPE

EVAL = '[eval]\ntest = "test.jsonl"\nevery = 5\n'
ALL = ("flat", "yoked", "rule")


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE + EVAL)
    return path


def plan(recipe, *overrides, arms=ALL, others=None, seeds=2):
    return plan_ablation(recipe, overrides, arms, others or {}, seeds, recipe.parent / "out")


def loaded(recipe, ablation):
    """The recipe of each run, as `ramify train` reads it."""
    recipes = {run.name: load_recipe(TrainRecipe, recipe, run.overrides) for run in ablation.runs}
    assert recipes == {run.name: run.recipe for run in ablation.runs}
    return recipes


def shuffled(folder):
    return f"{{ name = 'shuffled', of = '{folder}-{{seed}}', rule = 'threshold' }}"


def test_arms_differ_in_nothing_but_the_rule(recipe):
    ablation = plan(recipe, "run.seed=5", "rollout.branching.min_entropy_delta=0.2")
    recipes = loaded(recipe, ablation)
    assert list(recipes) == ["rule-5", "flat-5", "yoked-5", "rule-6", "flat-6", "yoked-6"]
    for name, each in recipes.items():
        arm, _, seed = name.partition("-")
        assert (each.run.seed, each.run.threads, each.run.dir) == (int(seed), 1, recipe.parent / "out" / name)
        same = each.model_dump(exclude={"run": {"dir", "seed"}, "rollout": {"branching", "m"}})
        rule = recipes["rule-5"]
        assert same == rule.model_dump(exclude={"run": {"dir", "seed"}, "rollout": {"branching", "m"}})
        assert each.rollout.branching.name == {"flat": "none", "yoked": "yoked", "rule": "threshold"}[arm]
        assert each.rollout.m == (None if arm == "flat" else 3)
    yoked = recipes["yoked-6"].rollout.branching
    assert (yoked.of, yoked.probe_tokens) == (recipe.parent / "out" / "rule-6", 20)
    assert [run.after for run in ablation.runs[-3:]] == ["", "", "rule-6"]


def test_a_seed_can_have_its_own_start_and_world(recipe):
    text = recipe.read_text().replace('"models/tiny"', '"runs/{seed}/sft"')
    recipe.write_text(text.replace('"train.jsonl"', '"runs/{seed}/train.jsonl"'))
    recipes = loaded(recipe, plan(recipe, arms=("flat", "rule")))
    assert [str(each.model.path) for each in recipes.values()] == ["runs/0/sft"] * 2 + ["runs/1/sft"] * 2
    assert str(recipes["flat-1"].data.train) == "runs/1/train.jsonl"
    recipe.write_text(
        recipe.read_text().replace('"runs/{seed}/train.jsonl"', '["runs/{seed}/a.jsonl", "b.jsonl"]')
    )
    own = '\n[reward]\nname = "answer"\nown = [{ path = "right-{seed}.py", function = "right" }]\n'
    recipe.write_text(recipe.read_text().replace('[reward]\nname = "hierarchical"\n', own))
    recipes = loaded(recipe, plan(recipe, arms=("flat", "rule")))
    assert [str(each) for each in recipes["flat-1"].data.train] == ["runs/1/a.jsonl", "b.jsonl"]
    assert str(recipes["rule-1"].reward.own[0].path) == "right-1.py"


def test_settings_of_a_run_name_each_key_once_with_the_value_that_counts(recipe):
    rule = ("rollout.branching={ name = 'random', rate = 0.5 }", "rollout.branching.rate=0.25")
    ablation = plan(
        recipe, "model.path=runs/{seed}/sft", *rule, "rollout.m=2", arms=("flat", "rule"), seeds=1
    )
    assert loaded(recipe, ablation)["rule-0"].rollout.branching.rate == 0.25
    for run in ablation.runs:
        keys = [setting.partition("=")[0] for setting in run.overrides]
        assert len(keys) == len(set(keys))
        assert 'model.path="runs/0/sft"' in run.overrides
    branching = [text for text in run.overrides if text.startswith("rollout.branching=")]
    assert (run.name, branching) == ("flat-0", ["rollout.branching={ name = 'none' }"])


def test_other_arms_and_rules_that_compute_their_roots(recipe):
    others = {"aepo": "{ name = 'balanced' }", "bare": "balanced", "half": "{ name = 'random', rate = 0.5 }"}
    recipes = loaded(recipe, plan(recipe, others=others, seeds=1))
    assert [recipes[f"{name}-0"].rollout.m for name in ("aepo", "bare", "half")] == [None, None, 3]
    of_rule = {"shuffled": shuffled(recipe.parent / "out" / "rule")}
    last = plan(recipe, others=of_rule, arms=("rule",)).runs[-1]
    assert (last.name, last.after, "of" in last.branching) == ("shuffled-1", "rule-1", False)
    # A rule of each seed's own is one rule, so that the next session knows it again.
    own = {"own": "{ name = 'file', path = 'rule-{seed}.py', function = 'f' }"}
    runs = plan(recipe, others=own, arms=("flat",)).runs[1::2]
    assert [run.branching["path"] for run in runs] == ["rule-{seed}.py"] * 2
    assert [str(run.recipe.rollout.branching.path) for run in runs] == ["rule-0.py", "rule-1.py"]
    balanced = ("rollout.branching=balanced", "rollout.m=")
    recipes = loaded(recipe, plan(recipe, *balanced, seeds=1))
    # A quarter of n, the fewest roots of that rule.
    assert [each.rollout.m for each in recipes.values()] == [None, None, 2]
    recipes = loaded(recipe, plan(recipe, *balanced, others=others, arms=("rule",), seeds=1))
    assert [recipes[f"{name}-0"].rollout.m for name in ("aepo", "bare", "half")] == [None, None, 2]


def test_a_rule_waits_for_the_run_that_it_names_however_its_folder_is_written(recipe, monkeypatch):
    monkeypatch.chdir(recipe.parent)
    others = {"b": shuffled("out/a"), "a": "{ name = 'random', rate = 0.5 }", "c": shuffled("other/a")}
    runs = plan(recipe, others=others, arms=("rule",), seeds=1).runs
    assert {run.arm: run.after for run in runs} == {"rule": "", "a": "", "b": "a-0", "c": ""}
    for circle in ({"a": shuffled("out/a")}, {"a": shuffled("out/b"), "b": shuffled("out/a")}):
        with pytest.raises(ConfigError, match=r"--arm a: its rule waits for ([ab]-0), which waits for it"):
            plan(recipe, others=circle, arms=("rule",), seeds=1)


def test_flat_leaves_out_what_only_branches_need(recipe):
    settings = ("algorithm.shared=mass", "algorithm.advantage=hard", "rollout.branch_at=after_probe")
    algorithm = loaded(recipe, plan(recipe, *settings))["flat-0"].algorithm
    assert (algorithm.shared, algorithm.advantage) == ("repeat", "soft")


def test_the_fingerprint_is_that_of_everything_but_seed_and_folder(recipe):
    prints = [
        plan(recipe, *overrides).fingerprint
        for overrides in ((), ("run.seed=3", "run.dir=elsewhere"), ("rollout.max_calls=2",))
    ]
    assert prints[0] == prints[1] != prints[2]


@pytest.mark.parametrize(
    ("overrides", "more", "message"),
    [
        (("eval=",), {}, r"without \[eval\] .* Set eval.test to a file of problems and eval.every"),
        (("eval.patience=2",), {}, "eval.patience: arms that end early"),
        (("rollout.branching=none", "rollout.m="), {}, 'rollout.branching: "none" never branches'),
        (
            (),
            {"arms": ("flat", "yoked")},
            "--arms: yoked takes its numbers of branches from the runs of rule",
        ),
        ((), {"others": {"flat": "{ name = 'random' }"}}, "--arm flat: the name of a usual arm"),
        ((), {"others": {"odd": "{ name = 'odd' }"}}, "arm odd: rollout.branching"),
        ((), {"others": {"Flat": "{ name = 'random' }"}}, "--arm Flat: the name of a usual arm"),
        (("learner.optimizer.rate=-1",), {}, "learner.optimizer.rate"),
    ],
)
def test_what_cannot_be_compared_is_refused(recipe, overrides, more, message):
    with pytest.raises(ConfigError, match=message):
        plan(recipe, *overrides, **more)
