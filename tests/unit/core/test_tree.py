from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.core.messages import Calls, Final, MalformedTurn, Problem, ToolCall, ToolResult, ToolStatus
from ramify.core.tree import (
    BranchDecision,
    Cut,
    Entropy,
    Node,
    Source,
    StopReason,
    Trajectory,
    TreeKey,
    make_tree,
    node_id,
    tree_path,
)

PROBLEM = Problem("p7", (), ("42",))
KEY = TreeKey(1, 2)
ENDED = StopReason.ANSWERED


def node(path, source, ids=(1, 2), **fields):
    fields.setdefault("behavior_logprobs", (-0.5,) * len(ids) if source is Source.POLICY else ())
    parent = node_id(path[:-1]) if path else None
    return Node(node_id(path), path, parent, source, tuple(ids), "", **fields)


def policy(*path, **fields):
    return node(path, Source.POLICY, **fields)


def tool(*path, **fields):
    return node(path, Source.TOOL, **fields)


def prompt(*ids):
    return node((), Source.PROMPT, ids or (9, 9, 9))


def calls(*names):
    return Calls(tuple(ToolCall(name, "search", {}) for name in names))


def results(*names):
    return tuple(ToolResult(name, ToolStatus.OK, name) for name in names)


def branched():
    """Root 0 calls twice in one turn and branches after the results; root 1 answers."""
    return [
        prompt(),
        policy(0, ids=(10, 11), turn=calls("a", "b")),
        tool(0, 0, ids=(20,), results=results("a", "b")),
        policy(0, 0, 0, ids=(30,), turn=calls("c")),
        tool(0, 0, 0, 0, ids=(40, 41), results=results("c")),
        policy(0, 0, 0, 0, 0, ids=(50,), stop=ENDED),
        policy(0, 0, 1, ids=(31, 32), stop=StopReason.TOKENS),
        policy(1, ids=(12,), stop=StopReason.MALFORMED),
    ]


@given(st.permutations(branched()))
def test_a_tree_is_the_same_in_whatever_order_its_nodes_arrive(nodes):
    tree = make_tree(PROBLEM, KEY, nodes)
    assert tree == make_tree(PROBLEM, KEY, branched())
    assert [n.id for n in tree.nodes] == ["", "0", "0.0", "0.0.0", "0.0.0.0", "0.0.0.0.0", "0.0.1", "1"]
    assert [t.leaf.id for t in tree.trajectories] == ["0.0.0.0.0", "0.0.1", "1"]


def test_paths_are_sorted_by_number_and_not_by_text():
    nodes = [prompt(), *(policy(index, stop=ENDED) for index in (10, 9, 2, 1, 0))]
    decisions = [BranchDecision(identifier, 1, 0.0, 0.0, 0, 0, False) for identifier in ("10", "9", "2")]
    tree = make_tree(PROBLEM, KEY, nodes, decisions)
    assert [t.leaf.id for t in tree.trajectories] == ["0", "1", "2", "9", "10"]
    assert [d.node for d in tree.decisions] == ["2", "9", "10"]


def test_trajectories_share_their_prefix_by_identity():
    first, second, third = make_tree(PROBLEM, KEY, branched()).trajectories
    assert all(a is b for a, b in zip(first.nodes[:3], second.nodes[:3], strict=True))
    assert third.nodes[0] is first.nodes[0]
    assert [t.stop for t in (first, second, third)] == [ENDED, StopReason.TOKENS, StopReason.MALFORMED]
    assert [t.num_written for t in (first, second, third)] == [4, 4, 1]
    assert [n.id for n in first.policy_nodes] == ["0", "0.0.0", "0.0.0.0.0"]


def test_a_trajectory_is_its_own_tokens_in_order_with_the_results_masked():
    first, _, _ = make_tree(PROBLEM, KEY, branched()).trajectories
    (segment,) = first.segments
    assert segment.token_ids == (9, 9, 9, 10, 11, 20, 30, 40, 41, 50)
    assert segment.written == (False,) * 3 + (True, True, False, True, False, False, True)


def test_a_node_that_opens_a_context_starts_a_segment():
    nodes = [
        prompt(1, 2),
        policy(0, ids=(3,), turn=calls("a")),
        tool(0, 0, ids=(4, 5), results=results("a")),
        tool(0, 0, 0, ids=(6, 7), context="fresh"),
        policy(0, 0, 0, 0, ids=(8,), turn=calls("b")),
        policy(0, 0, 0, 0, 0, ids=(9, 10), context="fresh", stop=ENDED),
    ]
    (trajectory,) = make_tree(PROBLEM, KEY, nodes).trajectories
    assert [s.token_ids for s in trajectory.segments] == [(1, 2, 3, 4, 5), (6, 7, 8), (9, 10)]
    assert [s.written for s in trajectory.segments] == [
        (False, False, True, False, False),
        (False, False, True),
        (True, True),
    ]
    assert [n for s in trajectory.segments for n in s.nodes] == list(trajectory.nodes)
    assert trajectory.num_written == 4
    assert not hasattr(trajectory, "token_ids")


