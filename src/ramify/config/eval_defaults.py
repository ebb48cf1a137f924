"""An evaluation without a recipe: what `ramify eval --model M --dataset D` stands for."""

from pathlib import Path
from typing import Any

from ramify.config.other_runs import trained_dialect
from ramify.core.errors import DataError
from ramify.data.benchmarks import parse_dataset
from ramify.modeling.model_config import read_model_config

MAX_PROMPT_TOKENS = 2048
MAX_TOKENS = 8192
MAX_CALLS = 10
TEMPERATURE = 0.6
"""As in the evaluation of the papers' code."""


def default_evaluation(
    model: Path, dataset: str, *, out: Path | None, limit: int | None, attempts: int, ks: tuple[int, ...]
) -> dict[str, Any]:
    """The recipe as a table: local engine, Python as the only tool, scored answers, token limits within the model's.

    The dialect is that of the run that made the model, or tags.

    Args:
        model: A model folder.
        dataset: The value of `data.test`.
        out: The value of `run.dir`; by default runs/eval/MODEL-DATASET.
        limit: Evaluate the first `limit` problems only.
        attempts: Attempts at each problem.
        ks: Values of k.
    """
    prompt, rest = _room(model)
    data: dict[str, Any] = {"test": dataset, "max_prompt_tokens": prompt}
    if limit is not None:
        data["limit"] = limit
    named = parse_dataset(dataset)
    name = f"{model.absolute().name}-{Path(dataset).stem if named is None else named[0]}"
    return {
        "model": {"path": str(model), "dialect": trained_dialect(model) or "tags"},
        "data": data,
        "run": {"dir": str(out or Path("runs") / "eval" / name)},
        "sampling": {
            "attempts": attempts,
            "k": list(ks),
            "max_tokens": rest,
            "max_calls": MAX_CALLS,
            "temperature": TEMPERATURE,
        },
        "engine": {"name": "local"},
        "tools": {"python": {}},
        "reward": {"name": "answer", "needs_form": False},
    }


def _room(model: Path) -> tuple[int, int]:
    """Limits on the tokens of a prompt and of what follows it, within the model's positions."""
    try:
        positions = read_model_config(model).get("max_position_embeddings")
    except DataError:
        positions = None  # not a model folder, which is reported later
    if not isinstance(positions, int):
        return MAX_PROMPT_TOKENS, MAX_TOKENS
    prompt = min(MAX_PROMPT_TOKENS, max(1, positions // 4))
    return prompt, max(1, min(MAX_TOKENS, positions - prompt))
