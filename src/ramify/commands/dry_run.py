"""`--dry-run`: a recipe with every default, what it asks for, and what its files decide; nothing is written.

Without `--rows` the recipe, the heads of its files and the number of its rows are checked, in half a second. With it the
files are read too, as the run reads them.
"""

import argparse
import sys

from ramify.commands.work import AnyRecipe, work_of
from ramify.config.schema_examples import DpoRecipe, SftRecipe
from ramify.config.schema_train import TrainRecipe
from ramify.config.sizes import refuse_large_steps
from ramify.core.errors import ConfigError
from ramify.modeling.model_path import is_fetched

_NOT_READ = (
    "rows were not read: add --rows to find rows that cannot be used, prompts that are too long, and tools, rewards, "
    "templates, weights and positions that do not fit"
)


def require_dry_run(options: argparse.Namespace) -> None:
    """Raise ConfigError if --rows is given without --dry-run."""
    if options.rows and not options.dry_run:
        raise ConfigError("--rows: expected --dry-run too; a run reads all rows by itself")


def dry_run(recipe: AnyRecipe, options: argparse.Namespace, problems: int | None = None) -> None:
    """Print a recipe, and behind it, as comments, what it asks for; `problems`: its trees are grown for so many.

    Raises:
        UserError: The run would refuse it.
    """
    from ramify.commands.memory import device_of, job_here, memory_lines
    from ramify.config.load import resolved
    from ramify.modeling.memory_plan import plan_of

    work = work_of(recipe, problems)
    if options.rows:
        from ramify.commands.check_rows import check_rows

        notes = list(check_rows(recipe, trains=problems is None)) or ["all files were read, and can be used"]
    else:
        if problems is None:
            _refuse_few_rows(recipe, work.rows)
        notes = [_NOT_READ]
    device, why = device_of(recipe.model)
    job = job_here(recipe, device, trains=problems is None)
    lines = [*work.in_words, f"device: {device} ({why})"]
    if not is_fetched(recipe.model.path):
        lines.append(f"model: {recipe.model.path} is fetched from the hub when the run starts")
    if job is not None:
        total, *parts = memory_lines(job, plan_of(job))
        less = ", less where layers are computed again" if job.trains else ""
        lines += [f"memory: {total}{less}", *parts]
    sys.stdout.write(resolved(recipe) + "\n" + "".join(f"# {line}\n" for line in (*lines, *notes)))


def _refuse_few_rows(recipe: AnyRecipe, rows: int | None) -> None:
    """Refuse a step with more examples than the data have rows, of which the run may drop some more."""
    if rows is None:
        return
    if rows == 0:
        from ramify.commands.check_rows import check_rows

        # Raises as the run does when it reads the empty file.
        list(check_rows(recipe))
    if isinstance(recipe, TrainRecipe):
        refuse_large_steps("rollout.problems_per_step", recipe.rollout.problems_per_step, rows)
    elif isinstance(recipe, SftRecipe | DpoRecipe):
        refuse_large_steps("learner.batch_size", recipe.learner.batch_size, rows)
