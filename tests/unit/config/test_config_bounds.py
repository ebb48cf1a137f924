"""How a bound reads, and numbers that no reader takes. That every number has bounds: contract/test_recipe_numbers.py; which: docs/reference."""

import pytest

from train_recipes import refusal

PAPERS = "rollout.branching: expected alpha, beta and tau together, as numbers (finite, -1000 to 1000)"
SWITCH = "true or false"


def most(number):
    return f"a number less than or equal to {number}"


def least(number):
    return f"a number greater than or equal to {number}"


@pytest.mark.parametrize(
    ("override", "bound"),
    [
        ("algorithm.loss.clip_high=1e300", most(1000)),
        ("model.lora.alpha=1e-300", least("0.000000001")),
        ("learner.optimizer.decay_from=1.0", "a number less than 1"),
        ("algorithm.entropy_bonus=-1.0", "a number greater than 0"),
        ("algorithm.overlong_margin=0", least(1)),
        # 0 is no switch.
        ("run.deterministic=0", SWITCH),
        ("run.deterministic='yes'", SWITCH),
    ],
)
def test_beyond_a_bound(recipe, override, bound):
    key = override.partition("=")[0]
    assert refusal(recipe, override).startswith(f"{key}: expected {bound}, got ")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rollout.temperature=1e-300", "rollout.temperature: expected 0 (greedy) or at least 0.001, got 1e-300"),
        ("algorithm.kl={place='loss', estimator='k2', coefficient=0}", "algorithm.kl.coefficient: expected a number greater than 0, got 0"),
        ("algorithm.entropy_advantage={weight=0.0}", "algorithm.entropy_advantage.weight: expected a number greater than 0, got 0.0"),
        # The paper's own form of a threshold.
        ("rollout.branching={name='threshold', alpha=true, beta=0.2, tau=0.5}", PAPERS),
        ("rollout.branching={name='threshold', alpha=1e300, beta=0.2, tau=0.5}", PAPERS),
        (f"rollout.branching={{name='threshold', alpha={10**400}, beta=0.2, tau=0.5}}", PAPERS),
        ("rollout.branching={name='threshold', alpha=0.5, beta=1e-320, tau=0.6}", "rollout.branching.min_entropy_delta: expected a finite number, got inf"),
        # Numbers that no reader of TOML takes.
        ("rollout.n=" + 5000 * "1", "rollout.n: expected a valid integer, got '111"),
        ("rollout.n=" + 100_000 * "[", "rollout.n: expected a valid integer, got '[[["),
    ],
    ids=lambda value: value[:60],
)  # fmt: skip
def test_absurd_numbers(recipe, override, message):
    assert refusal(recipe, override).startswith(message)


@pytest.mark.parametrize("text", ["n = " + 5000 * "1", "n = " + 100_000 * "["])
def test_a_file_that_no_reader_takes(recipe, text):
    recipe.write_text(text)
    assert refusal(recipe).startswith("expected TOML: ")
