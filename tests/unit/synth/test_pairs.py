"""Pairs from recorded trees: which leaves, and that their ids are the sampled ones."""

import json
from dataclasses import replace

import pytest
from synth_agents import RIGHT, WRONG, actor_of, grow, question

from ramify.algos.dpo import pair
from ramify.core.draws import uniform
from ramify.core.errors import DataError, RowError
from ramify.core.records import Reward, ScoredTree
from ramify.core.tree import Source, StopReason, TreeKey
from ramify.data.example_formats import PAIR
from ramify.data.examples import Example, read_examples
from ramify.data.recorded_pairs import check_tokenizer, read_recorded_pair
from ramify.rollout.plan import Planned
from ramify.synth.pairs import (
    ALL_RIGHT,
    NEVER_RIGHT,
    PAIRED,
    TOO_LONG,
    PairCounts,
    PairRule,
    pair_rows,
    write_pairs,
)

RULE = PairRule(per_question=2, max_tokens=500)


def sometimes(context, seed):
    """Right and wrong answers, some behind a call."""
    draw = uniform(seed, 5)
    if "</result>" not in context and draw < 0.4:
        return f"<think> {int(draw * 90)}</think><search> Paris </search>"
    return f"<think> {int(draw * 90)}</think>{RIGHT if uniform(seed, 6) < 0.5 else WRONG}"


@pytest.fixture(scope="module")
def scored(tokenizer_folder):
    actor = actor_of(tokenizer_folder, sometimes, n=8)
    planned = [Planned(question(f"q{n}"), TreeKey(3, n)) for n in range(12)]
    return actor, grow(actor, planned)


def rewarded(tree, values):
    return ScoredTree(tree, tuple(Reward(value, {"correct": float(value >= 1)}) for value in values))


def test_chosen_is_right_and_rejected_is_not_and_no_leaf_is_in_two_pairs(scored):
    _, trees = scored
    total = 0
    for one in trees:
        outcome, pairs = RULE.choose(one)
        assert (outcome == PAIRED) == bool(pairs)
        assert len(pairs) <= 2
        assert len({index for both in pairs for index in both}) == 2 * len(pairs)
        for good, bad in pairs:
            assert one.rewards[good].parts["correct"] >= 1 > one.rewards[bad].parts["correct"]
        total += len(pairs)
    assert total > 8


def test_the_largest_gap_comes_first_and_equal_calls_break_ties(scored):
    tree = scored[1][0].tree
    values = [1.0, 0.9, -1.0, 1.1, 0.0, -1.0, 0.5, 0.2]
    _, pairs = PairRule(1, 500).choose(rewarded(tree, values))
    (good, bad) = pairs[0]
    assert (good, values[bad]) == (3, -1.0)
    calls = [len(trajectory.exchanges) for trajectory in tree.trajectories]
    apart = {index: abs(calls[3] - calls[index]) for index in (2, 5)}
    assert apart[bad] == min(apart.values())


def test_a_question_without_a_pair_says_why(scored):
    tree = scored[1][0].tree
    assert RULE.choose(rewarded(tree, [1.0] * 8)) == (ALL_RIGHT, ())
    assert RULE.choose(rewarded(tree, [0.9] * 8)) == (NEVER_RIGHT, ())
    assert PairRule(2, 5).choose(rewarded(tree, [1.0, 0.0] * 4)) == (TOO_LONG, ())


@pytest.mark.parametrize("stop", [StopReason.DEADLINE, StopReason.FAILED])
def test_what_the_policy_cannot_help_is_in_no_pair(scored, stop):
    tree = scored[1][0].tree
    first = tree.trajectories[0].leaf
    nodes = tuple(replace(node, stop=stop) if node.id == first.id else node for node in tree.nodes)
    _, pairs = RULE.choose(rewarded(replace(tree, nodes=nodes), [1.0] + [0.0] * 7))
    assert pairs == ()


def rows_of(scored, rule=RULE):
    actor, trees = scored
    counts = PairCounts()
    rows = list(
        pair_rows([("trees/3.jsonl", one) for one in trees], rule, actor.agent.renderer.decode, counts)
    )
    return rows, counts


