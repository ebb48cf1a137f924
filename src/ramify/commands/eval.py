"""`ramify eval`: independent attempts at a set of problems."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ramify.commands.parser import (
    add_dry_run,
    add_output,
    add_override,
    at_least_one,
    notes_of,
    open_console,
    recipe_file,
)
from ramify.core.errors import ConfigError, DataError

if TYPE_CHECKING:
    from ramify.config.schema_eval import EvalRecipe

_MAX_PROMPT_TOKENS = 2048
_MAX_TOKENS = 8192
_MAX_CALLS = 10
_TEMPERATURE = 0.6
"""As in the evaluation of the papers' code."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("recipe", type=recipe_file, nargs="?", metavar="RECIPE.toml", help="what to run")
    add_override(parser)
    add_dry_run(parser)
    parser.add_argument("--resume", action="store_true", help="make the attempts that run.dir still lacks")
    parser.add_argument(
        "--null", action="store_true", help="also score agents that know nothing: empty, random calls, echo"
    )
    plain = parser.add_argument_group(
        "without a recipe (all other settings have defaults, which -s can change)"
    )
    plain.add_argument("--model", type=Path, metavar="M", help="a model folder")
    plain.add_argument("--dataset", metavar="D", help="a problem file, or a benchmark: NAME=PLACE")
    plain.add_argument("--limit", type=at_least_one, metavar="N", help="the first N rows only")
    plain.add_argument("--attempts", type=at_least_one, metavar="N", help="attempts at each problem (1)")
    plain.add_argument("--k", type=_ks, metavar="K,..", help="values of k for pass@k (1, and --attempts)")
    plain.add_argument(
        "--engine",
        metavar="E",
        help="local (the default), vllm (starts a server), or the address of a vLLM server",
    )
    plain.add_argument("--out", type=Path, metavar="DIR", help="where the results go")
    add_output(parser)


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    from ramify.commands.check_files import check_files, dry_run, require_dry_run
    from ramify.runs.run_folder import EVALUATION

    require_dry_run(options)
    recipe = _recipe(options)
    check_files(recipe, fetch=not options.dry_run, note=notes_of(options))
    EVALUATION.check(recipe.run.dir, options.resume)
    if options.dry_run:
        dry_run(recipe, options)
        return
    from ramify.assemble.evaluation import run_eval
    from ramify.commands.run_listing import record_run
    from ramify.core.json_types import part
    from ramify.eval.evaluation import repair_table, tool_table
    from ramify.files.durable import read_record

    console = open_console(options)
    evaluation = run_eval(recipe, console, resume=options.resume, null=options.null)
    for k in recipe.sampling.k:
        estimate = evaluation.pass_at(k)
        console.result(
            f"pass@{k} {estimate.value:.3f}  95 % [{estimate.low:.3f}, {estimate.high:.3f}]  n = {estimate.n}"
        )
    benchmarks = evaluation.values("benchmark")
    for name in benchmarks if len(benchmarks) > 1 else ():
        group, width = evaluation.of("benchmark", name), max(map(len, benchmarks))
        estimates = (f"pass@{k} {group.pass_at(k).value:.3f}" for k in recipe.sampling.k)
        recall = group.part("evidence_recall")
        console.result(
            f"{name:{width}}  {'  '.join(estimates)}  n = {len(group.results)}  calls {group.calls_per_attempt:.1f}"
            + (f"  evidence recall {recall.value:.3f}" if recall else "")
        )
    for name, tool in tool_table(evaluation).items():
        if tool["failed"]:
            console.result(
                f"{name}: {tool['failed']} of {tool['calls']} calls failed; statuses: {tool['statuses']}"
            )
    for name, repair in repair_table(evaluation).items():
        console.result(f"{name}: {repair['times']} times, in {repair['attempts']} attempts")
    console.note(f"results written to {recipe.run.dir}")
    record_run(console, recipe.run.dir, summary=read_record(recipe.run.dir / "summary.json", part()))


def _recipe(options: argparse.Namespace) -> "EvalRecipe":
    from ramify.config.load import load_recipe, override_recipe
    from ramify.config.schema_eval import EvalRecipe

    plain = {
        name: getattr(options, name)
        for name in ("model", "dataset", "limit", "attempts", "k", "engine", "out")
    }
    flags = [f"--{name}" for name, value in plain.items() if value is not None]
    if options.recipe is not None:
        if flags:
            raise ConfigError(
                f"{flags[0]}: expected a recipe or --model and --dataset, not both; use -s with a recipe"
            )
        return load_recipe(EvalRecipe, options.recipe, options.overrides)
    if options.model is None or options.dataset is None:
        raise ConfigError("expected a recipe, or --model and --dataset")
    attempts = options.attempts or 1
    table = _default_evaluation(
        options.model,
        options.dataset,
        out=options.out,
        limit=options.limit,
        attempts=attempts,
        ks=options.k or tuple(sorted({1, attempts})),
        engine=_engine(options.engine or "local"),
    )
    return override_recipe(EvalRecipe, table, options.overrides, "the options")


def _default_evaluation(
    model: Path,
    dataset: str,
    *,
    out: Path | None,
    limit: int | None,
    attempts: int,
    ks: tuple[int, ...],
    engine: dict[str, Any],
) -> dict[str, Any]:
    """Return the recipe as a table: Python as the only tool, scored answers, token limits within the model's.

    The dialect is that of the run that made the model, or tags.

    Args:
        model: A model folder.
        dataset: The value of `data.test`.
        out: The value of `run.dir`; by default runs/eval/MODEL-DATASET.
        limit: Evaluate the first `limit` rows only.
        attempts: Attempts at each problem.
        ks: Values of k.
        engine: The engine's table.
    """
    from ramify.config.other_runs import trained_dialect
    from ramify.data.benchmarks import parse_dataset

    prompt, response = _room(model)
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
            "max_tokens": response,
            "max_calls": _MAX_CALLS,
            "temperature": _TEMPERATURE,
        },
        "engine": engine,
        "tools": {"python": {}},
        "reward": {"name": "answer", "needs_form": False},
    }


def _engine(named: str) -> dict[str, Any]:
    """Return the table of an engine, by its name or the address of a vLLM server."""
    if named.startswith(("http://", "https://")):
        return {"name": "vllm", "urls": [named]}
    return {"name": "vllm", "launch": True} if named == "vllm" else {"name": named}


def _room(model: Path) -> tuple[int, int]:
    """Limits on the tokens of a prompt and of what follows it, within the model's positions."""
    from ramify.modeling.model_config import read_model_config

    try:
        positions = read_model_config(model).get("max_position_embeddings")
    except DataError:
        positions = None  # not a model folder, which is reported later
    if not isinstance(positions, int):
        return _MAX_PROMPT_TOKENS, _MAX_TOKENS
    prompt = min(_MAX_PROMPT_TOKENS, max(1, positions // 4))
    return prompt, max(1, min(_MAX_TOKENS, positions - prompt))


def _ks(text: str) -> tuple[int, ...]:
    return tuple(sorted({at_least_one(word.strip()) for word in text.split(",")}))
