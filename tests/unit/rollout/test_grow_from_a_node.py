"""A tree that goes on from a node of a recorded tree: its path is made again, and what is new begins there."""

from dataclasses import replace

import numpy as np
import pytest
from test_worlds import World, acting

from ramify.algos.credit import Weighting, credit, denominator, path_credit
from ramify.algos.ops import leaf_masses, num_trained, token_weights
from ramify.core.errors import ConfigError, DataError
from ramify.core.records import TrainingTree, behavior_annotations
from ramify.core.tree import Source, StopReason, make_tree
from ramify.rollout.plan import request_from, state_after
from scripted_agents import ALWAYS, Backtracks, FoldsMemory, agent, assert_traced, grow_one, grow_planned

RULE = replace(ALWAYS, m=3)


def grown_from(parts, recorded, start):
    (tree,) = grow_planned(parts, [request_from(recorded, start)])
    return tree


def starts(tree):
    """Nodes that something can go on from, besides the prompt."""
    return [node.id for node in tree.nodes if node.stop is None and node.turn is None and node.id]


def check(tree, recorded, start):
    assert tree.start == start
    above = recorded.path_to(recorded.by_id[start])
    assert tree.path_to(tree.by_id[start]) == above
    assert len(tree.trajectories) == 8
    assert len(tree.roots) >= 3
    assert tree.key == replace(recorded.key, attempt=1)
    for trajectory in tree.trajectories:
        assert trajectory.nodes[: len(above)] == above
        assert sum(len(node.token_ids) for node in trajectory.nodes[1:]) <= 400
        assert len(trajectory.exchanges) <= 3


@pytest.mark.parametrize("branch_at", ["before_probe", "after_probe"])
@pytest.mark.parametrize("rewriters", [(), (Backtracks(1), FoldsMemory(2))])
def test_from_every_node_a_tree_of_its_own(tokenizer_folder, tmp_path, branch_at, rewriters):
    parts = agent(tokenizer_folder, RULE, rewriters=rewriters, branch_at=branch_at)
    recorded = grow_one(parts)
    nodes = starts(recorded)
    assert any(recorded.by_id[start].source is Source.POLICY for start in nodes) == (
        branch_at == "after_probe"
    )
    for start in nodes[:12]:
        tree = grown_from(parts, recorded, start)
        check(tree, recorded, start)
        assert [tool.open_sessions for tool in parts.environment.members.values()] == [0, 0]
        assert tree.trajectories != recorded.trajectories
        assert grown_from(parts, recorded, start) == tree
        assert_traced(tree, tmp_path)


def test_a_call_after_the_start_has_the_state_of_the_path(tokenizer_folder):
    """The tools count the calls of their trajectory."""
    parts = agent(tokenizer_folder, RULE)
    recorded = grow_one(parts)
    repeated = 0
    for start in starts(recorded):
        for trajectory in grown_from(parts, recorded, start).trajectories:
            counts = {"search": 0, "python": 0}
            for call, result in trajectory.exchanges:
                counts[call.name] += 1
                assert f"call {counts[call.name]} " in result.text
            repeated += max(counts.values()) > 1
    assert repeated


class OpenedFor(World):
    """A world that keeps the prompts for which it was opened."""

    def __init__(self, branches):
        super().__init__(branches)
        self.prompts = set()

    async def open(self, problem, seed):
        self.prompts.add(problem.messages)
        return await super().open(problem, seed)


@pytest.mark.parametrize("branches", ["fork", "replay"])
def test_in_a_world_the_turns_of_the_path_are_made_again(tokenizer_folder, branches):
    parts = acting(tokenizer_folder, OpenedFor(branches))
    recorded = grow_one(parts)
    (prompt,) = parts.environment.prompts
    assert prompt != recorded.problem.messages
    for start in starts(recorded)[:6]:
        tree = grown_from(parts, recorded, start)
        assert tree.start == start
        assert StopReason.FAILED not in {trajectory.stop for trajectory in tree.trajectories}
        assert parts.environment.sessions == 0
        # What it said first is no part of the prompt that it is opened for.
        assert parts.environment.prompts == {prompt}


