import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from ramify.core.records import TokenFilters
from ramify.core.tree import Entropy
from ramify.engines.sampling import RowFilters, sample
from ramify.engines.served_logprobs import top_k_bracket

SCORES = torch.tensor([[2.0, 1.0, -1.0, 0.5], [0.0, float("-inf"), 3.0, 3.0]])


def draw(scores, seeds, temperature=1.0, rows=(0, 1), top_k=None, top_p=1.0):
    count = len(scores)
    filters = RowFilters(TokenFilters(top_p)) if top_p < 1 else None
    return sample(
        scores,
        np.full(count, temperature),
        [filters] * count,
        np.array(seeds, np.uint64),
        np.zeros(count, np.uint64),
        list(rows),
        top_k,
    )


def test_frequencies_logprobs_and_impossible_tokens():
    count = 20000
    sampled = draw(SCORES[1:].expand(count, -1), range(count), temperature=2.0, rows=())
    expected = torch.log_softmax(SCORES[1] / 2.0, -1)
    frequencies = np.bincount(sampled.tokens, minlength=4) / count
    np.testing.assert_allclose(frequencies, expected.exp().numpy(), atol=0.012)
    assert frequencies[1] == 0
    np.testing.assert_allclose(sampled.logprobs, expected[sampled.tokens].numpy(), atol=1e-6)


def test_top_p_draws_from_the_smallest_set_of_likely_tokens_that_holds_it():
    count = 20000
    whole = torch.softmax(SCORES[0], -1)
    for top_p, nucleus in ((0.6, [0]), (0.7, [0, 1]), (0.9, [0, 1, 3]), (0.999, [0, 1, 2, 3])):
        assert whole[nucleus].sum() >= top_p > whole[nucleus[:-1]].sum() or len(nucleus) == 4
        sampled = draw(SCORES[:1].expand(count, -1), range(count), rows=[0], top_p=top_p)
        assert sorted(set(sampled.tokens.tolist())) == nucleus
        expected = whole / whole[nucleus].sum()
        frequencies = np.bincount(sampled.tokens, minlength=4) / count
        np.testing.assert_allclose(frequencies[nucleus], expected[nucleus].numpy(), atol=0.012)
        np.testing.assert_allclose(sampled.logprobs, expected.log()[sampled.tokens].numpy(), atol=1e-6)
        assert sampled.entropies[0] == draw(SCORES[:1], [0], rows=[0]).entropies[0]
    # A row beside it with top_p = 1 is drawn as ever.
    filters = [RowFilters(TokenFilters(0.1)), None]
    mixed = sample(SCORES, np.ones(2), filters, np.array([3, 4], np.uint64), np.zeros(2, np.uint64), [])
    assert mixed.tokens[1] == draw(SCORES, [3, 4]).tokens[1]
    assert mixed.logprobs[0] == 0.0


def in_context(ids, size):
    mask = torch.zeros(size, dtype=torch.bool)
    mask[list(ids)] = True
    return mask


