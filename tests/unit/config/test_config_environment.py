"""The table of environments: what is refused, in one line with the key."""

import pytest

from train_recipes import RECIPE, load, refusal

OWN = 'path="world.py",function="World"'


def without_tools(recipe):
    tables = RECIPE.split("\n[")
    recipe.write_text("\n[".join(t for t in tables if not t.startswith(("tools", "sandbox"))))
    return recipe


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        (f"{{{OWN},max_step=3}}", "environment.max_step: unknown key, did you mean max_steps?"),
        (f"{{{OWN},type='foo'}}", "environment.type: expected one of own, mcp, openenv, got 'foo'"),
        ("{type='mcp'}", 'environment: expected one of command, such as ["python", "server.py"], and url'),
        (
            "{type='mcp',url='http://x',variables=['A_KEY']}",
            "environment.variables: has no effect without command. Remove it.",
        ),
        ("{type='openenv'}", "environment.url: expected a value, found none"),
        (
            "{type='openenv',url='nope'}",
            "environment.url: expected an address such as http://127.0.0.1:8000",
        ),
        ("{path='world.py'}", "environment.function: expected a value, found none"),
        ("3", "environment: expected a table, got 3"),
        (
            f"{{{OWN},max_steps=0}}",
            "environment.max_steps: expected a number greater than or equal to 1, got 0",
        ),
    ],
)
def test_mistakes_name_their_key(recipe, environment, told):
    assert refusal(without_tools(recipe), f"environment={environment}") == told


def test_an_environment_stands_in_place_of_tools(recipe):
    told = refusal(recipe, f"environment={{{OWN}}}")
    assert told == "tools: the [environment] has tools of its own; leave [tools] out"


def test_a_reward_of_the_environment_takes_one(recipe):
    told = refusal(recipe, "reward={name='environment'}")
    assert told == 'reward.name: "environment" takes an [environment], which is missing'


@pytest.mark.parametrize("reward", ["{name='environment'}", "{name='environment',right_at=0.5}"])
def test_a_recipe_with_an_environment(recipe, reward):
    read = load(without_tools(recipe), f"environment={{{OWN}}}", f"reward={reward}")
    assert read.environment.function == "World"
    assert read.reward.name == "environment"
