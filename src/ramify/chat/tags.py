"""The papers' tag dialect: one assistant message holds the whole trajectory.

    <think> .. </think> <search> query </search> <result> .. </result> <think> .. </think>
    <python> code </python> <result> .. </result> .. <answer> .. \\boxed{ .. } .. </answer>

Used by ARPO (arXiv 2507.19849), AEPO (arXiv 2510.14545) and Tool-Star (arXiv 2505.16410). A call is a tag with the
tool's name; `chat/arguments.py` defines what is inside.

Whole responses that were recorded as text only, such as the outputs of the papers' code, are read here too: a call is then a
closed tool tag with a result directly after it, and tags quoted in a result or a thought do not count.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ramify.chat.arguments import object_at, read_call, text_argument
from ramify.chat.conversation import UNBALANCED, UNNAMED_TOOL, Parts, split_at_spans
from ramify.core.errors import RowError
from ramify.core.messages import Calls, Final, MalformedTurn, ParsedTurn, Say, ToolCall, ToolSpec
from ramify.core.tree import Source

TOOLS = ("search", "python")
_CALL = re.compile(r"<(search|python)>((?:(?!</?(?:search|python|result)>).)*)</\1>\s*$", re.DOTALL)
_THOUGHT = re.compile(r"<think>(?:(?!</?think>).)*</think>", re.DOTALL)
_REFUSAL = re.compile(
    r"\s*(?:the maximum (?:search|python) (?:call )?limit is|you have (?:already )?searched)", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class ResponseText:
    """The structure of a response.

    Attributes:
        written: The text that the policy wrote, without tool results.
        calls: Names of the tools called before the answer, in order, without refused calls.
        answer: Text of the last answer tag; "" if there is none.
        fault: Why the structure is broken; "" if it is not.
    """

    written: str
    calls: tuple[str, ...]
    answer: str
    fault: str


def read_response(response: str) -> ResponseText:
    """Read the structure of a response, in time linear in its length."""
    calls: list[str] = []
    spoken: list[str] = []
    fault, position, answered = "", 0, False
    while (opening := response.find("<result>", position)) >= 0:
        before = response[position:opening]
        name, start = _call_at_end(before)
        closing = response.find("</result>", opening)
        answered = answered or "</answer>" in _THOUGHT.sub("", before[:start])
        if not name:
            fault = fault or "a result follows no call"
        elif closing < 0:
            fault = fault or "a result is not closed"
        elif not answered and not _REFUSAL.match(response, opening + len("<result>"), closing):
            calls.append(name)
        spoken.append(before[:start])
        position = len(response) if closing < 0 else closing + len("</result>")
    spoken.append(response[position:])
    written = without_results(response)
    return ResponseText(written, tuple(calls), final_answer(written) or "", fault or _fault("".join(spoken)))


def without_results(response: str) -> str:
    """Return the text without `<result> .. </result>`; an unclosed result extends to the end."""
    pieces, position = [], 0
    while (opening := response.find("<result>", position)) >= 0:
        pieces.append(response[position:opening])
        closing = response.find("</result>", opening)
        if closing < 0:
            return "".join(pieces)
        position = closing + len("</result>")
    return "".join((*pieces, response[position:]))


def _call_at_end(text: str) -> tuple[str, int]:
    """Return tool name and start of the call at the end of the text; ("", length of the text) if it does not end with a call."""
    start = max(text.rfind(f"<{tool}>") for tool in TOOLS)
    match = _CALL.match(text, start) if start >= 0 else None
    return (match.group(1), start) if match else ("", len(text))


def _fault(spoken: str) -> str:
    """Return the fault of the text outside calls and results; "" if there is none."""
    if spoken.count("<think>") != spoken.count("</think>"):
        return "thoughts are not paired"
    outside = _THOUGHT.sub(lambda match: "<think>".ljust(len(match.group())), spoken)
    if outside.count("<answer>") != 1 or outside.count("</answer>") != 1:
        return "not one answer"
    if outside.find("<answer>") > outside.find("</answer>"):
        return "the answer closes before it opens"
    if "<think>" not in outside[: outside.find("<answer>")]:
        return "no thought before the answer"
    if any(f"<{tool}>" in outside or f"</{tool}>" in outside for tool in TOOLS):
        return "a call has no result"
    return ""


RESULT_OPEN = " <result>\n"
RESULT_CLOSE = "\n</result>"
TAG_NAMES = ("think", "search", "python", "result", "answer")
_RESERVED = ("think", "result", "answer")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_THINK_SPAN = re.compile(r"<think>.*?</think>", re.DOTALL)
_CLOSING = re.compile(r"</([A-Za-z][A-Za-z0-9_]*+)>\s*+\Z")


def refusal(name: str, others: Collection[str]) -> str:
    """Return why no tag can call a tool of this name besides `others`; "" if one can."""
    if not _NAME.fullmatch(name):
        return "expected a name of letters, digits and underscores, at most 64, a letter first"
    if name.lower() in _RESERVED:
        return f"<{name}> is a tag of the dialect. Choose another name"
    return "two tools have this name; a tag can call only one" if name in others else ""


def stop_strings(tool_names: Sequence[str]) -> tuple[str, ...]:
    """Return the strings that end a turn: the end of a call, the end of an answer, and the start of a result (a forged one)."""
    return (*(f"</{name}>" for name in tool_names), "</answer>", "<result>")


def parse_turn(turn: str, tools: Mapping[str, ToolSpec], ends: Sequence[str] = ()) -> ParsedTurn:
    """Parse one turn of the policy; text after the first closing tag (the rest of its last token) is ignored.

    Args:
        turn: Text of this turn only.
        tools: Tools by name.
        ends: Texts of the end tokens. A turn that ends with one and holds no tag but thoughts is plain text for the user (`Say`).
    """
    parsed = _parse(turn, tools)
    if not isinstance(parsed, MalformedTurn):
        return parsed
    text = _plain_text(turn, tools, ends)
    return Say(text) if text else MalformedTurn(parsed.reason, final_answer(turn) or "")


def _plain_text(turn: str, tools: Mapping[str, ToolSpec], ends: Sequence[str]) -> str:
    """Return the text outside the thoughts of a whole turn; "" if the turn holds another tag or does not end."""
    end = next((end for end in ends if turn.endswith(end)), None)
    if end is None:
        return ""
    text = _THINK_SPAN.sub("", turn.removesuffix(end)).strip()
    tags = (*tools, *_RESERVED)
    return "" if any(f"<{tag}>" in text or f"</{tag}>" in text for tag in tags) else text


def _parse(turn: str, tools: Mapping[str, ToolSpec]) -> ParsedTurn:
    closings = [(turn.find(f"</{name}>"), name) for name in (*tools, "answer")]
    position, name = min(((at, name) for at, name in closings if at >= 0), default=(-1, ""))
    forged = turn.find("<result>")
    if forged >= 0 and (position < 0 or forged < position):
        return MalformedTurn("the turn writes a result itself")
    if position < 0:
        return MalformedTurn("the turn ends with neither a call nor an answer")
    opening = turn.rfind(f"<{name}>", 0, position)
    content = turn[opening + len(name) + 2 : position].strip() if opening >= 0 else ""
    unopened = None if opening >= 0 else f"</{name}> closes nothing"
    if name != "answer":
        call = ToolCall("0", name, {}, unopened) if unopened else read_call(tools[name], content)
        return Calls((call if call.malformed is None else _cut_call(turn[:position], name, tools) or call,))
    answer_begins = max(opening, 0)
    spoken, answer = _THINK_SPAN.sub("", turn[:answer_begins]), turn[answer_begins:position]
    open_call = next((tool for tool in tools if f"<{tool}>" in spoken or _opens_in(answer, tool)), None)
    problem = unopened or (None if content else "it is empty")
    if problem is None and open_call is not None:
        problem = f"<{open_call}> is not closed before it"
    return MalformedTurn(f"the answer cannot be read: {problem}") if problem else Final(content)


def _opens_in(answer: str, tool: str) -> bool:
    """Return True if a tag of the tool opens a call in an answer; a tag that the answer only names is text."""
    tag = f"<{tool}>"
    if tag not in answer:
        return False
    return not all(_is_named(answer, match.start()) for match in re.finditer(re.escape(tag), answer))


def _is_named(text: str, start: int) -> bool:
    """Return True if the tag at `start` stands in quotes or as a word of a sentence ("Use <search> to look")."""
    before, last = text[:start][-2:-1], text[:start][-1:]
    return last in ("`", "'", '"', "(") or (
        last.isspace() and (before.isalnum() or before in (",", ".", ";", ":"))
    )


def _cut_call(text: str, closed: str, tools: Mapping[str, ToolSpec]) -> ToolCall | None:
    """Return the call that a closing tag of `closed` behind `text` cuts inside a string of its JSON; None if there is none.

    The tag ends the turn wherever it stands, since engines stop at its text. So the policy is told how a string can hold it.
    """
    begin = max(text.rfind("</think>"), 0)
    named = "|".join(re.escape(name) for name, spec in tools.items() if text_argument(spec) is None)
    opening = re.compile(rf"<({named})>\s*+(?={{)").search(text, begin) if named else None
    if opening is None:
        return None
    try:
        object_at(text, opening.end())
    except json.JSONDecodeError as error:
        if error.msg.startswith("Unterminated string"):
            reason = f"</{closed}> in a string of its JSON ended it. In a string write \\u003c/{closed}>"
            return ToolCall("0", opening[1], {}, reason)
    except (ValueError, RecursionError):
        pass
    return None


def tidy_turn(turn: str, tools: Mapping[str, ToolSpec]) -> str:
    """Return a turn in one spelling: tags without blanks and in the case of their names, nothing behind its call or answer."""
    names = {name.lower(): name for name in (*tools, *_RESERVED)}
    pattern = "|".join(map(re.escape, names))
    tag = re.compile(rf"<[ \t]*+(/?)[ \t]*+({pattern})[ \t]*+>", re.IGNORECASE)
    text = tag.sub(lambda match: f"<{match[1]}{names[match[2].lower()]}>", turn)
    ends = [text.find(f"</{name}>") + len(name) + 3 for name in (*tools, "answer") if f"</{name}>" in text]
    return text[: min(ends, default=len(text))]


def words_before(turn: str, tools: Mapping[str, ToolSpec]) -> int:
    """Return the start of the first call or the answer of a turn; the length of the text if it holds neither.

    Args:
        turn: Text of this turn only.
        tools: Tools by name.
    """
    closings = [(turn.find(f"</{name}>"), name) for name in (*tools, "answer")]
    position, name = min(((at, name) for at, name in closings if at >= 0), default=(len(turn), ""))
    opening = turn.rfind(f"<{name}>", 0, position)
    return opening if name and opening >= 0 else position


def final_answer(turn: str) -> str | None:
    """Return the text between the last `<answer>` and the `</answer>` after it; None if there is no such pair."""
    opening = turn.rfind("<answer>")
    closing = turn.find("</answer>", opening)
    return turn[opening + len("<answer>") : closing].strip() if 0 <= opening < closing else None


def neutralise(text: str, tag_names: Sequence[str]) -> str:
    """Escape the dialect's tags in foreign text: `<answer>` becomes `&lt;answer>`."""
    names = "|".join(map(re.escape, tag_names))
    # Possessive quantifiers: a long run of blanks after "<" would otherwise take quadratic time.
    pattern = re.compile(rf"<(?=\s*+(?:/\s*+)?(?:{names})\s*+>)", re.IGNORECASE)
    return pattern.sub("&lt;", text)


