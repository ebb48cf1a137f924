"""`ramify audit RUN|TRACES`: decisions of recorded runs, resampled on both sides, and estimators' credit against the effects."""

import argparse
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from ramify.commands.parser import add_output, add_override, add_step, at_least_one, open_console, recipe_file
from ramify.core.errors import ConfigError, RunInterruptedError

if TYPE_CHECKING:
    from ramify.config.schema_train import TrainRecipe
    from ramify.obs.console import RunConsole
    from ramify.study.audit import Audit, AuditSettings
    from ramify.study.turn_judge import TurnJudge

_VERIFIERS = "traces.jsonl"
"""The file that verifiers writes in the folder of a run."""
_OF_ENDPOINT = ("url", "model", "key_variable", "max_tokens", "temperature")
"""Settings that conversations of other trainers have, and trees of ours ignore."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "sources", type=Path, nargs="+", metavar="RUN|TRACES", help="run folders, or files of trees"
    )
    add_step(parser)
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="DIR",
        help="the audit's folder; the same command goes on in it",
    )
    parser.add_argument(
        "--decisions",
        type=at_least_one,
        default=100,
        metavar="N",
        help="number of turns that are drawn, each as likely as any other; more may be asked for later (100)",
    )
    parser.add_argument(
        "--samples",
        type=_at_least_two,
        default=16,
        metavar="K",
        help="trajectories on each side of a turn (16)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the draw of turns (0)")
    parser.add_argument(
        "--recipe",
        type=recipe_file,
        default=None,
        metavar="RECIPE",
        help="the recipe that trajectories go on with (that of the run, with the weights that were saved last before the step)",
    )
    add_override(parser)
    other = parser.add_argument_group(
        "runs of other trainers (verifiers' traces.jsonl, messages as JSON lines)"
    )
    other.add_argument(
        "--url", default="", help="an endpoint of OpenAI's form, such as http://127.0.0.1:8000/v1"
    )
    other.add_argument(
        "--model", default="", metavar="NAME", help="the model there, which should be that of the run"
    )
    other.add_argument("--key-variable", default="", metavar="NAME", help="environment variable with its key")
    other.add_argument("--max-tokens", type=at_least_one, default=1024, metavar="N", help="of a turn (1024)")
    other.add_argument(
        "--temperature", type=_temperature, default=1.0, metavar="T", help="of the endpoint, above 0 (1)"
    )
    judge = parser.add_argument_group(
        "a model's opinion of the turns, beside the estimators; its other keys are -s judge.KEY=VALUE"
    )
    judge.add_argument(
        "--judge-url",
        action="append",
        metavar="URL",
        help="address of a service with OpenAI's chat API, with /v1; repeat it for several servers of the same model",
    )
    judge.add_argument("--judge-model", metavar="NAME", help="the model that judges")
    judge.add_argument(
        "--judge-key-variable", metavar="NAME", help="environment variable with the service's key"
    )
    add_output(parser)


def _temperature(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0.001 <= number <= 100:
        raise argparse.ArgumentTypeError(
            f"expected a number from 0.001 to 100, got {text[:40]!r}; at 0 all trajectories would be one"
        )
    return number


def _at_least_two(text: str) -> int:
    number = at_least_one(text)
    if number < 2:
        raise argparse.ArgumentTypeError("expected a whole number of at least 2, got 1")
    return number


def run(options: argparse.Namespace) -> None:
    """Run the command.

    Raises:
        UserError: A file, an option, the recipe or the machine is wrong.
        RunInterruptedError: Ctrl-C or SIGTERM; the same command goes on.
    """
    from ramify.commands.run_listing import SCHEMA
    from ramify.files.durable import locked_folder, make_folder
    from ramify.obs.page import write_page
    from ramify.study.audit import PAGE
    from ramify.study.audit_page import audit_page

    out: Path = options.out
    judge = _judge(options)
    settings = _settings(options, judge)
    console = open_console(options)
    make_folder("--out", out)
    with locked_folder("--out", out):
        settings.begin_or_continue(out)
        try:
            audit = _audit(settings, out, console, judge)
        except RunInterruptedError as stopped:
            raise RunInterruptedError(stopped.number, "the same command goes on") from None
        settings.bind_judge(out)
        audit.write(out)
        write_page(out / PAGE, audit_page(audit, settings, out))
    _show(audit, out, console)
    console.record({"schema": SCHEMA, "out": f"{out}", **audit.record()})


def _judge(options: argparse.Namespace) -> "TurnJudge | None":
    keys = [each for each in options.overrides if _is_of_judge(each)]
    if not options.judge_url and not options.judge_model:
        if keys or options.judge_key_variable:
            raise ConfigError("--judge-url: missing, and so is --judge-model. Give both to have a judge")
        return None
    if not options.judge_url or not options.judge_model:
        raise ConfigError("--judge-url and --judge-model: one is missing. Give both to have a judge")
    from ramify.commands.judge import judge_config
    from ramify.study.turn_judge import VERDICTS, TurnJudge

    cache = options.out / VERDICTS
    config = judge_config(options.judge_url, options.judge_model, options.judge_key_variable, cache, keys)
    for key in ("weight", "skip_equal"):
        if config.is_changed(key):
            raise ConfigError(f"-s judge.{key}: has no effect on opinions of turns. Remove it")
    if config.cache not in (cache, None) and config.cache.parent == options.out:
        raise ConfigError("-s judge.cache: --out has a file of its own. Remove it, or name a file elsewhere")
    return TurnJudge(config)


def _is_of_judge(override: str) -> bool:
    return override.partition("=")[0].partition(".")[0].strip() == "judge"


def _settings(options: argparse.Namespace, judge: "TurnJudge | None") -> "AuditSettings":
    from ramify.runs.recorded_trees import trace_of
    from ramify.study.audit import AuditSettings

    saved = [source / _VERIFIERS for source in options.sources]
    files = [
        f"{trace_of(trace if trace.is_file() else source, options.step)}"
        for source, trace in zip(options.sources, saved, strict=True)
    ]
    if len({Path(file).resolve() for file in files}) < len(files):
        raise ConfigError("a file of trees is named twice. Name each once")
    recipe = "" if options.recipe is None else f"{options.recipe}"
    if options.url and options.model:
        _check_endpoint(options)
    return AuditSettings(
        tuple(files),
        recipe,
        tuple(each for each in options.overrides if not _is_of_judge(each)),
        options.decisions,
        options.samples,
        options.seed,
        options.url,
        options.model,
        options.key_variable,
        options.max_tokens,
        options.temperature,
        {} if judge is None else judge.identity,
    )


def _check_endpoint(options: argparse.Namespace) -> None:
    """Refuse what a recipe's endpoint may not be either: an address with a key in it, a key in the place of its variable."""
    from ramify.net.configs import ChatConfig

    try:
        ChatConfig(url=options.url, model=options.model, key_variable=options.key_variable or None)
    except ConfigError as error:
        message = f"{error}".replace("ChatConfig.", "--").replace("--key_variable", "--key-variable")
        raise ConfigError(message) from None


