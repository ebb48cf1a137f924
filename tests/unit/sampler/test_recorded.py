"""Which trees are grown together, and which of them count as done after an interruption."""

from ramify.core.messages import Message, Problem
from ramify.core.tree import TreeKey
from ramify.eval.run import attempt_key
from ramify.rollout.plan import TreeRequest
from ramify.sampler.recorded import done_in, in_groups

TREES = [
    TreeRequest(Problem(f"p{n}", (Message.of("user", "?"),), ("1",)), TreeKey(attempt, n, 0))
    for n in range(3)
    for attempt in range(2)
]


def test_groups_hold_every_tree_once_in_order():
    for size in (None, 1, 4, 100):
        groups = list(in_groups(iter(TREES), size))
        assert [tree for group in groups for tree in group] == TREES
        assert all(len(group) <= (size or 6) for group in groups)
    assert list(in_groups([], 4)) == []


def test_of_a_group_that_is_grown_as_a_whole_all_trees_are_done_or_none():
    keys = [attempt_key(tree) for tree in TREES]
    recorded = {*keys[:4], keys[4], ("other", 0)}
    assert done_in(keys[:4], recorded, whole=True) == set(keys[:4])
    assert done_in(keys[4:], recorded, whole=True) == set()
    assert done_in(keys[4:], recorded, whole=False) == {keys[4]}
