"""Contexts that are replaced in mid-trajectory: folded memory, repair, and what does not fit."""

import asyncio
from dataclasses import dataclass, field, replace

import pytest

from ramify.algos.branch_arpo import ThresholdBrancher
from ramify.algos.branch_rules import FlatBrancher
from ramify.core.messages import Final, Malformed
from ramify.core.tree import Source, StopReason
from ramify.engines.scripted import ScriptedTurn
from ramify.obs.trace import TracedTree, read_trees, write_trees
from ramify.rewards.configs import AnswerRewardConfig
from ramify.rewards.trajectory_rewards import AnswerReward
from scripted_agents import (
    FoldsMemory,
    RecordingEngine,
    agent,
    grow,
    grow_one,
    tokenizer_of,
    with_engine,
    with_latencies,
)

FLAT = FlatBrancher(probe_tokens=3)
RULE = ThresholdBrancher(m=2, min_rise=-100.0, children=1, probe_tokens=3)
BRANCH_AT = ["before_probe", "after_probe"]


def folding(folder, rule=RULE, after=2, **options):
    rewriter = FoldsMemory(tokenizer_of(folder), after)
    return with_engine(agent(folder, rule, rewriter=rewriter, **options), RecordingEngine)


@pytest.mark.parametrize("branch_at", BRANCH_AT)
def test_a_trajectory_of_two_contexts_is_what_the_engine_saw(tokenizer_folder, branch_at):
    parts = folding(tokenizer_folder, branch_at=branch_at)
    tree = grow_one(parts)
    assert len(tree.trajectories) == 8
    folded = [trajectory for trajectory in tree.trajectories if len(trajectory.segments) == 2]
    assert len(folded) > 0
    asked = {request.priority[1:]: request.token_ids for request in parts.engine.requests}
    for trajectory in folded:
        first, second = trajectory.segments
        opening = second.nodes[0]
        assert opening.source is Source.TOOL
        assert opening.context == "fresh"
        assert opening.parent == first.nodes[-1].id
        assert opening.text == parts.renderer.decode(opening.token_ids)
        assert opening.text.startswith(first.nodes[0].text)
        assert len(opening.results) == len(first.nodes[-1].calls) == 1
        ids = ()
        for node in second.nodes:
            if node.source is Source.POLICY and node.path in asked:
                assert asked[node.path][: len(ids)] == ids
            ids += node.token_ids
        assert len(trajectory.exchanges) >= 2
        assert second.token_ids[: len(opening.token_ids)] == opening.token_ids
        assert not any(second.written[: len(opening.token_ids)])
    sessions = [tool.open_sessions for tool in parts.tools.values()]
    assert sessions == [0, 0]


@pytest.mark.parametrize("branch_at", BRANCH_AT)
def test_branches_hang_at_the_fresh_context(tokenizer_folder, branch_at):
    tree = grow_one(folding(tokenizer_folder, branch_at=branch_at, after=1))
    taken = [decision for decision in tree.decisions if decision.taken and decision.depth == 1]
    assert taken
    for decision in taken:
        path = tree.path_to(tree.by_id[decision.node])
        opening = path[-1] if branch_at == "before_probe" else path[-2]
        assert opening.context == "fresh"
        children = tree.children[decision.node]
        assert len(children) == 1 + decision.taken


@pytest.mark.parametrize("branch_at", BRANCH_AT)
def test_latencies_do_not_change_the_tree(tokenizer_folder, branch_at):
    parts = agent(
        tokenizer_folder, RULE, rewriter=FoldsMemory(tokenizer_of(tokenizer_folder), 2), branch_at=branch_at
    )
    first = grow_one(parts)
    assert all(grow_one(with_latencies(parts, seed)) == first for seed in range(1, 20))


def test_the_trace_gives_two_contexts_back_and_the_reward_sees_the_whole_trajectory(
    tokenizer_folder, tmp_path
):
    tree = grow_one(folding(tokenizer_folder))
    rewards = tuple(asyncio.run(AnswerReward(AnswerRewardConfig(score="em")).score(tree.trajectories)))
    answered = [t.stop is StopReason.ANSWERED for t in tree.trajectories]
    assert [reward.value >= 1.0 for reward in rewards] == answered
    both = [{call.name for call, _ in t.exchanges} == {"search", "python"} for t in tree.trajectories]
    assert [reward.parts["bonus"] > 0 for reward in rewards] == [
        all(pair) for pair in zip(both, answered, strict=True)
    ]
    traced = TracedTree(tree, rewards)
    write_trees(tmp_path / "0.jsonl", [traced])
    assert read_trees(tmp_path / "0.jsonl") == (traced,)


@dataclass
class Repairs:
    """After a malformed end: the prompt and a hint; told what it was asked."""

    folder: object
    asked: list = field(default_factory=list)

    async def rewrite(self, trajectory):
        self.asked.append(trajectory)
        if trajectory.leaf.stop is not StopReason.MALFORMED:
            return None
        hint = tokenizer_of(self.folder).encode_plain("answer please")
        return trajectory.nodes[0].token_ids + hint


