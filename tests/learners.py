"""A learner on a model, for tests that need its weights more than what it learns."""

from ramify.algos.losses import Objective
from ramify.algos.sft import SUPERVISED, NegativeLogLikelihood
from ramify.learner.configs import OptimizerConfig, ScheduleConfig
from ramify.learner.parallel import single_process
from ramify.learner.update import Learner


def learner_with(model):
    """One process that learns from demonstrations."""
    return Learner(
        single_process(model, OptimizerConfig(rate=0.01, betas=(0.9, 0.999), weight_decay=0.0)),
        schedule=ScheduleConfig(),
        total_steps=10,
        objective=Objective(NegativeLogLikelihood(), (), SUPERVISED),
        temperature=0.9,
        max_grad_norm=1.0,
        token_budget=1000,
    )
