"""The examples of a recipe that can be trained on: read, rendered and checked row by row, and what is left out is counted."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ramify.chat.conversation import Parts
from ramify.chat.demonstrations import begin_alike, check, demonstrate, fewest_tokens, most_tokens, split
from ramify.chat.renderer import ExampleRenderer
from ramify.core.errors import DataError, RowError, RowTooLargeError, UserError
from ramify.core.messages import Problem, ToolSpec
from ramify.core.tree import Tree, TreeKey
from ramify.data.configs import ExampleDataConfig
from ramify.data.example_formats import COMPLETION, PAIR
from ramify.data.examples import Example, RefusedRows, read_examples
from ramify.data.problems import control_notes, listed
from ramify.data.recorded_pairs import RecordedPair, check_tokenizer
from ramify.data.row_files import PARQUET_COUNTING
from ramify.data.row_tools import tool_specs

MOST_REFUSED = 10_000
"""Rows that cannot be used, after which a file that must have none is read no further."""

_NOTE_SECONDS = 10.0
"""Between two notes of how far a file is read."""


@dataclass(frozen=True, slots=True)
class RenderedExample:
    """An example in the dialect's text.

    Attributes:
        problem: The problem.
        sides: The turns and results of a demonstration; of a pair those of the chosen and of the rejected side.
        tools: The row's own tools.
        row: The row's number in the file.
        recorded: Of a pair that was sampled: its ids; then there are no sides.
    """

    problem: Problem
    sides: tuple[Parts, ...]
    tools: str
    row: int
    recorded: RecordedPair | None = None


@dataclass(frozen=True, slots=True)
class RowRenderer:
    """The renderer of examples, with the recipe's `tools`, or, if the recipe names none, with those of each row."""

    renderer: ExampleRenderer
    tools: tuple[ToolSpec, ...]

    def tools_of(self, row_tools: str) -> tuple[ToolSpec, ...]:
        """Return the tools that the prompt of a row shows, which brings `row_tools` with it (`read_tools`).

        Raises:
            RowError: The dialect cannot call them.
        """
        if self.tools or not row_tools:
            return self.tools
        specs = tool_specs(row_tools)
        try:
            self.renderer.check_tools(specs)
        except UserError as error:
            raise RowError("its tools cannot be shown", str(error)) from None
        return specs

    def trees(self, item: RenderedExample, key: TreeKey) -> tuple[Tree, ...]:
        """Return a tree with one leaf for each side."""
        if item.recorded is not None:
            return item.recorded.trees(item.problem, key)
        tools = self.tools_of(item.tools)
        return tuple(demonstrate(self.renderer, item.problem, parts, key, tools) for parts in item.sides)


