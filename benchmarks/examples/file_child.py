"""The measured side of rows 15: a fresh process that reads a file of examples as `ramify sft` does before its first step."""

import time
from typing import Any

from benchmarks.harness.answer import answer_lines
from ramify.assemble.examples import open_examples
from ramify.assemble.tools import show_tools
from ramify.config.load import check_recipe
from ramify.config.schema_examples import SftRecipe
from ramify.quickstart.evaluations import peak_memory_bytes
from ramify.train import supervised  # noqa: F401 - torch and all that a run has in memory by then


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """`recipe`: a table. Says how many examples there are, the notes, the seconds, and the most memory, before and after."""
    recipe = check_recipe(SftRecipe, question["recipe"], "recipe")
    before = peak_memory_bytes()
    started = time.perf_counter()
    _, reader = open_examples(recipe, show_tools(recipe.tools), lambda _: None)
    examples = tuple(reader)
    reader.require_usable()
    notes = reader.notes
    seconds = time.perf_counter() - started
    return {
        "examples": len(examples),
        "notes": notes,
        "seconds": seconds,
        "before": before,
        "peak": peak_memory_bytes(),
    }


if __name__ == "__main__":
    answer_lines(answer)
