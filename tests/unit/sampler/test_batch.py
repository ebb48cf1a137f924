"""Dynamic sampling: which problems a step learns from, in the order of the data and not of who was ready first."""

import asyncio

import pytest

from ramify.algos.branch_arpo import ThresholdBrancher
from ramify.core.draws import uniform
from ramify.core.errors import DataError
from ramify.core.records import Reward
from ramify.core.tree import Source
from ramify.data.order import DataCursor, ProblemOrder
from ramify.engines.scripted import ScriptedTurn
from ramify.engines.virtual_clock import run_virtual
from ramify.obs.console import Phase
from ramify.obs.metrics import TimingLog
from ramify.rewards.configs import AnswerRewardConfig
from ramify.rewards.trajectory_rewards import AnswerReward, LengthReward
from ramify.sampler.batch import is_mixed, take_batch
from ramify.sampler.configs import DynamicSamplingConfig
from ramify.sampler.sampler import Sampler, Scoring
from ramify.sampler.task import BuiltReward, Task, Toolbox
from scripted_agents import agent, problem, with_latencies

NUM_PROBLEMS = 11
START = DataCursor()
ORDER = ProblemOrder(NUM_PROBLEMS, 5)
RULE = ThresholdBrancher(m=2, min_entropy_delta=0.0, children=1, probe_tokens=3)
EASY, HARD = (0, 4, 5), (1, 7)
"""Problems that are always solved, and never."""


def play(context, seed):
    """One call, then an answer that is right always, never, or half of the time."""
    number = int(context.split("plus ")[1].split()[0])
    if "</result>" not in context:
        return ScriptedTurn(
            "<think> find </think><search> Paris </search>", (uniform(seed, 0),), 0.1 + uniform(seed, 1)
        )
    is_right = number in EASY or (number not in HARD and uniform(seed, 2) < 0.5)
    return ScriptedTurn(
        rf"<answer> \boxed{{ {42 if is_right else 7} }} </answer>",
        (uniform(seed, 3),),
        0.1 + uniform(seed, 1),
    )


def rollout_of(folder, latency_seed=0):
    parts = with_latencies(agent(folder, RULE, play, n=6), latency_seed)
    problems = [problem(f"p{i}", f"what is 12 plus {i} ?") for i in range(NUM_PROBLEMS)]
    task = Task(
        problems,
        Toolbox(parts.environment),
        parts.renderer,
        400,
        BuiltReward(LengthReward()),
    )
    timing = TimingLog()
    return Sampler(task, parts, timing, Scoring(AnswerReward(AnswerRewardConfig(score="em")), timing))


def taken(rollout, *, size=4, max_attempts=3, cursor=START):
    dynamic = DynamicSamplingConfig(max_attempts=max_attempts) if max_attempts else None
    phase = Phase("RL", 1, lambda _: None)
    batch, _ = run_virtual(take_batch(rollout, ORDER, size, dynamic, cursor, 0, phase))
    return batch


def names(trees):
    return [scored.tree.problem.id for scored in trees]


def test_the_next_problems_take_the_place_of_those_that_teach_nothing(model_folder):
    rollout = rollout_of(model_folder)
    batch = taken(rollout, size=5, max_attempts=9)
    order, _ = ORDER.take(START, len(batch.trees))
    assert names(batch.trees) == [f"p{index}" for index in order]
    assert len(batch.accepted) == 5
    assert 0 < len(batch.trees) - 5 == batch.metrics["sampling/refused"]
    for scored in batch.trees:
        right = [reward.parts["correct"] == 1 for reward in scored.rewards]
        assert (scored in batch.accepted) == (0 < sum(right) < len(right))
    assert set(names(batch.trees)) - set(names(batch.accepted)) >= {
        f"p{i}" for i in order if i in EASY + HARD
    }
    assert batch.cursor == ORDER.take(START, len(batch.trees))[1]


def test_each_round_takes_as_many_as_are_missing(model_folder):
    rollout = rollout_of(model_folder)
    whole = taken(rollout, size=5, max_attempts=9)
    rounds = [[s for s in whole.trees if s.tree.key.attempt == a] for a in range(whole.attempts)]
    assert len(rounds) > 1
    missing = 5
    for grown in rounds:
        assert len(grown) == missing
        missing -= sum(scored in whole.accepted for scored in grown)
    assert missing == 0
    assert [scored.tree.key.slot for scored in whole.trees] == list(range(len(whole.trees)))


def test_after_the_last_attempt_the_batch_is_as_large_as_it_is(model_folder):
    rollout = rollout_of(model_folder)
    whole = taken(rollout, size=5, max_attempts=9)
    first = taken(rollout, size=5, max_attempts=1)
    assert first.attempts == 1
    assert first.trees == whole.trees[:5]
    assert 0 < len(first.accepted) < 5
    assert first.metrics["sampling/empty"] == 0.0