class ExampleReader:
    """Iterates over the examples of `data.train` that can be trained on, and counts what it passes over.

    It notes how far it is every `_NOTE_SECONDS`. Where rows that cannot be used end the run, it stops after `MOST_REFUSED` of them.

    Raises while it iterates:
        DataError: The file cannot be read from some place on.
    """

    def __init__(
        self,
        data: ExampleDataConfig,
        rows: RowRenderer,
        note: Callable[[str], None],
        *,
        pairs: bool,
        may_end_in_call: bool,
    ) -> None:
        """Read nothing yet.

        Args:
            data: The file, and what is done with rows that cannot be used.
            rows: Renders the rows.
            note: Gets notes on how far the file is read.
            pairs: Rows are preference pairs, not demonstrations.
            may_end_in_call: A demonstration may end in a call, since its environment may end there.
        """
        self._data, self._row_renderer, self._note = data, rows, note
        self._names = PAIR if pairs else COMPLETION
        self._may_end_in_call = may_end_in_call
        self._rows, self._read_all = 0, False
        self._refused = RefusedRows()
        self._too_large: dict[str, list[int]] = {}
        self._formats: dict[str, list[int]] = {}
        self._repaired: list[int] = []
        self._with_earlier_turns: list[int] = []
        self._spelt: list[str | None] = []

    def __iter__(self) -> Iterator[RenderedExample]:
        """Yield the examples, in the order of the file."""
        next_note = time.monotonic() + _NOTE_SECONDS
        for number, example in read_examples(self._data.train, self._names):
            self._rows += 1
            if time.monotonic() > next_note:
                self._note(
                    f"{self._location}: {self._rows:,} rows read, {self._refused.count:,} cannot be used"
                )
                next_note += _NOTE_SECONDS
            try:
                if isinstance(example, RowError):
                    raise example
                self._formats.setdefault(example.format, []).append(number)
                yield self._rendered(example)
            except RowTooLargeError as error:
                self._too_large.setdefault(error.reason, []).append(number)
            except RowError as error:
                self._refused.add(number, error)
                if self._refused.count >= MOST_REFUSED and self._data.malformed == "refuse":
                    return
        self._read_all = True

    def _rendered(self, example: Example) -> RenderedExample:
        """Return the example in the dialect's text, nothing encoded that need not be."""
        problem, renderer = example.problem, self._row_renderer.renderer
        tools = self._row_renderer.tools_of(example.tools)
        limit = self._data.max_tokens
        too_large = f"more than data.max_tokens = {limit} tokens"
        if example.recorded is not None:
            if example.recorded.size > limit:
                raise RowTooLargeError(too_large)
            check_tokenizer(example.recorded, renderer.decode, renderer.tokenizer.vocab_size)
            self._spelt.append(None)
            return RenderedExample(problem, (), example.tools, example.row, example.recorded)
        sides = tuple(split(renderer, side, tools) for side in example.sides)
        if any(fewest_tokens(renderer, problem, parts) > limit for parts in sides):
            raise RowTooLargeError(too_large)
        for parts in sides:
            check(renderer, parts, tools, may_end_in_call=self._may_end_in_call)
        mended = tuple(map(renderer.repaired, sides))
        if any(_size_if_above(renderer, problem, parts, tools, limit) > limit for parts in mended):
            raise RowTooLargeError(too_large)
        if len(mended) == 2 and begin_alike(renderer, *mended, tools):
            raise RowError("chosen and rejected are the same tokens up to the end of one")
        if mended != sides:
            self._repaired.append(example.row)
        if any(message.role == "assistant" for message in problem.messages):
            self._with_earlier_turns.append(example.row)
        self._spelt.append(renderer.foreign_control(problem, tools, *mended))
        return RenderedExample(problem, mended, example.tools, example.row)

    def require_usable(self) -> None:
        """See that what was passed over may be left out, and that something is left.

        Raises:
            DataError: Rows cannot be used and `data.malformed` is "refuse", or nothing is left.
        """
        path, refused = self._location, self._refused
        if not self._rows:
            raise DataError(f"{path}: expected examples, the file is empty")
        if refused.count and self._data.malformed == "refuse":
            rows = f"{self._rows:,}" if self._read_all else f"the first {self._rows:,}"
            what = (
                f" {refused}"
                if refused.count == 1
                else f": {refused.count:,} of {rows} rows cannot be used: {refused}"
            )
            raise DataError(f'{path}{what}. Mend them, or leave them out with data.malformed = "drop"')
        if not self._spelt:
            raise DataError(f"{path}: no example is left: {'; '.join(self._left_out())}")

    @property
    def notes(self) -> tuple[str, ...]:
        """Return what the user should know of the rows that were read."""
        notes = self._left_out()
        if len(self._formats) > 1:
            kinds = (f"{len(rows):,} {name} (from row {rows[0]})" for name, rows in self._formats.items())
            notes.insert(0, f"rows of {len(self._formats)} formats: {', '.join(kinds)}")
        if self._with_earlier_turns:
            notes.append(
                f"earlier turns of the assistant are prompt, and only the last exchange is trained on, in "
                f"{len(self._with_earlier_turns):,} of {self._rows:,} rows: {_listed(self._with_earlier_turns)}"
            )
        if self._repaired:
            notes.append(
                f"unescaped newlines in Python calls of {len(self._repaired):,} of {self._rows:,} rows: "
                f"{_listed(self._repaired)}"
            )
        return (
            *(f"{self._location}: {note}" for note in notes),
            *control_notes(self._data.train, self._spelt),
        )

    def _left_out(self) -> list[str]:
        notes = []
        if self._refused.count:
            notes.append(
                f"left out {self._refused.count:,} of {self._rows:,} rows that cannot be used: {self._refused}"
            )
        notes += [
            f"left out {len(rows):,} of {self._rows:,} rows with {reason}: {_listed(rows)}"
            for reason, rows in self._too_large.items()
        ]
        return notes

    @property
    def _location(self) -> str:
        """Return the file's path, and how its rows are counted where that is not from 1."""
        path = self._data.train
        return f"{path} ({PARQUET_COUNTING})" if path.suffix == ".parquet" else f"{path}"


def _listed(rows: list[int]) -> str:
    return f"row{'s' * (len(rows) > 1)} {listed(rows)}"


def _size_if_above(
    renderer: ExampleRenderer, problem: Problem, parts: Parts, tools: Sequence[ToolSpec], limit: int
) -> int:
    """Return an upper bound on the tokens of a demonstration; the exact number if the bound is above the limit.

    Raises:
        RowError: The chat template refuses the problem's messages.
    """
    try:
        most = most_tokens(renderer, problem, parts, tools)
        if most <= limit:
            return most
        (trajectory,) = demonstrate(renderer, problem, parts, TreeKey(0, 0), tools).trajectories
    except DataError as error:
        raise RowError(str(error)) from None
    return sum(len(node.token_ids) for node in trajectory.nodes)
