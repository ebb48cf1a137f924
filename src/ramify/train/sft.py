"""Supervised training on demonstrations: trees with one leaf, on the one learner."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ramify.algos.losses import Objective
from ramify.algos.sft import SUPERVISED, NegativeLogLikelihood, demonstrated
from ramify.chat.renderer import ChatRenderer
from ramify.config.build_problems import control_notes
from ramify.config.schema_examples import SftRecipe
from ramify.core.tree import Tree, TreeKey
from ramify.data.examples import Demonstration, load_demonstrations
from ramify.learner.parallel import Ranks
from ramify.learner.report import UpdateReport
from ramify.learner.update import Learner
from ramify.modeling.memory_plan import GATHERED_ONCE, Layout
from ramify.obs.console import RunConsole
from ramify.train.supervised import (
    SupervisedTask,
    Update,
    check_size,
    may_be_long,
    told_with_row,
    train_on_examples,
)


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
        load_demonstrations,
        partial(_task, recipe),
        ranks,
        layout,
        resume=resume,
        max_steps=max_steps,
    )


def _task(
    recipe: SftRecipe, renderer: ChatRenderer, demonstrations: Sequence[Demonstration]
) -> SupervisedTask:
    limit = recipe.data.max_tokens

    def chain(item: Demonstration, key: TreeKey) -> Tree:
        tree = renderer.demonstrate(item.problem, item.completion, key)
        check_size(tree, "demonstration", limit)
        return tree

    # Find demonstrations that cannot be trained on now, not in the middle of the run.
    for item in demonstrations:
        with told_with_row(recipe.data.train, item.row):
            parts = renderer.turns(f"demonstration {item.problem.id!r}", item.completion)
            if may_be_long(renderer, item.problem, parts, "demonstration", limit):
                chain(item, TreeKey(0, 0))
    spelt = [renderer.foreign_control(item.problem, item.completion) for item in demonstrations]

    def make_update(learner: Learner) -> Update:
        def update(indices: Sequence[int], step: int) -> UpdateReport:
            trees = [chain(demonstrations[index], TreeKey(step, slot)) for slot, index in enumerate(indices)]
            return learner.update([demonstrated(tree) for tree in trees])

        return update

    return SupervisedTask(
        title="SFT",
        num_examples=len(demonstrations),
        objective=Objective(NegativeLogLikelihood(), weighting=SUPERVISED),
        make_update=make_update,
        metrics=lambda _: {},
        notes=control_notes(recipe.data.train, spelt),
    )
