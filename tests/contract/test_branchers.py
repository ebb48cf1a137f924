"""Laws of every branching rule: proposals within bounds, from the candidate alone, and no budget of its own."""

import itertools
import json
from dataclasses import replace
from typing import get_args

import pytest

import own_parts
import scripted_agents
from ramify.assemble.agent import build_brancher
from ramify.config.mistakes import form_of
from ramify.config.schema_rollout import BranchingSection, RolloutSection
from ramify.core.errors import DataError
from ramify.core.records import BranchCandidate, Reward
from ramify.core.tree import BranchDecision, Entropy
from ramify.obs.trace import TracedTree, write_trees
from scripted_agents import problem, with_latencies

NAMES = [form_of(s)[1][0] for s in get_args(get_args(BranchingSection)[0])]
SWITCHES = (
    "stale_segment",
    "child_baseline_after_branch",
    "summed_over_tokens",
    "baseline_never_reset",
    "slot_order",
)
OFF = dict.fromkeys(SWITCHES, False)
RULES = {
    "none": {"name": "none"},
    "threshold": {"name": "threshold", "min_entropy_delta": 0.05},
    "bernoulli": {"name": "bernoulli", "children": 2},
    "balanced": {"name": "balanced", "children": 2},
    "balanced coin": {"name": "balanced", "draw": "bernoulli"},
    "random": {"name": "random", "rate": 0.4},
    "arpo as released": {"name": "seed_compat_arpo"},
    "arpo without defects": {"name": "seed_compat_arpo", **OFF},
    "aepo as released": {"name": "seed_compat_aepo"},
    "aepo with dynamic rollouts": {"name": "seed_compat_aepo", "dynamic_rollouts": True},
    "aepo without defects": {"name": "seed_compat_aepo", "penalty_per_prompt": False, **OFF},
    "yoked": {"name": "yoked", "of": "a run"},
    "shuffled": {"name": "shuffled", "of": "a run", "rule": {"name": "threshold", "probe_tokens": 3}},
    "shuffled balanced": {"name": "shuffled", "of": "a run", "rule": {"name": "balanced", "probe_tokens": 3}},
    "oracle": {"name": "oracle"},
    "quantile": {"name": "quantile", "rate": 0.4, "children": 2},
    "file": {"name": "file", "path": own_parts.__file__, "function": "rule", "children": 2},
}
REMEMBERS = {"arpo as released", "aepo as released", "aepo with dynamic rollouts", "quantile"}
COUNTS_ROUNDS = {"aepo as released", "aepo with dynamic rollouts"}
DRAWS = [0.0, 0.2, 0.5, 0.8, 0.999999]
RISES = [-5.0, -1.0, -0.1, 0.0, 0.1, 1.0, 5.0]
HISTORY = (BranchDecision("0.0", 1, 0.3, 0.6, 1, 0, True),)

every_rule = pytest.mark.parametrize("name", RULES)


def section(name, n=8, m=4):
    table = {"problems_per_step": 1, "n": n, "max_tokens": 9, "max_calls": 3}
    needs_m = not (
        {RULES[name]["name"], RULES[name].get("rule", {}).get("name")} & {"none", "balanced"}
        or RULES[name].get("dynamic_rollouts")
    )
    branching = {**RULES[name], "probe_tokens": 3}
    return RolloutSection(**{**table, **({"m": m} if needs_m else {}), "branching": branching})


def rule(name, n=8, m=4):
    return build_brancher(section(name, n, m), vocab_size=1000)


def candidate(entropy_delta, draw):
    baseline = Entropy(6.0, 6.5, 3)
    entropy = Entropy(6.0 + entropy_delta, 7.0 + entropy_delta, 3)
    return BranchCandidate((0, 0, 0, 0), 2, 0, (baseline, entropy, entropy), 0, draw)


def agent(folder, brancher, latency_seed=0, branch_at="before_probe"):
    return with_latencies(scripted_agents.agent(folder, brancher, branch_at=branch_at), latency_seed)


def grow(parts, num_problems=3):
    trees, _ = scripted_agents.grow(parts, [problem(f"p{i}") for i in range(num_problems)])
    return trees


