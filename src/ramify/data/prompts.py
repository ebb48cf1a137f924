"""The fixed text in front of questions: read from a recipe's `data.instructions`, and recognised in prompts.

Most releases have it as a system message. Tool-Star's cold start has it at the beginning of the user's turn, before a line break
and the question, as LLaMA-Factory writes alpaca rows.
"""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from json import JSONDecoder
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ramify.core.errors import DataError, RowError
from ramify.core.json_text import parse_json
from ramify.core.messages import Message, Problem
from ramify.data.benchmarks import LANGUAGES, instructions, language_of
from ramify.data.configs import FROM, Instructions, is_text_file
from ramify.data.problems import repair_boxed
from ramify.data.row_messages import is_messages_text, read_lines
from ramify.data.sources import read_data, require_data
from ramify.files.untrusted import read_small_file

if TYPE_CHECKING:
    from ramify.chat.renderer import ChatRenderer

TextRole: TypeAlias = Literal["system", "user", "none"]

_MOST_ROWS = 10_000
"""Rows of a data file that are searched for its fixed text."""
_MOST_CHARACTERS = 100_000
_CONVERSATIONS = ("prompt", "messages", "conversations", "chosen")
_CONTROL = re.compile(r"<\|.*\|>")
_SYSTEM_ROLES = ("system", "developer")


