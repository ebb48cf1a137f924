"""What `--dry-run` prints."""

from ramify.commands.estimate import AnyRecipe, device_of, work_of
from ramify.commands.needed_memory import memory_of
from ramify.config.load import resolved
from ramify.modeling.hub import is_fetched


def dry_run(recipe: AnyRecipe, problems: int | None = None) -> str:
    """A recipe with every default, and behind it, as comments, what it asks for.

    Raises:
        DataError: The model's folder cannot be read.
    """
    work = work_of(recipe, problems)
    device, why = device_of(recipe.model)
    memory = memory_of(recipe, work, device)
    lines = [*work.in_words, f"device: {device} ({why})"]
    if not is_fetched(recipe.model.path):
        lines.append(f"model: {recipe.model.path} is fetched from the hub when the run starts")
    if memory is not None:
        lines.append(f"memory: {memory.in_words}")
    return resolved(recipe) + "\n" + "".join(f"# {line}\n" for line in lines)
