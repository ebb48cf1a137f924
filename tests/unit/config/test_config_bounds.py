"""Numbers that would overflow, hang or fill the memory later: refused when the recipe is read, by the key's name."""

import pytest

from train_recipes import load, refusal

NO_INTEGER = "expected a valid integer, got"
NO_NUMBER = "expected a valid number, got"
PAPERS = "rollout.branching: expected alpha, beta and tau together, as numbers (finite, -1000 to 1000)"
BALANCED = ("rollout.branching=balanced", "rollout.m=")


def most(number):
    return f"expected a number less than or equal to {number}, got"


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("algorithm.loss.clip_high=1e300", f"algorithm.loss.clip_high: {most(1000)} 1e+300"),
        ("model.lora.alpha=1e300", f"model.lora.alpha: {most(1000000)} 1e+300"),
        ("model.lora.rank=100000000000000000000000", f"model.lora.rank: {most(65536)} 10"),
        ("engine.slots=100000000000000000000000", f"engine.slots: {most(65536)} 10"),
        ("reward.bonus=1e300", f"reward.bonus: {most(1000)} 1e+300"),
        ("rollout.max_tokens=1e320", f"rollout.max_tokens: {NO_INTEGER} inf"),
        ("rollout.max_tokens=16777217", f"rollout.max_tokens: {most(2**24)} 16777217"),
        (
            "rollout.branching.min_entropy_delta=1e300",
            f"rollout.branching.min_entropy_delta: {most(1000)} 1e+300",
        ),
        (
            "rollout.branching.children=1000000",
            f"rollout.branching.children: {most(4096)} 1000000",
        ),
        (
            "rollout.temperature=1e-300",
            "rollout.temperature: expected 0 (greedy) or at least 0.001, got 1e-300",
        ),
        (
            "learner.optimizer.rate=1e-300",
            "learner.optimizer.rate: expected a number greater than or equal to 0.000000000001, got 1e-300",
        ),
        (
            "model.lora.alpha=1e-300",
            "model.lora.alpha: expected a number greater than or equal to 0.000000001",
        ),
        # What would not act, or act the wrong way round.
        (
            "algorithm.kl={place='loss', estimator='k2', coefficient=0}",
            "algorithm.kl.coefficient: expected a number greater than 0, got 0",
        ),
        (
            "algorithm.entropy_bonus=-1.0",
            "algorithm.entropy_bonus: expected a number greater than 0, got -1.0",
        ),
        (
            "algorithm.entropy_advantage={weight=0.0}",
            "algorithm.entropy_advantage.weight: expected a number greater than 0, got 0.0",
        ),
        (
            "algorithm.overlong_margin=0",
            "algorithm.overlong_margin: expected a number greater than or equal to 1",
        ),
        (
            "learner.optimizer.warmup_steps=-1",
            "learner.optimizer.warmup_steps: expected a number greater than",
        ),
        ("learner.optimizer.decay_from=1.0", "learner.optimizer.decay_from: expected a number less than 1"),
        ("learner.optimizer.final_rate=1.5", f"learner.optimizer.final_rate: {most(1)} 1.5"),
        # 0 is no switch.
        ("run.deterministic=0", "run.deterministic: expected true or false, got 0"),
        ("run.deterministic='yes'", "run.deterministic: expected true or false, got 'yes'"),
        ("tools.python.stateful=1", "tools.python.stateful: expected true or false, got 1"),
        ("preflight.enabled=1.0", "preflight.enabled: expected true or false, got 1.0"),
        ("learner.optimizer.rate=11", f"learner.optimizer.rate: {most(10)} 11"),
        ("tools.python.timeout_seconds=1e10", f"tools.python.timeout_seconds: {most(1000000)} 1"),
        ("tools.search.top_k=4294967296", f"tools.search.top_k: {most(65536)} 4294967296"),
        ("guard.min_entropy=21", f"guard.min_entropy: {most(20)} 21"),
        # A bool is no number.
        (
            "rollout.branching.min_entropy_delta=true",
            f"rollout.branching.min_entropy_delta: {NO_NUMBER} True",
        ),
        ("run.seed=true", f"run.seed: {NO_INTEGER} True"),
        ("sandbox.min_level=true", f"sandbox.min_level: {NO_INTEGER} True"),
        ("learner.optimizer.decay_from=false", f"learner.optimizer.decay_from: {NO_NUMBER} False"),
        # The paper's own form of a threshold.
        ("rollout.branching={name='threshold', alpha=true, beta=0.2, tau=0.5}", PAPERS),
        ("rollout.branching={name='threshold', alpha=1e300, beta=0.2, tau=0.5}", PAPERS),
        (f"rollout.branching={{name='threshold', alpha={10**400}, beta=0.2, tau=0.5}}", PAPERS),
        (
            "rollout.branching={name='threshold', alpha=0.5, beta=1e-320, tau=0.6}",
            "rollout.branching.min_entropy_delta: expected a finite number, got inf",
        ),
        # Numbers that no reader of TOML takes.
        ("rollout.n=" + 5000 * "1", f"rollout.n: {NO_INTEGER} '111"),
        ("rollout.n=" + 100_000 * "[", f"rollout.n: {NO_INTEGER} '[[["),
    ],
    ids=lambda value: value[:60],
)
def test_absurd_numbers(recipe, override, told):
    assert refusal(recipe, override).startswith(told)


