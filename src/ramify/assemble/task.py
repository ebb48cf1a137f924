"""Builds the task of a checked recipe, and the sampler that grows its trees.

The part that files decide (tokenizer, renderer, rewriters, problems) is read here for runs, `--dry-run --rows` and `doctor` alike:
what one refuses, all refuse with the same line. The checksums that a run's manifest has of a task are here too.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from ramify.assemble.agent import build_agent, build_brancher, open_repairs
from ramify.assemble.algorithm import build_shaping
from ramify.assemble.model import build_tokenizer
from ramify.assemble.problems import build_problems, tool_names
from ramify.assemble.reward import build_reward
from ramify.assemble.tools import build_tools
from ramify.chat.renderers import renderer_for
from ramify.config.other_runs import dialect_notes
from ramify.config.schema_eval import EvalRecipe
from ramify.config.schema_synth import SynthRecipe
from ramify.config.schema_train import TrainRecipe
from ramify.core.messages import Message, Problem, ToolSpec
from ramify.core.protocols import ContextRewriter
from ramify.engines.configs import EngineConfig
from ramify.modeling.configs import ModelConfig
from ramify.obs.console import RunConsole
from ramify.obs.metrics import TimingLog
from ramify.rewards.parts import PartsReward, check_own_columns
from ramify.rollout.rewriting import load_rewriter
from ramify.runs.configs import RunConfig
from ramify.runs.manifest import file_sha256, made_with, model_files, problems_sha256, text_sha256
from ramify.sampler.sampler import Sampler, Scoring
from ramify.sampler.task import BuiltReward, ShownTools, Task

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ramify.chat.renderer import ChatRenderer
    from ramify.chat.renderers import DialectRenderer

ProblemReader: TypeAlias = Callable[
    ["ChatRenderer", Mapping[str, Sequence[ToolSpec]]], tuple[Sequence[Problem], Sequence[str]]
]
"""Reads the problems of a recipe, given the tools that the prompts of each environment show; returns them with notes for the user.

The name of an environment is "" if the recipe does not name any.
"""


@dataclass(frozen=True, slots=True)
class TaskFiles:
    """The contents of a task's files.

    Attributes:
        problems: Those whose prompt fits.
        renderer: Of the model's dialect.
        rewriters: What may have a trajectory go on from elsewhere.
        rewriter_files: SHA-256 of the file of each rewriter, by its name.
        notes: Notes about the user's own files.
        problem_notes: Notes about the problems, such as what was dropped.
    """

    problems: Sequence[Problem]
    renderer: "DialectRenderer"
    rewriters: tuple[ContextRewriter, ...]
    rewriter_files: Mapping[str, str]
    notes: tuple[str, ...]
    problem_notes: Sequence[str]


def read_task(
    recipe: TrainRecipe | EvalRecipe | SynthRecipe,
    tools: ShownTools,
    read: ProblemReader,
    note: Callable[[str], None],
    *,
    computes: bool,
) -> TaskFiles:
    """Read the files of a task.

    Args:
        recipe: The recipe.
        tools: Its tools.
        read: Reads the problems.
        note: Gets a note about the tokenizer.
        computes: The model runs in this process.

    Raises:
        UserError: A file cannot be used, or the chat template cannot do what the recipe asks for.
    """
    tokenizer = build_tokenizer(recipe.model.folder, note, computes=computes)
    renderer = renderer_for(recipe.model.dialect, tokenizer)
    shown = tools.environments or {"": tools.specs}
    for specs in shown.values():
        renderer.check_tools(specs)
    if tools.max_observations:
        # A chat template in which the user cannot speak again is refused now, not in the first tree.
        renderer.render_user_turn("", (Message.of("user", "?"),), tools.specs)
    configs = recipe.rollout.rewriters if isinstance(recipe, TrainRecipe) else recipe.sampling.rewriters
    rewriters = [(config, load_rewriter(config)) for config in configs]
    problems, problem_notes = read(renderer, shown)
    return TaskFiles(
        problems,
        renderer,
        tuple(rewriter for _, (rewriter, _) in rewriters),
        {rewriter.name: sha256 for _, (rewriter, sha256) in rewriters},
        tuple(
            f"rewriter {rewriter.name}: {config.function} of {config.path}, sha256 {sha256[:16]}"
            for config, (rewriter, sha256) in rewriters
        ),
        problem_notes,
    )


def training_problems(recipe: TrainRecipe) -> ProblemReader:
    """Return the reader of a training recipe's problems."""

    def read(
        renderer: "ChatRenderer", shown: Mapping[str, Sequence[ToolSpec]]
    ) -> tuple[Sequence[Problem], Sequence[str]]:
        from ramify.runs.trained_prompts import prompt_notes

        problems, notes = build_problems(recipe, renderer, shown)
        model, tools = recipe.model, tool_names(shown)
        return problems, (
            *dialect_notes(model),
            *prompt_notes(model.path, model.folder, problems, tools),
            *notes,
        )

    return read


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
    if isinstance(reward.fn, PartsReward) and recipe.environment is None and not several:
        check_own_columns([each.part for each in reward.fn.parts], files.problems)
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
        limits=recipe.rollout.of_trees(recipe.rollout.n),
        events=timing,
        branch_at=recipe.rollout.branch_at,
        rewriters=task.rewriters,
        repairs=task.repairs,
        all_entropies=entropy is not None and entropy.source == "behavior",
        hands_over=hands_over,
        note=console.note,
    )
    reward = build_shaping(recipe.algorithm, task.reward.fn, recipe.rollout.max_tokens)
    return Sampler(task, agent, timing, Scoring(reward, timing))


def answering_identity(
    model: ModelConfig, engine: EngineConfig, task: Task
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the checksums of what an agent's answers depend on, by name, and the versions and the device of this session.

    Raises:
        DataError: A file cannot be read.
    """
    weights, device = None, "none"
    if engine.loads_weights:
        # Only weights that are read here need torch.
        from ramify.modeling.lora import checksums
        from ramify.modeling.numerics import device_name

        weights = checksums(model.folder)
        device = device_name(model.device) if engine.computes_here else "none"
    prompts = [task.renderer.prompt_text(problem, task.toolbox.specs) for problem in task.problems]
    identity = {
        **task_identity(task),
        "weights": weights,
        "model_files": model_files(model.folder),
        "tokenizer": task.renderer.fingerprint,
        "prompts": {"first": prompts[0], "sha256": text_sha256("\0".join(prompts))},
        "tool_identities": dict(task.toolbox.identities),
        "reward_identities": dict(task.reward.identities),
        "script_sha256": script_identity(engine),
    }
    return identity, made_with(device)


def task_identity(task: Task) -> dict[str, Any]:
    """Return the checksums of a task's problems, rewriters and helper."""
    return {
        "problems": {"count": len(task.problems), "sha256": problems_sha256(task.problems)},
        "rewriters": dict(task.rewriter_files),
        "helper": None if task.repairs is None else task.repairs.sha256,
    }


def script_identity(engine: EngineConfig) -> str | None:
    """Return the checksum of the script that an engine plays; None if a model writes the turns.

    Raises:
        DataError: The file cannot be read.
    """
    return None if engine.script_file is None else file_sha256(engine.script_file)


def group_size(run: RunConfig, engine: EngineConfig) -> int | None:
    """Return the number of sequences that must be grown together; None if each can be grown alone.

    The draws of a tree depend on its key only. In a deterministic run on a local engine a group fills the engine's slots and is
    always grown as a whole: the last bits of logprobs depend on which sequences share a step of the engine.
    """
    return (engine.local_slots or None) if run.deterministic else None
