"""Supervised training on demonstrations: trees with one leaf, on the one learner."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ramify.algos.credit import denominator
from ramify.algos.losses import Objective
from ramify.algos.sft import SUPERVISED, NegativeLogLikelihood, supervised_credit
from ramify.chat.renderer import TagRenderer
from ramify.config.build import build_optimizer
from ramify.config.build_model import build_model, build_tokenizer
from ramify.config.schema_sft import SftRecipe
from ramify.core.errors import DataError, Interrupted
from ramify.core.tree import Tree, TreeKey
from ramify.data.demonstrations import Demonstration, load_demonstrations
from ramify.data.order import ProblemOrder
from ramify.learner.pack import pack
from ramify.learner.report import UpdateReport
from ramify.learner.update import Learner
from ramify.modeling.load import packs_trees
from ramify.modeling.numerics import set_numerics
from ramify.obs.console import RunConsole
from ramify.obs.metrics import finite
from ramify.train.interrupts import StopOnCtrlC
from ramify.train.run_folder import RunFolder, claim_run_folder
from ramify.train.state import Saver, restore, starting_point


def run_sft(
    recipe: SftRecipe, console: RunConsole, *, resume: bool = False, max_steps: int | None = None
) -> Path:
    """Train to the end of the recipe; returns the last checkpoint.

    Raises:
        UserError: The recipe, the data or the run folder is wrong.
        Interrupted: Ctrl-C; the state was saved.
    """
    set_numerics(recipe.run.threads, recipe.run.deterministic)
    demonstrations = load_demonstrations(recipe.data.train)
    with claim_run_folder(recipe.run.dir, recipe, resume) as folder:
        return _train(recipe, console, folder, demonstrations, max_steps)


def _train(
    recipe: SftRecipe,
    console: RunConsole,
    folder: RunFolder,
    demonstrations: Sequence[Demonstration],
    max_steps: int | None,
) -> Path:
    source = starting_point(folder, recipe.model.path)
    renderer = TagRenderer(build_tokenizer(source), ())
    for item in demonstrations:
        renderer.turns(item.problem.id, item.completion)
    order = ProblemOrder(len(demonstrations), recipe.run.seed)
    batch = recipe.learner.batch_size
    total = math.ceil(len(demonstrations) * recipe.data.epochs / batch)

    def make_learner() -> Learner:
        optimizer, schedule = build_optimizer(recipe.learner.optimizer)
        return Learner(
            build_model(recipe.model.model_copy(update={"path": source}), recipe.data.max_tokens),
            optimizer=optimizer,
            schedule=schedule,
            total_steps=total,
            objective=Objective(NegativeLogLikelihood()),
            temperature=1.0,
            max_grad_norm=recipe.learner.optimizer.max_grad_norm,
        )

    learner, state = restore(folder, make_learner, recipe.run.seed)
    folder.create(recipe)
    folder.rewind(state.step)
    metrics = folder.metrics
    saver = Saver(folder, learner, recipe.model.path, recipe.run.seed, recipe.run.keep_last)
    last = total if max_steps is None else min(total, max_steps)
    with asyncio.Runner() as runner, StopOnCtrlC(runner) as stop, console.phase("SFT", last) as phase:
        phase.advance(state.step)
        try:
            while state.step < last:
                stop.check()
                indices, cursor = order.take(state.cursor, batch)
                chosen = [demonstrations[index] for index in indices]
                trees = demonstrate(renderer, chosen, state.step, recipe.data.max_tokens)
                report = train_on(learner, trees, recipe.learner.token_budget)
                state = replace(state, step=state.step + 1, cursor=cursor)
                metrics.append(state.step, sft_metrics(report))
                phase.advance(loss=report.loss)
                if state.step % recipe.run.save_every == 0:
                    saver.save(state)
        except Interrupted as stopped:
            raise Interrupted(f"{stopped}; state saved in {saver.save(state)}, go on with --resume") from None
    return saver.save(state)


def demonstrate(
    renderer: TagRenderer, demonstrations: Sequence[Demonstration], step: int, max_tokens: int
) -> tuple[Tree, ...]:
    """Demonstrations as trees with one leaf.

    Raises:
        DataError: One has more than `max_tokens` tokens; cutting it would teach a wrong end.
    """
    trees = tuple(
        renderer.demonstrate(item.problem, item.completion, TreeKey(step, slot))
        for slot, item in enumerate(demonstrations)
    )
    for tree in trees:
        size = sum(len(node.token_ids) for node in tree.nodes)
        if size > max_tokens:
            raise DataError(
                f"demonstration {tree.problem.id!r}: {size} tokens, expected at most data.max_tokens = {max_tokens}"
            )
    return trees


def train_on(learner: Learner, trees: Sequence[Tree], token_budget: int) -> UpdateReport:
    """One optimiser step on the mean negative log-likelihood of the assistant's tokens."""
    credits = [supervised_credit(tree) for tree in trees]
    rows = pack(trees, credits, token_budget, share_prefixes=packs_trees(learner.model))
    return learner.update(rows, denominator(trees, SUPERVISED))


def sft_metrics(report: UpdateReport) -> dict[str, float | None]:
    """What one step reports; None where no number came out."""
    return {
        "loss": finite(report.loss),
        "grad_norm": finite(report.grad_norm),
        "lr_factor": report.lr_factor,
        "tokens/written": float(report.num_written),
    }
