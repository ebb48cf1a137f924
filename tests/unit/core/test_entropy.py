import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.core.tree import Entropy


@given(st.floats(0.0, 12.0), st.floats(0.0, 3.0), st.integers(1, 50))
def test_the_length_of_a_segment_does_not_change_its_mean(lower, width, length):
    tokens = (Entropy(lower, lower + width),) * length
    mean = Entropy.mean(tokens)
    assert mean is not None
    assert (mean.lower, mean.upper) == (pytest.approx(lower), pytest.approx(lower + width))
    assert mean.count == length


@given(st.lists(st.tuples(st.floats(0.0, 12.0), st.floats(0.0, 3.0)), min_size=1, max_size=30))
def test_the_mean_of_brackets_brackets_the_mean(pairs):
    mean = Entropy.mean(tuple(Entropy(low, low + width) for low, width in pairs))
    assert mean is not None
    for inside in (0.0, 0.3, 1.0):
        value = sum(low + inside * width for low, width in pairs) / len(pairs)
        assert mean.lower - 1e-9 <= value <= mean.upper + 1e-9


def test_no_tokens_have_no_mean():
    assert Entropy.mean(()) is None
