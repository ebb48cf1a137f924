"""Which trees are grown together, and which of them count as done after an interruption."""

from ramify.core.messages import Message, Problem
from ramify.core.tree import TreeKey
from ramify.rollout.plan import TreeRequest
from ramify.sampler.groups import done_of, in_groups, line_key

TREES = [
    TreeRequest(Problem(f"p{n}", (Message.of("user", "?"),), ("1",)), TreeKey(attempt, n, 0))
    for n in range(3)
    for attempt in range(2)
]


def test_groups_hold_every_tree_once_in_order():
    for size in (None, 1, 4, 100):
        groups = in_groups(TREES, size)
        assert [one for group in groups for one in group] == TREES
        assert all(len(group) <= (size or 6) for group in groups)
    assert in_groups([], 4) == ()


def test_of_a_group_that_is_grown_as_a_whole_all_trees_are_done_or_none():
    keys = [line_key(one) for one in TREES]
    groups = in_groups(TREES, 4)
    found = {*keys[:4], keys[4], ("other", 0)}
    assert done_of(groups, found, 4) == set(keys[:4])
    assert done_of(groups, found, None) == set(keys[:5])
