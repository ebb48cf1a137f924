"""Growing and scoring the trees of a task: the first half of a training step, and all of `ramify rollout`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ramify.config.build import (
    build_agent,
    build_brancher,
    build_limits,
    build_renderer,
    build_shaping,
)
from ramify.config.build_model import build_tokenizer
from ramify.config.build_problems import build_problems
from ramify.config.build_reward import BuiltReward, build_reward
from ramify.config.build_tools import Toolbox, build_tools
from ramify.config.other_runs import dialect_notes
from ramify.config.schema_train import TrainRecipe
from ramify.core.closing import close_all
from ramify.core.messages import Problem
from ramify.core.protocols import RewardFn
from ramify.core.records import ScoredTree
from ramify.core.tree import Tree
from ramify.data.order import ProblemOrder
from ramify.obs.console import Phase, RunConsole
from ramify.obs.metrics import TimingLog
from ramify.rewards.trajectory_rewards import score_tree
from ramify.rollout.grow import grow_trees
from ramify.rollout.settings import AgentParts

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ramify.chat.renderer import ChatRenderer


@dataclass(frozen=True, slots=True)
class Task:
    """The problems, the tools and the reward of a recipe; needs no model."""

    problems: Sequence[Problem]
    order: ProblemOrder
    toolbox: Toolbox
    renderer: "ChatRenderer"
    context_tokens: int
    reward: BuiltReward


@dataclass(frozen=True, slots=True)
class Actor:
    """An agent with its task and its reward. It never touches weights."""

    task: Task
    agent: AgentParts
    timing: TimingLog
    reward: RewardFn

    async def grow(
        self,
        problems: Sequence[Problem],
        step: int,
        phase: Phase,
        *,
        first_slot: int = 0,
        attempt: int = 0,
    ) -> tuple[ScoredTree, ...]:
        """Grow the trees of one step and score their leaves.

        Args:
            problems: One tree is grown for each.
            step: Step of the run.
            phase: Shows what the rollout is waiting for.
            first_slot: Place of the first problem among those of the step.
            attempt: Round of growing within the step.

        Raises:
            DataError: A reward is not a number.
        """
        left = len(problems)

        def ready(tree: Tree) -> None:
            nonlocal left
            del tree
            left -= 1

        def show(waits: str) -> None:
            phase.advance(0, waiting=f"{left} of {len(problems)} trees: {waits}")

        async with self.agent.waits.shown(show):
            trees = await grow_trees(
                self.agent, problems, step, on_tree=ready, first_slot=first_slot, attempt=attempt
            )
        return tuple([await score_tree(self.reward, tree) for tree in trees])

    async def close(self) -> None:
        """Stop the engine, the tools and the judge."""
        await close_all((self.agent.engine, self.task.toolbox, self.task.reward))


def build_task(recipe: TrainRecipe, tokenizer_dir: Path, console: RunConsole) -> Task:
    """Open the tools and the reward, and read the problems.

    Raises:
        UserError: The recipe, the data or the machine is wrong.
    """
    reward = build_reward(recipe.reward)
    toolbox = build_tools(recipe.tools, recipe.sandbox, console.note)
    renderer = build_renderer(
        recipe.model.dialect, build_tokenizer(tokenizer_dir, console.note), toolbox.specs
    )
    data = recipe.data
    problems, notes = build_problems(data.train, renderer, data.max_prompt_tokens, exclude=data.exclude)
    for note in (*toolbox.notes, *reward.notes, *dialect_notes(recipe.model), *notes):
        console.note(note)
    return Task(
        problems,
        ProblemOrder(len(problems), recipe.run.seed),
        toolbox,
        renderer,
        recipe.data.max_prompt_tokens + recipe.rollout.max_tokens,
        reward,
    )


def build_actor(recipe: TrainRecipe, task: Task, model: "Callable[[], PreTrainedModel]") -> Actor:
    """Assemble the agent; `model` is called only if the engine needs one."""
    timing = TimingLog()
    entropy = recipe.algorithm.entropy_advantage
    agent = build_agent(
        engine=recipe.engine,
        run=recipe.run,
        toolbox=task.toolbox,
        renderer=task.renderer,
        model=model,
        context_tokens=task.context_tokens,
        brancher=build_brancher(recipe.rollout, task.renderer.tokenizer.vocab_size),
        limits=build_limits(recipe.rollout, recipe.rollout.n),
        events=timing,
        branch_at=recipe.rollout.branch_at,
        all_entropies=entropy is not None and entropy.source == "behavior",
    )
    reward = build_shaping(recipe.algorithm, task.reward.fn, recipe.rollout.max_tokens)
    return Actor(task, agent, timing, reward)