def test_a_reward_that_takes_long_is_what_the_step_waits_for(model_folder):
    class SlowReward(LengthReward):
        async def score(self, trajectories):
            await asyncio.sleep(90.0)
            return await LengthReward().score(trajectories)

    rollout = rollout_of(model_folder)
    rollout.scoring.reward = SlowReward()
    phase = Phase("RL", 1, lambda _: None)
    run_virtual(take_batch(rollout, ORDER, 1, None, START, 0, phase))
    assert phase.waiting.startswith("1 of 1 trees: reward 1 (8")


def test_a_batch_may_be_empty(model_folder):
    rollout = rollout_of(model_folder)
    cursor = START
    while ORDER.take(cursor, 1)[0][0] not in EASY + HARD:
        cursor = ORDER.take(cursor, 1)[1]
    batch = taken(rollout, size=1, max_attempts=1, cursor=cursor)
    assert batch.accepted == ()
    assert batch.metrics["sampling/empty"] == batch.metrics["sampling/refused"] == 1.0
    (scored,) = batch.trees
    written = [len(node.token_ids) for node in scored.tree.nodes if node.source is Source.POLICY]
    assert batch.metrics["sampling/refused_tokens"] == sum(written)
    assert batch.cursor == ORDER.take(cursor, 1)[1]


def test_a_problem_that_comes_again_within_a_step_has_draws_of_its_own(model_folder):
    """More problems are taken than there are."""
    rollout = rollout_of(model_folder)
    batch = taken(rollout, size=10, max_attempts=4)
    assert len(batch.trees) > NUM_PROBLEMS
    again = [i for i, name in enumerate(names(batch.trees)) if name in names(batch.trees)[:i]]
    assert again
    for index in again:
        earlier = batch.trees[names(batch.trees).index(names(batch.trees)[index])]
        entropies = [[node.entropy for node in s.tree.nodes] for s in (earlier, batch.trees[index])]
        assert entropies[0] != entropies[1]


@pytest.mark.parametrize("latency_seed", range(3))
def test_latencies_change_nothing(model_folder, latency_seed):
    batch = taken(rollout_of(model_folder), size=5)
    other = taken(rollout_of(model_folder, latency_seed + 1), size=5)
    assert (batch.trees, batch.refused, batch.cursor) == (other.trees, other.refused, other.cursor)


class NoNumber:
    """A judge that failed: it calls every trajectory right but the last."""

    async def score(self, trajectories):
        return [Reward(1.0, {"correct": 1.0})] * (len(trajectories) - 1) + [
            Reward(0.0, {"correct": float("nan")})
        ]


def test_a_correct_that_is_no_number_fails_its_problem(model_folder):
    """Only a reward that never works is the run's mistake."""
    rollout = rollout_of(model_folder)
    rollout.scoring.reward = NoNumber()
    batch = taken(rollout, max_attempts=1)
    assert batch.accepted == ()
    assert all(scored.tree.has_failed for scored in batch.trees)
    message = r"none of \d+ problems worked; the first: problem 'p\d+', trajectory '.*': .* correct = nan"
    with pytest.raises(DataError, match=message):
        rollout.scoring.require_success()
    with pytest.raises(DataError, match=message):
        taken(rollout)


def test_without_dynamic_sampling_all_are_kept(model_folder):
    batch = taken(rollout_of(model_folder), max_attempts=None)
    assert batch.accepted == batch.trees
    assert [scored.tree.key.attempt for scored in batch.trees] == [0] * 4


@pytest.mark.parametrize(
    ("correct", "mixed"),
    [
        ((1, 1, 1), False),
        ((0, 0), False),
        ((1,), False),
        ((0, 1), True),
        ((0.4, 0.4), False),
        ((0.5,), False),
        ((1, 1.5), False),
        ((0, 0.4), True),
        ((0.4, 1), True),
    ],
)
def test_right_and_wrong_and_in_between(correct, mixed):
    assert is_mixed([Reward(5.0, {"correct": value}) for value in correct]) == mixed


@pytest.mark.parametrize(
    ("counts", "mixed"),
    [
        ((True, True, False), True),
        ((True, False, True), False),
        ((False, True, True), True),
        ((True, False, False), False),
    ],
)
def test_what_does_not_count_makes_no_problem_mixed(counts, mixed):
    rewards = [Reward(5.0, {"correct": c}, counts=known) for c, known in zip((1, 0, 1), counts, strict=True)]
    assert is_mixed(rewards) == mixed


def test_a_verdict_that_is_missing_needs_no_part():
    assert not is_mixed([Reward(0.0, {}, counts=False)] * 2)
