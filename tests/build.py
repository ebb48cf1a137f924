"""What most tests begin with: a learner on a model, a flat tree, the gradients of an update."""

from ramify.algos.losses import Objective
from ramify.algos.sft import SUPERVISED, NegativeLogLikelihood
from ramify.core.tree import Source
from ramify.learner.configs import OptimizerConfig, ScheduleConfig
from ramify.learner.parallel import single_process
from ramify.learner.update import Learner
from random_trees import node, tree_of


def demonstrations_objective():
    """The objective of demonstrations: negative log-likelihood, summed over the batch and divided by its tokens."""
    return Objective(NegativeLogLikelihood(), (), SUPERVISED)


def learner(model, objective=None, *, optimizer=None, still=False, reference=None, **options):
    """A learner of one process, of demonstrations unless `objective` is given.

    A learner that stands `still` computes gradients and steps, but its weights do not change within a test: what its
    optimizer saw can be compared with a reference. `options` go to the Learner.
    """
    if optimizer is None:
        optimizer = OptimizerConfig(rate=1e-12 if still else 0.01, weight_decay=0.0)
    defaults = {
        "schedule": ScheduleConfig(warmup_steps=2**31 - 1) if still else ScheduleConfig(),
        "total_steps": 10,
        "objective": objective or demonstrations_objective(),
        "temperature": 1.0,
        "max_grad_norm": 1e9 if still else 1.0,
        "token_budget": 10_000,
    }
    return Learner(single_process(model, optimizer, reference), **(defaults | options))


def flat_tree(*lengths):
    """A prompt and one policy node a trajectory, of that many tokens."""
    roots = [node((i,), Source.POLICY, [1] * length, leaf=True) for i, length in enumerate(lengths)]
    return tree_of([node((), Source.PROMPT, [5]), *roots])


def collect_gradients(learner, update):
    """Call `update()` and return its result and every gradient that the optimizer saw, in the order of the parameters."""
    gradients = []
    hook = learner.optimizers._optimizers[0].register_step_pre_hook(
        lambda *_: gradients.extend(p.grad.clone() for p in learner.model.parameters())
    )
    result = update()
    hook.remove()
    return result, gradients
