import pytest
import torch

from loss_inputs import slopes, token_inputs
from ramify.algos.grpo import ClippedSurrogate
from ramify.algos.sft import NegativeLogLikelihood
from ramify.core.tree import Source
from random_trees import node, supervised_credit, tree_of


def test_at_ratio_one_the_gradient_is_that_of_reinforce():
    given = token_inputs([2.0, 0.0, 1.5], [0.0, -3.0, -0.5], [0.0, 0.0, 0.0])
    assert slopes(ClippedSurrogate(0.2, 0.28, 3.0), given) == pytest.approx([-2, 3, -1])


@pytest.mark.parametrize(
    ("ratio", "plus", "minus"),
    [
        (0.7, -0.7, 0.0),
        (0.9, -0.9, 0.9),
        (1.25, -1.25, 1.25),
        (1.3, 0.0, 1.3),
        (3.5, 0.0, 0.0),
    ],
)
def test_slope_in_each_region(ratio, plus, minus):
    log_ratio = [float(torch.tensor(ratio).log())] * 2
    given = token_inputs([1.0, 0.0], [0.0, -1.0], log_ratio)
    assert slopes(ClippedSurrogate(0.2, 0.28, 3.0), given) == pytest.approx([plus, minus], rel=1e-5)


def test_without_dual_clip_a_large_ratio_keeps_its_slope():
    given = token_inputs([0.0], [-1.0], [2.0])
    assert slopes(ClippedSurrogate(0.2, 0.2, None), given) == pytest.approx([float(torch.tensor(2.0).exp())])


def test_values_are_those_of_the_clipped_ratio():
    loss = ClippedSurrogate(0.2, 0.3, 3.0)
    assert loss(token_inputs([1.0], [0.0], [1.0])).loss.item() == pytest.approx(-1.3)
    assert loss(token_inputs([0.0], [-1.0], [-1.0])).loss.item() == pytest.approx(0.8)
    assert loss(token_inputs([0.0], [-1.0], [2.0])).loss.item() == pytest.approx(3.0)


def test_clip_fraction_counts_paths_and_the_clipped_share_of_a_tokens_credit():
    given = token_inputs([3.0, 1.0, 0.0], [-1.0, 0.0, 0.0], [1.0, 0.0, 2.0], paths=[4.0, 1.0, 1.0])
    sums = ClippedSurrogate(0.2, 0.2, None)(given).sums
    assert sums["clip_fraction"].item() == pytest.approx(4 * 3 / 4)


@pytest.mark.parametrize("dual", [None, 3.0])
@pytest.mark.parametrize("log_ratio", [1000.0, -1000.0])
def test_extreme_ratios_are_finite(dual, log_ratio):
    given = token_inputs([1.0, 0.0], [0.0, -1.0], [log_ratio] * 2)
    output = ClippedSurrogate(0.2, 0.2, dual)(given)
    assert output.loss.isfinite()
    assert all(abs(x) < float("inf") for x in slopes(ClippedSurrogate(0.2, 0.2, dual), given))


def test_no_credit_no_gradient():
    assert slopes(ClippedSurrogate(0.2, 0.2, 3.0), token_inputs([0.0], [0.0], [0.3])) == [0]


def test_negative_log_likelihood_uses_the_weight():
    given = token_inputs([1.0, 1.0], [0.0, 0.0], [0.0, 0.5])
    assert NegativeLogLikelihood()(given).loss.item() == pytest.approx(1.5 + 1.0)
    assert slopes(NegativeLogLikelihood(), given) == [-1, -1]


def test_supervised_credit_counts_each_written_token_once_and_nothing_else():

    tree = tree_of(
        [
            node((), Source.PROMPT, [5]),
            node((0,), Source.POLICY, [1, 2]),
            node((0, 0), Source.TOOL, [9]),
            node((0, 0, 0), Source.POLICY, [3], leaf=True),
        ]
    )
    credits = supervised_credit(tree)
    assert {key: c.weight.tolist() for key, c in credits.items()} == {"0": [1, 1], "0.0.0": [1]}
    assert all((c.s_plus == 1).all() and (c.s_minus == 0).all() for c in credits.values())
