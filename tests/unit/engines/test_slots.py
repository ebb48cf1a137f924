import numpy as np
import pytest
import torch

from ramify.core.errors import MachineError
from ramify.engines.slots import CacheShape, Match, SlotTable, group_rows


def table(num_slots=4):
    shape = CacheShape(num_layers=1, num_slots=num_slots, num_kv_heads=1, context_tokens=8, head_dim=2)
    return SlotTable(shape, torch.float32, torch.device("cpu"))


def allocated(slots, *contexts):
    return slots.allocate(contexts, [slots.longest_prefix(ids[:-1]) for ids in contexts])


def context(*ids):
    return np.array(ids, np.int32)


def hold(slots, *contexts):
    """Allocate rows to contexts one by one, compute all of their tokens and release them; returns their rows."""
    rows = []
    for ids in contexts:
        (match,) = allocated(slots, context(*ids, 0))
        slots.lengths[match.row] = len(ids)
        slots.keys[0, match.row, 0, : len(ids), 0] = torch.tensor(ids, dtype=torch.float32)
        rows.append(match.row)
        slots.release(match.row)
    return rows


def test_after_a_change_of_weights_rows_are_given_out_as_by_a_new_table():
    used, new = table(), table()
    rows = [match.row for match in allocated(used, context(1, 2), context(3, 4), context(5, 6))]
    for row in reversed(rows):
        used.release(row)
    used.clear()
    for several in ([context(7, 8), context(9, 1)], [context(2, 3)]):
        assert allocated(used, *several) == allocated(new, *several)


def test_a_continuation_takes_its_row_as_it_is():
    slots = table()
    rows = hold(slots, (1, 2), (3, 4))
    assert allocated(slots, context(3, 4, 5)) == [Match(rows[1], 2)]
    assert slots.num_free == 3


def test_a_branch_copies_what_it_shares_and_leaves_the_rest():
    slots = table()
    (row,) = hold(slots, (1, 2, 3, 4))
    (match,) = allocated(slots, context(1, 2, 9, 9))
    assert match.row != row
    assert match.length == 2
    assert slots.keys[0, match.row, 0, :3, 0].tolist() == [1, 2, 0]
    assert slots.longest_prefix(context(1, 2, 3, 4)) == Match(row, 4)


def test_two_continuations_of_one_row():
    slots = table()
    (row,) = hold(slots, (1, 2, 3))
    first, second = allocated(slots, context(1, 2, 3, 4), context(1, 2, 3, 5))
    assert first == Match(row, 3)
    assert second.length == 3
    assert slots.keys[0, second.row, 0, :3, 0].tolist() == [1, 2, 3]


def test_what_another_row_holds_too_is_overwritten_before_anything_that_would_be_lost():
    slots = table(3)
    rows = hold(slots, (1, 2), (3, 4, 5))
    (twin,) = allocated(slots, context(3, 4, 9))
    slots.release(twin.row)
    assert slots.lengths[twin.row] == 2
    assert allocated(slots, context(8, 8))[0].row == twin.row
    assert slots.lengths[rows].tolist() == [2, 3]


def test_of_equal_rows_one_stays():
    slots = table(3)
    hold(slots, (1, 2), (3, 4))
    matches = allocated(slots, context(3, 4, 5), context(3, 4, 6))
    for match in matches:
        slots.release(match.row)
    allocated(slots, context(8, 8))
    assert slots.longest_prefix(context(3, 4)).length == 2
    assert slots.longest_prefix(context(1, 2)).length == 2


def test_without_duplicates_the_row_used_least_recently_goes():
    slots = table(2)
    rows = hold(slots, (1, 2), (3, 4))
    (again,) = allocated(slots, context(1, 2, 9))
    slots.release(again.row)
    assert allocated(slots, context(8, 8))[0].row == rows[1]


def test_a_row_that_another_request_needs_is_taken_last():
    slots = table(2)
    rows = hold(slots, (1, 2, 3), (5, 6))
    # The first request needs a row of its own; the least recently used one is the second request's source.
    matches = allocated(slots, context(7, 7), context(1, 2, 9))
    assert matches[0].row == rows[1]
    assert matches[1] == Match(rows[0], 2)


@pytest.mark.parametrize("seed", range(20))
def test_kept_keys_are_those_of_the_kept_tokens(seed):
    random = np.random.default_rng(seed)
    slots = table(3)
    for _ in range(60):
        ids = random.integers(1, 3, random.integers(2, 8)).astype(np.int32)
        (match,) = allocated(slots, ids)
        stored = slots.keys[0, match.row, 0, : match.length, 0].tolist()
        assert stored == ids[: match.length].tolist()
        assert match.length < len(ids)
        slots.keys[0, match.row, 0, : len(ids), 0] = torch.from_numpy(ids).float()
        slots.lengths[match.row] = random.integers(match.length, len(ids) + 1)
        slots.release(match.row)


def test_slots_that_no_memory_holds_are_told_with_their_size():
    with pytest.raises(MachineError) as caught:
        table(num_slots=2**50)
    assert str(caught.value) == (
        "engine.slots: 1125899906842624 slots of 8 tokens take 150994944.0 GiB, which this machine does not have. "
        "Lower engine.slots."
    )


# rows with common beginnings


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