def test_a_row_names_tree_and_leaves_and_holds_their_ids(scored, tmp_path):
    rows, counts = rows_of(scored)
    assert counts.pairs == len(rows)
    assert counts.questions.total() == 12
    assert f"{len(rows)} pairs from 12 questions" in counts.line()
    assert len({row["id"] for row in rows}) == len(rows)
    trees = {one.tree.key.slot: one.tree for one in scored[1]}
    for row in rows:
        told = row["recorded"]
        assert (told["file"], told["step"], told["attempt"]) == ("trees/3.jsonl", 3, 0)
        tree = trees[told["slot"]]
        for name in ("chosen", "rejected"):
            trajectory = next(t for t in tree.trajectories if t.leaf.id == told[name])
            ids = [token for _, part in row["ids"][name] for token in part]
            assert tuple(row["ids"]["prompt"] + ids) == trajectory.segments[-1].token_ids
            written = [token for source, part in row["ids"][name] if source == "policy" for token in part]
            assert len(written) == trajectory.num_written
        assert row["rewards"][0] > row["rewards"][1]
    write_pairs(tmp_path / "pairs.jsonl", rows)
    # What ramify writes, ramify reads, id by id.
    decode = scored[0].agent.renderer.decode
    read = [example for _, example in read_examples(tmp_path / "pairs.jsonl", PAIR)]
    assert all(isinstance(example, Example) for example in read)
    for example, row in zip(read, rows, strict=True):
        check_tokenizer(example.recorded, decode, scored[0].agent.renderer.tokenizer.vocab_size)
        chosen, rejected = example.recorded.trees(example.problem, TreeKey(0, 0))
        both = pair(chosen, rejected)
        for trajectory, name in zip(both.trajectories, ("chosen", "rejected"), strict=True):
            ids = tuple(row["ids"]["prompt"]) + tuple(t for _, part in row["ids"][name] for t in part)
            assert trajectory.segments[0].token_ids == ids
            sources = [node.source for node in trajectory.nodes[1:]]
            assert sources == [Source(source) for source, _ in row["ids"][name]]


def test_ids_of_another_tokenizer_are_refused(scored):
    rows, _ = rows_of(scored)
    with pytest.raises(RowError, match="another model's tokenizer"):
        check_tokenizer(read_recorded_pair(rows[0]), lambda ids: "x", 600)
    tokenizer = scored[0].agent.renderer.tokenizer
    rows[0]["ids"]["chosen"][-1][1].append(tokenizer.vocab_size)
    with pytest.raises(RowError, match="another model's tokenizer"):
        check_tokenizer(read_recorded_pair(rows[0]), tokenizer.decode, tokenizer.vocab_size)
    _, trees = scored
    with pytest.raises(DataError, match="another model's tokenizer"):
        list(pair_rows([("f", trees[0])], RULE, lambda ids: "x", PairCounts()))


def test_trees_of_a_service_are_refused(scored):
    _, trees = scored
    tree = trees[0].tree
    nodes = tuple(replace(node, exact_ids=False) for node in tree.nodes)
    with pytest.raises(DataError, match="were not sampled"):
        list(pair_rows([("f", replace(trees[0], tree=replace(tree, nodes=nodes)))], RULE, str, PairCounts()))


@pytest.mark.parametrize(
    "damage",
    [
        {"ids": 7},
        {"ids": {}},
        {"ids": {"prompt": [1], "chosen": [["policy", [2]]], "rejected": [["policy", ["3"]]]}},
        {"ids": {"prompt": [1], "chosen": [["policy", [2]]], "rejected": [["tool", [3]]]}},
        {"ids": {"prompt": [1], "chosen": [["nobody", [2]]], "rejected": [["policy", [3]]]}},
        {"ids": {"prompt": [1], "chosen": [["policy", [2]]], "rejected": [["policy", [2, 3]]]}},
        {"ids": {"prompt": [], "chosen": [["policy", [2]]], "rejected": [["policy", [3]]]}},
        {"ids": {"prompt": [1], "chosen": [["policy", [True]]], "rejected": [["policy", [3]]]}},
        {"prompt_text": None},
    ],
)
def test_damaged_rows_are_refused_by_number(scored, tmp_path, damage):
    rows, _ = rows_of(scored)
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps(rows[0]) + "\n" + json.dumps({**rows[1], **damage}) + "\n")
    (_, good), (number, bad) = read_examples(path, PAIR)
    assert isinstance(good, Example)
    assert number == 2
    assert isinstance(bad, RowError)
