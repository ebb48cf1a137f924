"""Direct preference optimization: pairs as trees with two leaves, on the one learner."""

from collections.abc import Sequence

from ramify.algos.dpo import PREFERENCE, DpoLoss, pair, preferred
from ramify.algos.losses import Objective
from ramify.core.records import ScoredTree
from ramify.core.tree import Tree, TreeKey
from ramify.learner.annotate import AnnotationRequest, annotate
from ramify.learner.report import UpdateReport
from ramify.learner.update import Learner
from ramify.train.examples import RenderedExample, RowRenderer
from ramify.train.supervised import SupervisedTask, Update


def dpo_task(beta: float, rows: RowRenderer, pairs: Sequence[RenderedExample]) -> SupervisedTask:
    """Return the task of learning from preference pairs: a tree with two leaves each. `beta` keeps the policy near its start."""

    def make_update(learner: Learner) -> Update:
        def update(indices: Sequence[int], step: int) -> UpdateReport:
            sides = [rows.trees(pairs[index], TreeKey(step, slot)) for slot, index in enumerate(indices)]
            return prefer(learner, [pair(chosen, rejected) for chosen, rejected in sides])

        return update

    return SupervisedTask(
        title="DPO",
        num_examples=len(pairs),
        objective=Objective(DpoLoss(beta)),
        make_update=make_update,
        metrics=lambda report: report.metrics,
        # The reference is the recipe's model, not the checkpoint that a resumed run starts from.
        with_reference=True,
    )


def prefer(learner: Learner, trees: Sequence[Tree]) -> UpdateReport:
    """One optimizer step on the mean loss of the pairs, after one pass of the reference model."""
    scored = [ScoredTree(tree, PREFERENCE) for tree in trees]
    pairs = annotate(learner, scored, AnnotationRequest(ref_logprobs=True), temperature=1.0)
    return learner.update([preferred(pair) for pair in pairs])
