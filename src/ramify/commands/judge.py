"""`ramify judge RUN|FILE --url URL --model NAME`: a model's verdicts on answers that are there."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ramify.commands.parser import add_output, open_console
from ramify.core.errors import ConfigError

if TYPE_CHECKING:
    from ramify.rewards.configs import JudgeConfig


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "source",
        type=Path,
        metavar="RUN|FILE",
        help="the folder of a finished evaluation; or a file of results: JSON lines or one JSON array, also of ARPO and Tool-Star",
    )
    parser.add_argument(
        "--url",
        required=True,
        action="append",
        help="address of a service with OpenAI's chat API, with /v1; repeat it for several servers of the same model",
    )
    parser.add_argument("--model", required=True, metavar="NAME", help="the model that judges")
    parser.add_argument("--key-variable", metavar="NAME", help="environment variable with the service's key")
    parser.add_argument(
        "--cache", type=Path, metavar="FILE", help="a file that stores verdicts for other runs too"
    )
    parser.add_argument("--task", choices=("math", "qa"), help="of a file: how the other scores are made")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="of a file: where the verdicts go (FILE.judged); of a run: RUN/judge",
    )
    parser.add_argument(
        "-s",
        dest="overrides",
        action="append",
        default=[],
        metavar="judge.KEY=VALUE",
        help="set another key of [reward.judge], such as judge.max_tokens=8192; may be repeated",
    )
    add_output(parser)


def run(options: argparse.Namespace) -> None:
    """Run the command. What it was stopped in, the same command goes on with.

    Raises:
        ConfigError: An option does not belong to the source.
    """
    config = judge_config(options.url, options.model, options.key_variable, options.cache, options.overrides)
    if options.source.is_dir():
        if options.task is not None or options.out is not None:
            raise ConfigError(
                f"{options.source}: is a run, which takes no --task and no --out. Leave them out."
            )
        _judge_run(options, config)
    elif options.task is None:
        raise ConfigError("--task: expected math or qa for a file of results")
    else:
        _judge_file(options, config)


def judge_config(
    urls: Sequence[str], model: str, key_variable: str | None, cache: Path | None, overrides: Sequence[str]
) -> "JudgeConfig":
    """Return a judge's settings from options and keys `judge.KEY=VALUE`.

    Raises:
        ConfigError: One of them is wrong.
    """
    from ramify.config.load import override_recipe
    from ramify.config.schema_eval import JudgingSection

    table = {
        "url": list(urls) if len(urls) > 1 else urls[0],
        "model": model,
        **({} if key_variable is None else {"key_variable": key_variable}),
        **({} if cache is None else {"cache": str(cache)}),
    }
    return override_recipe(JudgingSection, {"judge": table}, overrides, "the options").judge


def _judge_run(options: argparse.Namespace, config: "JudgeConfig") -> None:
    from ramify.assemble.reward import build_judge
    from ramify.eval.judging import OpenJudge, judge_run, open_judging

    console = open_console(options)
    with open_judging(OpenJudge(*build_judge(config)), options.source / "judge", console) as judging:
        summary = judge_run(options.source, judging)["judge"]
    for k, at in summary["pass_at"].items():
        console.result(
            f"pass@{k} by verdict {at['value']:.3f}  95 % [{at['low']:.3f}, {at['high']:.3f}]  n = {at['n']}"
        )
    console.note(f"verdicts written to {options.source}")
    console.record(summary)


def _judge_file(options: argparse.Namespace, config: "JudgeConfig") -> None:
    from ramify.assemble.reward import build_judge
    from ramify.eval.judging import OpenJudge, judge_file, open_judging

    console = open_console(options)
    folder = options.out or options.source.with_name(options.source.name + ".judged")
    with open_judging(OpenJudge(*build_judge(config)), folder, console) as judging:
        summary = judge_file(options.source, options.task, judging)
    for name, value in summary.items():
        console.result(f"{name}: {_shown(value)}")
    console.note(f"verdicts written to {folder}")
    console.record(summary)


def _shown(value: Any) -> str:  # noqa: ANN401 - any JSON value
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shown(each)}" for name, each in value.items() if name != "agreement")
    return f"{value:.4g}" if isinstance(value, float) else str(value)
