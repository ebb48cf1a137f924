"""pass@k against brute force over all ways to draw k of n."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.core.messages import Problem
from ramify.core.records import Reward
from ramify.core.tree import Node, Source, StopReason, TreeKey, make_tree, node_id
from ramify.eval.pass_at_k import pass_at_k
from ramify.eval.records import record_attempt


@given(st.data())
def test_equals_brute_force(data):
    n = data.draw(st.integers(1, 9))
    correct = data.draw(st.integers(0, n))
    k = data.draw(st.integers(1, n))
    draws = list(combinations([index < correct for index in range(n)], k))
    expected = sum(any(draw) for draw in draws) / len(draws)
    assert pass_at_k(n, correct, k) == pytest.approx(expected, abs=1e-12)


@given(st.integers(1, 10**6), st.floats(0, 1), st.floats(0, 1))
def test_pass_at_1_is_the_share_and_ends_are_exact(n, share, k_share):
    correct, k = round(share * n), max(1, min(1000, round(k_share * n)))
    assert pass_at_k(n, correct, 1) == pytest.approx(correct / n, abs=1e-12)
    assert pass_at_k(n, 0, k) == 0.0
    assert pass_at_k(n, n, k) == 1.0
    assert 0.0 <= pass_at_k(n, correct, k) <= 1.0


def test_large_numbers_keep_their_digits():
    assert pass_at_k(10**6, 1, 10**3) == pytest.approx(1e-3, rel=1e-9)


@pytest.mark.parametrize(("n", "correct", "k"), [(4, 2, 5), (4, 2, 0), (4, 5, 1), (4, -1, 1), (0, 0, 1)])
def test_impossible_numbers_are_refused(n, correct, k):
    with pytest.raises(ValueError, match="samples"):
        pass_at_k(n, correct, k)


def group(*paths):
    prompt = Node("", (), None, Source.PROMPT, (1,), "q")
    inner = {path[:i] for path in paths for i in range(1, len(path))}
    nodes = [
        Node(
            node_id(path),
            path,
            node_id(path[:-1]),
            Source.POLICY,
            (2,),
            "t",
            (-0.5,),
            stop=None if path in inner else StopReason.ANSWERED,
        )
        for path in {*inner, *paths}
    ]
    return make_tree(Problem("p", (), ("a",)), TreeKey(0, 0), [prompt, *nodes])


def test_branched_tree_is_refused():
    with pytest.raises(ValueError, match="an attempt is one trajectory, this tree branches into 2"):
        record_attempt(group((0, 0), (0, 1)), Reward(1.0, {}))
    with pytest.raises(ValueError, match="branches into 3"):
        record_attempt(group((0,), (1,), (2,)), Reward(1.0, {}))
