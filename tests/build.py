"""What most tests begin with: a tiny model, a learner on it, an algorithm, a flat tree, the gradients of an update."""

from ramify.algos.grpo import GroupRelative
from ramify.algos.losses import Objective
from ramify.algos.sft import SUPERVISED, NegativeLogLikelihood
from ramify.core.tree import Source
from ramify.learner.configs import OptimizerConfig, ScheduleConfig
from ramify.learner.learning import AnnotationRequest, Learning
from ramify.learner.parallel import single_process
from ramify.learner.update import Learner
from ramify.modeling.tiny import make_tiny_qwen3
from random_trees import node, tree_of


def tiny_model(seed=0, **sizes):
    """A tiny random Qwen3; `sizes` are those of `make_tiny_qwen3`."""
    defaults = {
        "vocab_size": 50, "hidden": 32, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 8,
        "intermediate": 48, "rope_theta": 100.0, "context": 128, "eos_id": 1, "pad_id": 0,
    }  # fmt: skip
    return make_tiny_qwen3(**(defaults | sizes), seed=seed)


def demonstrations_objective():
    """The objective of demonstrations: negative log-likelihood, summed over the batch and divided by its tokens."""
    return Objective(NegativeLogLikelihood(), (), SUPERVISED)


def learner(model, objective=None, *, optimizer=None, still=False, reference=None, **options):
    """A learner of one process, of demonstrations unless `objective` is there: an `Objective`, or a loss alone.

    A learner that stands `still` computes gradients and steps, but its weights do not change within a test: what its
    optimizer saw can be compared with a reference. `options` go to the Learner.
    """
    if optimizer is None:
        optimizer = OptimizerConfig(rate=1e-12 if still else 0.01, weight_decay=0.0)
    if objective is None:
        objective = demonstrations_objective()
    defaults = {
        "schedule": ScheduleConfig(warmup_steps=2**31 - 1) if still else ScheduleConfig(),
        "total_steps": 10,
        "objective": objective if isinstance(objective, Objective) else Objective(objective),
        "temperature": 1.0,
        "max_grad_norm": 1e9 if still else 1.0,
        "token_budget": 10_000,
    }
    return Learner(single_process(model, optimizer, reference), **(defaults | options))


def learning(learner, **changes):
    """An algorithm on a learner: group-relative advantages, one mini-batch, the engine's logprobs; unless `changes` say otherwise."""
    defaults = {
        "estimator": GroupRelative("repeat"), "correction": None, "masks_truncated": False,
        "request": AnnotationRequest(), "problems_per_minibatch": 9, "minibatches": 1, "temperature": 1.0,
        "max_mismatch": None,
    }  # fmt: skip
    return Learning(learner, **(defaults | changes))


def flat_tree(*lengths):
    """A prompt and one policy node a trajectory, of that many tokens."""
    roots = [node((i,), Source.POLICY, [1] * length, leaf=True) for i, length in enumerate(lengths)]
    return tree_of([node((), Source.PROMPT, [5]), *roots])


def collect_gradients(learner, update):
    """Call `update()`, which takes one step, and return its result and the gradients that the optimizer saw, by parameter."""
    gradients = {}
    hook = learner.optimizers._optimizers[0].register_step_pre_hook(
        lambda *_: gradients.update(gradients_of(learner.model))
    )
    result = update()
    hook.remove()
    return result, gradients


def gradients_of(model):
    """Copies of a model's gradients by parameter; a frozen one has none."""
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
