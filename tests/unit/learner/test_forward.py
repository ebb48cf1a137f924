import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.core.records import SegmentSpan
from ramify.learner.forward import stages
from segment_rows import random_forest


def tokens(segments, numbers):
    return sum(segments[i].stop - segments[i].start for i in numbers)


@given(seed=st.integers(0, 10**6), count=st.integers(1, 30), budget=st.integers(1, 150))
def test_each_segment_is_in_one_stage_whose_ancestors_are_above_it(seed, count, budget):
    segments = random_forest(np.random.default_rng(seed), count, 20)
    cut = stages(segments, budget)
    assert sorted(i for stage in cut for i in stage.segments) == list(range(count))
    for number, stage in enumerate(cut):
        above = {i for a in stage.above for i in cut[a].segments}
        assert all(a < number and len(cut[a].segments) == 1 for a in stage.above)
        for i in stage.segments:
            ancestors, parent = set(), segments[i].parent
            while parent >= 0:
                ancestors.add(parent)
                parent = segments[parent].parent
            assert ancestors - set(stage.segments) == above
        assert tokens(segments, stage.segments) <= budget or len(stage.segments) == 1
        below = [n for n, other in enumerate(cut) if number in other.above]
        assert stage.release == max([number, *(cut[n].release for n in below)])


@pytest.mark.parametrize(("budget", "expected"), [(100, [(0, 1, 2, 3, 4)]), (20, [(0,), (1, 2, 3), (4,)])])
def test_whole_subtrees_share_a_stage(budget, expected):
    parents = (-1, 0, 1, 1, 0)
    segments = [SegmentSpan(parent, 6 * i, 6 * i + 6) for i, parent in enumerate(parents)]
    assert [stage.segments for stage in stages(segments, budget)] == expected


def test_what_is_alive_grows_with_depth_and_not_with_the_number_of_branches():
    for branches in (2, 50):
        segments = [SegmentSpan(-1, 0, 10)] + [
            SegmentSpan(0, 10 + 8 * i, 18 + 8 * i) for i in range(branches)
        ]
        cut = stages(segments, 16)
        alive = [
            tokens(segments, [i for s in cut[: n + 1] if s.release >= n for i in s.segments])
            for n in range(len(cut))
        ]
        assert max(alive) == 26
