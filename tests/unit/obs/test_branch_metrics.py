"""What a rule did, by hand; and when an entropy rule is said not to act."""

import pytest
from obs_trees import policy, problem, prompt

from ramify.algos.branch_rules import matched_rate
from ramify.core.tree import BranchDecision, StopReason, TreeKey, make_tree
from ramify.obs.branch_metrics import (
    branch_metrics,
    branch_notes,
    branch_totals,
    entropy_warnings,
    rate_of_control,
)


def tree_of(*decisions):
    nodes = [prompt(), *(policy((root,), stop=StopReason.ANSWERED) for root in range(2))]
    return make_tree(problem(), TreeKey(0, 0), nodes, list(decisions))


def decision(node, delta, probability, planned, taken, acted, left):
    return BranchDecision(node, 1, delta, probability, planned, taken, acted, budget_left=left)


BRANCHED = tree_of(
    decision("0.0", 0.4, 0.7, 2, 2, True, 3),
    decision("1.0", -0.2, 0.4, 0, 0, True, 1),
    decision("2.0", 0.1, 0.5, 2, 1, False, 1),
    decision("3.0", 3.0, 1.0, 2, 0, True, 0),
    decision("4.0", 3.0, 1.0, 0, 0, True, 0),
)
FLAT = tree_of(decision("0.0", 3.0, 1.0, 1, 0, True, 0))


def test_what_was_decided_without_budget_is_counted_apart():
    metrics = branch_metrics([BRANCHED, tree_of()])
    assert metrics == pytest.approx(
        {
            "branch/planned": 6.0,
            "branch/taken": 3.0,
            "branch/by_entropy": 2.0,
            "branch/withheld": 1.0,
            "branch/decisions": 3.0,
            "branch/after_budget": 2.0,
            "branch/flat": 0.0,
            "branch/rate": 2 / 3,
            "branch/matched_rate": matched_rate({(5, 3): 1}, 2, 3, 2 / 3),
            "branch/p_mean": 1.6 / 3,
            "branch/p_std": ((0.7**2 + 0.4**2 + 0.5**2) / 3 - (1.6 / 3) ** 2) ** 0.5,
            "branch/entropy_delta_mean": 0.1,
            "branch/entropy_delta_std": 0.06**0.5,
            "branch/entropy_acted": 2 / 3,
            "branch/undecided": 0.0,
        }
    )


def test_problems_that_could_not_branch_are_counted():
    metrics = branch_metrics([FLAT, BRANCHED, tree_of(), FLAT])
    assert metrics["branch/flat"] == 0.5
    alone = branch_metrics([FLAT])
    assert alone["branch/flat"] == 1.0
    assert (alone["branch/decisions"], alone["branch/after_budget"], alone["branch/planned"]) == (
        0.0,
        1.0,
        1.0,
    )
    assert "branch/rate" not in alone
    assert "branch/flat" not in branch_metrics([tree_of()])


def rows_of(*steps):
    return [{"step": number, **branch_metrics(trees)} for number, trees in enumerate(steps, start=1)]


def test_totals_of_a_run_are_those_of_all_its_decisions_together():
    steps = [[BRANCHED], [FLAT], [tree_of()], [BRANCHED, tree_of(decision("0.0", 0.8, 0.9, 0, 0, False, 2))]]
    totals = branch_totals(rows_of(*steps))
    together = branch_metrics([tree for trees in steps for tree in trees])
    assert (totals.planned, totals.taken, totals.by_entropy) == (13, 6, 4)
    assert (totals.decisions, totals.withheld) == (7, 2)
    assert totals.rate == pytest.approx(together["branch/rate"]) == pytest.approx(4 / 7)
    assert totals.probability == pytest.approx((together["branch/p_mean"], together["branch/p_std"]))
    assert totals.entropy_delta == pytest.approx(
        (together["branch/entropy_delta_mean"], together["branch/entropy_delta_std"])
    )
    assert branch_totals(rows_of([FLAT])) is None


