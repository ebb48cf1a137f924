"""Two and three processes compute the gradients of one: every recipe, unequal rows, adapters, references, both ways to gather."""

import pytest
import torch
import updates

from many_ranks import with_ranks
from watched import write_tiny

pytestmark = pytest.mark.timeout(600)

BOUND = {torch.float32: 5e-6, torch.float64: 1e-9}
MOVED = {torch.float32: 1e-5, torch.float64: 1e-9}
"""Of the weights after a step. The first one of AdamW follows signs, so that a gradient of almost zero may turn a weight around."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    write_tiny(folder / "policy", 3)
    write_tiny(folder / "reference", 4)
    write_tiny(folder / "untied", 3, tied=False)
    return {name: str(folder / name) for name in ("policy", "reference", "untied")}


@pytest.fixture(scope="module")
def alone(folders):
    return with_ranks(1, updates.everything, None, folders, tuple(BOUND))


@pytest.fixture(scope="module", params=[2, 3])
def together(request, folders, tmp_path_factory):
    """Start so many ranks once, for all that they compute."""
    scratch = tmp_path_factory.mktemp("ranks")
    return with_ranks(request.param, updates.everything, scratch, folders, tuple(BOUND))


@pytest.mark.parametrize("dtype", BOUND, ids=str)
def test_every_kind_of_step_is_that_of_one_process(alone, together, dtype):
    expected, actual = alone[0][dtype], together[0][dtype]
    assert actual.keys() == expected.keys()
    errors = {name: updates.difference(expected[name].gradients, actual[name].gradients) for name in expected}
    worst = max(errors, key=errors.get)

    assert errors[worst] <= BOUND[dtype], (worst, errors[worst])
    for name, step in expected.items():
        ours, theirs = actual[name].report, step.report
        assert ours.num_written == theirs.num_written, name
        assert (ours.loss, ours.grad_norm) == pytest.approx((theirs.loss, theirs.grad_norm), rel=1e-4), name
        assert ours.metrics == pytest.approx(theirs.metrics, rel=1e-4, abs=1e-6), name
        moved = updates.difference(step.weights, actual[name].weights)
        assert moved <= MOVED[dtype], name


def test_annotations_are_those_of_one_process(alone, together):
    for ours, theirs in zip(together[1], alone[1], strict=True):
        assert ours.keys() == theirs.keys()
        for name, note in theirs.items():
            for kind in ("old_logprobs", "entropies", "ref_logprobs"):
                assert getattr(ours[name], kind) == pytest.approx(getattr(note, kind), abs=1e-5)
