"""`ramify doctor [RECIPE.toml]`: what this machine has, and whether a recipe can run on it or on other GPUs."""

import argparse

from ramify.commands.parser import add_override, at_least_one, recipe_file
from ramify.core.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("recipe", type=recipe_file, nargs="?", metavar="RECIPE.toml", help="can it run here?")
    add_override(parser)
    parser.add_argument(
        "--gpu-memory",
        type=_gigabytes,
        metavar="GB",
        help="instead: what the recipe takes on a GPU with so much memory, which need not be here",
    )
    parser.add_argument(
        "--gpus", type=at_least_one, metavar="N", help="with --gpu-memory: on so many of them, under torchrun"
    )


def run(options: argparse.Namespace) -> None:
    """Run the command.

    Raises:
        UserError: The recipe is wrong or cannot run on this machine, or not on the GPUs.
    """
    from ramify.commands.work import load_any
    from ramify.obs.console import RunConsole

    console = RunConsole()
    path = options.recipe
    if options.gpu_memory is None and options.gpus is not None:
        raise ConfigError(f"--gpus: expected the memory of each too: --gpus {options.gpus} --gpu-memory 80")
    if options.gpu_memory is not None:
        from ramify.commands.memory import on_gpus

        if path is None:
            raise ConfigError(
                "--gpu-memory: expected a recipe too: ramify doctor RECIPE.toml --gpu-memory 24"
            )
        recipe = load_any(path, options.overrides)
        for line in on_gpus(path, recipe, options.gpus or 1, options.gpu_memory):
            console.result(line)
        return
    from ramify.commands.this_machine import on_this_machine, this_machine
    from ramify.sandbox.levels import detect_level

    level = detect_level()
    for name, line in this_machine(level):
        console.result(f"{name:14}{line}")
    if path is not None:
        for name, line in on_this_machine(path, load_any(path, options.overrides), level):
            console.result(f"{name:14}{line}")


def _gigabytes(text: str) -> float:
    """Read the memory of a GPU.

    Raises:
        argparse.ArgumentTypeError: It is no such number.
    """
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1 <= value <= 10_000:
        raise argparse.ArgumentTypeError(f"expected a number from 1 to 10000, got {text!r}")
    return value
