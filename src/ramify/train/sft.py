"""Supervised training on demonstrations: trees with one leaf, on the one learner."""

from collections.abc import Sequence
from pathlib import Path

from ramify.algos.losses import Objective
from ramify.algos.sft import SUPERVISED, NegativeLogLikelihood, demonstrated
from ramify.config.schema_examples import SftRecipe
from ramify.core.tree import TreeKey
from ramify.learner.parallel import Ranks
from ramify.learner.report import UpdateReport
from ramify.learner.update import Learner
from ramify.modeling.memory_plan import GATHERED_ONCE, Layout
from ramify.obs.console import RunConsole
from ramify.train.examples import Rendered, RowRenderers
from ramify.train.supervised import SupervisedTask, Update, train_on_examples


def run_sft(
    recipe: SftRecipe,
    console: RunConsole,
    ranks: Ranks,
    *,
    layout: Layout = GATHERED_ONCE,
    resume: bool = False,
    max_steps: int | None = None,
) -> Path:
    """Train to the end of the recipe on `ranks`; returns the last checkpoint.

    Raises:
        UserError: The recipe, the data or the run folder is wrong.
        Interrupted: Ctrl-C or SIGTERM; the state was saved.
    """
    return train_on_examples(
        recipe,
        console,
        _task,
        ranks,
        layout,
        resume=resume,
        max_steps=max_steps,
    )


def _task(renderers: RowRenderers, demonstrations: Sequence[Rendered]) -> SupervisedTask:
    def make_update(learner: Learner) -> Update:
        def update(indices: Sequence[int], step: int) -> UpdateReport:
            trees = [
                renderers.trees(demonstrations[index], TreeKey(step, slot))
                for slot, index in enumerate(indices)
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