def backtracked():
    """After a failed call the second turn is written again from its second token; then a note goes on from the prompt."""
    return [
        prompt(1, 2),
        policy(0, ids=(3, 4, 5), turn=calls("a")),
        tool(0, 0, ids=(6,), results=results("a")),
        tool(0, 0, 0, ids=(7,), context=Cut("0", 2)),
        policy(0, 0, 0, 0, ids=(8,), turn=calls("b")),
        tool(0, 0, 0, 0, 0, ids=(), context=Cut("", 1)),
        policy(0, 0, 0, 0, 0, 0, ids=(9, 10), stop=ENDED),
    ]


def test_a_context_goes_on_from_inside_a_node_above():
    (trajectory,) = make_tree(PROBLEM, KEY, backtracked()).trajectories
    assert [s.token_ids for s in trajectory.segments] == [(1, 2, 3, 4, 5, 6), (1, 2, 3, 4, 7, 8), (1, 9, 10)]
    assert [s.written for s in trajectory.segments][1] == (False, False, True, True, False, True)
    assert [[n.id for n in s.nodes] for s in trajectory.segments][2] == ["", "0.0.0.0.0", "0.0.0.0.0.0"]
    assert trajectory.contexts[3].token_ids == (1, 2, 3, 4, 7)
    assert trajectory.num_written == 6


@pytest.mark.parametrize(
    ("context", "message"),
    [
        (Cut("1", 1), "'0.0.0': its context goes on from '1', which is not above it"),
        (Cut("0.0.0", 1), "from '0.0.0', which is not above it"),
        (Cut("9", 1), "from '9', which is not above it"),
        (Cut("0", 0), "after 0 tokens of '0', which has 3"),
        (Cut("0", 4), "after 4 tokens of '0', which has 3"),
        (Cut("0.0", 1), 'that of its parent, write "parent"'),
    ],
)
def test_a_context_goes_on_from_an_ancestor_only(context, message):
    nodes = [*backtracked()[:3], policy(0, 0, 0, ids=(8,), context=context, stop=ENDED)]
    with pytest.raises(ValueError, match=message):
        make_tree(PROBLEM, KEY, [*nodes, policy(1, ids=(4,), stop=ENDED)])


def test_nothing_stands_before_the_prompt():
    with pytest.raises(ValueError, match="nothing stands before it"):
        make_tree(PROBLEM, KEY, [replace(prompt(), context="fresh"), policy(0, stop=ENDED)])


def test_exchanges_pair_each_result_with_its_call():
    first, second, third = make_tree(PROBLEM, KEY, branched()).trajectories
    assert [(c.id, r.call_id) for c, r in first.exchanges] == [("a", "a"), ("b", "b"), ("c", "c")]
    assert [c.id for c, _ in second.exchanges] == ["a", "b"]
    assert third.exchanges == ()


def test_a_call_that_was_not_executed_is_no_exchange():
    nodes = [prompt(), policy(0, turn=calls("a"), stop=StopReason.CALLS)]
    assert make_tree(PROBLEM, KEY, nodes).trajectories[0].exchanges == ()


def test_a_fresh_context_after_calls_that_were_not_executed_is_no_exchange():
    nodes = [prompt(), policy(0, turn=calls("a")), tool(0, 0), policy(0, 0, 0, stop=ENDED)]
    assert make_tree(PROBLEM, KEY, nodes).trajectories[0].exchanges == ()


@pytest.mark.parametrize(
    ("turn", "answer"),
    [
        (Final("42"), "42"),
        (MalformedTurn("late", "41"), "41"),
        (MalformedTurn("silent"), ""),
        (calls("a"), ""),
        (None, ""),
    ],
)
def test_the_final_answer_is_what_the_last_turn_marks(turn, answer):
    nodes = [prompt(), policy(0, turn=Final("no")), policy(0, 0, turn=turn, stop=ENDED)]
    assert make_tree(PROBLEM, KEY, nodes).trajectories[0].final_answer == answer