def careless(context, seed):
    """Ends its turn with nothing, and answers when it is told."""
    text = "<answer> \\boxed{ 42 } </answer>" if "answer please" in context else "<think> so </think>"
    return ScriptedTurn(text, ends=True)


def test_a_malformed_end_can_be_repaired(tokenizer_folder):
    rewriter = Repairs(tokenizer_folder)
    tree = grow_one(agent(tokenizer_folder, FLAT, careless, n=2, rewriter=rewriter))
    for trajectory in tree.trajectories:
        assert trajectory.stop is StopReason.ANSWERED
        assert len(trajectory.segments) == 2
        assert trajectory.exchanges == ()
        _, wrong, opening, right = trajectory.nodes
        assert (wrong.stop, opening.results) == (None, ())
        assert isinstance(wrong.turn, Malformed)
        assert right.turn == Final("\\boxed{ 42 }")
        assert opening.context == "fresh"
        assert trajectory.num_written == len(wrong.token_ids) + len(right.token_ids)
    stops = [trajectory.leaf.stop for trajectory in rewriter.asked]
    assert sorted(map(str, stops)) == ["answered"] * 2 + ["malformed"] * 2


def test_a_repair_is_no_tool_result_to_branch_from(tokenizer_folder):
    tree = grow_one(agent(tokenizer_folder, RULE, careless, n=4, rewriter=Repairs(tokenizer_folder)))
    assert tree.decisions == ()
    assert len(tree.children[""]) == 4


@dataclass
class Always:
    """Gives a context of so many tokens whenever it is asked."""

    size: int
    asked: int = 0

    async def rewrite(self, trajectory):
        self.asked += 1
        return (5,) * self.size


@pytest.mark.parametrize("text", ["<think> so </think>", "<search> Paris </search>", "a b c d e f " * 90])
@pytest.mark.parametrize("size", [1, 7, 150, 399, 400, 5000])
def test_a_trajectory_that_is_rewritten_for_ever_ends_with_its_tokens(tokenizer_folder, text, size):
    """Malformed ends, calls beyond the limit and turns without an end: each goes on until nothing is left."""
    rewriter = Always(size)
    parts = agent(
        tokenizer_folder, FLAT, lambda c, s: ScriptedTurn(text), n=1, max_calls=2, rewriter=rewriter
    )
    tree = grow_one(parts)
    (trajectory,) = tree.trajectories
    assert sum(len(node.token_ids) for node in trajectory.nodes[1:]) <= 400
    assert trajectory.stop in (StopReason.TOKENS, StopReason.MALFORMED, StopReason.CALLS)
    assert len(trajectory.exchanges) <= 2
    assert all(node.token_ids for node in trajectory.nodes)
    if size < 150:
        assert len(trajectory.segments) > 1 or text.startswith("a b")
    if size >= 399:
        assert len(trajectory.segments) == 1
    assert rewriter.asked <= 400


def test_a_context_that_the_engine_cannot_take_is_ignored(tokenizer_folder):
    parts = agent(tokenizer_folder, FLAT, careless, n=1, rewriter=Always(50))
    info = replace(parts.engine.info(), context_tokens=40)
    parts.engine.info = lambda: info
    (trajectory,) = grow_one(parts).trajectories
    assert (trajectory.stop, len(trajectory.segments)) == (StopReason.MALFORMED, 1)


def test_an_empty_context_is_none(tokenizer_folder):
    (trajectory,) = grow_one(agent(tokenizer_folder, FLAT, careless, n=1, rewriter=Always(0))).trajectories
    assert (trajectory.stop, len(trajectory.segments)) == (StopReason.MALFORMED, 1)


def test_a_fresh_context_makes_room_in_the_engine(tokenizer_folder):
    """Without it the second result would not fit the engine's context."""

    def outcomes(rewriter):
        parts = agent(tokenizer_folder, FLAT, rewriter=rewriter, n=6)
        info = replace(parts.engine.info(), context_tokens=80)
        parts.engine.info = lambda: info
        return [trajectory.stop for trajectory in grow_one(parts).trajectories]

    cut = outcomes(None).count(StopReason.TOKENS)
    assert outcomes(FoldsMemory(tokenizer_of(tokenizer_folder), 1)).count(StopReason.TOKENS) < cut


class Hangs:
    """Never gives a context, and does not agree to be cancelled."""

    async def rewrite(self, trajectory):
        try:
            await asyncio.sleep(1e6)
        except asyncio.CancelledError:
            await asyncio.sleep(1e6)


def test_a_rewriter_that_hangs_is_cut_with_its_trajectory(tokenizer_folder):
    parts = agent(
        tokenizer_folder, FLAT, careless, n=2, rewriter=Hangs(), limits={"trajectory_seconds": 60.0}
    )
    (tree,), seconds = grow(parts, left_tasks=2)
    assert seconds == pytest.approx(60.0, abs=0.2)
    assert {trajectory.stop for trajectory in tree.trajectories} == {StopReason.DEADLINE}
    assert all(trajectory.num_written for trajectory in tree.trajectories)