@dataclass(frozen=True, slots=True)
class FixedText:
    """A text that many prompts share: a system message, or the beginning of the user's message; "none" if there is neither."""

    role: TextRole
    text: str

    def in_front(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """Return a prompt with this text, unless it has a system message or begins with this text."""
        if self.role == "none" or messages[0].role == "system":
            return messages
        if self.role == "system":
            return (Message.of("system", self.text), *messages)
        first = next(i for i, message in enumerate(messages) if message.role == "user")
        question = messages[first].text
        if question.startswith(self.text):
            return messages
        user_turn = Message.of("user", "\n".join(filter(None, (self.text, question))))
        return (*messages[:first], user_turn, *messages[first + 1 :])

    def __str__(self) -> str:
        """For a message: the role, the beginning and the size."""
        if self.role == "none":
            return "no fixed text"
        what = "the system message" if self.role == "system" else "in the user's turn the text"
        line = " ".join(self.text[:200].split())
        beginning = f"{line[:40]}..." if len(line) > 40 or len(self.text) > 200 else line
        return f'{what} "{beginning}" ({len(self.text):,} characters)'


@dataclass(frozen=True, slots=True)
class PromptTexts:
    """The meaning of `data.instructions`.

    Attributes:
        dialect: The recipe's `model.dialect`.
        own: The texts are ramify's own, which depend on the tools.
        by_language: Otherwise the text for questions of each language; empty: prompts stay as they are.
        notes: Notes for the user.
    """

    dialect: str
    own: bool = False
    by_language: Mapping[str, FixedText] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def in_front(self, problems: Sequence[Problem], tools: Collection[str]) -> tuple[Problem, ...]:
        """Put the text of its language (`info["language"]`) in front of each problem; `tools`: the names of the agent's.

        A problem with a system message keeps it.
        """
        texts = self.by_language
        if self.own:
            texts = {each: FixedText("system", instructions(tools, each, self.dialect)) for each in LANGUAGES}
        if not texts:
            return tuple(problems)
        default = texts.get("en") or next(iter(texts.values()))

        def with_text(problem: Problem) -> Problem:
            fixed = texts.get(str(problem.info.get("language")), default)
            messages = fixed.in_front(problem.messages)
            if fixed.role == "system" or messages == problem.messages:
                return replace(problem, messages=messages)
            # Judges and checks of overlaps need the bare question.
            return replace(
                problem, messages=messages, info={"question": first_question(problem), **problem.info}
            )

        return tuple(map(with_text, problems))


def read_prompt_texts(
    key: str, value: Instructions | None, renderer: "ChatRenderer", dialect: str
) -> PromptTexts:
    """Read the text that `data.instructions` names.

    Args:
        key: The key, for messages.
        value: Its value.
        renderer: Knows the control tokens, which no such text may spell.
        dialect: The recipe's `model.dialect`.

    Raises:
        DataError: A file is missing, empty or not UTF-8, has no fixed text, or the text spells a control token.
    """
    if value is None or isinstance(value, bool):
        return PromptTexts(dialect, own=bool(value))
    notes: list[str] = []
    if value.startswith(FROM):
        by_language = _of_data(key, value.removeprefix(FROM).strip(), notes)
    else:
        text = read_text_file(key, Path(value)) if is_text_file(value) else value.strip()
        by_language = {"en": FixedText("system", text)}
    for fixed in by_language.values():
        if token := renderer.foreign_control(Problem("", (Message.of("user", fixed.text),), ()), ()):
            raise _spells_control(key, value, token)
    return PromptTexts(dialect, by_language=by_language, notes=tuple(notes))


def instructions_place(value: Instructions | None) -> Path | None:
    """Return the file or data that `data.instructions` names; None if it names none."""
    if isinstance(value, str) and value.startswith(FROM):
        return Path(value.removeprefix(FROM).strip())
    return Path(value) if isinstance(value, str) and is_text_file(value) else None


def require_instructions(key: str, value: str, tokenizer: Path | None) -> None:
    """Check that the file that `data.instructions` names is there, and its text, or the one that is written out, usable.

    Args:
        key: The setting.
        value: Its value.
        tokenizer: The model's tokenizer.json; None or no such file: control tokens are left to the run. Only its list of added tokens
            is read, which takes no time; the run finds control tokens of other forms too.

    Raises:
        UserError: It is not.
    """
    named_path = instructions_place(value)
    if named_path is not None and value.startswith(FROM):
        require_data(key, named_path)
        return
    text = value if named_path is None else read_text_file(key, named_path)
    for token in _control_tokens(tokenizer) if tokenizer is not None and "<|" in text else ():
        if token in text:
            raise _spells_control(key, value, token)


def _spells_control(key: str, value: str, token: str) -> DataError:
    shown = value[:60] if instructions_place(value) is None else value
    return DataError(
        f"{key}: {shown}: the text spells {token!r}, which only the chat template may write. Remove it."
    )


def _control_tokens(tokenizer: Path) -> list[str]:
    """Return the added tokens of the form <|...|> in a tokenizer's file; none if it cannot be read."""
    try:
        content = tokenizer.read_text(encoding="utf-8")
        added, _ = JSONDecoder().raw_decode(content, content.index("[", content.index('"added_tokens"')))
        return [text for each in added if _CONTROL.fullmatch(text := str(each["content"]))]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return []


def read_text_file(key: str, path: Path) -> str:
    """Return the text of a file, without the blanks around it; `key` names the setting in messages.

    Raises:
        DataError: It is missing, empty, not UTF-8 or far too long.
    """
    if not path.is_file():
        raise DataError(
            f"{key}: expected a file, found none at {path} (a line that ends in .txt or .md is a path)"
        )
    try:
        # Line breaks of Windows and of old Macs are ours too.
        text = read_small_file(path).decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n").strip()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{key}: {path}: byte {error.start} is not UTF-8. Save the file as UTF-8 text."
        ) from None
    except DataError as error:
        raise DataError(f"{key}: {error}") from None
    if not text or len(text) > _MOST_CHARACTERS:
        size = f"has {len(text):,} characters" if text else "is empty"
        raise DataError(f"{key}: {path} {size}, expected the text of a system message.")
    return text


def fixed_text_of(row: Mapping[str, Any]) -> FixedText | None:
    """Return the fixed text of a data file's row: its system message, or an alpaca instruction before an input; None without one."""
    for name in _CONVERSATIONS:
        value = row.get(name)
        with suppress(RowError, ValueError):
            if isinstance(value, str) and is_messages_text(value):
                value = parse_json(value)
            first = value[0] if isinstance(value, list) and value else None
            if isinstance(first, dict) and first.get("role", first.get("from")) in _SYSTEM_ROLES:
                (line,) = read_lines([first], name)
                assert isinstance(line, Message)
                return FixedText("system", repair_boxed(line.text))
    system, instruction, question = (row.get(name) for name in ("system", "instruction", "input"))
    if isinstance(system, str) and system:
        return FixedText("system", repair_boxed(system))
    if isinstance(instruction, str) and instruction.strip() and isinstance(question, str) and question:
        return FixedText("user", repair_boxed(instruction))
    return None