def split_completion(completion: str) -> Parts:
    """Split a demonstration into the assistant's turns and the tool results, in order.

    A rollout stops at the end of a call and of an answer, so blanks behind them are left out.
    """
    pieces = split_at_spans(completion, "<result>", "</result>")
    parts: list[tuple[Source, str]] = []
    for index, text in enumerate(pieces):
        if index % 2:
            parts.append((Source.TOOL, text.removeprefix("\n").removesuffix("\n")))
        elif text.strip():
            closing = _CLOSING.search(text)
            stops = closing is not None and closing[1] != "think"
            parts.append((Source.POLICY, text.rstrip() if stops else text))
    return tuple(parts)


def check_parts(parts: Parts, tools: Collection[str], *, may_end_in_call: bool) -> None:
    """Require that a rollout could have these turns and results; the last part is a turn.

    Args:
        parts: The parts.
        tools: Names of the tools; none: search, python and whatever a result follows are taken for tools, of which only search
            and python must have one.
        may_end_in_call: Allow a call without a result as the last turn.

    Raises:
        RowError: No rollout could.
    """
    known = {*TOOLS, *tools}
    names = "|".join(map(re.escape, {*known, *_called(parts, tools), *_RESERVED}))
    tag = re.compile(rf"<(/?)({names})>")
    tags = _OpenTags()
    for index, (source, text) in enumerate(parts):
        last = index == len(parts) - 1
        if source is Source.TOOL:
            continue
        end = 0
        for match in tag.finditer(text):
            tags.read(match[2], closes=bool(match[1]), named=_is_named(text, match.start()))
            end = match.end()
            is_call = match[1] and match[2] not in _RESERVED
            ends = last and (may_end_in_call or match[2] not in known)
            if is_call and (text[end:].strip() or (last and not ends)):
                raise RowError("a call has no result", f"that of {match[2]}")
        tags.end_turn(text[end:].strip(), last=last)


