"""A tiny model and a learner for it."""

from ramify.algos.losses import Objective
from ramify.learner.annotate import annotate
from ramify.learner.optimizer import AdamWSettings, Schedule
from ramify.learner.update import Learner
from ramify.modeling.tiny import make_tiny_qwen3
from random_trees import annotated


def tiny(seed=0):
    sizes = {"vocab_size": 50, "hidden": 32, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 8}
    return make_tiny_qwen3(
        **sizes, intermediate=48, rope_theta=100.0, context=128, eos_id=1, pad_id=0, seed=seed
    )


def learner_for(model, loss, optimizer=None, **changes):
    settings = {"schedule": Schedule(), "total_steps": 100, "temperature": 1.0, "max_grad_norm": 1.0}
    optimizer = optimizer or AdamWSettings(lr=0.01, weight_decay=0.0)
    return Learner(
        model, optimizer=optimizer, objective=Objective(loss), token_budget=10_000, **settings | changes
    )


def annotations_of(model, trees, wanted, **settings):
    """What an annotation pass finds, tree by tree."""
    return [
        found.annotations
        for found in annotate(model, [annotated(tree) for tree in trees], wanted, **settings)
    ]