@pytest.mark.parametrize("rule", [{"bernoulli": "beta"}, {"seed_compat_arpo": "entropy_weight"}])
def test_weights_of_rules_are_no_bools(recipe, rule):
    ((name, key),) = rule.items()
    told = refusal(recipe, f"rollout.branching={name}", f"rollout.branching.{key}=true")
    assert told == f"rollout.branching.{key}: {NO_NUMBER} True"
    told = refusal(recipe, *BALANCED, "rollout.branching.gamma=true")
    assert told == f"rollout.branching.gamma: {NO_NUMBER} True"


@pytest.mark.parametrize("text", ["n = " + 5000 * "1", "n = " + 100_000 * "["])
def test_a_file_that_no_reader_takes(recipe, text):
    recipe.write_text(text)
    assert refusal(recipe).startswith("expected TOML: ")


# what the budget leaves


def test_children_fit_what_the_roots_leave(recipe):
    assert load(recipe, "rollout.branching.children=5").rollout.branching.children == 5
    told = refusal(recipe, "rollout.branching.children=6")
    assert told == (
        "rollout.branching.children: expected at most rollout.n - rollout.m = 5, the trajectories that are left to "
        "branch, got 6"
    )
    load(recipe, *BALANCED, "rollout.branching.children=7")
    told = refusal(recipe, *BALANCED, "rollout.branching.children=8")
    assert told.startswith("rollout.branching.children: expected at most rollout.n - 1 = 7, the trajectories")


def test_a_single_trajectory_never_branches(recipe):
    told = refusal(recipe, *BALANCED, "rollout.n=1", "algorithm.estimator={name='reinforce_pp'}")
    assert told.startswith('rollout.branching: "balanced" can never branch with m = n = 1')


# what one optimizer step a rollout leaves


def notes(recipe, *overrides):
    loaded = load(recipe, *overrides)
    return loaded.algorithm.note_idle(
        loaded.rollout.problems_per_step,
        loaded.learner.problems_per_minibatch,
        loaded.engine.name == "local",
    )


ONCE = "learner.problems_per_minibatch=4"
WHY = "note: with one optimizer step a rollout (learner.problems_per_minibatch = 4) the ratio is 1: "
CLIPS = ("algorithm.loss.clip_low=0.1", "algorithm.loss.clip_high=0.3")
RECOMPUTE = "algorithm.old=recompute"
CORRECTED = "algorithm.correction={level='token', kind='truncate'}"
SCRIPTED = ("engine.name=scripted", "engine.script=turns.toml")


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        ([*CLIPS], "algorithm.loss.clip_low and algorithm.loss.clip_high do not act"),
        (["algorithm.loss.clip_high=0.3"], "algorithm.loss.clip_high does not act"),
        (["algorithm.loss={name='gppo'}"], 'algorithm.loss.name = "gppo" does not act'),
        (["algorithm.loss.dual_clip=3.0"], "algorithm.loss.dual_clip does not act"),
        (["algorithm.advantage=hard"], 'algorithm.advantage = "hard" does not act'),
        ([RECOMPUTE], 'algorithm.old = "recompute" does not act'),
        ([CLIPS[0], RECOMPUTE], 'algorithm.loss.clip_low and algorithm.old = "recompute" do not act'),
        ([CLIPS[0], RECOMPUTE, CORRECTED], "algorithm.loss.clip_low does not act"),
        ([CLIPS[0], RECOMPUTE, *SCRIPTED], "algorithm.loss.clip_low does not act"),
    ],
)
def test_what_papers_set_is_noted_and_taken(recipe, overrides, told):
    assert notes(recipe, ONCE, *overrides) == (WHY + told,)


@pytest.mark.parametrize(
    "overrides",
    [
        [*CLIPS, RECOMPUTE],
        [ONCE],
        [ONCE, RECOMPUTE, CORRECTED],
        # To the logprobs of a script the ratio is anything.
        [ONCE, *CLIPS, *SCRIPTED],
        [ONCE, RECOMPUTE, *SCRIPTED],
    ],
)
def test_nothing_is_noted_where_all_acts(recipe, overrides):
    assert notes(recipe, *overrides) == ()
