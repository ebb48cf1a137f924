import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.core.draws import permutation, stream, uniform, uniforms

PART = st.one_of(st.integers(), st.text(max_size=5), st.lists(st.integers(0, 9), max_size=3).map(tuple))


def many(seed, count, first=0):
    return uniforms(np.full(count, seed, np.uint64), np.arange(first, first + count, dtype=np.uint64))


def chi_square(values, cells=64):
    counts = np.bincount((values * cells).astype(int), minlength=cells)
    return float((((counts - len(values) / cells) ** 2) / (len(values) / cells)).sum())


# With 63 degrees of freedom, 140 has a chance of about 1e-7.
LIMIT = 140.0


@pytest.mark.parametrize("seed", [0, 1, stream("a"), stream("b"), 2**63 - 1])
def test_numbers_of_one_stream_are_uniform(seed):
    values = many(seed, 64_000)
    assert ((values >= 0) & (values < 1)).all()
    assert chi_square(values) < LIMIT
    assert abs(np.corrcoef(values[1:], values[:-1])[0, 1]) < 0.02


def test_first_numbers_of_neighbouring_streams_are_uniform_and_unrelated():
    seeds = np.array([stream(0, step, slot) for step in range(100) for slot in range(100)], np.uint64)
    values = uniforms(seeds, np.zeros(len(seeds), np.uint64))
    assert chi_square(values) < LIMIT
    table = values.reshape(100, 100)
    assert abs(np.corrcoef(table[1:].ravel(), table[:-1].ravel())[0, 1]) < 0.05
    assert abs(np.corrcoef(table[:, 1:].ravel(), table[:, :-1].ravel())[0, 1]) < 0.05


def test_streams_do_not_overlap():
    values = np.concatenate([many(stream("s", index), 2000) for index in range(20)])
    assert len(np.unique(values)) == len(values)


@given(st.lists(PART, max_size=4), st.lists(PART, max_size=4))
def test_names_are_equal_only_when_every_part_is(left, right):
    assert (stream(*left) == stream(*right)) == (left == right)


@pytest.mark.parametrize(
    "other",
    [
        (8, 3, 2, 0, "p0", (0, 1)),
        (7, 4, 2, 0, "p0", (0, 1)),
        (7, 3, 1, 0, "p0", (0, 1)),
        (7, 3, 2, 1, "p0", (0, 1)),
        (7, 3, 2, 0, "p1", (0, 1)),
        (7, 3, 2, 0, "p0", (1, 0)),
        (7, 3, 2, 0, "p0", (0, 1, 0)),
        (7, 3, 2, 0, "p0", 0, 1),
        (7, 3, 2, 0, "p0"),
        (3, 7, 2, 0, "p0", (0, 1)),
        ("7", 3, 2, 0, "p0", (0, 1)),
        (7, 3, 2, 0, "p0", "(0, 1)"),
        (7, 3, 20, "p0", (0, 1)),
    ],
)
def test_every_part_of_a_name_counts(other):
    name = (7, 3, 2, 0, "p0", (0, 1))
    assert stream(*name) != stream(*other)
    assert uniform(stream(*name)) != uniform(stream(*other))


def test_quotes_and_commas_in_a_part_cannot_make_it_two():
    assert stream("a', 'b") != stream("a", "b")
    assert stream('a", "b') != stream("a", "b")


def test_a_seed_fits_a_signed_integer():
    assert all(0 <= stream(index) < 2**63 for index in range(2000))
    assert max(stream(index) for index in range(2000)) > 2**62


def test_pinned_values():
    """A change of these changes every run that is resumed or replayed."""
    # The first output of SplitMix64 from state 0 is 0xE220A8397B1DCDAF in its published test vectors.
    assert uniform(0, 0) == (0xE220A8397B1DCDAF >> 11) * 2.0**-53
    assert [uniform(0, 1), uniform(0, 2)] == [0.43152799704850997, 0.026433771592597743]
    assert stream() == 5460801731388113703
    assert stream(0) == 7210762507766007076
    assert stream(1, "a", (0, 1)) == 5536374289449337412
    assert stream(7, 3, 2, 0, "p0", (0, 0, 1)) == 2302071945676128490
    assert uniform(stream(7, "x"), 5) == 0.3375802994988494
    assert permutation(stream(7, "roots"), 8).tolist() == [4, 1, 2, 3, 6, 0, 7, 5]


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**63)), max_size=6))
def test_a_batch_is_the_numbers_one_by_one(pairs):
    seeds = np.array([seed for seed, _ in pairs], np.uint64)
    indices = np.array([index for _, index in pairs], np.uint64)
    assert uniforms(seeds, indices).tolist() == [uniform(seed, index) for seed, index in pairs]


@given(st.integers(0, 2**63 - 1), st.integers(0, 50))
def test_a_permutation_is_one_and_repeats(seed, size):
    drawn = permutation(seed, size)
    assert sorted(drawn.tolist()) == list(range(size))
    assert drawn.tolist() == permutation(seed, size).tolist()


def test_permutations_have_no_favourite_place():
    table = np.array([permutation(stream("perm", index), 8) for index in range(4000)])
    counts = np.array([np.bincount(column, minlength=8) for column in table.T])
    # 500 expected in each of 64 cells; six standard deviations are 125.
    assert np.abs(counts - 500).max() < 125
    assert len({tuple(row) for row in table.tolist()}) > 3500
