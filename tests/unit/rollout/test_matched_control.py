"""`random` at the rate of another rule is its control: it branches as often, in expectation."""

import pytest

from ramify.algos.branch_arpo import ThresholdBrancher
from ramify.algos.branch_random import RandomBrancher
from ramify.core.draws import uniform
from ramify.engines.scripted import ScriptedTurn
from ramify.obs.branch_metrics import branch_metrics, realised_rate
from scripted_agents import agent, grow, problem

SIZES = {"m": 4, "children": 1, "probe_tokens": 2}


def later_turns_are_less_certain(context, seed):
    """Up to three calls; entropy after a result grows with their number."""
    done = context.count("\n</result>")
    stops, chance = (uniform(seed, index) for index in range(2))
    entropies = (0.5 * done * chance + 0.1,) * 2
    if done < 3 and stops < 0.85:
        return ScriptedTurn("<search> what next </search>", entropies)
    return ScriptedTurn("<answer> \\boxed{ 42 } </answer>", entropies)


def run(folder, rule):
    """The metrics of a run of one step, and its decisions."""
    parts = agent(folder, rule, later_turns_are_less_certain)
    trees, _ = grow(parts, [problem(f"p{i}") for i in range(80)])
    return {"step": 1, **branch_metrics(trees)}, [d for tree in trees for d in tree.decisions]


def test_the_control_branches_as_often_as_the_rule_whose_rate_it_has(model_folder):
    row, decisions = run(model_folder, ThresholdBrancher(min_rise=0.3, **SIZES))
    rate = realised_rate([row])
    control, _ = run(model_folder, RandomBrancher(rate=rate, **SIZES))
    assert control["branch/rate"] == pytest.approx(rate, abs=0.04)
    assert control["branch/taken"] == pytest.approx(row["branch/taken"], rel=0.04)
    # Decisions after the budget was spent are many and of another kind: a rate that counts them is another one.
    assert row["branch/after_budget"] > 0.3 * len(decisions)
    assert sum(decision.planned > 0 for decision in decisions) / len(decisions) > rate + 0.08
