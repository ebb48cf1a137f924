"""`ramify pairs RUN ... --out FILE`: preference pairs for DPO from the trees that runs recorded.

With `--tree N --chosen LEAF --rejected LEAF` it makes one pair, of two leaves of one tree.
"""

import argparse
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ramify.commands.parser import add_quiet, add_step, add_tree, at_least_one, open_console
from ramify.core.errors import ConfigError, DataError

if TYPE_CHECKING:
    from ramify.core.records import ScoredTree
    from ramify.obs.console import Phase

_MAX_TOKENS = 8192


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
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

    add_quiet(parser)
    add_step(parser)
    add_tree(parser, "make one pair, of two leaves of this tree")
    parser.add_argument("--chosen", metavar="LEAF", help="of --tree: the id of the better leaf")
    parser.add_argument("--rejected", metavar="LEAF", help="of --tree: the id of the other leaf")


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    from ramify.chat.tokenizer import ChatTokenizer
    from ramify.runs.recorded_trees import trace_of
    from ramify.synth.pairs import NamedPair, PairRule, choose_pairs, pair_rows, write_pairs

    if options.out.exists():
        raise ConfigError(f"--out: {options.out} exists; name a new file")
    rule: PairRule | NamedPair = PairRule(options.per_question, options.max_tokens)
    if _names_leaves(options):
        rule = NamedPair(options.chosen, options.rejected)
        files = [trace_of(options.places[0], options.step)]
        trees = partial(_one_tree, files[0], options.tree)
    else:
        files = _files(options.places)
        trees = partial(_trees, files)
    decode = ChatTokenizer(options.model or _model_of(options.places[0])).decode
    console = open_console(options)
    with console.phase("trees", 2 * len(files)) as phase:
        chosen = choose_pairs(trees(phase), rule, decode)
        if not chosen.count:
            raise DataError(f"no pair: {chosen.line()}; a pair takes a right and a wrong answer of one tree")
        write_pairs(options.out, pair_rows(trees(phase), chosen, decode))
    if chosen.num_encoded:
        console.note(
            f"{chosen.num_encoded} pairs hold texts of a service: their tokens were encoded, not sampled (exact_ids = false in their rows). "
            "DPO trains on them; RL does not train on such trees."
        )
    console.result(f"{chosen.line()}: {options.out}")


def _names_leaves(options: argparse.Namespace) -> bool:
    """Return True if the options name the leaves of one pair.

    Raises:
        ConfigError: They name a part of it only.
    """
    named = [options.tree, options.chosen, options.rejected]
    if all(option is None for option in (*named, options.step)):
        return False
    if None in named or len(options.places) > 1:
        raise ConfigError("--tree: a pair of two leaves takes --tree, --chosen, --rejected and one RUN")
    return True


def _files(sources: Sequence[Path]) -> list[Path]:
    """Return the files of trees of several sources; one that is named twice is read once."""
    from ramify.runs.recorded_trees import trace_files

    return list({file.resolve(): file for source in sources for file in trace_files(source)}.values())


def _one_tree(path: Path, number: int, phase: "Phase") -> "Iterator[tuple[str, ScoredTree]]":
    from ramify.runs.recorded_trees import tree_at

    yield f"{path}", tree_at(path, number)
    phase.advance()


def _trees(files: list[Path], phase: "Phase") -> "Iterator[tuple[str, ScoredTree]]":
    """Yield all trees, twice in a command: what is chosen is not in memory."""
    from ramify.obs.trace import each_tree

    for file in files:
        for traced in each_tree(file):
            yield f"{file}", traced
        phase.advance()


def _model_of(run: Path) -> Path:
    """Return the tokenizer in a run's folder, or, of runs made before there was one, the model of its recipe.

    Raises:
        ConfigError: There is neither.
    """
    from ramify.chat.token_texts import FOLDER
    from ramify.config.load import read_toml
    from ramify.modeling.model_path import local_folder
    from ramify.runs.recorded_trees import recipe_of

    recipe = recipe_of(run)
    if recipe is None:
        raise ConfigError(f"--model: expected the folder of the tokenizer, since {run} has no recipe.toml")
    if (recipe.parent / FOLDER).is_dir():
        return recipe.parent / FOLDER
    path = read_toml(recipe).get("model", {}).get("path")
    if not isinstance(path, str):
        raise ConfigError(f"--model: expected the folder of the tokenizer, since {recipe} names no model")
    return local_folder(Path(path))
