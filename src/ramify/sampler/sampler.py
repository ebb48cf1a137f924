"""Problems in, scored trees out: the first half of a training step, an evaluation, and all of `ramify rollout`."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from ramify.assemble.agent import build_agent, build_brancher, build_limits
from ramify.assemble.algorithm import build_shaping
from ramify.assemble.repair import RepairKit, open_repairs
from ramify.assemble.reward import BuiltReward, build_reward
from ramify.assemble.tools import Toolbox, build_tools
from ramify.config.schema_eval import EvalRecipe
from ramify.config.schema_synth import SynthRecipe
from ramify.config.schema_train import TrainRecipe
from ramify.core.closing import close_all
from ramify.core.messages import Problem
from ramify.core.protocols import ContextRewriter
from ramify.core.records import ScoredTree
from ramify.obs.console import Phase, RunConsole
from ramify.obs.metrics import TimingLog
from ramify.rollout.grow import Grown, grow_planned
from ramify.rollout.plan import Planned
from ramify.rollout.settings import AgentParts
from ramify.sampler.scoring import Scoring
from ramify.sampler.task_files import ProblemReader, read_task, training_problems

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ramify.chat.renderer import ChatRenderer

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Task:
    """The problems, the tools and the reward of a recipe; needs no model.

    Attributes:
        problems: Those whose prompt fits.
        toolbox: What the agent acts in.
        renderer: Of the model's dialect, with these tools.
        context_tokens: Length of the longest context.
        reward: The reward as built.
        notes: Notes about the problems, such as what was dropped.
        rewriters: What may have a trajectory go on from elsewhere.
        rewriter_files: SHA-256 of the file of each rewriter, by its name.
        repairs: What the repair tools use; None: there are none.
        renderers: If there are several environments, the renderer of each, by name.
    """

    problems: Sequence[Problem]
    toolbox: Toolbox
    renderer: "ChatRenderer"
    context_tokens: int
    reward: BuiltReward
    notes: tuple[str, ...] = ()
    rewriters: tuple[ContextRewriter, ...] = ()
    rewriter_files: Mapping[str, str] = field(default_factory=dict)
    repairs: RepairKit | None = None
    renderers: Mapping[str, "ChatRenderer"] = field(default_factory=dict)

    async def close(self) -> None:
        """Stop the tools, the judge and the helper."""
        await close_all(each for each in (self.toolbox, self.reward, self.repairs) if each is not None)


@dataclass(frozen=True, slots=True)
class Sampler:
    """An agent with its task and its reward. It never touches weights."""

    task: Task
    agent: AgentParts
    timing: TimingLog
    scoring: Scoring

    async def grow(self, planned: Sequence[Planned], phase: Phase) -> tuple[ScoredTree, ...]:
        """Grow trees and score their leaves; returns them in the order of `planned`.

        `phase` shows what the rollout is waiting for.

        Raises:
            DataError: Problem after problem failed, and none worked.
            EngineError: The engine broke its contract.
        """
        left = len(planned)

        async def keep(scored: ScoredTree, seconds: float) -> ScoredTree:
            nonlocal left
            del seconds
            left -= 1
            return scored

        return await self.grow_each(
            planned,
            keep,
            lambda waits: phase.advance(0, waiting=f"{left} of {len(planned)} trees: {waits}"),
        )

    async def grow_each(
        self,
        planned: Sequence[Planned],
        then: Callable[[ScoredTree, float], Awaitable[Value]],
        show_waits: Callable[[str], None],
    ) -> tuple[Value, ...]:
        """As `grow`, but `then` gets each tree, and the seconds that it took, as soon as it is scored."""

        async def score(grown: Grown) -> Value:
            return await then(await self.scoring.score(grown.tree), grown.seconds)

        async with self.agent.waits.shown(show_waits):
            return await grow_planned(self.agent, planned, score)

    async def close(self) -> None:
        """Stop the engine, the tools and the judge."""
        await close_all((self.agent.engine, self.task))


def open_task(
    recipe: TrainRecipe | EvalRecipe | SynthRecipe,
    reward: BuiltReward,
    context_tokens: int,
    read: ProblemReader,
    console: RunConsole,
    *,
    computes: bool = True,
) -> Task:
    """Open the tools, and read the problems.

    Args:
        recipe: The recipe.
        reward: Its reward.
        context_tokens: Length of the longest context.
        read: Reads the problems.
        console: Gets the notes.
        computes: Whether the model runs in this process.

    Raises:
        UserError: The recipe, the data or the machine is wrong.
    """
    several = recipe.environments if isinstance(recipe, TrainRecipe) else {}
    toolbox = build_tools(recipe.tools, recipe.sandbox, recipe.environment, console.note, several)
    repairs = None if recipe.repair is None else open_repairs(recipe.repair)
    files = read_task(recipe, toolbox.shown, read, console.note, computes=computes)
    for note in (*toolbox.notes, *reward.notes, *files.notes, *files.problem_notes):
        console.note(note)
    return Task(
        files.problems,
        toolbox,
        files.renderer,
        context_tokens,
        reward,
        tuple(files.problem_notes),
        files.rewriters,
        files.rewriter_files,
        repairs,
        files.renderers,
    )


def build_task(recipe: TrainRecipe, console: RunConsole) -> Task:
    """Open the tools and the reward of a training recipe, and read its problems.

    Raises:
        UserError: The recipe, the data or the machine is wrong.
    """
    context_tokens = recipe.data.max_prompt_tokens + recipe.rollout.max_tokens
    return open_task(recipe, build_reward(recipe.reward), context_tokens, training_problems(recipe), console)


def build_sampler(
    recipe: TrainRecipe,
    task: Task,
    model: "Callable[[], PreTrainedModel]",
    console: RunConsole,
    *,
    hands_over: bool = False,
) -> Sampler:
    """Assemble the agent of a training recipe.

    Args:
        recipe: The recipe.
        task: Its task.
        model: Called only if the engine needs a model of this process.
        console: Gets what happens to an engine's servers.
        hands_over: A publisher will give the engine its weights.
    """
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
        rewriters=task.rewriters,
        repairs=task.repairs,
        all_entropies=entropy is not None and entropy.source == "behavior",
        hands_over=hands_over,
        note=console.note,
        renderers=task.renderers,
    )
    reward = build_shaping(recipe.algorithm, task.reward.fn, recipe.rollout.max_tokens)
    return Sampler(task, agent, timing, Scoring(reward, timing))
