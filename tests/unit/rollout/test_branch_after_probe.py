"""Branches that share the k tokens whose entropy decided."""

import asyncio
from dataclasses import replace

import pytest

from model_folders import write_model
from ramify.algos.branch_arpo import ThresholdBrancher
from ramify.core.tree import Source, StopReason
from ramify.rewards.configs import AnswerRewardConfig
from ramify.rewards.trajectory_rewards import AnswerReward
from scripted_agents import (
    ALWAYS,
    SEARCH,
    RecordingEngine,
    agent,
    assert_traced,
    grow_one,
    plays,
    script,
    with_engine,
)


def grown(folder, rule=ALWAYS, play=script, n=6, **options):
    parts = with_engine(agent(folder, rule, play, n=n, branch_at="after_probe", **options), RecordingEngine)
    return grow_one(parts), parts


def shared_nodes(tree):
    """The first parts of turns in two."""
    policy = [node for node in tree.nodes if node.source is Source.POLICY]
    return [node for node in policy if any(child in policy for child in tree.children[node.id])]


def test_the_first_k_tokens_are_one_node_with_the_entropy_that_decided(model_folder):
    tree, _ = grown(model_folder)
    assert any(decision.taken for decision in tree.decisions)
    assert {decision.node for decision in tree.decisions} == {node.id for node in shared_nodes(tree)}
    for decision in tree.decisions:
        first = tree.by_id[decision.node]
        above = tree.by_id[first.parent]
        assert above.source is Source.TOOL
        assert len(tree.children[above.id]) == 1
        assert len(first.token_ids) == first.entropy.count == 3
        assert first.turn is None
        root = tree.by_id[decision.node.split(".")[0]]
        assert decision.entropy_delta == first.entropy.lower - root.entropy.lower
        assert decision.depth == sum(tree.by_id[i].source is Source.TOOL for i in ids_above(first))
        for child in tree.children[first.id]:
            assert child.source is Source.POLICY
            assert child.entropy is None
            assert child.token_ids


def ids_above(node):
    parts = node.id.split(".")
    return [".".join(parts[:depth]) for depth in range(1, len(parts))]


def test_the_rest_of_the_turn_is_asked_for_with_draws_of_its_own(model_folder):
    tree, parts = grown(model_folder)
    requests = {request.priority[1:]: request for request in parts.engine.requests}
    assert len(requests) == len(parts.engine.requests)
    assert len({request.seed for request in requests.values()}) == len(requests)
    for node in shared_nodes(tree):
        probe_request = requests[node.path]
        assert (probe_request.max_new_tokens, probe_request.entropy_first_k, probe_request.stop_context) == (
            3,
            3,
            0,
        )
        for child in tree.children[node.id]:
            rest_request = requests[child.path]
            assert rest_request.token_ids == probe_request.token_ids + node.token_ids
            assert rest_request.stop_context == 3
            # This engine's entropies are exact, so those of all tokens are recorded.
            assert rest_request.entropy_first_k == rest_request.max_new_tokens


@pytest.mark.parametrize("probe", range(1, 16))
def test_the_parts_join_to_the_turn_wherever_they_break(model_folder, probe):
    """Within a character of several bytes, within the call's tag, just before and behind its end."""
    text = "\N{SNOWMAN}\N{GRINNING FACE}</think> <search> caf\N{LATIN SMALL LETTER E WITH ACUTE} </search>"
    rule = replace(ALWAYS, m=1, probe_tokens=probe)
    tree, parts = grown(model_folder, rule, plays(SEARCH, text), n=2, max_calls=2)
    whole = parts.renderer.tokenizer.encode(text)
    for trajectory in tree.trajectories:
        turns = trajectory.policy_nodes
        assert tuple(t for n in turns[1:3] for t in n.token_ids)[: len(whole)] == whole
        joined = "".join(n.text for n in turns[1:3])
        assert joined.startswith(text)
        assert "\N{REPLACEMENT CHARACTER}" not in joined
        calls = [call.arguments for call, _ in trajectory.exchanges]
        assert calls == [{"query": "Paris"}, {"query": "caf\N{LATIN SMALL LETTER E WITH ACUTE}"}]
        assert trajectory.stop is StopReason.CALLS
    assert len(whole) > 16
    assert len(shared_nodes(tree)) >= 1


