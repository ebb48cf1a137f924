"""A pass over the largest row leaves everything as it was, and says what to do where it does not fit."""

import pytest
import torch

from model_makers import learner_for, tiny
from ramify.algos.dpo import DpoLoss
from ramify.algos.grpo import ClippedSurrogate
from ramify.algos.losses import GspoSurrogate
from ramify.algos.sft import NegativeLogLikelihood
from ramify.core.errors import MachineError
from ramify.learner.dry_step import dry_step
from ramify.learner.worker import Worker


@pytest.mark.parametrize(
    "loss", [NegativeLogLikelihood(), DpoLoss(0.1), ClippedSurrogate(0.2, 0.2, None), GspoSurrogate(0.1, 0.1)]
)
def test_a_row_of_the_size_is_computed_and_nothing_is_left(loss, monkeypatch):
    learner, seen = learner_for(tiny(), loss), []
    before = {name: p.clone() for name, p in learner.model.named_parameters()}
    gradients = Worker.gradients
    monkeypatch.setattr(
        Worker,
        "gradients",
        lambda worker, work: (seen.extend(len(row.token_ids) for row in work.rows), gradients(worker, work))[
            1
        ],
    )
    dry_step(learner, 290, 120)
    assert seen == [290]
    assert learner.step == 0
    assert all(
        torch.equal(before[name], p) and p.grad is None for name, p in learner.model.named_parameters()
    )
    assert learner.optimizers.state_tensors() == {}


def test_what_does_not_fit_is_told_in_a_line(monkeypatch):
    def too_large(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    learner = learner_for(tiny(), NegativeLogLikelihood())
    monkeypatch.setattr(Worker, "gradients", too_large)
    with pytest.raises(MachineError, match=r"^a row of 290 tokens does not fit .*token_budget") as told:
        dry_step(learner, 290, 120)
    assert "\n" not in str(told.value)
