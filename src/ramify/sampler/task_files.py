"""The part of a task that its files decide: tokenizer, renderer, rewriters and problems, without tools that are opened.

A run reads them here, and so do `--dry-run --rows` and `doctor`: what one refuses, all refuse with the same line.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from ramify.assemble.agent import build_renderer
from ramify.assemble.model import build_tokenizer
from ramify.assemble.problems import Shown, build_problems
from ramify.assemble.tools import ShownTools
from ramify.config.other_runs import dialect_notes
from ramify.config.schema_eval import EvalRecipe
from ramify.config.schema_synth import SynthRecipe
from ramify.config.schema_train import TrainRecipe
from ramify.core.messages import Message, Problem, ToolSpec
from ramify.core.protocols import ContextRewriter
from ramify.rollout.rewriting import load_rewriter

if TYPE_CHECKING:
    from ramify.chat.renderer import ChatRenderer

ProblemReader: TypeAlias = Callable[[Mapping[str, Shown]], tuple[Sequence[Problem], Sequence[str]]]
"""Reads the problems of a recipe, given what the prompts of each environment show; returns them with notes for the user.

The name of an environment is "" if the recipe does not name any.
"""


@dataclass(frozen=True, slots=True)
class TaskFiles:
    """The contents of a task's files.

    Attributes:
        problems: Those whose prompt fits.
        renderer: Of the model's dialect, with the tools.
        rewriters: What may have a trajectory go on from elsewhere.
        rewriter_files: SHA-256 of the file of each rewriter, by its name.
        renderers: If there are several environments, the renderer of each, by name.
        notes: Notes about the user's own files.
        problem_notes: Notes about the problems, such as what was dropped.
    """

    problems: Sequence[Problem]
    renderer: "ChatRenderer"
    rewriters: tuple[ContextRewriter, ...]
    rewriter_files: Mapping[str, str]
    renderers: Mapping[str, "ChatRenderer"]
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
    dialect = recipe.model.dialect
    renderer = build_renderer(dialect, tokenizer, tools.specs)
    renderers = {
        name: build_renderer(dialect, tokenizer, specs) for name, specs in tools.environments.items()
    }
    if tools.max_observations:
        # A chat template in which the user cannot speak again is refused now, not in the first tree.
        renderer.hear("", (Message.of("user", "?"),))
    configs = recipe.rollout.rewriters if isinstance(recipe, TrainRecipe) else recipe.sampling.rewriters
    rewriters = [(config, load_rewriter(config)) for config in configs]
    shown = {name: Shown(renderers[name], _names(specs)) for name, specs in tools.environments.items()}
    problems, problem_notes = read(shown or {"": Shown(renderer, _names(tools.specs))})
    return TaskFiles(
        problems,
        renderer,
        tuple(rewriter for _, (rewriter, _) in rewriters),
        {rewriter.name: sha256 for _, (rewriter, sha256) in rewriters},
        renderers,
        tuple(
            f"rewriter {rewriter.name}: {config.function} of {config.path}, sha256 {sha256[:16]}"
            for config, (rewriter, sha256) in rewriters
        ),
        problem_notes,
    )


def training_problems(recipe: TrainRecipe) -> ProblemReader:
    """Return the reader of a training recipe's problems."""

    def read(shown: Mapping[str, Shown]) -> tuple[Sequence[Problem], Sequence[str]]:
        problems, notes = build_problems(recipe, shown)
        return problems, (*dialect_notes(recipe.model), *notes)

    return read


def _names(specs: Sequence[ToolSpec]) -> tuple[str, ...]:
    return tuple(spec.name for spec in specs)
