"""A tiny model and a learner for it."""

from ramify.algos.losses import Objective
from ramify.algos.sft import NegativeLogLikelihood
from ramify.learner.configs import OptimizerConfig, ScheduleConfig
from ramify.learner.learning import annotate
from ramify.learner.parallel import single_process
from ramify.learner.update import Learner
from ramify.modeling.tiny import make_tiny_qwen3
from random_trees import annotated


def tiny(seed=0):
    sizes = {"vocab_size": 50, "hidden": 32, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 8}
    return make_tiny_qwen3(
        **sizes, intermediate=48, rope_theta=100.0, context=128, eos_id=1, pad_id=0, seed=seed
    )


def learner_for(model, loss, optimizer=None, reference=None, **changes):
    settings = {"schedule": ScheduleConfig(), "total_steps": 100, "temperature": 1.0, "max_grad_norm": 1.0}
    optimizer = optimizer or OptimizerConfig(rate=0.01, weight_decay=0.0)
    settings["token_budget"] = 10_000
    return Learner(
        single_process(model, optimizer, reference), objective=Objective(loss), **settings | changes
    )


def annotations_of(model, trees, wanted, *, reference=None, temperature=1.0, token_budget=10_000):
    """What an annotation pass finds, tree by tree."""
    learner = learner_for(model, NegativeLogLikelihood(), reference=reference, token_budget=token_budget)
    found = annotate(learner, [annotated(tree) for tree in trees], wanted, temperature=temperature)
    return [tree.annotations for tree in found]