class _OpenTags:
    """The tags that are open while the turns of a demonstration are read; a thought may stay open over calls."""

    def __init__(self) -> None:
        self._opened: list[str] = []
        self._answered = False

    def read(self, name: str, *, closes: bool, named: bool) -> None:
        """Take the next tag; `named`: it stands in quotes or in a sentence."""
        shown = f"<{'/' * closes}{name}>"
        in_thought = self._opened[:1] == ["think"]
        if self._opened == ["answer"] and not closes and named and name not in _RESERVED:
            return
        if in_thought and closes and name == "answer":
            raise RowError(UNBALANCED, "<answer> stands inside <think>")
        if in_thought and closes and name in self._opened:
            # Tags that the thought or the call only names; a rollout reads the call from the last tag of its name.
            while self._opened[-1] != name:
                self._opened.pop()
        inside = self._opened[-1] if self._opened else ""
        self._require_no_answer(shown)
        if name == "result" or (closes and inside != name):
            raise RowError(UNBALANCED, f"{shown} has no partner")
        if closes:
            self._opened.pop()
            self._answered = name == "answer"
        elif inside and (not in_thought or name == "think"):
            raise RowError(UNBALANCED, f"{shown} stands inside <{inside}>")
        else:
            self._opened.append(name)

    def end_turn(self, behind: str, *, last: bool) -> None:
        """End a turn; `behind` is the text after its last tag."""
        if behind:
            self._require_no_answer(repr(behind[:40]))
        if self._opened[:1] == ["think"]:
            # Other tags that are open here were only named: a call is closed in its own turn.
            del self._opened[1:]
        if self._opened and last:
            raise RowError(UNBALANCED, f"<{self._opened[-1]}> is not closed")

    def _require_no_answer(self, follows: str) -> None:
        if self._answered:
            raise RowError("an answer does not stand at the end", f"{follows} follows it")


def _called(parts: Parts, tools: Collection[str]) -> set[str]:
    """Return the names of the tools whose results are among the parts.

    Raises:
        RowError: A result follows no call of one of the tools, or a second result follows a call.
    """
    names: set[str] = set()
    for (source, text), (following, _) in pairwise(parts):
        if following is not Source.TOOL:
            continue
        if source is Source.TOOL:
            raise RowError(
                "more results than calls",
                'a turn of the tags dialect has one; for several use model.dialect = "hermes"',
            )
        closing = _CLOSING.search(text)
        if closing is None or closing[1] in _RESERVED:
            raise RowError("a result follows no call")
        if tools and closing[1] not in tools:
            raise RowError(UNNAMED_TOOL, closing[1])
        names.add(closing[1])
    return names
