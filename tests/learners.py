"""A learner on a model, for tests that need its weights more than what it learns."""

from ramify.algos.losses import Objective
from ramify.algos.sft import SUPERVISED, NegativeLogLikelihood
from ramify.learner.optimizer import AdamWSettings, Schedule
from ramify.learner.parallel import alone
from ramify.learner.update import Learner


def learner_with(model):
    """One process that learns from demonstrations."""
    return Learner(
        alone(model, AdamWSettings(0.01, (0.9, 0.999), 0.0)),
        schedule=Schedule(),
        total_steps=10,
        objective=Objective(NegativeLogLikelihood(), (), SUPERVISED),
        temperature=0.9,
        max_grad_norm=1.0,
        token_budget=1000,
    )
