import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.core.entropy import top_k_bracket
from ramify.core.tree import Entropy

distributions = st.lists(st.floats(-30.0, 30.0), min_size=2, max_size=60).map(
    lambda scores: np.exp(scores - np.logaddexp.reduce(scores))
)


def exact(p):
    return -math.fsum(x * math.log(x) for x in p if x > 0)


@given(distributions, st.data())
def test_a_bracket_holds_the_exact_value(p, data):
    known = data.draw(st.integers(1, len(p)))
    top = np.sort(p)[::-1][:known]
    bracket = top_k_bracket([math.log(x) for x in top if x > 0], len(p))
    assert bracket.lower - 1e-9 <= exact(p) <= bracket.upper + 1e-9


@given(distributions)
def test_more_tokens_never_widen_a_bracket_and_all_of_them_close_it(p):
    top = np.log(np.maximum(np.sort(p)[::-1], 1e-300))
    brackets = [top_k_bracket(top[:known].tolist(), len(p)) for known in range(1, len(p) + 1)]
    widths = [bracket.upper - bracket.lower for bracket in brackets]
    assert all(later <= width + 1e-9 for width, later in pairwise(widths))
    assert widths[-1] == pytest.approx(0.0, abs=1e-9)
    assert brackets[-1].lower == pytest.approx(exact(p), abs=1e-6)


@given(st.integers(2, 200_000), st.integers(1, 40))
def test_a_uniform_distribution_has_ln_v_nats_however_many_tokens_are_known(vocab_size, known):
    logprobs = [-math.log(vocab_size)] * min(known, vocab_size)
    bracket = top_k_bracket(logprobs, vocab_size)
    assert bracket.lower == pytest.approx(math.log(vocab_size), rel=1e-6)
    assert bracket.upper == pytest.approx(math.log(vocab_size), rel=1e-6)


def test_rounding_above_certainty_is_no_negative_entropy():
    assert top_k_bracket([1e-7], 100) == Entropy(0.0, 0.0)


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


@pytest.mark.parametrize(("logprobs", "vocab_size"), [([], 5), ([-1.0, -1.0], 1)])
def test_impossible_counts_are_refused(logprobs, vocab_size):
    with pytest.raises(ValueError, match="logprobs for a vocabulary"):
        top_k_bracket(logprobs, vocab_size)