def test_a_run_says_how_much_of_its_branching_entropy_decided():
    (line,) = branch_notes(rows_of([BRANCHED], [BRANCHED]), looks_at_entropy=True)
    assert "branching: entropy caused 4 of 6 branches and prevented 2 " in line
    assert "+0.10 nats a token, sd 0.24" in line
    assert "branch probability 0.53, sd 0.12" in line
    assert branch_notes(rows_of([BRANCHED]), looks_at_entropy=False) == ()
    assert branch_notes(rows_of([tree_of()]), looks_at_entropy=True) == ()


def test_a_run_says_how_many_problems_could_not_branch():
    (line,) = branch_notes(rows_of([FLAT, tree_of(), tree_of(), tree_of()]), looks_at_entropy=True)
    assert line.startswith("25% of the problems could not branch")
    assert len(branch_notes(rows_of([FLAT, BRANCHED]), looks_at_entropy=True)) == 2


def history(num_steps, rate, p_std, undecided=0.0):
    values = {
        "branch/decisions": 9.0,
        "branch/after_budget": 4.0,
        "branch/rate": rate,
        "branch/p_std": p_std,
        "branch/undecided": undecided,
    }
    return [{"step": step, **values} for step in range(num_steps)]


def warned(rows, looks_at_entropy=True):
    return [line.split(":")[0] for line in entropy_warnings(rows, looks_at_entropy=looks_at_entropy)]


def test_warns_when_probability_does_not_vary():
    assert warned(history(20, 0.5, 0.01)) == ["entropy is not acting"]


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_warns_when_the_rate_is_stuck(rate):
    assert warned(history(25, rate, 0.3)) == ["branching is stuck"]


def test_warns_when_brackets_leave_too_many_decisions_open():
    assert warned(history(20, 0.5, 0.3, undecided=0.21)) == ["entropy brackets are too wide"]
    assert warned(history(20, 0.5, 0.3, undecided=0.19)) == []


def test_does_not_warn_early_or_when_the_rule_acts_or_without_decisions():
    assert warned(history(19, 0.0, 0.0, 1.0)) == []
    assert warned(history(40, 0.5, 0.2)) == []
    assert warned([*history(30, 1.0, 0.01, 1.0), *history(20, 0.4, 0.3)]) == []
    assert warned([{"step": step, "reward/mean": 0.0} for step in range(40)]) == []


def test_warns_about_a_rule_that_is_never_asked():
    unasked = [{"step": step, "branch/decisions": 0.0, "branch/after_budget": 0.0} for step in range(20)]
    assert warned(unasked) == ["branching never happens"]
    assert warned([*history(20, 0.5, 0.3), *unasked]) == ["branching never happens"]
    assert warned(unasked[1:]) == []
    assert warned([*unasked[1:], *history(1, 0.5, 0.3)]) == []
    assert warned(unasked, looks_at_entropy=False) == []
    assert warned([{**row, "branch/after_budget": 3.0} for row in unasked]) == []


@pytest.mark.parametrize("rate", [0.0, 0.5, 1.0])
def test_does_not_warn_about_a_rule_that_does_not_look_at_entropy(rate):
    assert warned(history(40, rate, 0.0), looks_at_entropy=False) == []


def test_the_rate_of_a_run_weighs_steps_by_their_decisions():
    rows = [
        {"step": 1, "branch/matched_rate": 0.5, "branch/decisions": 30.0},
        {"step": 2, "branch/planned": 0.0, "branch/decisions": 0.0},
        {"step": 3, "branch/matched_rate": 0.9, "branch/decisions": 10.0},
    ]
    assert rate_of_control(rows) == pytest.approx(0.6)
    assert rate_of_control([{"step": 1, "branch/decisions": 0.0}]) is None
    assert rate_of_control([]) is None
