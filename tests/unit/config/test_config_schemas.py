from dataclasses import FrozenInstanceError

import pytest
from pydantic import TypeAdapter, ValidationError

from ramify.algos.branch_arpo import BernoulliConfig, ThresholdConfig
from ramify.algos.branch_rules import FlatConfig
from ramify.config.schema_eval import EvalRecipe, SamplingSection
from ramify.config.schema_examples import DpoLearnerSection
from ramify.config.schema_parts import SandboxSection
from ramify.config.schema_rollout import BranchingSection, RolloutSection
from ramify.core.errors import ConfigError
from train_recipes import RECIPE, load, refusal

BRANCHING = TypeAdapter(BranchingSection)
ROLLOUT = {"problems_per_step": 1, "n": 4, "m": 2, "max_tokens": 9, "max_calls": 0, "branching": "threshold"}


@pytest.mark.parametrize(
    ("keys", "entropy_delta"),
    [
        ({}, 0.0),
        ({"min_entropy_delta": -0.5}, -0.5),
        ({"alpha": 0.5, "beta": 0.2, "tau": 0.5}, 0.0),
        ({"alpha": 0.5, "beta": 0.25, "tau": 1.0}, 2.0),
        ({"alpha": 1, "beta": 2, "tau": 0}, -0.5),
    ],
)
def test_the_papers_threshold_is_a_rise(keys, entropy_delta):
    rule = BRANCHING.validate_python({"name": "threshold", **keys})
    assert rule == ThresholdConfig(name="threshold", min_entropy_delta=entropy_delta)
    # alpha + beta * entropy_delta > tau is entropy_delta > min_entropy_delta.
    if "tau" in keys:
        assert keys["alpha"] + keys["beta"] * rule.min_entropy_delta == pytest.approx(keys["tau"])


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"alpha": 0.5}, "alpha, beta and tau together"),
        ({"alpha": 0.5, "beta": 0.2}, "alpha, beta and tau together"),
        ({"alpha": "x", "beta": 0.2, "tau": 0.5}, "as numbers"),
        *(({"alpha": odd, "beta": 0.2, "tau": 0.5}, "as numbers") for odd in (None, True, 1e300, 10**400)),
        ({"alpha": 0.5, "beta": 1e-320, "tau": 0.6}, "finite"),
        ({"alpha": 0.5, "beta": 0.0, "tau": 0.5}, "beta > 0"),
        ({"alpha": 0.5, "beta": -1.0, "tau": 0.5}, "beta > 0"),
        ({"alpha": 0.5, "beta": 0.2, "tau": 0.5, "min_entropy_delta": 0.0}, "not both"),
        ({"alpha": 0.5, "beta": 0.2, "tau": float("nan")}, "finite"),
        ({"alpha": 0.5, "beta": float("nan"), "tau": 0.5}, "finite"),
        ({"min_entropy_delta": float("inf")}, "finite"),
        ({"children": 0}, "greater than or equal to 1"),
    ],
)
def test_a_threshold_that_cannot_be_read(keys, message):
    with pytest.raises(ValidationError, match=message):
        BRANCHING.validate_python({"name": "threshold", **keys})


def test_names_alone_are_rules():
    assert BRANCHING.validate_python("none") == FlatConfig(name="none")
    assert BRANCHING.validate_python("bernoulli") == BernoulliConfig(name="bernoulli", alpha=0.5, beta=0.335)


def test_training_samples_and_evaluation_may_be_greedy():
    with pytest.raises(ConfigError, match="training samples"):
        RolloutSection(**ROLLOUT | {"temperature": 0.0})
    assert SamplingSection(max_tokens=1, max_calls=0, temperature=0.0).temperature == 0.0


@pytest.mark.parametrize("k", [(5,), (1, 5), (), (0,), (True,)])
def test_k_needs_as_many_attempts(k):
    with pytest.raises(ConfigError, match="k"):
        SamplingSection(max_tokens=1, max_calls=0, attempts=4, k=k)
    assert SamplingSection(max_tokens=1, max_calls=0, attempts=4, k=(1, 4)).k == (1, 4)