def test_a_stop_string_may_span_the_two_parts(model_folder, tmp_path):
    folder = write_model(tmp_path / "spelt", tags_are_tokens=False)
    tail = "</search>"
    for probe in range(1, 14):
        rule = replace(ALWAYS, m=1, probe_tokens=probe)
        tree, parts = grown(folder, rule, plays(SEARCH, "<search> x" + tail + " and more"), n=2, max_calls=2)
        spelt = parts.renderer.tokenizer.encode("<search> x" + tail)
        for trajectory in tree.trajectories:
            assert len(trajectory.exchanges) == 2
            second = [n for n in trajectory.policy_nodes if ids_above(n)][:2]
            joined = "".join(n.text for n in second)
            assert joined.startswith("<search> x" + tail)
            assert " and more" not in joined
    assert len(spelt) > 8


@pytest.mark.parametrize(
    ("text", "stop"),
    [("<answer> 4 </answer>", StopReason.ANSWERED), ("<think> a", StopReason.MALFORMED)],
)
def test_a_turn_that_ends_within_the_probe_is_no_candidate(model_folder, text, stop):
    rule = replace(ALWAYS, probe_tokens=40)
    tree, _ = grown(model_folder, rule, plays(SEARCH, text))
    assert tree.decisions == ()
    assert shared_nodes(tree) == []
    assert len(tree.children[""]) == 6
    assert {trajectory.stop for trajectory in tree.trajectories} == {stop}


def test_a_call_that_ends_within_the_probe_is_no_candidate_but_the_next_turn_is(model_folder):
    play = plays(SEARCH, "<search> x</search>", "<think> a b c d e f g h i j k l m </think>")
    rule = replace(ALWAYS, probe_tokens=12)
    tree, _ = grown(model_folder, rule, play)
    assert {decision.depth for decision in tree.decisions} == {2}
    assert sum(decision.taken for decision in tree.decisions) == 2


def test_a_turn_cut_by_its_tokens_within_the_probe_is_no_candidate(model_folder):
    rule = replace(ALWAYS, m=1, probe_tokens=40)
    long = plays(SEARCH, "<think> a b c d e f g h i j k l m n o p q r s t u v w x y z</think>")
    tree, _ = grown(model_folder, rule, long, n=2, max_tokens=50)
    assert {trajectory.stop for trajectory in tree.trajectories} == {StopReason.TOKENS}
    assert all(sum(len(n.token_ids) for n in t.nodes[1:]) == 50 for t in tree.trajectories)
    assert tree.decisions == ()


def score(tree):
    return asyncio.run(AnswerReward(AnswerRewardConfig(score="em")).score(tree.trajectories))


@pytest.mark.parametrize("probe", [1, 4, 9])
def test_rewards_see_the_joined_turn(model_folder, probe):
    rule = replace(ALWAYS, probe_tokens=probe)
    play = plays(SEARCH, "<think> so </think><answer> \\boxed{ 42 } </answer>")
    tree, _ = grown(model_folder, rule, play)
    assert len(shared_nodes(tree)) == 2
    assert [reward.value for reward in score(tree)] == [1.0] * 6


def test_the_trace_gives_the_tree_back(model_folder, tmp_path):
    tree, _ = grown(model_folder)
    assert_traced(tree, tmp_path, score(tree))


def test_without_branches_the_turn_is_in_two_all_the_same(model_folder):
    """Nodes must not depend on who was fast, as the spent budget does."""
    never = ThresholdBrancher(m=5, min_entropy_delta=100.0, children=1, probe_tokens=3)
    tree, parts = grown(model_folder, never)
    assert len(shared_nodes(tree)) == len(tree.decisions) > 0
    assert all(len(tree.children[node.id]) == 1 for node in shared_nodes(tree))
    assert {request.stops for request in parts.engine.requests} == {parts.renderer.stops(parts.tools)}
