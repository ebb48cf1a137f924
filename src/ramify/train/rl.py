"""Reinforcement learning, one straight loop: take problems, grow trees, score, advantages, pack, update, record."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ramify.algos.ops import Credit, credit, token_denominator
from ramify.config.build import (
    Toolbox,
    build_brancher,
    build_engine,
    build_estimator,
    build_limits,
    build_loss,
    build_model,
    build_optimizer,
    build_problems,
    build_renderer,
    build_reward,
    build_tokenizer,
    build_tools,
)
from ramify.config.schema_train import TrainRecipe
from ramify.core.errors import Interrupted
from ramify.core.messages import Problem
from ramify.core.protocols import Estimator, RewardFn
from ramify.core.quiescence import LiveCount
from ramify.core.records import Floats, Reward
from ramify.core.tree import Tree
from ramify.data.order import ProblemOrder
from ramify.learner.pack import pack
from ramify.learner.update import Learner, UpdateReport
from ramify.obs.console import Phase, RunConsole
from ramify.obs.metrics import read_metrics
from ramify.obs.timing import TimingLog
from ramify.obs.trace import TracedTree, write_trees
from ramify.obs.tree_metrics import entropy_warnings, tree_metrics
from ramify.rollout.grow import grow_trees
from ramify.rollout.settings import AgentParts
from ramify.train.interrupts import StopOnCtrlC
from ramify.train.numerics import set_numerics
from ramify.train.run_folder import RunFolder, open_run_folder
from ramify.train.state import LoopState, Saver, restore, starting_point


@dataclass(frozen=True, slots=True)
class RlRun:
    """All parts of a run."""

    recipe: TrainRecipe
    folder: RunFolder
    problems: Sequence[Problem]
    order: ProblemOrder
    toolbox: Toolbox
    agent: AgentParts
    timing: TimingLog
    reward: RewardFn
    estimator: Estimator
    learner: Learner
    saver: Saver
    total_steps: int


def run_rl(
    recipe: TrainRecipe, console: RunConsole, *, resume: bool = False, max_steps: int | None = None
) -> Path:
    """Train to the end of the recipe; returns the last checkpoint.

    Raises:
        UserError: The recipe, the data, the machine or the run folder is wrong.
        Interrupted: Ctrl-C; the state was saved.
    """
    run, state = build_rl(recipe, console, resume)
    last = run.total_steps if max_steps is None else min(run.total_steps, max_steps)
    with asyncio.Runner() as runner:
        try:
            with StopOnCtrlC(runner) as stop, console.phase("RL", last) as phase:
                phase.advance(state.step)
                try:
                    while state.step < last:
                        stop.check()
                        state = rl_step(run, state, stop, phase)
                        if state.step % recipe.run.save_every == 0:
                            run.saver.save(state)
                except Interrupted as stopped:
                    saved = run.saver.save(state)
                    raise Interrupted(f"{stopped}; state saved in {saved}, go on with --resume") from None
        finally:
            runner.run(_close(run))
    for warning in entropy_warnings(read_metrics(run.folder.root / "metrics.jsonl")):
        console.note(warning)
    return run.saver.save(state)


def rl_step(run: RlRun, state: LoopState, stop: StopOnCtrlC, phase: Phase) -> LoopState:
    """One step of the run: from a batch of problems to updated weights and a written record."""
    rollout = run.recipe.rollout
    indices, cursor = run.order.take(state.cursor, rollout.problems_per_step)
    problems = [run.problems[index] for index in indices]
    trees, rewards = stop.run(_grow_and_score(run, problems, state.step, phase))
    sums = run.estimator.moments(trees, rewards)
    advantages = [run.estimator.advantages(t, r, sums) for t, r in zip(trees, rewards, strict=True)]
    reports = update(run, trees, advantages)
    state = replace(state, step=state.step + 1, cursor=cursor)
    record(run, state.step, trees, rewards, advantages, reports)
    phase.advance(
        waiting="", reward=tree_metrics(trees, rewards)["reward/mean"], gradient=reports[0].grad_norm
    )
    return state


async def _grow_and_score(
    run: RlRun, problems: Sequence[Problem], step: int, phase: Phase
) -> tuple[tuple[Tree, ...], list[Sequence[Reward]]]:
    await run.agent.engine.load_weights("shared", step)
    done = 0

    def show(tree: Tree) -> None:
        nonlocal done
        del tree
        done += 1
        if done < len(problems):
            phase.advance(0, waiting=f"{len(problems) - done} of {len(problems)} trees")

    trees = await grow_trees(run.agent, problems, step, on_tree=show)
    return trees, [await run.reward.score(tree.trajectories) for tree in trees]


def update(run: RlRun, trees: Sequence[Tree], advantages: Sequence[Sequence[Floats]]) -> list[UpdateReport]:
    """One optimiser step for each mini-batch of whole problems."""
    algorithm, learner = run.recipe.algorithm, run.recipe.learner
    credits: list[Credit] = [
        credit(tree, given, algorithm.shared, algorithm.advantage)
        for tree, given in zip(trees, advantages, strict=True)
    ]
    size = learner.problems_per_minibatch
    reports: list[UpdateReport] = []
    for start in range(0, len(trees), size):
        part = slice(start, start + size)
        rows = pack(trees[part], credits[part], learner.token_budget)
        reports.append(run.learner.update(rows, token_denominator(credits[part])))
    return reports


def record(
    run: RlRun,
    step: int,
    trees: Sequence[Tree],
    rewards: Sequence[Sequence[Reward]],
    advantages: Sequence[Sequence[Floats]],
    reports: Sequence[UpdateReport],
) -> None:
    """Write the trace, the times and the metrics of a step."""
    traced = [
        TracedTree(tree, tuple(given), tuple(float(a.mean()) for a in token_advantages))
        for tree, given, token_advantages in zip(trees, rewards, advantages, strict=True)
    ]
    write_trees(run.folder.trees(step), traced)
    run.timing.flush(run.folder.timing(step))
    first = reports[0]
    stepped = [report for report in reports if report.outcome == "stepped"]
    run.folder.metrics.append(
        step,
        {
            **tree_metrics(trees, rewards),
            "update/loss": first.loss,
            "update/grad_norm": first.grad_norm,
            "update/lr_factor": first.lr_factor,
            "update/entropy": first.entropy,
            "update/steps": float(len(stepped)),
            "update/non_finite": float(sum(report.outcome == "non_finite" for report in reports)),
            # Before the first optimiser step the policy is the one that sampled, so this is engine against learner.
            "update/gap_mean": first.gap_mean,
            "update/gap_max": first.gap_max,
            "update/clip_fraction": first.metrics.get("clip_fraction", 0.0),
            "update/tokens": float(sum(report.num_tokens for report in reports)),
        },
    )


def build_rl(recipe: TrainRecipe, console: RunConsole, resume: bool) -> tuple[RlRun, LoopState]:
    """Build every part from the recipe, and the state to start from.

    Raises:
        UserError: The recipe, the data, the machine or the run folder is wrong.
    """
    set_numerics(recipe.run)
    toolbox = build_tools(recipe.tools, recipe.sandbox)
    folder = open_run_folder(recipe.run.dir, recipe, resume)
    source = starting_point(folder, recipe.model.path)
    tokenizer = build_tokenizer(source)
    renderer = build_renderer(tokenizer, toolbox.tools)
    problems, notes = build_problems(recipe.data.train, renderer, recipe.data.max_prompt_tokens)
    for note in notes:
        console.note(note)
    rollout = recipe.rollout
    context = recipe.data.max_prompt_tokens + rollout.max_tokens
    steps = math.ceil(len(problems) * recipe.data.epochs / rollout.problems_per_step)
    minibatches = math.ceil(rollout.problems_per_step / recipe.learner.problems_per_minibatch)

    def make_learner() -> Learner:
        optimizer, schedule = build_optimizer(recipe.learner.optimizer)
        return Learner(
            build_model(recipe.model.model_copy(update={"path": source}), context),
            optimizer=optimizer,
            schedule=schedule,
            total_steps=steps * minibatches,
            loss=build_loss(recipe.algorithm),
            temperature=rollout.temperature,
            max_grad_norm=recipe.learner.optimizer.max_grad_norm,
        )

    learner, state = restore(folder, make_learner, recipe.run.seed)
    folder.metrics.truncate_after(state.step)
    live, timing = LiveCount(), TimingLog()
    engine = build_engine(
        recipe.engine, tokenizer, learner.model, context, live if recipe.run.deterministic else None
    )
    agent = AgentParts(
        engine=engine,
        renderer=renderer,
        tools=toolbox.tools,
        brancher=build_brancher(rollout),
        limits=build_limits(rollout, rollout.n),
        events=timing,
        run_seed=recipe.run.seed,
        live=live,
    )
    run = RlRun(
        recipe=recipe,
        folder=folder,
        problems=problems,
        order=ProblemOrder(len(problems), recipe.run.seed),
        toolbox=toolbox,
        agent=agent,
        timing=timing,
        reward=build_reward(recipe.reward),
        estimator=build_estimator(recipe.algorithm),
        learner=learner,
        saver=Saver(folder, learner, recipe.model.path, recipe.run.seed, recipe.run.keep_last),
        total_steps=steps,
    )
    return run, state


async def _close(run: RlRun) -> None:
    await run.agent.engine.close()
    await run.toolbox.close()
