"""The examples of a recipe that can be trained on: read, rendered and checked row by row, and what is left out is counted."""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ramify.chat.conversation import UNNAMED_TOOL, AssistantTurn, CompletionLines, Parts
from ramify.chat.demonstrations import (
    as_messages,
    begin_alike,
    check,
    context_turns,
    demonstrate,
    exchanges,
    fewest_tokens,
    most_tokens,
    split,
)
from ramify.chat.renderer import ExampleRenderer
from ramify.chat.tokenizer import begun_turn
from ramify.core.errors import DataError, RowError, RowOmittedError, RowTooLargeError, UserError
from ramify.core.messages import Calls, Message, Problem, ToolSpec
from ramify.core.tree import Source, Tree, TreeKey
from ramify.data.configs import ExampleDataConfig
from ramify.data.example_formats import COMPLETION, PAIR
from ramify.data.examples import Example, RecordedPair, RefusedRows, RowName, check_tokenizer, read_examples
from ramify.data.problems import control_notes, listed
from ramify.data.prompts import PromptTexts
from ramify.data.row_files import PARQUET_COUNTING
from ramify.data.row_tools import tool_specs
from ramify.data.sources import named, source_notes

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
        row: The row's number in the file, or its name.
        recorded: Of a pair that was sampled: its ids; then there are no sides.
        context: For each side the positions of the turns that are not trained on.
    """

    problem: Problem
    sides: tuple[Parts, ...]
    tools: str
    row: RowName
    recorded: RecordedPair | None = None
    context: tuple[frozenset[int], ...] = ()


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
        return tuple(
            demonstrate(self.renderer, item.problem, parts, key, tools, context)
            for parts, context in zip(item.sides, item.context, strict=True)
        )


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
        texts: PromptTexts,
        pairs: bool,
        may_end_in_call: bool,
        num_ids: int,
    ) -> None:
        """Read nothing yet.

        Args:
            data: The file, and what is done with rows that cannot be used.
            rows: Renders the rows.
            note: Gets notes on how far the file is read.
            texts: What is put in front of prompts.
            pairs: Rows are preference pairs, not demonstrations.
            may_end_in_call: A demonstration may end in a call, since its environment may end there.
            num_ids: Number of ids that the model can sample; those beyond the tokenizer's have no text.
        """
        self._data, self._row_renderer, self._note, self._texts = data, rows, note, texts
        self._names = PAIR if pairs else COMPLETION
        self._may_end_in_call, self._num_ids = may_end_in_call, num_ids
        self._rows, self._read_all = 0, False
        self._refused = RefusedRows()
        self._omitted: dict[str, list[RowName]] = {}
        self._formats: dict[str, list[RowName]] = {}
        self._repaired: list[RowName] = []
        self._described: list[RowName] = []
        self._with_earlier_turns: list[RowName] = []
        self._by_exchange: list[RowName] = []
        self._spelt: list[str | None] = []

    def __iter__(self) -> Iterator[RenderedExample]:
        """Yield the examples, in the order of the file."""
        next_note = time.monotonic() + _NOTE_SECONDS
        data = self._data
        for number, example in read_examples(data.train, self._names, data.columns, data.weights, data.limit):
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
                yield from self._rendered(example)
            except RowOmittedError as error:
                self._omitted.setdefault(error.reason, []).append(number)
            except RowError as error:
                self._refused.add(number, error)
                if self._refused.count >= MOST_REFUSED and self._data.malformed == "refuse":
                    return
        self._read_all = True

    def _rendered(self, example: Example) -> list[RenderedExample]:
        """Return the row's examples in the dialect's text, nothing encoded that need not be."""
        problem, renderer = example.problem, self._row_renderer.renderer
        tools = self._row_renderer.tools_of(example.tools)
        if example.recorded is not None:
            if example.recorded.size > self._data.max_tokens:
                raise RowTooLargeError(self._too_many_tokens)
            check_tokenizer(example.recorded, renderer.decode, self._num_ids)
            self._spelt.append(None)
            return [RenderedExample(problem, (), example.tools, example.row, example.recorded)]
        (problem,) = self._texts.in_front((problem,), [spec.name for spec in tools])
        dialogues: list[tuple[Problem, Sequence[CompletionLines]]] = [(problem, example.sides)]
        if not all(map(self._is_one_context, example.sides)):
            dialogues = _by_exchange(renderer, problem, example.sides, tools)
            self._by_exchange.append(example.row)
        rendered = [self._rendered_sides(example, *dialogue, tools) for dialogue in dialogues]
        if any(message.role == "assistant" for message in problem.messages):
            self._with_earlier_turns.append(example.row)
        self._spelt += (renderer.foreign_control(item.problem, tools, *item.sides) for item in rendered)
        return rendered

    def _is_one_context(self, side: CompletionLines) -> bool:
        """Return True if a side can be one context that only grows: the template keeps turns, and messages of the user alternate."""
        by_user = [isinstance(line, Message) for line in side]
        return not any(by_user) or (
            self._row_renderer.renderer.keeps_turns and not any(map(all, pairwise(by_user)))
        )

    def _rendered_sides(
        self, example: Example, problem: Problem, lines: Sequence[CompletionLines], tools: Sequence[ToolSpec]
    ) -> RenderedExample:
        renderer, limit = self._row_renderer.renderer, self._data.max_tokens
        sides = tuple(split(renderer, side, tools) for side in lines)
        context = tuple(context_turns(renderer, side, tools) for side in lines)
        if any(fewest_tokens(renderer, problem, parts) > limit for parts in sides):
            raise RowTooLargeError(self._too_many_tokens)
        for number, (parts, untrained) in enumerate(zip(sides, context, strict=True)):
            # A rejected side may call tools in ways that a rollout would answer with an error.
            lenient = frozenset(range(len(parts))) if number else untrained
            self._check(parts, lenient, tools, begun_turn(problem.messages))
            # Elsewhere a call without tools is one of the papers' two, or was refused.
            if renderer.ends_each_turn and not tools and (names := _called(renderer, parts)):
                _require_described(names, problem)
                if self._described[-1:] != [example.row]:
                    self._described.append(example.row)
        mended = tuple(map(renderer.repaired, sides))
        if any(_size_if_above(renderer, problem, parts, tools, limit) > limit for parts in mended):
            raise RowTooLargeError(self._too_many_tokens)
        if len(mended) == 2 and begin_alike(renderer, *mended, tools):
            raise RowError("chosen and rejected are the same tokens up to the end of one")
        if mended != sides and self._repaired[-1:] != [example.row]:
            self._repaired.append(example.row)
        return RenderedExample(problem, mended, example.tools, example.row, context=context)

    def _check(self, parts: Parts, untrained: frozenset[int], tools: Sequence[ToolSpec], begun: str) -> None:
        divided = exchanges(parts)
        if not divided:
            raise RowError("nothing is left to train on")
        if parts[-1][0] is Source.PROMPT:
            raise RowError("it does not end with a turn of the assistant")
        for number, (start, exchange) in enumerate(divided, 1):
            check(
                self._row_renderer.renderer,
                exchange,
                tools,
                may_end_in_call=self._may_end_in_call and number == len(divided),
                context=[position - start for position in untrained],
                begun=begun if number == 1 else "",
            )

    @property
    def _too_many_tokens(self) -> str:
        return f"more than data.max_tokens = {self._data.max_tokens} tokens"

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
                f"earlier turns of the assistant are prompt, and carry no loss, in "
                f"{len(self._with_earlier_turns):,} of {self._rows:,} rows: {_listed(self._with_earlier_turns)}"
            )
        if self._by_exchange:
            notes.append(
                f"the chat template rewrites earlier turns, or the user speaks twice in a row, so that each exchange is an example of "
                f"its own in {len(self._by_exchange):,} of {self._rows:,} rows: {_listed(self._by_exchange)}"
            )
        if self._described:
            notes.append(
                f"calls of tools that only the text of the system message names, in {len(self._described):,} of {self._rows:,} rows: "
                f"{_listed(self._described)}"
            )
        if self._repaired:
            notes.append(
                f"unescaped newlines in Python calls of {len(self._repaired):,} of {self._rows:,} rows: "
                f"{_listed(self._repaired)}"
            )
        return (
            *self._texts.notes,
            *source_notes(self._data.train),
            *(f"{self._location}: {note}" for note in notes),
            *control_notes(named(self._data.train), self._spelt),
        )

    def _left_out(self) -> list[str]:
        notes = []
        if self._refused.count:
            notes.append(
                f"left out {self._refused.count:,} of {self._rows:,} rows that cannot be used: {self._refused}"
            )
        notes += [
            f"left out {len(rows):,} of {self._rows:,} rows with {reason}: {_listed(rows)}"
            for reason, rows in self._omitted.items()
        ]
        return notes

    @property
    def _location(self) -> str:
        """Return the data, and how rows are counted where that is not from 1."""
        data = named(self._data.train)
        return f"{data} ({PARQUET_COUNTING})" if data.endswith(".parquet") else data


def _listed(rows: list[RowName]) -> str:
    return f"row{'s' * (len(rows) > 1)} {listed(rows)}"


def _called(renderer: ExampleRenderer, parts: Parts) -> list[str]:
    """Return the names of the tools that the turns of a demonstration without tools call."""
    turns = [renderer.parse(text + renderer.ends[0], ()) for source, text in parts if source is Source.POLICY]
    calls = [call for turn in turns if isinstance(turn, Calls) for call in turn.calls]
    return [call.name for call in calls if call.malformed is None]


def _require_described(names: Sequence[str], problem: Problem) -> None:
    """Require that the text of a system message names each tool, as data of the Hermes models has it.

    Raises:
        RowError: It does not.
    """
    text = "\n".join(message.text for message in problem.messages if message.role == "system")
    for name in names:
        if not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text):
            raise RowError(UNNAMED_TOOL, name)


def _by_exchange(
    renderer: ExampleRenderer,
    problem: Problem,
    sides: Sequence[CompletionLines],
    tools: Sequence[ToolSpec],
) -> list[tuple[Problem, Sequence[CompletionLines]]]:
    """Return a problem for each exchange that is trained on, with the earlier ones in its prompt; of a pair for the last one."""
    (side, *others) = sides
    starts = [i + 1 for i, line in enumerate(side) if isinstance(line, Message)]
    if others:
        start = starts[-1]
        return [(_continued(renderer, problem, side[:start], tools), [each[start:] for each in sides])]
    dialogues: list[tuple[Problem, Sequence[CompletionLines]]] = []
    for start, end in pairwise((0, *starts, len(side) + 1)):
        exchange = side[start : end - 1]
        if any(isinstance(line, AssistantTurn) and line.trained for line in exchange):
            dialogues.append((_continued(renderer, problem, side[:start], tools), (exchange,)))
    if end - 1 == start:
        raise RowError("it does not end with a turn of the assistant")
    return dialogues


def _continued(
    renderer: ExampleRenderer, problem: Problem, earlier: CompletionLines, tools: Sequence[ToolSpec]
) -> Problem:
    earlier_messages = as_messages(renderer, earlier, tools)
    before = problem.messages
    if earlier_messages and (begun := begun_turn(before)):
        first, *following = earlier_messages
        before = (*before[:-1], Message.of("assistant", begun + first.text))
        earlier_messages = tuple(following)
    return replace(problem, messages=(*before, *earlier_messages))


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
