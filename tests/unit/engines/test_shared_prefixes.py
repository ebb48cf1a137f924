import numpy as np
import pytest

from ramify.engines.slot_attention import group_rows


def rows_of(*contexts, width=4000):
    tokens = np.full((len(contexts), width), -1, np.int32)
    for row, ids in enumerate(contexts):
        tokens[row, : len(ids)] = ids
    return tokens, np.array([len(ids) for ids in contexts], np.int64)


def test_rows_with_a_long_common_beginning_are_neighbours_and_share_it():
    prompt, other = [7] * 900, [8] * 1200
    tokens, lengths = rows_of(
        prompt + [1] * 50, [*other, 2], prompt + [3] * 9, other + [1] * 99, [*prompt, 4]
    )
    decode = group_rows(np.array([4, 2, 0, 1, 3]), tokens, lengths)
    assert sorted(decode.rows.tolist()) == [0, 1, 2, 3, 4]
    shared = {tuple(sorted(decode.rows[g.start : g.stop].tolist())): g.prefix for g in decode.groups}
    assert shared == {(0, 2, 4): 900, (1, 3): 1200}


def test_the_deeper_sharing_wins_where_it_saves_more():
    system, problem = [1] * 600, [2] * 3000
    tokens, lengths = rows_of(system + problem + [5], system + problem + [6], system + [9] * 500)
    (group,) = group_rows(np.arange(3), tokens, lengths).groups
    assert (group.stop - group.start, group.prefix) == (2, 3600)


def test_short_prefixes_are_not_worth_a_call():
    tokens, lengths = rows_of([1] * 100 + [2], [1] * 100 + [3], [4])
    decode = group_rows(np.array([2, 0, 1]), tokens, lengths)
    assert decode.groups == ()
    assert decode.rows.tolist() == [0, 1, 2]


@pytest.mark.parametrize("seed", range(10))
def test_every_member_of_a_group_begins_with_its_prefix(seed):
    random = np.random.default_rng(seed)
    prompts = [random.integers(0, 3, random.integers(400, 1500)).tolist() for _ in range(3)]
    contexts = [
        prompts[random.integers(3)][: random.integers(300, 1500)] + random.integers(0, 9, 40).tolist()
        for _ in range(12)
    ]
    tokens, lengths = rows_of(*contexts)
    decode = group_rows(random.permutation(12), tokens, lengths)
    assert sorted(decode.rows.tolist()) == list(range(12))
    taken = [index for group in decode.groups for index in range(group.start, group.stop)]
    assert len(taken) == len(set(taken))
    for group in decode.groups:
        rows = decode.rows[group.start : group.stop]
        assert (lengths[rows] >= group.prefix).all()
        assert (tokens[rows, : group.prefix] == tokens[rows[0], : group.prefix]).all()


def test_thousands_of_rows_with_one_beginning_are_one_group():
    tokens, lengths = rows_of(*([1] * 30 + [row] for row in range(3000)), width=40)
    (group,) = group_rows(np.arange(3000), tokens, lengths).groups
    assert (group.start, group.stop, group.prefix) == (0, 3000, 30)
