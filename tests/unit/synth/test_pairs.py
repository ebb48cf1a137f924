"""Pairs from recorded trees: which leaves, and that their ids are the sampled ones."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from synth_agents import RIGHT, WRONG, grow, question, sampler_of

from ramify.algos.dpo import pair
from ramify.core.draws import uniform
from ramify.core.errors import DataError, RowError
from ramify.core.records import Reward
from ramify.core.tree import Source, StopReason, TreeKey
from ramify.data.example_formats import PAIR
from ramify.data.examples import Example, check_tokenizer, read_examples, read_recorded_pair
from ramify.rewards.trajectory_rewards import score_tree
from ramify.rollout.plan import TreeRequest, request_from
from ramify.synth.pairs import (
    ALIKE,
    ALL_RIGHT,
    APART,
    NEVER_RIGHT,
    PAIRED,
    TOO_LONG,
    NamedPair,
    PairRule,
    choose_pairs,
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
    sampler = sampler_of(tokenizer_folder, sometimes, n=8)
    planned = [TreeRequest(question(f"q{n}"), TreeKey(3, n)) for n in range(12)]
    return sampler, grow(sampler, planned)


@dataclass(frozen=True)
class PaysInOrder:
    """Pays the trajectories these values, and has no verdict on some."""

    values: Sequence[float]
    without_verdict: Sequence[int] = ()

    async def score(self, trajectories):
        return [
            Reward(value, {"correct": float(value >= 1)}, counts=i not in self.without_verdict)
            for i, value in enumerate(self.values)
        ]


def rewarded(tree, values, without_verdict=()):
    return asyncio.run(score_tree(PaysInOrder(values, without_verdict), tree))


def with_leaf(tree, index, **changed):
    """The tree with something else at one of its leaves."""
    leaf = tree.trajectories[index].leaf
    nodes = tuple(replace(node, **changed) if node.id == leaf.id else node for node in tree.nodes)
    return replace(tree, nodes=nodes)


def test_chosen_is_right_and_rejected_is_not_and_no_leaf_is_in_two_pairs(scored):
    _, trees = scored
    total = 0
    for tree in trees:
        outcome, pairs = RULE.choose(tree)
        assert (outcome == PAIRED) == bool(pairs)
        assert len(pairs) <= 2
        assert len({index for both in pairs for index in both}) == 2 * len(pairs)
        for good, bad in pairs:
            assert tree.rewards[good].parts["correct"] >= 1 > tree.rewards[bad].parts["correct"]
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
    tree = with_leaf(scored[1][0].tree, 0, stop=stop)
    _, pairs = RULE.choose(rewarded(tree, [1.0] + [0.0] * 7))
    assert pairs == ()


def test_a_side_without_a_verdict_is_in_no_pair(scored):
    tree, values = scored[1][0].tree, [1.0, 1.0] + [0.0] * 6
    _, pairs = RULE.choose(rewarded(tree, values, without_verdict=(0, 2, 3, 4, 5, 6)))
    assert pairs == ((1, 7),)


def test_a_side_may_be_as_long_as_the_limit(scored):
    tree = rewarded(scored[1][0].tree, [1.0] + [0.0] * 7)
    _, ((good, _),) = PairRule(1, 500).choose(tree)
    sizes = [len(trajectory.segments[-1].token_ids) for trajectory in tree.tree.trajectories]
    fits = max(sizes[good], min(sizes[1:]))
    assert PairRule(1, fits).choose(tree)[0] == PAIRED
    assert PairRule(1, fits - 1).choose(tree) == (TOO_LONG, ())


def test_a_context_that_does_not_begin_at_the_prompt_is_in_no_pair(scored):
    tree = with_leaf(scored[1][0].tree, 0, context="fresh")
    assert RULE.choose(rewarded(tree, [1.0] + [0.0] * 7)) == (NEVER_RIGHT, ())


@pytest.mark.parametrize("more", [0, 2])
def test_a_side_that_begins_the_other_is_no_pair_as_for_the_reader(scored, more):
    whole = next(
        each.tree for each in scored[1] if sum(len(t.nodes) == 2 for t in each.tree.trajectories) > 1
    )
    first, second = [i for i, t in enumerate(whole.trajectories) if len(t.nodes) == 2][:2]
    ids = whole.trajectories[first].leaf.token_ids
    ids += ids[:more]
    tree = with_leaf(whole, second, token_ids=ids, behavior_logprobs=(0.0,) * len(ids), token_entropies=())
    others = set(range(8)) - {first, second}
    for index in others:
        tree = with_leaf(tree, index, stop=StopReason.FAILED)
    assert RULE.choose(rewarded(tree, [float(i == first) for i in range(8)])) == (ALIKE, ())
    assert RULE.choose(rewarded(tree, [float(i == second) for i in range(8)])) == (ALIKE, ())
    named = NamedPair(*(tree.trajectories[i].leaf.id for i in (first, second)))
    with pytest.raises(DataError, match=ALIKE):
        named.choose(rewarded(tree, [0.0] * 8))
    cut = with_leaf(whole, second, token_ids=(), behavior_logprobs=(), token_entropies=())
    with pytest.raises(DataError, match="no side of a pair"):
        named.choose(rewarded(cut, [0.0] * 8))


def rows_of(scored, rule=RULE):
    sampler, trees = scored
    return rows_and_choice(sampler, [("trees/3.jsonl", tree) for tree in trees], rule)


def rows_and_choice(sampler, trees, rule):
    decode = sampler.agent.renderer.decode
    chosen = choose_pairs(iter(trees), rule, decode)
    return list(pair_rows(iter(trees), chosen, decode)), chosen


def again(scored_tree, epoch, values=None):
    """The tree as of another epoch, perhaps with other rewards."""
    tree = replace(scored_tree.tree, key=TreeKey(epoch, scored_tree.tree.key.slot))
    return replace(scored_tree, tree=tree) if values is None else rewarded(tree, values)


def test_a_question_of_several_trees_has_the_best_pairs_of_all_of_them(scored):
    sampler, trees = scored
    first, second = trees[0], trees[1]
    low, high = [0.5 + 0.5 * (i < 4) for i in range(8)], [float(i < 4) for i in range(8)]
    recorded = [
        ("a", again(first, 1, low)),
        ("a", again(first, 2, high)),
        ("b", again(second, 1, high)),
        ("b", again(first, 1, high)),
    ]
    rows, chosen = rows_and_choice(sampler, recorded, PairRule(3, 500))
    rows_by_origin = [(row["id"], row["recorded"]["file"], row["recorded"]["step"]) for row in rows]
    # The first tree has small gaps; of the others the order says which is asked first.
    assert len(rows_by_origin) == chosen.count == 6
    assert [origin for origin in rows_by_origin if origin[0].startswith("q1")] == [
        ("q1", "b", 1),
        ("q1#pair-2", "b", 1),
        ("q1#pair-3", "b", 1),
    ]
    mine = [origin for origin in rows_by_origin if origin[0].startswith("q0")]
    assert [name for name, _, _ in mine] == ["q0", "q0#pair-2", "q0#pair-3"]
    assert not any(origin[1:] == ("a", 1) for origin in mine)
    assert all(row["rewards"] == [1.0, 0.0] for row in rows)
    assert chosen.questions == {PAIRED: 2}
    assert chosen.line() == "6 pairs from 2 questions (with pairs 2)"
    assert rows_and_choice(sampler, recorded, PairRule(3, 500)) == (rows, chosen)


def test_copies_of_a_problem_by_weights_give_pairs_with_ids_of_their_own(scored, tmp_path):
    """`load_problems` calls the second copy "q0#1"."""
    sampler, trees = scored
    first = trees[0].tree
    copied = replace(first, problem=replace(first.problem, id=f"{first.problem.id}#1"))
    half = [float(i < 4) for i in range(8)]
    rows, chosen = rows_and_choice(
        sampler, [("a", rewarded(first, half)), ("b", rewarded(copied, half))], RULE
    )
    assert chosen.count == len({row["id"] for row in rows}) == 4
    write_pairs(tmp_path / "pairs.jsonl", rows)
    assert all(isinstance(each, Example) for _, each in read_examples(tmp_path / "pairs.jsonl", PAIR))


def test_what_became_of_a_question_of_several_trees(scored):
    sampler, trees = scored
    right, wrong, both = [1.0] * 8, [0.0] * 8, [1.0, 0.0] * 4
    recorded = [
        ("a", again(trees[0], 1, right)),
        ("a", again(trees[0], 2, wrong)),
        ("a", again(trees[1], 1, wrong)),
        ("a", again(trees[1], 2, wrong)),
        ("a", again(trees[2], 1, right)),
        ("a", again(trees[2], 2, both)),
    ]
    assert rows_and_choice(sampler, recorded, RULE)[1].questions == {APART: 1, NEVER_RIGHT: 1, PAIRED: 1}
    assert rows_and_choice(sampler, recorded, PairRule(2, 5))[1].questions == {
        APART: 1,
        NEVER_RIGHT: 1,
        TOO_LONG: 1,
    }


def test_a_row_names_tree_and_leaves_and_holds_their_ids(scored, tmp_path):
    rows, chosen = rows_of(scored)
    assert chosen.count == len(rows)
    assert sum(chosen.questions.values()) == 12
    assert f"{len(rows)} pairs from 12 questions" in chosen.line()
    assert len({row["id"] for row in rows}) == len(rows)
    trees = {each.tree.key.slot: each.tree for each in scored[1]}
    for row in rows:
        origin = row["recorded"]
        assert (origin["file"], origin["step"], origin["attempt"]) == ("trees/3.jsonl", 3, 0)
        tree = trees[origin["slot"]]
        for name in ("chosen", "rejected"):
            trajectory = next(t for t in tree.trajectories if t.leaf.id == origin[name])
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


def test_what_lies_above_the_start_of_a_tree_is_context_in_its_pairs(scored):
    """SimPO and ORPO would learn from what another policy wrote, which both sides have."""
    sampler, trees = scored
    result = next(node for each in trees for node in each.tree.nodes if node.results)
    tree = next(each.tree for each in trees if result in each.tree.nodes)
    grown = grow(sampler, [request_from(tree, result.id)])
    rows, chosen = rows_and_choice(sampler, [("f", *grown)], RULE)
    assert chosen.count
    leaves = {each.leaf.id: each.leaf.token_ids for each in grown[0].tree.trajectories}
    for row in rows:
        for name in ("chosen", "rejected"):
            above, *own = row["ids"][name]
            assert above == ["tool", list(tree.by_id[result.parent].token_ids)]
            assert own == [["tool", list(result.token_ids)], ["policy", list(leaves[row["recorded"][name]])]]
        assert read_recorded_pair(row).ids[0] == tree.nodes[0].token_ids


def test_ids_of_another_tokenizer_are_refused(scored):
    rows, _ = rows_of(scored)
    with pytest.raises(RowError, match="another model's tokenizer"):
        check_tokenizer(read_recorded_pair(rows[0]), lambda ids: "x", 600)
    tokenizer = scored[0].agent.renderer.tokenizer
    rows[0]["ids"]["chosen"][-1][1].append(tokenizer.vocab_size)
    with pytest.raises(RowError, match="another model's tokenizer"):
        check_tokenizer(read_recorded_pair(rows[0]), tokenizer.decode, tokenizer.vocab_size)
    _, trees = scored
    with pytest.raises(DataError, match="its tokens are those of another model's tokenizer"):
        choose_pairs([("f", trees[0])], RULE, lambda ids: "x")


def test_pairs_of_a_services_texts_are_marked_and_hold_the_same_tokens(scored):
    sampler, trees = scored
    decode = sampler.agent.renderer.tokenizer.decode
    texts = [
        replace(
            each, tree=replace(each.tree, nodes=tuple(replace(n, exact_ids=False) for n in each.tree.nodes))
        )
        for each in trees
    ]
    named = [[("f", each) for each in of] for of in (trees, texts)]
    chosen = [choose_pairs(each, RULE, decode) for each in named]
    assert [each.num_encoded for each in chosen] == [0, chosen[0].count]
    sampled, encoded = (list(pair_rows(each, of, decode)) for each, of in zip(named, chosen, strict=True))
    assert sampled
    assert encoded == [{**row, "exact_ids": False} for row in sampled]


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