def test_a_path_that_does_not_come_again_ends_each_trajectory_with_its_reason(tokenizer_folder):
    parts = agent(tokenizer_folder, RULE)
    recorded = grow_one(parts)
    start = next(node for node in recorded.nodes if node.results)
    other = replace(start, results=tuple(replace(result, text="other") for result in start.results))
    changed = make_tree(
        recorded.problem,
        recorded.key,
        [other if node is start else node for node in recorded.nodes],
        list(recorded.decisions),
    )
    tree = grown_from(parts, changed, start.id)
    assert {trajectory.stop for trajectory in tree.trajectories} == {StopReason.FAILED}
    reasons = {event.fields["reason"] for event in parts.events.events if "reason" in event.fields}
    assert reasons == {f"ValueError: node {start.parent}: the replayed reply differs from the recorded one"}


def test_what_nothing_can_go_on_from_is_refused(tokenizer_folder):
    recorded = grow_one(agent(tokenizer_folder, RULE))
    leaf = recorded.trajectories[0].leaf.id
    turn = next(node.id for node in recorded.nodes if node.calls and node.stop is None)
    for start, message in (
        (leaf, "is a leaf"),
        (turn, f"ends a turn. Choose '{turn}.0'"),
        ("9.9", "no node '9.9'"),
    ):
        with pytest.raises(DataError, match=message):
            request_from(recorded, start)


@pytest.mark.parametrize("shared", ["repeat", "split", "mass"])
@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "fixed_length"])
def test_what_lies_above_is_not_trained(tokenizer_folder, shared, aggregation):
    """As if the path to the start were the prompt."""
    parts = agent(tokenizer_folder, RULE)
    recorded = grow_one(parts)
    start = next(node.id for node in recorded.nodes if node.results and len(node.path) == 2)
    tree = grown_from(parts, recorded, start)
    above = {node.id for node in tree.path_to(tree.by_id[start])}
    bare = make_tree(
        tree.problem,
        tree.key,
        [
            replace(
                node, source=Source.TOOL, behavior_logprobs=(), entropy=None, token_entropies=(), turn=None
            )
            if node.id in above and node.source is Source.POLICY
            else node
            for node in tree.nodes
        ],
        start=start,
    )
    weighting = Weighting(shared, "soft", aggregation, 100 if aggregation == "fixed_length" else None)

    def trained(tree):
        advantages = tuple(
            np.full(trajectory.num_written, float(i)) for i, trajectory in enumerate(tree.trajectories)
        )
        return TrainingTree(tree, behavior_annotations(tree), advantages)

    ours, plain = credit(trained(tree), weighting), credit(trained(bare), weighting)
    assert tree.inherited_ids
    for key, credited in ours.items():
        numbers = np.stack([credited.s_plus, credited.s_minus, credited.weight, credited.num_paths])
        if key in tree.inherited_ids:
            assert not numbers.any()
        else:
            wanted = plain[key]
            expected = np.stack([wanted.s_plus, wanted.s_minus, wanted.weight, wanted.num_paths])
            assert numbers == pytest.approx(expected, abs=1e-15)
    assert denominator([tree], weighting) == pytest.approx(denominator([bare], weighting))
    assert num_trained(tree).tolist() == [trajectory.num_written for trajectory in bare.trajectories]
    assert leaf_masses(tree).sum() == pytest.approx(len(tree.roots))
    own, bares = token_weights(tree, shared), token_weights(bare, shared)
    assert [row.sum() for row in own] == pytest.approx([row.sum() for row in bares])
    with pytest.raises(ConfigError, match="go on from another tree's node"):
        path_credit([trained(tree)], Weighting())


def test_a_start_beside_which_something_lies_is_no_tree(tokenizer_folder):
    recorded = grow_one(agent(tokenizer_folder, RULE))
    start = next(node.id for node in recorded.nodes if node.results)
    with pytest.raises(ValueError, match="not all nodes lie above or below the start"):
        make_tree(recorded.problem, recorded.key, list(recorded.nodes), start=start)


def test_what_the_path_spent_is_what_lies_below_the_prompt(tokenizer_folder):
    parts = agent(tokenizer_folder, RULE)
    recorded = grow_one(parts)
    for start in starts(recorded):
        prompt, *below = path = recorded.path_to(recorded.by_id[start])
        assert prompt.token_ids
        spent = sum(len(node.token_ids) for node in below)
        assert state_after(parts, recorded.problem, path).spent == spent
