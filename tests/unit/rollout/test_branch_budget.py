import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.core.draws import stream, uniform
from ramify.rollout.branching import BranchBudget

MAX_DEPTH = 3


def wanted(seed, key, depth, fanout):
    draw = uniform(stream(seed, key, depth, "want"))
    return 0 if draw < 0.5 else 1 + int(draw * 1000) % fanout


def length(seed, key, start):
    depth = start
    while depth < MAX_DEPTH and uniform(stream(seed, key, depth, "more")) < 0.8:
        depth += 1
    return depth


def play(seed, roots, budget, fanout, order):
    """Grow with events in a random order: what was granted where, the number of top-ups, and what was left for whom."""
    book = BranchBudget(MAX_DEPTH, fanout)
    alive = {}
    granted, places, tops = {}, [], 0

    def allocate():
        nonlocal tops
        allocation = book.allocate()
        for grant in allocation.branches:
            if grant.children:
                granted[grant.key, grant.depth] = grant.children
            alive.update(dict.fromkeys(grant.child_keys, grant.depth))
        tops += allocation.top_ups

    for root in range(roots):
        book.start_root((root,))
        alive[root,] = 0
    book.open(budget)
    allocate()
    while alive:
        key = order.choice(sorted(alive))
        depth = alive[key]
        origin = key[-2] if len(key) > 1 else 0
        if depth < length(seed, key, origin):
            alive[key] = depth + 1
            places.append((key, depth + 1))
            book.resolve(key, depth + 1, wanted(seed, key, depth + 1, fanout))
        else:
            del alive[key]
            book.finish(key)
        allocate()
        assert sum(granted.values()) + tops <= budget
    return granted, tops, {place: book.left_for(*place) for place in places}


def offline(seed, roots, budget, fanout):
    """The same with everything known: one candidate after the other in the order of their keys."""
    open_places = [((root,), 1, length(seed, (root,), 0)) for root in range(roots)]
    granted, left_for, left = {}, {}, budget
    for depth in range(1, MAX_DEPTH + 1):
        for key, start, end in sorted(open_places):
            if start <= depth <= end:
                children = min(wanted(seed, key, depth, fanout), left)
                left_for[key, depth] = left
                left -= children
                if children:
                    granted[key, depth] = children
                for index in range(1, children + 1):
                    child = (*key, depth, index)
                    open_places.append((child, depth + 1, length(seed, child, depth)))
    return granted, left, left_for


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10_000),
    st.integers(1, 6),
    st.integers(0, 8),
    st.integers(1, 3),
    st.randoms(use_true_random=False),
)
def test_grants_do_not_depend_on_the_order_of_events(seed, roots, budget, fanout, order):
    first = play(seed, roots, budget, fanout, random.Random(0))
    assert play(seed, roots, budget, fanout, order) == first == offline(seed, roots, budget, fanout)
    assert sum(first[0].values()) + first[1] == budget


def test_small_keys_are_served_first():
    book = BranchBudget(max_depth=1, fanout=1)
    book.start_root((0,))
    book.start_root((1,))
    book.open(1)
    book.resolve((1,), 1, 1)
    assert book.allocate().branches == ()
    book.resolve((0,), 1, 1)
    decided = {(grant.key, grant.children) for grant in book.allocate().branches}
    assert decided == {((0,), 1), ((1,), 0)}
    assert book.spent


@pytest.mark.parametrize("max_depth", [0, 2])
def test_top_ups_start_once_branches_cannot_use_the_budget(max_depth):
    book = BranchBudget(max_depth=max_depth, fanout=1)
    book.start_root((0,))
    book.open(3)
    assert book.allocate().top_ups == (3 if max_depth == 0 else 0)
    book.resolve((0,), 1, 0)
    at_depth_one = book.allocate().top_ups
    book.finish((0,))
    assert at_depth_one + book.allocate().top_ups + (3 if max_depth == 0 else 0) == 3


def test_children_are_cut_to_what_is_left():
    book = BranchBudget(max_depth=1, fanout=3)
    book.start_root((0,))
    book.open(2)
    book.resolve((0,), 1, 3)
    assert [grant.children for grant in book.allocate().branches] == [2]


def test_a_small_wish_does_not_overtake_a_large_one_that_waits():
    book = BranchBudget(max_depth=1, fanout=3)
    for root in range(3):
        book.start_root((root,))
    book.open(5)
    book.resolve((1,), 1, 3)
    book.resolve((2,), 1, 1)
    # Root 0 may still want three, which leaves root 1 two of the three that it wants and root 2 none.
    assert book.allocate().branches == ()
    book.resolve((0,), 1, 3)
    assert [(grant.key, grant.children) for grant in book.allocate().branches] == [
        ((0,), 3),
        ((1,), 2),
        ((2,), 0),
    ]


def test_a_branch_can_claim_nothing_at_the_result_that_it_hangs_at():
    book = BranchBudget(max_depth=1, fanout=1)
    book.start_root((0,))
    book.open(2)
    book.resolve((0,), 1, 1)
    allocation = book.allocate()
    assert [grant.children for grant in allocation.branches] == [1]
    assert allocation.top_ups == 1
