"""Which tokens of examples carry a loss: the packed rows of training, for people to look at."""

from itertools import groupby, islice

from ramify.algos.sft import counted_once
from ramify.core.tree import Tree, TreeKey
from ramify.learner.pack import pack
from ramify.obs.console import RunConsole
from ramify.train.examples import ExampleReader, RowRenderer

_SIDES = ("chosen side", "rejected side")


def show_mask(data: str, rows: RowRenderer, reader: ExampleReader, console: RunConsole, count: int) -> None:
    """Print the first `count` examples of `data` as the model sees them, and how many of their tokens are trained.

    Raises:
        UserError: The data are wrong, or no example can be used.
    """
    sizes = []
    for item in islice(reader, count):
        trees = rows.trees(item, TreeKey(0, 0))
        for tree, side in zip(trees, _SIDES if len(trees) > 1 else ("",), strict=True):
            trained = trained_tokens(tree)
            sizes.append((len(trained), sum(on for _, on in trained)))
            console.result(f"{data} row {item.row}{f', {side}' if side else ''}: {_shares(*sizes[-1])}")
            runs = groupby(trained, lambda token: token[1])
            console.masked([(rows.renderer.decode([token for token, _ in run]), on) for on, run in runs])
    reader.require_usable()
    for note in reader.notes:
        console.note(note)
    console.result(f"together: {_shares(sum(size for size, _ in sizes), sum(on for _, on in sizes))}")


def trained_tokens(tree: Tree) -> list[tuple[int, bool]]:
    """Return the tokens of a tree with one leaf, as they are packed, and whether the policy wrote each: only those carry a loss."""
    (row,) = pack([counted_once(tree)], token_budget=1)
    written = set(row.written.tolist())
    return [(token, index in written) for index, token in enumerate(row.token_ids.tolist())]


def _shares(size: int, trained: int) -> str:
    return f"{size:,} tokens, {trained:,} trained ({trained / size:.0%}), {size - trained:,} masked"
