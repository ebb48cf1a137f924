"""The states that an audit of our own runs goes on from, and the credit that it compares their effects with."""

import asyncio
from pathlib import Path

import pytest

from ramify.core.errors import DataError
from ramify.core.messages import Final, Message, Problem
from ramify.core.records import Reward
from ramify.core.tree import Node, Source, StopReason, TreeKey, make_tree
from ramify.obs.metrics import TimingLog
from ramify.obs.trace import TracedTree
from ramify.rollout.plan import failed_tree, report_failed_problem
from ramify.sampler.sampler import FAILURES_TO_STOP, Scoring
from ramify.study.credits import estimator_credits
from ramify.study.forks import ForkPlan, fork_recipe
from ramify.study.processes import read_starts
from train_recipes import RECIPE

PROBLEM = Problem("p", (Message.of("user", "q"),), ("x",))


def flat_tree(rewards):
    rewards = tuple(rewards)
    nodes = [Node("", (), None, Source.PROMPT, (1, 2), "q")]
    for number in range(len(rewards)):
        nodes.append(
            Node(
                f"{number}", (number,), "", Source.POLICY, (5, 6), "x", (-0.1, -0.1), stop=StopReason.ANSWERED, turn=Final("x")
            )
        )  # fmt: skip
    return TracedTree(make_tree(PROBLEM, TreeKey(1, 0), nodes), rewards)


def test_estimators_get_the_rewards_that_training_had():
    """With the penalty for length, which the resampled trajectories have too."""
    values = [0.0, 1.0, 0.0, 0.0]
    penalized = flat_tree(
        Reward(value, {"overlong": -1.0 if at == 0 else 0.0}) for at, value in enumerate(values)
    )
    plain = flat_tree(Reward(value, {}) for value in values)
    for name, (credit,) in estimator_credits([penalized]).items():
        (expected,) = estimator_credits([plain])[name]
        assert {key: each.tolist() for key, each in credit.means.items()} == {
            key: each.tolist() for key, each in expected.means.items()
        }, name


def test_states_of_two_files_have_streams_of_their_own():
    trees = [flat_tree([Reward(1.0, {})])]
    plans = [ForkPlan(trace, trees, [(0, "")], Path("trees.jsonl")) for trace in range(3)]
    assert len({plan.requests[0].key for plan in plans}) == 3


def test_an_audit_has_no_deadline_of_a_step(tmp_path):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        RECIPE.replace("[rollout]\n", "[rollout]\nstep_seconds = 60.0\ntrajectory_seconds = 30.0\n")
    )
    limits = fork_recipe(recipe, (), 4, tmp_path).rollout
    assert (limits.step_seconds, limits.trajectory_seconds) == (None, 30.0)


@pytest.mark.parametrize("stops_early", [True, False])
def test_states_that_give_other_results_are_counted_and_do_not_end_an_audit(stops_early):
    timing = TimingLog()
    scoring = Scoring(None, timing, stops_early=stops_early)

    async def score():
        for number in range(FAILURES_TO_STOP + 2):
            tree = failed_tree(PROBLEM, TreeKey(1, 0, number), (), 4)
            report_failed_problem(timing, tree.key, PROBLEM, "another result")
            assert not any(reward.counts for reward in (await scoring.score(tree)).rewards)

    if stops_early:
        with pytest.raises(DataError, match=f"none of {FAILURES_TO_STOP} problems worked"):
            asyncio.run(score())
    else:
        asyncio.run(score())


def test_a_start_that_was_cut_off_costs_that_one_alone(tmp_path):
    path = tmp_path / "starts.jsonl"
    path.write_text(
        '{"run":"flat-3","time":1.0}\n{"run":"rule-3","ti{"run":"rule-3","time":2.0}\n{"run":"rule-3","time":3.0}\n{"run'
    )
    assert read_starts(path) == {"flat-3": [1.0], "rule-3": [3.0]}
