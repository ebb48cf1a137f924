"""Direct preference optimization: pairs as trees with two leaves, on the one learner."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ramify.algos.dpo import PREFERENCE, DpoLoss, pair, preferred
from ramify.algos.losses import Objective
from ramify.chat.renderer import ChatRenderer
from ramify.config.build_problems import control_notes
from ramify.config.schema_examples import DpoRecipe
from ramify.core.errors import DataError
from ramify.core.protocols import Renderer
from ramify.core.records import ScoredTree
from ramify.core.tree import Tree, TreeKey
from ramify.data.examples import Preference, load_preferences
from ramify.learner.annotate import Wanted, annotate
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


def run_dpo(
    recipe: DpoRecipe,
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
        load_preferences,
        partial(_task, recipe),
        ranks,
        layout,
        resume=resume,
        max_steps=max_steps,
    )


def _task(recipe: DpoRecipe, renderer: ChatRenderer, preferences: Sequence[Preference]) -> SupervisedTask:
    limit = recipe.data.max_tokens
    # Find examples that cannot be trained on now, not in the middle of the run.
    for item in preferences:
        with told_with_row(recipe.data.train, item.row):
            sides = [
                renderer.turns(f"{side} side of pair {item.problem.id!r}", text)
                for side, text in (("chosen", item.chosen), ("rejected", item.rejected))
            ]
            long = [
                may_be_long(renderer, item.problem, parts, f"{name} side of pair", limit)
                for name, parts in zip(("chosen", "rejected"), sides, strict=True)
            ]
            if any(long) or renderer.are_same(*sides):
                pair_tree(renderer, item, TreeKey(0, 0), limit)
    spelt = [renderer.foreign_control(item.problem, item.chosen, item.rejected) for item in preferences]

    def make_update(learner: Learner) -> Update:
        def update(indices: Sequence[int], step: int) -> UpdateReport:
            trees = [
                pair_tree(renderer, preferences[index], TreeKey(step, slot), limit)
                for slot, index in enumerate(indices)
            ]
            return prefer(learner, trees)

        return update

    return SupervisedTask(
        title="DPO",
        num_examples=len(preferences),
        objective=Objective(DpoLoss(recipe.learner.beta)),
        make_update=make_update,
        metrics=lambda report: report.metrics,
        notes=control_notes(recipe.data.train, spelt),
        # The reference is the recipe's model, not the checkpoint that a resumed run starts from.
        with_reference=True,
    )


def pair_tree(renderer: Renderer, preference: Preference, key: TreeKey, max_tokens: int) -> Tree:
    """A pair as a tree with two leaves, the chosen side first.

    Raises:
        DataError: A side does not begin and end in a turn of the assistant, or has more than `max_tokens` tokens
            including the prompt; or both sides have the same tokens.
    """
    problem = preference.problem

    def leaf(side: str, text: str) -> Tree:
        what = f"{side} side of pair"
        tree = renderer.demonstrate(problem, text, key, what)
        check_size(tree, what, max_tokens)
        return tree

    try:
        return pair(leaf("chosen", preference.chosen), leaf("rejected", preference.rejected))
    except ValueError:
        raise DataError(
            f"pair {problem.id!r}: chosen and rejected are the same tokens; leave it out"
        ) from None


def prefer(learner: Learner, trees: Sequence[Tree]) -> UpdateReport:
    """One optimizer step on the mean loss of the pairs, after one pass of the reference model."""
    scored = [ScoredTree(tree, PREFERENCE) for tree in trees]
    pairs = annotate(learner, scored, Wanted(ref_logprobs=True), temperature=1.0)
    return learner.update([preferred(pair) for pair in pairs])
