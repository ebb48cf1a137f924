"""Two and three processes compute the gradients of one: every recipe, unequal rows, adapters, references, both ways to gather."""

import pytest
import torch
import updates

from many_ranks import with_ranks
from watched import write_tiny

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


@pytest.fixture(scope="module", params=BOUND, ids=str)
def alone(request, folders):
    return request.param, with_ranks(1, updates.all_steps, None, folders, request.param)


@pytest.mark.parametrize("size", [2, 3])
def test_every_kind_of_step_is_that_of_one_process(folders, alone, size, tmp_path):
    dtype, expected = alone
    actual = with_ranks(size, updates.all_steps, tmp_path, folders, dtype)
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


@pytest.mark.parametrize("size", [2, 3])
def test_annotations_are_those_of_one_process(folders, size, tmp_path):
    expected = with_ranks(1, updates.annotations, None, folders)
    actual = with_ranks(size, updates.annotations, tmp_path, folders)
    for ours, theirs in zip(actual, expected, strict=True):
        assert ours.keys() == theirs.keys()
        for name, note in theirs.items():
            for kind in ("old_logprobs", "entropies", "ref_logprobs"):
                assert getattr(ours[name], kind) == pytest.approx(getattr(note, kind), abs=1e-5)