def _audit(settings: "AuditSettings", out: Path, console: "RunConsole", judge: "TurnJudge | None") -> "Audit":
    from ramify.commands.input_checksums import file_checksums
    from ramify.study.conversations import is_foreign

    foreign = {is_foreign(Path(source)) for source in settings.sources}
    if len(foreign) > 1:
        raise ConfigError(
            "trees of ours and conversations of another trainer are audited apart. Name one kind"
        )
    if True in foreign:
        from ramify.study.foreign_audit import audit_conversations

        return audit_conversations(
            settings, out, console, lambda task: settings.bind_files(out, file_checksums(task)), judge
        )
    changed = (each.name for each in fields(settings) if getattr(settings, each.name) != each.default)
    if wrong := next((name for name in changed if name in _OF_ENDPOINT), None):
        option = f"--{wrong.replace('_', '-')}"
        raise ConfigError(
            f"{option}: trees of ours go on with the engine of their recipe. Leave it out, and change keys of the recipe by -s"
        )
    from ramify.commands.check_files import check_files
    from ramify.study.recorded_audit import audit_traces

    def check(recipe: "TrainRecipe") -> None:
        check_files(recipe, fetch=True, note=console.note, trains=False)
        settings.bind_files(out, file_checksums(recipe))

    return audit_traces(settings, out, console, check, judge)


def _show(audit: "Audit", out: Path, console: "RunConsole") -> None:
    from ramify.study.audit import HEADER, PAGE, interval_text, ranking_row

    unknown = len(audit.effects) - len(audit.known)
    # Those on how it was sampled were shown when they were known.
    for warning in audit.warnings[len(audit.limits) :]:
        console.note(f"warning: {warning}")
    console.result(
        f"effects with intervals: {len(audit.known)}, {sum(audit.is_sure)} of them exclude 0"
        + (f"; without one: {unknown}" if unknown else "")
        + (
            ""
            if audit.ceiling is None
            else f"; the true effects would correlate {audit.ceiling:.2f} with the measured ones"
        )
    )
    console.table(HEADER, [ranking_row(ranking) for ranking in audit.rankings])
    entropy = audit.entropy
    console.result(
        f"entropy: rank correlation {interval_text(entropy.spearman)} with the size of effects, "
        f"AUROC {interval_text(entropy.auroc)} of sure ones"
    )
    console.result(f"page: {out / PAGE}")
