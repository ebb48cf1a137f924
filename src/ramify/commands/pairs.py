"""`ramify pairs RUN ... --out FILE`: preference pairs for DPO from the trees that runs recorded."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ramify.commands.parser import at_least_one
from ramify.core.errors import ConfigError, DataError

if TYPE_CHECKING:
    from ramify.core.records import ScoredTree

_MAX_TOKENS = 8192


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument(
        "places",
        nargs="+",
        type=Path,
        metavar="RUN",
        help="a run folder (train, rollout, synth), or a file of trees",
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="the file of pairs, for ramify dpo"
    )
    parser.add_argument(
        "--per-question", type=at_least_one, default=2, metavar="N", help="most pairs of a question (2)"
    )
    parser.add_argument(
        "--max-tokens",
        type=at_least_one,
        default=_MAX_TOKENS,
        metavar="N",
        help=f"leave out sides with more tokens, prompt included ({_MAX_TOKENS})",
    )
    parser.add_argument(
        "--model", type=Path, metavar="M", help="folder with the tokenizer (that of the first run's recipe)"
    )


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    from ramify.chat.tokenizer import ChatTokenizer
    from ramify.obs.console import RunConsole
    from ramify.synth.pairs import PairRule, choose_pairs, pair_rows, write_pairs

    if options.out.exists():
        raise ConfigError(f"--out: {options.out} exists; name a new file")
    # A file that is named twice is read once.
    files = list({file.resolve(): file for source in options.places for file in _files(source)}.values())
    decode = ChatTokenizer(options.model or _model_of(options.places[0])).decode
    chosen = choose_pairs(_trees(files), PairRule(options.per_question, options.max_tokens), decode)
    if not chosen.count:
        raise DataError(f"no pair: {chosen.line()}; a pair takes a right and a wrong answer of one tree")
    write_pairs(options.out, pair_rows(_trees(files), chosen, decode))
    console = RunConsole()
    if chosen.num_encoded:
        console.note(
            f"{chosen.num_encoded} pairs hold texts of a service: their tokens were encoded, not sampled (exact_ids = false in their rows). "
            "DPO trains on them; RL does not train on such trees."
        )
    console.result(f"{chosen.line()}: {options.out}")


def _files(source: Path) -> list[Path]:
    """Return the files of trees of a run folder, in order, or the file itself.

    Raises:
        ConfigError: There is none.
    """
    from ramify.obs.trace_index import trace_files

    if source.is_file():
        return [source]
    files = list(trace_files(source / "trees"))
    files += [source / "trees.jsonl"] if (source / "trees.jsonl").is_file() else []
    if not files:
        raise ConfigError(f"{source}: expected a run folder with trees, or a file of trees, found none")
    return files


def _trees(files: list[Path]) -> "Iterator[tuple[str, ScoredTree]]":
    from ramify.obs.trace import each_tree

    for file in files:
        for traced in each_tree(file):
            yield f"{file}", traced


def _model_of(run: Path) -> Path:
    """The model of a run's recipe.

    Raises:
        ConfigError: There is no recipe, or it names no model.
    """
    from ramify.config.load import read_toml
    from ramify.files.durable import RECIPE
    from ramify.modeling.model_path import local_folder

    recipe = (run if run.is_dir() else run.parent.parent) / RECIPE
    if not recipe.is_file():
        raise ConfigError(f"--model: expected the folder of the tokenizer, since {recipe} is not there")
    path = read_toml(recipe).get("model", {}).get("path")
    if not isinstance(path, str):
        raise ConfigError(f"--model: expected the folder of the tokenizer, since {recipe} names no model")
    return local_folder(Path(path))