@given(
    st.integers(0, 2**32),
    st.sampled_from([0.3, 1.0, 2.0]),
    st.sampled_from([1.0, 0.95, 0.5]),
    st.sampled_from([0, 1, 5, 20, 99]),
    st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    st.sampled_from([1.0, 1.1, 2.0, 0.7]),
)
@settings(max_examples=60)
def test_filters_are_those_of_transformers_in_its_order(seed, temperature, top_p, top_k, min_p, penalty):
    size, generator = 40, torch.Generator().manual_seed(seed)
    logits = torch.randn(1, size, generator=generator) * 3
    ids = torch.randint(size, (1, 12), generator=generator)
    released = [RepetitionPenaltyLogitsProcessor(penalty), TemperatureLogitsWarper(temperature)]
    released += [TopKLogitsWarper(top_k)] if top_k else []
    released += [TopPLogitsWarper(top_p), MinPLogitsWarper(min_p)]
    expected = LogitsProcessorList(released)(ids, logits.clone()).log_softmax(-1)[0].double()
    row = RowFilters(TokenFilters(top_p, top_k, min_p, penalty), in_context(ids[0].tolist(), size))
    count = 50
    plain = draw(logits.expand(count, -1), range(count), temperature, rows=[0])
    sampled = sample(
        logits.expand(count, -1),
        np.full(count, temperature),
        [None if number % 2 else row for number in range(count)],
        np.arange(count, dtype=np.uint64),
        np.zeros(count, np.uint64),
        [0],
    )
    np.testing.assert_allclose(sampled.logprobs[::2], expected[sampled.tokens[::2]], atol=2e-5)
    # Rows beside it, and entropies, are as ever.
    assert (sampled.tokens[1::2] == plain.tokens[1::2]).all()
    assert (sampled.logprobs[1::2] == plain.logprobs[1::2]).all()
    assert sampled.entropies == plain.entropies


def test_top_k_draws_from_the_likely_tokens_and_greedy_decoding_from_the_penalised_ones():
    row = RowFilters(TokenFilters(top_k=2), None)
    tokens = sample(
        SCORES[:1].expand(200, -1), np.ones(200), [row] * 200, np.arange(200, dtype=np.uint64),
        np.zeros(200, np.uint64), [],
    ).tokens  # fmt: skip
    assert set(tokens.tolist()) == {0, 1}
    penalised = RowFilters(TokenFilters(repetition_penalty=3.0), in_context([0], 4))
    greedy = sample(SCORES[:1], np.zeros(1), [penalised], np.zeros(1, np.uint64), np.zeros(1, np.uint64), [])
    assert greedy.tokens.tolist() == [1]


def test_exact_entropies_of_the_rows_that_ask():
    for rows in ([0, 1], [1], [0]):
        entropies = draw(SCORES, [1, 2], temperature=0.7, rows=rows).entropies
        assert list(entropies) == rows
        for row, entropy in entropies.items():
            p = torch.softmax(SCORES[row].double() / 0.7, -1)
            assert entropy.lower == entropy.upper
            assert abs(entropy.lower - torch.special.entr(p).sum().item()) < 1e-6


def test_large_scores_keep_entropies_exact():
    scores = 1e4 + 3 * SCORES[:1]
    p = torch.softmax(scores.double(), -1)
    entropy = draw(scores, [1], rows=[0]).entropies[0]
    assert abs(entropy.lower - torch.special.entr(p).sum().item()) < 1e-5


def test_brackets_from_the_most_likely_tokens_hold_the_exact_entropy():
    exact = draw(SCORES, [1, 2]).entropies
    for top_k in (1, 2, 3):
        for row, bracket in draw(SCORES, [1, 2], top_k=top_k).entropies.items():
            tops = torch.log_softmax(SCORES[row], -1).topk(top_k).values.tolist()
            assert bracket == top_k_bracket(tops, 4)
            assert bracket.lower - 1e-6 <= exact[row].lower <= bracket.upper + 1e-6
    assert (
        draw(SCORES, [1, 2], top_k=9).entropies[0].lower == draw(SCORES, [1, 2], top_k=4).entropies[0].upper
    )


def test_greedy_takes_the_most_likely_token_at_temperature_one():
    sampled = draw(SCORES, [1, 2], temperature=0.0)
    assert sampled.tokens.tolist() == [0, 2]
    np.testing.assert_allclose(sampled.logprobs, torch.log_softmax(SCORES, -1).amax(-1).numpy(), atol=1e-6)


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


@pytest.mark.parametrize(("logprobs", "vocab_size"), [([], 5), ([-1.0, -1.0], 1)])
def test_impossible_counts_are_refused(logprobs, vocab_size):
    with pytest.raises(ValueError, match="logprobs for a vocabulary"):
        top_k_bracket(logprobs, vocab_size)
