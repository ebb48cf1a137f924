"""Supervised training on demonstrations: trees with one leaf, on the one learner."""

from collections.abc import Sequence

from ramify.algos.losses import Objective
from ramify.algos.sft import SUPERVISED, NegativeLogLikelihood, demonstrated
from ramify.core.tree import TreeKey
from ramify.learner.report import UpdateReport
from ramify.learner.update import Learner
from ramify.train.examples import RenderedExample, RowRenderer
from ramify.train.supervised import SupervisedTask, Update


def sft_task(rows: RowRenderer, demonstrations: Sequence[RenderedExample]) -> SupervisedTask:
    """Return the task of learning from demonstrations: a tree with one leaf each."""

    def make_update(learner: Learner) -> Update:
        def update(indices: Sequence[int], step: int) -> UpdateReport:
            trees = [
                rows.trees(demonstrations[index], TreeKey(step, slot)) for slot, index in enumerate(indices)
            ]
            return learner.update([demonstrated(tree) for (tree,) in trees])

        return update

    return SupervisedTask(
        title="SFT",
        num_examples=len(demonstrations),
        objective=Objective(NegativeLogLikelihood(), weighting=SUPERVISED),
        make_update=make_update,
        metrics=lambda _: {},
    )
