"""Growing the same problems with each rule, on the quick start's model after its cold start."""

import asyncio
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.branching.rules import rule_tables
from ramify.assemble.agent import build_brancher
from ramify.assemble.model import build_model
from ramify.assemble.task import build_sampler, build_task
from ramify.config.schema_rollout import RolloutSection
from ramify.core.errors import DataError
from ramify.core.messages import Problem
from ramify.core.protocols import Engine
from ramify.core.records import Reward, ScoredTree
from ramify.core.tree import Tree
from ramify.data.order import DataCursor, ProblemOrder
from ramify.engines.local import LocalEngine
from ramify.modeling.numerics import set_numerics
from ramify.obs.console import RunConsole
from ramify.obs.tree_metrics import tree_metrics
from ramify.quickstart.example import ExampleData, rl_recipe
from ramify.quickstart.world import make_example
from ramify.rollout.grow import grow_trees
from ramify.runs.checkpoint_files import latest_checkpoint
from ramify.sampler.sampler import Sampler

NUM_PROBLEMS = 64
BATCH = 16
N, M = 16, 8
TOP_K = 20


@dataclass(frozen=True, slots=True)
class RuleResult:
    """Branches and rewards of one rule.

    Attributes:
        rule: Its name here.
        settings: `rollout.branching` with every default.
        roots: Trajectories a problem that started from the prompt, top-ups included.
        first_roots: The least and the greatest m of a problem.
        branches: Branches a problem that the budget granted.
        decisions: Tool results that were put to the rule while there was budget.
        rate: Share of them that wanted a branch.
        matched_rate: At which `random` is expected to take as many branches.
        p_std: Spread of P over them.
        acted: Share of them that would have gone the other way had entropy not changed.
        undecided: Share of them that brackets from the TOP_K most likely tokens leave open.
    """

    rule: str
    settings: Mapping[str, Any]
    roots: float
    first_roots: tuple[int, int]
    branches: float
    decisions: int
    rate: float
    matched_rate: float
    p_std: float
    acted: float
    undecided: float


def measure(run: Path) -> Iterator[RuleResult]:
    """Grow NUM_PROBLEMS trees with each rule, first with exact entropies, then with brackets.

    Args:
        run: Folder of a quick start.

    Raises:
        DataError: It holds no cold start.
    """
    set_numerics(1, False)
    with asyncio.Runner() as runner, _world(run, runner) as world:
        rate = 0.0
        for name, table in rule_tables(world.vocab_size).items():
            section = _section({**table, "rate": rate} if name == "random" else table)
            exact, bracketed = (
                runner.run(world.grow(section, engine)) for engine in (world.exact, world.bracketed)
            )
            measured = _summary(name, section, world.vocab_size, exact, bracketed)
            rate = measured.matched_rate if name == "bernoulli" else rate
            yield measured


@dataclass(frozen=True, slots=True)
class _World:
    """An agent, what it is asked, and two engines for it."""

    rollout: Sampler
    problems: Sequence[Problem]
    exact: Engine
    bracketed: Engine

    @property
    def vocab_size(self) -> int:
        """V of the tokenizer."""
        return self.rollout.task.renderer.tokenizer.vocab_size

    async def grow(self, section: RolloutSection, engine: Engine) -> list[Tree]:
        """The trees that a rule grows, in batches as in a run."""
        agent = replace(self.rollout.agent, engine=engine, brancher=build_brancher(section, self.vocab_size))
        trees: list[Tree] = []
        for step, start in enumerate(range(0, NUM_PROBLEMS, BATCH)):
            trees.extend(await grow_trees(agent, self.problems[start : start + BATCH], step))
        return trees

    async def close(self) -> None:
        """Stop engines and tools."""
        await self.bracketed.close()
        await self.rollout.close()


@contextmanager
def _world(run: Path, runner: asyncio.Runner) -> Iterator[_World]:
    model_dir = latest_checkpoint(run / "sft")
    if model_dir is None:
        raise DataError(f"{run}: expected the folder of a quick start, found no checkpoint in {run / 'sft'}")
    files = {name: run / "world" / f"{name}.jsonl" for name in ("passages", "train", "test", "seen")}
    data = ExampleData(base=run / "base", demonstrations=run / "world" / "demonstrations.jsonl", **files)
    recipe = rl_recipe(make_example(1, smoke=False), run, 0, model_dir, data)
    console = RunConsole(sys.stderr)
    task = build_task(recipe, console)
    model = build_model(recipe.model, task.context_tokens)
    rollout = build_sampler(recipe, task, lambda: model, console)
    bracketed = LocalEngine(
        model,
        task.renderer.tokenizer,
        num_slots=rollout.agent.engine.info().num_slots,
        context_tokens=task.context_tokens,
        entropy_top_k=TOP_K,
    )
    indices, _ = ProblemOrder(len(task.problems), recipe.run.seed).take(DataCursor(), NUM_PROBLEMS)
    world = _World(rollout, [task.problems[index] for index in indices], rollout.agent.engine, bracketed)
    try:
        yield world
    finally:
        runner.run(world.close())


def _section(table: Mapping[str, Any]) -> RolloutSection:
    finds_m = table["name"] in ("none", "balanced") or table.get("dynamic_rollouts")
    sizes = {"problems_per_step": BATCH, "n": N, "max_tokens": 1, "max_calls": 0}
    values: dict[str, Any] = {**sizes, "m": None if finds_m else M, "branching": table}
    return RolloutSection(**values)


def _summary(
    name: str, section: RolloutSection, vocab_size: int, exact: Sequence[Tree], bracketed: Sequence[Tree]
) -> RuleResult:
    figures, others = (_branching(trees) for trees in (exact, bracketed))
    rule = build_brancher(section, vocab_size)
    roots = [rule.num_roots(N, tree.trajectories[:1]) for tree in exact]
    return RuleResult(
        rule=name,
        settings={k: value for k, value in asdict(section.branching).items() if value is not None},
        first_roots=(min(roots), max(roots)),
        roots=figures["group/roots"],
        branches=figures["branch/taken"] / len(exact),
        decisions=int(figures.get("branch/decisions", 0)),
        rate=figures.get("branch/rate", 0.0),
        matched_rate=figures.get("branch/matched_rate", 0.0),
        p_std=figures.get("branch/p_std", 0.0),
        acted=figures.get("branch/entropy_acted", 0.0),
        undecided=others.get("branch/undecided", 0.0),
    )


def _branching(trees: Sequence[Tree]) -> Mapping[str, float]:
    """The metrics that a run logs; what the leaves earn does not matter here."""
    return tree_metrics([ScoredTree(tree, (Reward(0.0, {}),) * len(tree.trajectories)) for tree in trees])