@pytest.fixture(scope="module", autouse=True)
def _paired_run(tokenizer_folder, tmp_path_factory):
    """The traces of a run of threshold, in the place of "a run"."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "trees").mkdir()
    trees = grow(agent(tokenizer_folder, rule("threshold")))
    assert any(decision.taken for tree in trees for decision in tree.decisions)
    traced = [TracedTree(tree, (Reward(0.0, {}),) * len(tree.trajectories)) for tree in trees]
    write_trees(folder / "trees" / "000000.jsonl", traced)
    for table in RULES.values():
        if "of" in table:
            table["of"] = folder


@pytest.fixture(scope="module")
def monitors(tokenizer_folder):
    """Trajectories that ended: with tool results and without."""
    trees = grow(agent(tokenizer_folder, scripted_agents.FLAT))
    trajectories = [trajectory for tree in trees for trajectory in tree.trajectories]
    assert {len(trajectory.exchanges) for trajectory in trajectories} >= {0, 1, 3}
    return trajectories


def test_all_rules_are_here():
    assert {table["name"] for table in RULES.values()} == set(NAMES)


@every_rule
def test_roots_and_windows_are_within_bounds(name, monitors):
    for n, m in [(1, 1), (2, 1), (8, 4), (8, 8)]:
        brancher = rule(name, n, m)
        assert brancher.num_monitor in (0, 1)
        first = brancher.first_roots(n)
        assert max(1, brancher.num_monitor) <= first <= n
        for monitor in monitors:
            assert first <= brancher.num_roots(n, (monitor,)) <= n
        assert brancher.probe_tokens == 3
        assert brancher.max_children >= 0


@every_rule
def test_a_proposal_is_within_bounds_and_repeatable(name):
    for at in itertools.starmap(candidate, itertools.product(RISES, DRAWS)):
        brancher = rule(name)
        proposal = brancher.propose(at, HISTORY)
        assert 0 <= proposal.children <= brancher.max_children
        assert 0.0 <= proposal.probability <= 1.0
        assert proposal.probability > 0 or proposal.children == 0
        assert proposal.probability < 1 or proposal.children > 0
        assert brancher.propose(at, HISTORY) == rule(name).propose(at, HISTORY) == proposal


@every_rule
def test_more_entropy_never_makes_a_branch_less_likely(name):
    probabilities = [
        rule(name).propose(candidate(entropy_delta, 0.5), ()).probability for entropy_delta in RISES
    ]
    assert probabilities == sorted(probabilities)
    looks_at_entropy = section(name).branching.looks_at_entropy
    assert (probabilities[0] < probabilities[-1]) == looks_at_entropy


@every_rule
@pytest.mark.parametrize("history", [(), HISTORY], ids=["first", "after a branch"])
def test_entropy_acted_means_that_the_decision_differs_from_that_at_no_rise(name, history):
    acted = set()
    for draw in DRAWS:
        level = rule(name).propose(candidate(0.0, draw), history)
        for entropy_delta in RISES:
            proposal = rule(name).propose(candidate(entropy_delta, draw), history)
            assert proposal.entropy_acted == (bool(proposal.children) != bool(level.children))
            acted.add(proposal.entropy_acted)
    assert (True in acted) == section(name).branching.looks_at_entropy


@every_rule
def test_where_the_tool_result_hangs_changes_nothing_but_for_a_rule_that_counts_rounds(name):
    here = candidate(0.4, 0.5)
    there = replace(here, path=(7, 0, 1, 0))
    assert rule(name).propose(here, ()) == rule(name).propose(there, ())
    deeper = replace(there, depth=3)
    changed = rule(name).propose(here, ()).probability != rule(name).propose(deeper, ()).probability
    assert changed == (name in COUNTS_ROUNDS)


@pytest.mark.integration
@every_rule
@pytest.mark.parametrize("branch_at", ["before_probe", "after_probe"])
def test_trees_have_n_leaves_and_do_not_depend_on_latencies(name, branch_at, tokenizer_folder):
    first = grow(agent(tokenizer_folder, rule(name), 0, branch_at))
    for tree in first:
        assert len(tree.trajectories) == 8
        roots = len(tree.children[""])
        assert roots + sum(decision.taken for decision in tree.decisions) == 8
        # The monitored one is root 0 as it went on by itself.
        brancher = rule(name)
        assert roots >= brancher.num_roots(8, (tree.trajectories[0],))
    assert any(decision.taken for tree in first for decision in tree.decisions) == (name != "none")
    for latency_seed in range(1, 6):
        again = grow(agent(tokenizer_folder, rule(name), latency_seed, branch_at))
        assert [(tree.nodes, tree.decisions) for tree in again] == [(t.nodes, t.decisions) for t in first]


@every_rule
def test_a_rule_that_goes_on_from_its_saved_state_decides_as_one_that_never_stopped(name, tokenizer_folder):
    went_on = rule(name)
    grow(agent(tokenizer_folder, went_on))
    resumed = rule(name)
    resumed.restore(json.loads(json.dumps(went_on.state())))
    assert bool(went_on.state()) == (name in REMEMBERS)
    later = [grow(agent(tokenizer_folder, brancher, latency_seed=3)) for brancher in (went_on, resumed)]
    assert later[0] == later[1]
    assert json.dumps(resumed.state()) == json.dumps(went_on.state())


@every_rule
def test_the_state_of_another_rule_is_refused(name):
    with pytest.raises(DataError, match="it belongs to another rule"):
        rule(name).restore({"something": 1})
