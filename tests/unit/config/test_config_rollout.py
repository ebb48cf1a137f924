import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from branch_cases import candidate, wanted
from ramify.assemble.agent import build_brancher
from ramify.commands.check_files import require_rate
from ramify.config import shipped_recipes
from ramify.config.load import load_recipe
from ramify.config.schema_rollout import BranchingSection, RolloutSection
from ramify.config.schema_train import TrainRecipe
from ramify.core.errors import ConfigError, DataError
from train_recipes import load, refusal

BRANCHING = TypeAdapter(BranchingSection)
ROLLOUT = {"problems_per_step": 1, "n": 8, "max_tokens": 9, "max_calls": 3}


def rollout(branching, **changes):
    return RolloutSection(**{**ROLLOUT, "branching": branching, **changes})


FIXED = ["threshold", "bernoulli", {"name": "random", "rate": 0.5}, "seed_compat_arpo", "seed_compat_aepo"]
FOUND = ["balanced", {"name": "seed_compat_aepo", "dynamic_rollouts": True}]


@pytest.mark.parametrize("branching", FIXED)
def test_rules_that_are_told_the_number_of_roots(branching):
    assert rollout(branching, m=8).m == 8
    with pytest.raises(ConfigError, match="m: expected a value, found none"):
        rollout(branching)
    with pytest.raises(ConfigError, match="m: expected at most n = 8, got 9"):
        rollout(branching, m=9)
    with pytest.raises(ConfigError, match="greater than or equal to 1"):
        rollout(branching, m=0)


@pytest.mark.parametrize("branching", FOUND)
def test_rules_that_find_the_number_of_roots(branching):
    assert rollout(branching).m is None
    with pytest.raises(ConfigError, match="computes m itself, got 4"):
        rollout(branching, m=4)


def test_flat_sampling_starts_everything_from_the_prompt():
    assert rollout("none").m is None
    assert rollout("none", m=8).m == 8
    with pytest.raises(ConfigError, match="starts all n = 8 from the prompt; leave m out, got 4"):
        rollout("none", m=4)
    with pytest.raises(ConfigError, match="branch_at"):
        rollout("none", branch_at="after_probe")


def test_tau_belongs_to_the_draw_that_compares_with_it():
    assert BRANCHING.validate_python("balanced").tau == 0.5
    assert BRANCHING.validate_python({"name": "balanced", "tau": 0.3}).tau == 0.3
    assert BRANCHING.validate_python({"name": "balanced", "draw": "bernoulli"}).tau is None
    with pytest.raises(ValidationError, match="tau: has no effect without draw"):
        BRANCHING.validate_python({"name": "balanced", "draw": "bernoulli", "tau": 0.5})


@pytest.mark.parametrize("rates", [{}, {"rate": 0.5, "rate_from": "runs/a"}])
def test_the_control_takes_its_rate_from_one_place(rates):
    with pytest.raises(ValidationError, match="rate or rate_from, one of the two"):
        BRANCHING.validate_python({"name": "random", **rates})


@pytest.mark.parametrize(("key", "value"), [("root_segment_in_average", False), ("budget_beta", 0.6)])
def test_a_switch_that_cannot_act_is_refused(key, value):
    with pytest.raises(ValidationError, match=f"{key}: has no effect without dynamic_rollouts"):
        BRANCHING.validate_python({"name": "seed_compat_aepo", key: value})
    dynamic = {"name": "seed_compat_aepo", "dynamic_rollouts": True, key: value}
    assert getattr(BRANCHING.validate_python(dynamic), key) == value


@pytest.mark.parametrize("name", ["seed_compat_arpo", "seed_compat_aepo"])
def test_released_arithmetic_is_as_released_by_default(name):
    rule = BRANCHING.validate_python(name)
    switches = {key: value for key, value in asdict(rule).items() if isinstance(value, bool)}
    assert switches.pop("dynamic_rollouts", False) is False
    assert switches
    assert all(switches.values())
    assert (rule.branch_probability, rule.entropy_weight, rule.probe_tokens) == (0.5, 0.2, 20)


def test_rules_that_do_not_look_at_entropy_say_so():
    blind = {
        rule.name
        for b in [*FIXED, *FOUND, "none"]
        if not (rule := BRANCHING.validate_python(b)).looks_at_entropy
    }
    assert blind == {"none", "random"}


RECIPES = Path(__file__).parents[3] / "recipes"


def rule_of_recipe(name):
    section = load_recipe(TrainRecipe, RECIPES / f"{name}.toml", ()).rollout
    assert (section.branching.name, section.m) == ("balanced", None)
    return build_brancher(section, vocab_size=151_936)


@pytest.mark.parametrize(
    ("name", "tau"),
    [("aepo_reasoning_7b", None), ("aepo_deepsearch_14b", None), ("aepo_paper_reasoning_7b", 0.5)],
)
def test_the_recipes_of_aepo_balance(name, tau):
    rule = rule_of_recipe(name)
    assert rule.num_monitor == 1
    assert (rule.alpha, rule.gamma, rule.slope, rule.tau, rule.budget_beta) == (0.5, 0.335, 0.05, tau, 0.84)


def share_turned_by_the_penalty(rule):
    """Return the share of the decisions on 500 paths of six tool results, at entropy deltas of 0.1 nats and a deviation of 0.18."""
    free, generator = replace(rule, slope=0.0), np.random.default_rng(0)
    turned = []
    for _ in range(500):
        history = []
        for delta, draw in zip(generator.normal(0.1, 0.18, 6), generator.random(6), strict=True):
            at = candidate(delta, draw)
            proposal = rule.propose(at, history)
            turned.append(proposal.children != free.propose(at, history).children)
            history.append(wanted(delta, proposal.children))
    return np.mean(turned)