def _of_data(key: str, source: str, notes: list[str]) -> dict[str, FixedText]:
    """Return the fixed text of a data file for each language that it has one in, and add to `notes`.

    Raises:
        DataError: The file cannot be read, has no fixed text, or none that at least half of its rows have.
    """
    counts: Counter[FixedText] = Counter()
    rows = 0
    for rows, row in enumerate(islice(read_data(source), _MOST_ROWS), 1):  # noqa: B007 - counts them
        if isinstance(row.value, dict) and (fixed := fixed_text_of(row.value)) is not None:
            counts[fixed] += 1
    if not counts:
        raise DataError(
            f"{key}: expected rows with a system message, or with an instruction before an input, found none in the first "
            f"{rows:,} of {source}. Name another file, or write the text into a .txt file."
        )
    by_language = {}
    for language in LANGUAGES:
        own = Counter(
            {fixed: count for fixed, count in counts.items() if language_of(fixed.text) == language}
        )
        if not own:
            continue
        # Rows without a text are in no language that is known.
        size = rows - counts.total() + own.total()
        (fixed, count), *following = own.most_common(2)
        if count * 2 < size:
            raise DataError(
                f"{key}: {source} has {len(own):,} different text{'s' * (len(own) > 1)} in front of questions, and none in half of its "
                f"{size:,} rows: the most frequent is {fixed}, in {count:,}. Write the one that is meant into a .txt file."
            )
        if following and following[0][1] == count:
            raise DataError(
                f"{key}: two texts of {source} stand in {count:,} of {size:,} rows each: {fixed}, and {following[0][0]}. Write the one "
                "that is meant into a .txt file."
            )
        by_language[language] = fixed
        others = f", as in {count:,} of {size:,} rows" if count < size else ""
        notes.append(f"{key}: {fixed} of {source}{others}")
    return by_language


def fixed_texts(problems: Iterable[Problem], known: Collection[str] = ()) -> list[FixedText]:
    """Return the fixed text of each prompt.

    A prompt without a system message has one in the user's turn if it begins with one of the texts `known`, or with the lines that
    most of those other prompts begin with.
    """
    texts = [_fixed_text(problem, known) for problem in problems]
    beginning = _shared_beginning([each for each in texts if isinstance(each, str)])

    def of_question(question: str) -> FixedText:
        is_shared = beginning and question.startswith(beginning)
        return FixedText("user", beginning) if is_shared else FixedText("none", "")

    return [of_question(each) if isinstance(each, str) else each for each in texts]


def _fixed_text(problem: Problem, known: Collection[str]) -> FixedText | str:
    """Return the fixed text of a prompt, or the question if nothing is known about its beginning."""
    if problem.messages[0].role == "system":
        return FixedText("system", problem.messages[0].text)
    question = first_question(problem)
    return next((FixedText("user", text) for text in known if question.startswith(text)), question)


def first_question(problem: Problem) -> str:
    """Return the text of a problem's first message of the user."""
    return next((message.text for message in problem.messages if message.role == "user"), "")


def _shared_beginning(texts: Sequence[str]) -> str:
    """Return the whole lines with which more than half of different texts begin; "" if they share none."""
    ordered = sorted(set(texts))
    # Whatever more than half of them begin with, the one in the middle does.
    middle = ordered[len(ordered) // 2] if ordered else ""
    end = middle.rfind("\n")
    while len(ordered) > 1 and end > 0:
        beginning = middle[: end + 1]
        first = bisect_left(ordered, beginning)
        sharing = sum(1 for _ in _while_beginning(ordered, first, beginning))
        if sharing * 2 > len(ordered) and beginning.strip():
            return middle[:end]
        end = middle.rfind("\n", 0, end)
    return ""


def _while_beginning(ordered: Sequence[str], first: int, beginning: str) -> Iterable[str]:
    for index in range(first, len(ordered)):
        if not ordered[index].startswith(beginning):
            return
        yield ordered[index]
