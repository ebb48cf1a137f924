"""Training steps that run alone, or with their examples shared out between two processes."""

import io
from contextlib import nullcontext

import numpy as np

from ramify.actor.batch import Batch
from ramify.algos.dpo import DpoLoss
from ramify.algos.grpo import ClippedSurrogate, GroupRelative
from ramify.algos.losses import Objective
from ramify.algos.sft import NegativeLogLikelihood, demonstrated
from ramify.core.records import Reward, ScoredTree
from ramify.core.tree import Source
from ramify.data.order import DataCursor
from ramify.learner.annotate import Wanted
from ramify.learner.guard import Guard, GuardConfig
from ramify.learner.learning import Learning
from ramify.learner.optimizer import AdamWSettings, Schedule
from ramify.learner.parallel import alone
from ramify.learner.update import Learner
from ramify.modeling.tiny import make_tiny_qwen3
from ramify.obs.console import RunConsole
from ramify.train.dpo import prefer
from ramify.train.rl_parts import RlRun
from ramify.train.state import LoopState
from ramify.train.step import learn
from random_trees import node, random_tree, tree_of

FINE = {"group/zero_variance": 0.25}
DEAD = {"group/zero_variance": 0.75}


def shared(rank):
    """Steps on examples of which each rank has its share, by name."""
    return {
        "trees": reinforce([[0, 1, 2], [3]][rank]),
        "trees of one rank": reinforce([[0, 1], []][rank]),
        "demonstrations": demonstrate([[0, 1], [2]][rank]),
        "pairs": compare([[0], [1, 2]][rank]),
        "pairs of one rank": compare([[0, 1], []][rank]),
        "collapse on one rank": look([[0, 1], [2]][rank], [FINE, DEAD][rank]),
        "no trees, collapse on one rank": look([], [DEAD, FINE][rank]),
        "trees of one rank, under a guard": look([[0, 1], []][rank], FINE),
    }


def reinforce(numbers, size=2):
    """A step on trees with these numbers, in mini-batches of this size."""
    learning = _learning(size)
    return learning.update(learning.credit(_batch(numbers)))


def demonstrate(numbers):
    """A step on chains with these numbers."""
    learner = _learner(NegativeLogLikelihood())
    return learner.update([demonstrated(_chain(number)) for number in numbers])


def compare(numbers):
    """A step on pairs with these numbers."""
    reference = _tiny(1)
    return prefer(
        _learner(DpoLoss(0.1)), [_pair(number) for number in numbers], lambda: nullcontext(reference), 10_000
    )


def look(numbers, grown):
    """Metric and value of what the guard found, and how many updates were made."""
    batch = Batch(tuple(_batch(numbers)), frozenset(), 1, DataCursor())
    guard = Guard(GuardConfig(max_zero_variance=0.5), max_tokens=100)
    console = RunConsole(io.StringIO())
    run = RlRun(None, console, None, None, None, None, None, _learning(), None, guard, 1)
    learned = learn(run, LoopState(), batch, grown)
    found = learned.violation
    return found and (found.metric, found.value), len(learned.reports)


def _tiny(seed=0):
    sizes = {"vocab_size": 50, "hidden": 32, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 8}
    return make_tiny_qwen3(
        **sizes, intermediate=48, rope_theta=100.0, context=128, eos_id=1, pad_id=0, seed=seed
    )


def _learner(loss):
    return Learner(
        alone(_tiny(), AdamWSettings(lr=1e-3, weight_decay=0.0)),
        schedule=Schedule(),
        total_steps=10,
        objective=Objective(loss),
        temperature=1.0,
        max_grad_norm=1.0,
        token_budget=10_000,
    )


def _learning(size=2):
    return Learning(
        learner=_learner(ClippedSurrogate(0.2, 0.2, None)),
        estimator=GroupRelative("repeat"),
        correction=None,
        masks_truncated=False,
        wanted=Wanted(),
        reference=None,
        problems_per_minibatch=size,
        minibatches=2,
        token_budget=10_000,
        temperature=1.0,
        max_mismatch=None,
    )


def _batch(numbers):
    return [
        ScoredTree(random_tree(np.random.default_rng(number)), tuple(_rewards(number))) for number in numbers
    ]


def _rewards(number):
    leaves = len(random_tree(np.random.default_rng(number)).trajectories)
    return [Reward(float(value), {}) for value in np.random.default_rng(number).random(leaves)]


def _chain(number):
    written = np.random.default_rng(number).integers(2, 50, 3 + 2 * number)
    return tree_of([node((), Source.PROMPT, [3, 4]), node((0,), Source.POLICY, written, leaf=True)])


def _pair(number):
    rng = np.random.default_rng(number)
    chosen, rejected = rng.integers(2, 50, 4 + number), rng.integers(2, 50, 3)
    return tree_of(
        [
            node((), Source.PROMPT, [3, 4]),
            node((0,), Source.POLICY, chosen, leaf=True),
            node((1,), Source.POLICY, rejected, leaf=True),
        ]
    )