def test_the_penalty_acts_under_the_papers_rule_and_hardly_under_the_released_coin():
    assert 0.005 < share_turned_by_the_penalty(rule_of_recipe("aepo_reasoning_7b")) < 0.03
    assert 0.06 < share_turned_by_the_penalty(rule_of_recipe("aepo_paper_reasoning_7b")) < 0.2


def metrics(folder, *rows):
    folder.mkdir()
    lines = [json.dumps({"step": step, **row}) + "\n" for step, row in enumerate(rows, start=1)]
    (folder / "metrics.jsonl").write_text("".join(lines))
    return rollout({"name": "random", "rate_from": str(folder)}, m=4)


def test_the_control_branches_as_often_as_another_run(tmp_path):
    rows = [
        {"branch/matched_rate": 0.5, "branch/decisions": 30},
        {"branch/matched_rate": 0.9, "branch/decisions": 10},
    ]
    section = metrics(tmp_path / "run", *rows)
    require_rate(section)
    assert build_brancher(section, vocab_size=9).rate == pytest.approx(0.6)
    assert build_brancher(rollout({"name": "random", "rate": 0.3}, m=4), vocab_size=9).rate == 0.3


@pytest.mark.parametrize("look", [require_rate, lambda section: build_brancher(section, vocab_size=9)])
def test_a_folder_without_a_rate_is_refused_in_one_line(tmp_path, look):
    with pytest.raises(
        ConfigError, match=r"^rollout\.branching\.rate_from: .*nowhere/metrics\.jsonl is missing$"
    ):
        look(rollout({"name": "random", "rate_from": str(tmp_path / "nowhere")}, m=4))
    with pytest.raises(
        DataError, match=r"metrics\.jsonl: expected branch/matched_rate .* found no step with decisions$"
    ):
        look(metrics(tmp_path / "sft", {"loss": 1.0}))


def test_a_shuffled_rule_is_written_as_the_rule_itself(tmp_path):
    rule = {"name": "threshold", "alpha": 0.5, "beta": 0.2, "tau": 0.6, "probe_tokens": 6}
    section = rollout({"name": "shuffled", "of": "runs/a", "rule": rule}, m=4)
    assert section.branching.rule.min_entropy_delta == pytest.approx(0.5)
    assert section.branching.probe_tokens == 6
    assert rollout({"name": "shuffled", "of": "runs/a", "rule": "balanced"}).branching.rule.tau == 0.5
    with pytest.raises(ConfigError, match="probe_tokens: expected that of rule, 6, got 3"):
        rollout({"name": "shuffled", "of": "runs/a", "rule": rule, "probe_tokens": 3}, m=4)


def test_a_yoked_run_takes_the_problems_of_its_pair():
    with pytest.raises(ConfigError, match='dynamic_sampling: a "yoked" run needs the problems of its pair'):
        rollout({"name": "yoked", "of": "runs/a"}, m=4, dynamic_sampling={"max_attempts": 2})


@pytest.mark.parametrize("look", [require_rate, lambda section: build_brancher(section, vocab_size=9)])
@pytest.mark.parametrize("rule", [{"name": "yoked"}, {"name": "shuffled", "rule": "bernoulli"}])
def test_a_folder_without_traces_is_refused_in_one_line(tmp_path, look, rule):
    with pytest.raises(
        ConfigError, match=r"^rollout\.branching\.of: expected a training run's folder, .*trees has no"
    ):
        look(rollout({**rule, "of": tmp_path}, m=4))


@pytest.mark.parametrize("name", ["study_contrast", "study_ambiguous", "study_certain"])
def test_the_studys_recipes_are_the_quick_starts_in_another_world(name):
    def keys(recipe):
        table = load_recipe(TrainRecipe, shipped_recipes() / recipe, []).model_dump()
        return {
            f"{a}.{b}": value
            for a, each in table.items()
            if isinstance(each, dict)
            for b, value in each.items()
        }

    study, quick_start = keys(f"{name}.toml"), keys("quickstart_rl.toml")
    if name == "study_contrast":
        assert (study["reward.name"], study["reward.malformed"], study["reward.bonus"]) == (
            "answer",
            0.0,
            0.0,
        )
    changed = {key for key in study if study[key] != quick_start.get(key)}
    repeatable = set() if name == "study_contrast" else {"run.deterministic"}
    assert {key for key in changed if not key.startswith(("eval.", "reward."))} == repeatable | {
        "model.path",
        "data.train",
        "run.dir",
        "run.save_every",
        "rollout.branching",
        "rollout.m",
        "rollout.max_calls",
        "rollout.max_tokens",
        "tools.search",
        "learner.optimizer",
    } | ({"rollout.n"} if name == "study_contrast" else set())


# what the budget leaves

BALANCED = ("rollout.branching=balanced", "rollout.m=")


def test_children_fit_what_the_roots_leave(recipe):
    assert load(recipe, "rollout.branching.children=5").rollout.branching.children == 5
    message = refusal(recipe, "rollout.branching.children=6")
    assert message == (
        "rollout.branching.children: expected at most rollout.n - rollout.m = 5, the trajectories that are left to "
        "branch, got 6"
    )
    load(recipe, *BALANCED, "rollout.branching.children=7")
    message = refusal(recipe, *BALANCED, "rollout.branching.children=8")
    assert message.startswith(
        "rollout.branching.children: expected at most rollout.n - 1 = 7, the trajectories"
    )


def test_a_single_trajectory_never_branches(recipe):
    message = refusal(recipe, *BALANCED, "rollout.n=1", "algorithm.estimator={name='reinforce_pp'}")
    assert message.startswith('rollout.branching: "balanced" can never branch with m = n = 1')
