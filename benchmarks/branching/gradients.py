"""Gradients of a step at a fixed policy, resampled with each rule, and how much of them is signal."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramify.algos.branch_controls import YokedBrancher
from ramify.algos.paired_run import PairedRun, PairedTree
from ramify.assemble.agent import build_brancher
from ramify.assemble.algorithm import build_learning, build_objective
from ramify.assemble.task import build_sampler, build_task
from ramify.assemble.worker import WorkerPlan, build_engine_model
from ramify.config.load import load_recipe
from ramify.config.schema_rollout import RolloutSection
from ramify.config.schema_train import TrainRecipe
from ramify.core.messages import Problem
from ramify.core.protocols import Brancher
from ramify.core.rank import Rank
from ramify.core.records import ScoredTree
from ramify.data.order import DataCursor, ProblemOrder
from ramify.learner.forward import PassSettings
from ramify.learner.learning import Learning
from ramify.learner.parallel import Ranks
from ramify.learner.update import Learner
from ramify.learner.worker import RowGradients
from ramify.modeling.numerics import set_numerics
from ramify.obs.console import RunConsole
from ramify.obs.tree_metrics import tree_metrics
from ramify.rollout.plan import step_requests
from ramify.sampler.publisher import build_publisher
from ramify.sampler.sampler import Sampler, SamplingSession, sampling


@dataclass(frozen=True)
class Signal:
    """The signal of one arm.

    Attributes:
        arm: Its name.
        ratio, error: |E g|^2 / tr Var g, and its standard error.
        tokens, branches: Means of a step.
        mixed: Share of groups whose rewards differ.
    """

    arm: str
    ratio: float
    error: float
    tokens: float
    branches: float
    mixed: float

    @property
    def per_1000(self) -> float:
        """The ratio for 1,000 sampled tokens: noise falls with their number."""
        return 1000 * self.ratio / self.tokens


def measure(path: Path, overrides: Sequence[str], resamples: int, arms: Sequence[str]) -> Iterator[Signal]:
    """Yield the signal of each arm at the model of a recipe; "yoked to X" comes after X."""
    recipe = load_recipe(TrainRecipe, path, overrides)
    set_numerics(1, recipe.run.deterministic)
    with _opened(recipe) as policy:
        for arm in arms:
            yield policy.signal(arm, resamples)


@dataclass(frozen=True)
class _Policy:
    """A policy with its problems, the rollout and the objective of a recipe.

    `pairs` collects the decisions of each arm.
    """

    recipe: TrainRecipe
    problems: Sequence[Problem]
    session: SamplingSession[Sampler]
    learning: Learning
    console: RunConsole
    pairs: dict[str, PairedRun] = field(default_factory=dict)

    def signal(self, arm: str, resamples: int) -> Signal:
        """Measure an arm."""
        sampler = self.session.sampler
        own = Sampler(
            sampler.task, replace(sampler.agent, brancher=self._rule(arm)), sampler.timing, sampler.scoring
        )
        gradients, metrics, trees = [], [], []
        with self.console.phase(arm, resamples) as phase:
            for step in range(resamples):
                batch = self.session.stop.run(own.grow(step_requests(self.problems, step), phase))
                sampler.timing.clear()
                gradients.append(self._gradient(batch))
                metrics.append(tree_metrics(batch))
                trees += [PairedTree(s.tree.key, s.tree.problem.id, s.tree.decisions) for s in batch]
                phase.advance(1, waiting="")
        self.pairs[arm] = PairedRun(Path(arm), tuple(trees))
        means = {
            name: float(np.mean([row[name] for row in metrics]))
            for name in ("tokens/written", "branch/taken", "group/zero_variance")
        }
        ratio, error = signal_to_noise(np.stack(gradients))
        mixed = 1 - means["group/zero_variance"]
        return Signal(arm, ratio, error, means["tokens/written"], means["branch/taken"], mixed)

    def _rule(self, arm: str) -> Brancher:
        name, _, pair = arm.partition(" to ")
        rollout = self.recipe.rollout
        rule = rollout.branching
        children = rule.values().get("children", 1)
        if pair:
            return YokedBrancher(
                m=rollout.m or 1, children=children, probe_tokens=rule.probe_tokens, run=self.pairs[pair]
            )
        oracle = {"name": "oracle", "probe_tokens": rule.probe_tokens, "children": children}
        changes: dict[str, dict[str, Any]] = {
            "flat": {"branching": {"name": "none"}, "m": None},
            "rule": {},
            "oracle": {"branching": oracle},
        }
        section = RolloutSection(**{**rollout.values(), **changes[name]})
        return build_brancher(section, self.session.sampler.task.renderer.tokenizer.vocab_size)

    def _gradient(self, batch: Sequence[ScoredTree]) -> NDArray[np.float32]:
        """Return the gradient of an optimizer step, which is not taken. [P]"""
        learner, objective = self.learning.learner, build_objective(self.recipe.algorithm)
        trees = self.learning.credit(batch)
        shares = learner.pack_and_deal([objective.credit(tree) for tree in trees], objective.keeps_dead)
        if shares.passes:
            settings, losses = (
                PassSettings(self.recipe.rollout.temperature, 1024),
                tuple(objective.token_losses),
            )
            denominator = objective.denominator(trees)
            work = RowGradients(shares.rows[0], settings, losses, None, denominator, shares.passes)
            learner.ranks.all("gradients", work)
        parameters = learner.optimizers.parameters
        pieces = [
            np.zeros(p.numel(), np.float32) if p.grad is None else p.grad.float().cpu().numpy().ravel()
            for p in parameters
        ]
        gradient = np.concatenate(pieces)
        learner.ranks.all("drop")
        return gradient


@contextmanager
def _opened(recipe: TrainRecipe) -> Iterator[_Policy]:
    console = RunConsole(sys.stderr)
    task = build_task(recipe, console)
    ranks, optimizer = Ranks(Rank()), recipe.learner.optimizer
    plan = WorkerPlan(
        recipe.model, recipe.model.folder, task.context_tokens, recipe.run.seed, optimizer, False
    )
    ranks.build(plan)
    learner = Learner(
        ranks,
        schedule=optimizer,
        total_steps=1,
        objective=build_objective(recipe.algorithm),
        temperature=recipe.rollout.temperature,
        max_grad_norm=1.0,
        token_budget=recipe.learner.token_budget,
    )
    engine_model = build_engine_model(recipe.engine, learner.model, plan.engine_model)
    sampler = build_sampler(recipe, task, lambda: engine_model, console, hands_over=True)
    publisher = build_publisher(sampler, learner, engine_model, recipe.model.dtype)
    order = ProblemOrder(len(task.problems), recipe.run.seed)
    indices, _ = order.take(DataCursor(), recipe.rollout.problems_per_step)
    with sampling(sampler, lambda: sampler) as session:
        session.stop.run(publisher.publish(0))
        problems = [task.problems[index] for index in indices]
        yield _Policy(recipe, problems, session, build_learning(recipe, learner, 1), console)


def signal_to_noise(gradients: NDArray[np.float32]) -> tuple[float, float]:
    """Return |E g|^2 / tr Var g of resampled gradients [R, P], without bias in numerator and denominator, and its jackknife error."""
    gram = np.asarray(gradients @ gradients.T, np.float64)
    squares, sums = np.diag(gram), gram.sum(axis=1)

    def ratio(n: int, total: float, own: float) -> float:
        signal = (total - own) / (n * (n - 1))
        return signal / (own / n - signal)

    n, total, own = len(gram), float(gram.sum()), float(squares.sum())
    left_out = np.array(
        [
            ratio(n - 1, total - 2 * row + square, own - square)
            for row, square in zip(sums, squares, strict=True)
        ]
    )
    error = float(np.sqrt((n - 1) / n * ((left_out - left_out.mean()) ** 2).sum()))
    return ratio(n, total, own), error
