"""Supervised fine-tuning: each written token counts once."""

import pytest

from loss_inputs import logprob_gradients, token_inputs
from ramify.algos.sft import NegativeLogLikelihood
from random_trees import forked_tree, supervised_credit


def test_negative_log_likelihood_uses_the_weight():
    inputs = token_inputs([1.0, 1.0], [0.0, 0.0], [0.0, 0.5])
    assert NegativeLogLikelihood()(inputs).loss.item() == pytest.approx(1.5 + 1.0)
    assert logprob_gradients(NegativeLogLikelihood(), inputs) == [-1, -1]


def test_supervised_credit_counts_each_written_token_once_and_nothing_else():
    credits = supervised_credit(forked_tree([3]))
    assert {key: c.weight.tolist() for key, c in credits.items()} == {"0": [1, 1], "0.0.0": [1]}
    assert all((c.s_plus == 1).all() and (c.s_minus == 0).all() for c in credits.values())