@pytest.mark.parametrize("answers", [("a",), ("a", "b", "c")])
def test_results_that_do_not_match_the_calls_are_no_exchanges(answers):
    nodes = [prompt(), policy(0, turn=calls("a", "b")), tool(0, 0, results=results(*answers))]
    trajectory = Trajectory(PROBLEM, tuple(nodes))
    with pytest.raises(ValueError, match="zip"):
        _ = trajectory.exchanges


def test_a_path_that_goes_on_has_no_stop():
    with pytest.raises(ValueError, match="'0' is no leaf"):
        _ = Trajectory(PROBLEM, (prompt(), policy(0))).stop


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([], "no prompt node"),
        ([policy(0, stop=ENDED)], "no prompt node"),
        ([prompt(), policy(0, stop=ENDED), policy(0, stop=ENDED)], "share an id"),
        ([prompt(), prompt(), policy(0, stop=ENDED)], "share an id"),
        ([prompt(), policy(0, 0, stop=ENDED)], "parent '0' is not in the tree"),
        ([prompt()], "stop reason belongs on leaves"),
        ([prompt(), policy(0)], "'0': a stop reason belongs on leaves"),
        ([prompt(), policy(0, stop=ENDED), tool(0, 0), policy(0, 0, 0, stop=ENDED)], "'0': a stop reason"),
        ([prompt(), node((0,), Source.PROMPT, stop=ENDED)], "only the prompt has no parent"),
        ([replace(prompt(), source=Source.TOOL), policy(0, stop=ENDED)], "only the prompt has no parent"),
        ([prompt(), replace(policy(0, stop=ENDED), id="1")], "its path is"),
        ([prompt(), policy(0), replace(policy(0, 0, stop=ENDED), parent="")], "its path is"),
        ([prompt(), replace(policy(0, stop=ENDED), parent=None)], "its path is"),
        ([prompt(), replace(policy(0), parent="0.0"), replace(policy(0, 0), parent="0")], "its path is"),
    ],
)
def test_shapes_that_are_no_tree_are_refused(nodes, message):
    with pytest.raises(ValueError, match=message):
        make_tree(PROBLEM, KEY, nodes)


def test_logprobs_belong_to_written_tokens_and_only_there():
    with pytest.raises(ValueError, match="1 logprobs for 2 written tokens"):
        policy(0, behavior_logprobs=(-0.1,))
    with pytest.raises(ValueError, match="1 entropies for 2 written tokens"):
        policy(0, token_entropies=(0.5,))
    with pytest.raises(ValueError, match="2 entropies for 0 written tokens"):
        tool(0, token_entropies=(0.5, 0.5))
    with pytest.raises(ValueError, match="2 logprobs for 0 written tokens"):
        tool(0, 0, behavior_logprobs=(-0.1, -0.2))


def test_views_of_a_tree():
    tree = make_tree(PROBLEM, KEY, branched())
    assert [n.id for n in tree.children["0.0"]] == ["0.0.0", "0.0.1"]
    assert tree.children["1"] == ()
    assert [n.id for n in tree.path_to(tree.by_id["0.0.1"])] == ["", "0", "0.0", "0.0.1"]
    with pytest.raises(TypeError):
        tree.by_id["x"] = tree.nodes[0]


@given(st.lists(st.integers(0, 30), max_size=6).map(tuple))
def test_an_id_spells_its_path(path):
    assert tree_path(node_id(path)) == path


def test_truncated_is_not_terminated():
    cut = {reason for reason in StopReason if reason.truncated}
    assert cut == {StopReason.TOKENS, StopReason.CALLS, StopReason.DEADLINE, StopReason.FAILED}


@given(st.floats(0.0, 12.0), st.floats(0.0, 3.0), st.integers(1, 50))
def test_the_length_of_a_segment_does_not_change_its_mean(lower, width, length):
    tokens = (Entropy(lower, lower + width),) * length
    mean = Entropy.mean(tokens)
    assert (mean.lower, mean.upper) == (pytest.approx(lower), pytest.approx(lower + width))
    assert mean.count == length


@given(st.lists(st.tuples(st.floats(0.0, 12.0), st.floats(0.0, 3.0)), min_size=1, max_size=30))
def test_the_mean_of_brackets_brackets_the_mean(pairs):
    mean = Entropy.mean(tuple(Entropy(low, low + width) for low, width in pairs))
    for inside in (0.0, 0.3, 1.0):
        value = sum(low + inside * width for low, width in pairs) / len(pairs)
        assert mean.lower - 1e-9 <= value <= mean.upper + 1e-9


def test_mean_entropy_keeps_the_bracket():
    assert Entropy.mean(()) is None
    mean = Entropy.mean((Entropy(1.0, 2.0), Entropy(2.0, 6.0)))
    assert mean == Entropy(1.5, 4.0, 2)
