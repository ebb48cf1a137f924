"""Every recipe for training that ships: checked, and two steps of it on a tiny model, with what is its own seen to act."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from e2e_runs import overrides, write_task
from ramify.algos.estimators import TreeGrpo
from ramify.algos.grpo import GroupRelative
from ramify.cli import main
from ramify.config.load import command_of, load_recipe, read_toml
from ramify.config.schema_train import TrainRecipe
from ramify.core.tree import Source
from ramify.learner.guard import Guard
from ramify.modeling.model_config import ADAPTER_WEIGHTS
from ramify.obs.metrics import read_metrics
from ramify.obs.trace import read_trees
from random_trees import annotated

RECIPES = {
    path.stem: path
    for path in sorted((Path(__file__).parents[2] / "recipes").glob("*.toml"))
    if command_of(read_toml(path)) == "train" and not path.stem.startswith(("quickstart_", "study_"))
}
METRICS = {
    "grpo": ["update/kl", "update/clip_fraction"],
    "dapo": ["reward/part/overlong", "sampling/refused", "sampling/attempts"],
    "cispo": ["reward/part/overlong", "sampling/refused", "update/clip_fraction"],
    "gppo": ["sampling/refused", "update/clip_fraction"],
    "gspo": ["update/clip_fraction"],
    "aepo": ["update/above_clip_high", "branch/decisions"],
    "arpo": ["branch/decisions", "update/clip_fraction"],
    "arpo_unbiased": ["guard/violated", "health/repetition", "health/invalid_calls", "update/entropy"],
    "tree_grpo": ["branch/decisions"],
    "node_value": ["branch/decisions"],
}
"""What only runs of this method log, by the first words of its name; every recipe logs all of `update/`."""
FLAT = ("grpo", "grpo_tis", "dr_grpo", "dapo", "rloo", "reinforce_pp", "cispo", "gppo", "gspo", "toolstar")


@pytest.fixture(scope="module")
def task(tmp_path_factory, caller):
    """Problems that the model answers rightly about half of the time."""
    rows = [
        {"id": f"p{i}", "prompt": "what is 12 plus 30 ?", "answer": [42, "Paris"][i % 2]} for i in range(32)
    ]
    return write_task(tmp_path_factory.mktemp("recipes"), caller, problems=rows).parent


def settings_of(path, task, model, run):
    """A recipe at the size of a test: paths, sizes, limits and rates; what makes it its own stays."""
    rollout, algorithm, tools = (read_toml(path)[table] for table in ("rollout", "algorithm", "tools"))
    small = {
        "model.path": model, "data.train": task / "problems.jsonl", "data.instructions": "false",
        "data.max_prompt_tokens": 200, "data.epochs": 1, "run.dir": run, "run.threads": 1,
        "run.save_every": 100, "model.dtype": "float32", "engine.name": "local", "preflight.problems": 1,
        "preflight.allow_zero_variance": "true", "rollout.problems_per_step": 4,
        "rollout.n": min(rollout["n"], 6), "rollout.max_tokens": 64, "rollout.max_calls": 2,
        "engine.slots": 24, "tools.cache": "", "tools.python.timeout_seconds": 10, "sandbox.min_level": 0,
        "learner.problems_per_minibatch": 2, "learner.token_budget": 8192, "learner.optimizer.rate": 1e-3,
        "learner.optimizer.warmup_steps": 1,
    }  # fmt: skip
    if "search" in tools:
        small |= {
            "tools.search.provider": "local",
            "tools.search.corpus": task / "passages.jsonl",
            "tools.search.top_k": 1,
        }
    if "m" in rollout:
        small["rollout.m"] = 3
    if rollout["branching"] != "none":
        small["rollout.branching.probe_tokens"] = 4
    if "entropy_advantage" in algorithm:
        small["algorithm.entropy_advantage.source"] = "behavior"
    if "fixed_length" in algorithm:
        small["algorithm.fixed_length"] = 64
    if "overlong_margin" in algorithm:
        small["algorithm.overlong_margin"] = 60
    return overrides(small)


@pytest.fixture(scope="module")
def runs():
    """Folders of runs, by the recipe at the size of a test."""
    return {}


@pytest.fixture(scope="module", params=RECIPES)
def trained(request, tmp_path_factory, task, caller, runs):
    """Two steps of a recipe: its name, its folder. Recipes that do not differ at this size have the same one."""
    run = tmp_path_factory.mktemp("runs") / request.param
    path = RECIPES[request.param]
    settings = settings_of(path, task, caller, run)
    assert main(["train", str(path), "--dry-run", *settings]) == 0
    assert not run.exists()
    anywhere = settings_of(path, task, caller, "run")[1::2]
    small = load_recipe(TrainRecipe, path, anywhere).model_dump_json()
    if small not in runs:
        assert main(["train", str(path), "--max-steps", "2", *settings]) == 0
        runs[small] = run
    return request.param, runs[small]


def method_of(name):
    """`arpo_hard_reasoning_7b` is arpo_hard, whose metrics are those of arpo; `smollm2_rl` is arpo too."""
    if name == "smollm2_rl":
        return "arpo"
    return "toolstar" if name == "toolstar_grpo" else re.split("_(?:reasoning|deepsearch|qwen2.5)_", name)[0]


def test_a_recipe_trains(trained, caller):
    name, run = trained
    rows = read_metrics(run / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2]
    for row in rows:
        assert all(value is not None and math.isfinite(value) for value in row.values()), row
        assert row["update/steps"] >= 1
        assert row["update/grad_norm"] > 0
        assert row["update/mismatch_mean"] < 1e-4
    checkpoint = run / "checkpoints" / "step-000002"
    if "_lora_" in name:
        assert any(
            tensor.any() for key, tensor in load_file(checkpoint / ADAPTER_WEIGHTS).items() if "lora_B" in key
        )
    else:
        weights = (checkpoint / "model.safetensors").read_bytes()
        assert weights != (caller / "model.safetensors").read_bytes()
    method = method_of(name)
    own = [metric for key, metrics in METRICS.items() if method.startswith(key) for metric in metrics]
    assert {metric: rows[0].get(metric) for metric in own if rows[0].get(metric) is None} == {}


def test_its_own_part_acts(trained):
    name, run = trained
    method = method_of(name)
    rows = read_metrics(run / "metrics.jsonl")
    traced = [item for step in (1, 2) for item in read_trees(run / "trees" / f"{step:06d}.jsonl")]
    learned = [item for item in traced if item.advantages is not None]
    if method in FLAT:
        assert all(len(item.tree.children[""]) == len(item.tree.trajectories) for item in traced)
    else:
        assert sum(row["branch/taken"] for row in rows) > 0
    first = [item for item in learned if item.tree.key.step == 0]
    estimator = ESTIMATORS.get(method)
    if estimator is not None:
        # At the first step the model is its own reference, so a penalty in the reward is none.
        for item in first:
            expected = estimator.advantages(annotated(item.tree, item.rewards), ())
            np.testing.assert_allclose(item.advantages, [a.mean() for a in expected], atol=1e-4)
    CHECKS.get(method, lambda *_: None)(rows, traced, learned)


ESTIMATORS = {
    "grpo": GroupRelative("repeat"),
    "grpo_tis": GroupRelative("repeat"),
    "dr_grpo": GroupRelative("repeat", scale="none"),
    "dapo": GroupRelative("repeat"),
    "rloo": GroupRelative("repeat", scale="none", baseline="leave_subtree_out"),
    "arpo": GroupRelative("repeat"),
    "toolstar": GroupRelative("repeat"),
    "arpo_hard": GroupRelative("repeat"),
    "arpo_unbiased": GroupRelative("mass", scale="none", baseline="leave_subtree_out"),
    "tree_grpo": TreeGrpo("repeat"),
}


def check_penalty(rows, traced, learned):
    assert rows[0]["update/kl"] == pytest.approx(0, abs=1e-6)
    assert rows[1]["update/kl"] > 0


def check_single_trajectories(rows, traced, learned):
    assert all(len(item.advantages) == 1 for item in learned)
    first = [item for item in learned if item.tree.key.step == 0]
    sizes = [item.tree.trajectories[0].num_written for item in first]
    assert np.average([item.advantages[0] for item in first], weights=sizes) == pytest.approx(0, abs=1e-4)
    assert len({item.advantages[0] for item in first}) > 1


def check_refusals(rows, traced, learned):
    for item in traced:
        correct = [reward.parts["correct"] for reward in item.rewards]
        assert (item.advantages is not None) == (max(correct) > 0 and min(correct) < 1)
    refused = [item for item in traced if item.advantages is None]
    assert sum(row["sampling/refused"] for row in rows) == len(refused)


def check_refusals_and_length(rows, traced, learned):
    check_refusals(rows, traced, learned)
    assert min(row["reward/part/overlong"] for row in rows) < 0


def check_entropies(rows, traced, learned):
    nodes = [node for item in traced for node in item.tree.nodes if node.source is Source.POLICY]
    assert all(len(node.token_entropies) == len(node.token_ids) for node in nodes)
    plain = GroupRelative("repeat")
    for item in learned:
        group = [a.mean() for a in plain.advantages(annotated(item.tree, item.rewards), ())]
        factors = np.array([a / g for a, g in zip(item.advantages, group, strict=True) if g])
        assert ((factors >= 0.5) & (factors <= 2)).all()
        assert not len(factors) or (np.abs(factors - 1) > 1e-3).any()


def check_unbiased(rows, traced, learned):
    assert [row["guard/violated"] for row in rows] == [0, 0]
    section = load_recipe(TrainRecipe, RECIPES["arpo_unbiased_reasoning_7b"], ()).guard
    guard = Guard(section, max_tokens=64)
    values = {key: value for key, value in rows[0].items() if key != "step"}
    assert guard.look(values) is None
    worse = {
        "health/repetition": 0.9, "health/written": 63.0, "health/invalid_calls": 0.9,
        "group/zero_variance": 1.0, "health/entropy": 0.001, "update/non_finite": 4.0,
    }  # fmt: skip
    for metric, value in worse.items():
        assert guard.look({**values, metric: value}).metric == metric
    assert any(trajectory.stop.truncated for item in learned for trajectory in item.tree.trajectories)
    branched = [
        node
        for item in traced
        for node in item.tree.nodes
        if node.parent is not None and len(item.tree.children[node.id]) > 1
    ]
    # The children share the tokens that were looked at.
    assert {(node.source, len(node.token_ids)) for node in branched} == {(Source.POLICY, 4)}
    plain = GroupRelative("repeat", scale="none")
    differs = [
        not np.allclose(
            item.advantages, [a.mean() for a in plain.advantages(annotated(item.tree, item.rewards), ())]
        )
        for item in learned
    ]
    assert any(differs)


CHECKS = {
    "grpo": check_penalty, "grpo_tis": check_penalty, "arpo_unbiased": check_unbiased,
    "reinforce_pp": check_single_trajectories, "dapo": check_refusals_and_length,
    "cispo": check_refusals_and_length, "gppo": check_refusals, "aepo": check_entropies,
    "aepo_paper": check_entropies,
}  # fmt: skip


def test_a_recipe_of_eight_gpus_serves_a_small_model_on_a_cpu(tmp_path, task, caller):
    """With the local engine alone changed it computes in bfloat16, as it says."""
    run = tmp_path / "run"
    as_shipped = {"model.dtype", "learner.optimizer.rate"}
    settings = settings_of(RECIPES["arpo_reasoning_7b"], task, caller, run)
    small = [word for word in settings if word != "-s" and word.partition("=")[0] not in as_shipped]
    assert "engine.name=local" in small
    assert main(["train", "arpo_reasoning_7b", "--max-steps", "1", *overrides(*small)]) == 0
    (row,) = read_metrics(run / "metrics.jsonl")
    assert row["update/steps"] >= 1
    assert 0 < row["update/mismatch_max"] < 0.1


def test_importance_weights_act_where_the_engine_is_not_the_learner(tmp_path, task, caller):
    def first_update(name, *more):
        path, run = RECIPES[f"{name}_reasoning_7b"], tmp_path / name
        words = overrides(*more)
        assert (
            main(["train", str(path), "--max-steps", "1", *settings_of(path, task, caller, run), *words]) == 0
        )
        (row,) = read_metrics(run / "metrics.jsonl")
        return row["update/grad_norm"], row["update/mismatch_mean"]

    # The scripted engine is certain of what it writes, so that a weight is the learner's own probability.
    scripted = f'engine={{name="scripted", script="{task / "script.toml"}"}}'
    plain, mismatch = first_update("grpo", "algorithm.old=recompute", scripted)
    weighted, same_mismatch = first_update("grpo_tis", scripted)
    assert mismatch == same_mismatch > 0.1
    assert 0 < weighted < 0.9 * plain


def test_a_step_with_nothing_to_learn_from_is_said_and_changes_nothing(tmp_path, caller, capsys):
    rows = [{"prompt": "what is 12 plus 30 ?", "answer": "neither"} for _ in range(12)]
    recipe = write_task(tmp_path / "task", caller, problems=rows)
    words = overrides("reward.name=hierarchical", "rollout.dynamic_sampling.max_attempts=2")
    assert main(["train", str(recipe), "--max-steps", "2", *words]) == 0
    note = "step 1: none of 4 problems had both right and wrong answers in 2 attempts; nothing was learned"
    assert note in capsys.readouterr().out
    run = recipe.parent / "run"
    for row in read_metrics(run / "metrics.jsonl"):
        assert (row["sampling/empty"], row["sampling/refused"], row["update/steps"]) == (1.0, 4.0, 0.0)
        assert row["update/loss"] is None
        assert row["reward/part/correct"] == 0.0
    for step in (1, 2):
        assert {item.advantages for item in read_trees(run / "trees" / f"{step:06d}.jsonl")} == {None}
    weights = (run / "checkpoints" / "step-000002" / "model.safetensors").read_bytes()
    assert weights == (caller / "model.safetensors").read_bytes()


def test_every_named_algorithm_has_a_recipe():
    wanted = {
        *("grpo", "grpo_tis", "dr_grpo", "dapo", "rloo", "reinforce_pp", "cispo", "gppo", "gspo", "toolstar"),
        *("arpo", "arpo_hard", "arpo_unbiased", "aepo", "aepo_paper", "tree_grpo", "node_value"),
    }
    assert {method_of(name) for name in RECIPES} == wanted


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_says_what_it_is(name):
    loaded = load_recipe(TrainRecipe, RECIPES[name], ())
    assert loaded.run.dir == Path("runs") / name
    assert "arXiv" in RECIPES[name].read_text().split("\n")[0]
    if method_of(name).startswith("aepo"):
        section = loaded.algorithm
        assert (section.loss.name, section.loss.dual_clip, section.entropy_advantage.source) == (
            "aepo_clip",
            3.0,
            "behavior" if loaded.engine.computes_here else "annotate",
        )


def test_resolved_recipes_are_what_ran(trained):
    name, run = trained
    ran = read_toml(run / "recipe.toml")
    shipped = load_recipe(TrainRecipe, RECIPES[name], ()).model_dump(mode="json", exclude_none=True)
    if "entropy_advantage" in shipped["algorithm"]:
        shipped["algorithm"]["entropy_advantage"]["source"] = "behavior"  # as in `settings_of`
    for table in ("estimator", "loss", "kl", "entropy_advantage", "shared", "advantage", "aggregation"):
        assert ran["algorithm"].get(table) == shipped["algorithm"].get(table)
    assert ran["rollout"].get("dynamic_sampling") == shipped["rollout"].get("dynamic_sampling")