def test_the_reference_of_dpo_holds_the_policy():
    with pytest.raises(ValidationError, match=r"beta\n.*greater than 0"):
        DpoLearnerSection(batch_size=1, optimizer={"rate": 1e-3}, beta=0.0)


@pytest.mark.parametrize("level", [-1, 5, 1.5, "x"])
def test_levels_that_do_not_exist(level):
    with pytest.raises(ValidationError):
        SandboxSection(min_level=level)


def test_a_recipe_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        RolloutSection(**ROLLOUT).n = 5


EVALUATION = {
    "model": {"path": "m"},
    "data": {"test": "t.jsonl", "max_prompt_tokens": 9},
    "run": {"dir": "r"},
    "sampling": {"max_tokens": 9, "max_calls": 0},
    "engine": {"name": "local"},
    "tools": {"python": {}},
    "reward": {"name": "hierarchical"},
}


def test_the_reward_of_the_papers_code_reads_one_dialect():
    reward = {"name": "compat", "system": "arpo"}
    assert EvalRecipe.model_validate({**EVALUATION, "reward": reward}).model.dialect == "tags"
    with pytest.raises(ValidationError, match='"compat" reads tags only'):
        EvalRecipe.model_validate(
            {**EVALUATION, "reward": reward, "model": {"path": "m", "dialect": "hermes"}}
        )


def test_an_evaluation_needs_a_reward_that_tells_right_from_wrong():
    assert EvalRecipe.model_validate(EVALUATION).reward.bonus == 0.1
    with pytest.raises(ValidationError, match="tells right from wrong"):
        EvalRecipe.model_validate({**EVALUATION, "reward": {"name": "length"}})


@pytest.mark.parametrize("key", ["save_every", "keep_last", "keep_best"])
def test_an_evaluation_has_no_checkpoints(key):
    with pytest.raises(ValidationError, match=rf"run\.{key}"):
        EvalRecipe.model_validate({**EVALUATION, "run": {"dir": "r", key: 5}})


# environments

OWN = 'path="world.py",function="World"'


def without_tools(recipe):
    tables = RECIPE.split("\n[")
    recipe.write_text("\n[".join(t for t in tables if not t.startswith(("tools", "sandbox"))))
    return recipe


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (f"{{{OWN},max_step=3}}", "environment.max_step: unknown key, did you mean max_steps?"),
        (f"{{{OWN},type='foo'}}", "environment.type: expected one of own, mcp, openenv, got 'foo'"),
        ("{type='mcp'}", 'environment: expected one of command, such as ["python", "server.py"], and url'),
        (
            "{type='mcp',url='http://x',variables=['A_KEY']}",
            "environment.variables: has no effect without command. Remove it.",
        ),
        ("{type='openenv'}", "environment.url: expected a value, found none"),
        ("{type='openenv',url='nope'}", "environment.url: expected an address such as http://127.0.0.1:8000"),
        ("{path='world.py'}", "environment.function: expected a value, found none"),
        ("3", "environment: expected a table, got 3"),
        (f"{{{OWN},max_steps=0}}", "environment.max_steps: expected a number greater than or equal to 1, got 0"),
    ],
)  # fmt: skip
def test_mistakes_name_their_key(recipe, environment, message):
    assert refusal(without_tools(recipe), f"environment={environment}") == message


def test_an_environment_stands_in_place_of_tools(recipe):
    message = refusal(recipe, f"environment={{{OWN}}}")
    assert message == "tools: the [environment] has tools of its own; leave [tools] out"


def test_a_reward_of_the_environment_takes_one(recipe):
    message = refusal(recipe, "reward={name='environment'}")
    assert message == 'reward.name: "environment" takes an [environment], which is missing'


@pytest.mark.parametrize("reward", ["{name='environment'}", "{name='environment',right_at=0.5}"])
def test_a_recipe_with_an_environment(recipe, reward):
    read = load(without_tools(recipe), f"environment={{{OWN}}}", f"reward={reward}")
    assert read.environment.function == "World"
    assert read.reward.name == "environment"
