"""`random` with the rate of another run is its control: it branches as often, in expectation."""

import re

import numpy as np
import pytest

from ramify.algos.branch_arpo import ThresholdBrancher
from ramify.algos.branch_rules import RandomBrancher
from ramify.core.draws import uniform
from ramify.engines.scripted import ScriptedTurn
from ramify.obs.branch_metrics import branch_metrics, rate_of_control
from scripted_agents import agent, grow, problem

pytestmark = pytest.mark.integration

SIZES = {"m": 4, "children": 1, "probe_tokens": 2}


def some_problems_are_less_certain(context, seed):
    """Up to three calls; entropy after a result differs between problems more than within one."""
    done = context.count("\n</result>")
    stops, chance = (uniform(seed, index) for index in range(2))
    level = int(re.search(r"what is (\d+) plus", context).group(1)) % 4 / 4
    entropies = ((level + 0.3 * chance) if done else 0.0,) * 2
    if done < 3 and stops < 0.85:
        return ScriptedTurn("<search> what next </search>", entropies)
    return ScriptedTurn("<answer> \\boxed{ 42 } </answer>", entropies)


def run(folder, rule):
    """The metrics of a run of one step, and its decisions."""
    parts = agent(folder, rule, some_problems_are_less_certain)
    trees, _ = grow(parts, [problem(f"p{i}", f"what is {i} plus 30 ?") for i in range(80)])
    return {"step": 1, **branch_metrics(trees)}, [d for tree in trees for d in tree.decisions]


def test_the_control_branches_as_often_as_the_rule_whose_run_it_is_matched_to(tokenizer_folder):
    rule, decisions = run(tokenizer_folder, ThresholdBrancher(min_entropy_delta=0.5, **SIZES))
    control, _ = run(tokenizer_folder, RandomBrancher(rate=rate_of_control([rule]), **SIZES))
    assert control["branch/taken"] == pytest.approx(rule["branch/taken"], rel=0.05)
    # Neither of the shares that a rule wants is a match: what it wants beyond the budget of a tree is not granted.
    assert rule["branch/after_budget"] > 0.2 * len(decisions)
    for share in (rule["branch/rate"], np.mean([decision.planned > 0 for decision in decisions])):
        other, _ = run(tokenizer_folder, RandomBrancher(rate=share, **SIZES))
        assert other["branch/taken"] > 1.1 * rule["branch/taken"]
