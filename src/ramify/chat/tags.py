"""The papers' tag dialect: one assistant message holds the whole trajectory.

    <think> .. </think> <search> query </search> <result> .. </result> <think> .. </think>
    <python> code </python> <result> .. </result> .. <answer> .. \\boxed{ .. } .. </answer>

Used by ARPO (arXiv 2507.19849), AEPO (arXiv 2510.14545) and Tool-Star (arXiv 2505.16410). A tool is called by
the tag of its name; its one required argument is the text inside.
"""

import re
from collections.abc import Mapping, Sequence

from ramify.core.errors import ConfigError
from ramify.core.messages import Calls, Final, Malformed, ParsedTurn, ToolCall, ToolSpec
from ramify.core.tree import Source

RESULT_OPEN = " <result>\n"
RESULT_CLOSE = "\n</result>"
TAG_NAMES = ("think", "search", "python", "result", "answer")
_THINK_SPAN = re.compile(r"<think>.*?</think>", re.DOTALL)
_RESULT_SPAN = re.compile(r" ?<result>\n?(.*?)\n?</result>", re.DOTALL)


def argument_names(specs: Sequence[ToolSpec]) -> dict[str, str]:
    """The one required argument of each tool, by tool name.

    Raises:
        ConfigError: A tool has not exactly one required argument, so a tag cannot carry it.
    """
    names: dict[str, str] = {}
    for spec in specs:
        required = spec.parameters.get("required", [])
        if len(required) != 1:
            raise ConfigError(
                f"tool {spec.name!r}: the tag dialect carries one required argument, not {len(required)}"
            )
        names[spec.name] = required[0]
    return names


def stop_strings(tool_names: Sequence[str]) -> tuple[str, ...]:
    """Where a turn ends: after a call, after an answer, or where the policy starts to forge a result."""
    return (*(f"</{name}>" for name in tool_names), "</answer>", "<result>")


def parse_turn(turn: str, arguments: Mapping[str, str]) -> ParsedTurn:
    """Read one turn of the policy; text after the first closing tag (a token's overhang) is ignored.

    Args:
        turn: Text of the turn alone, never of what came before it.
        arguments: Argument name of each tool (`argument_names`).
    """
    closings = [(turn.find(f"</{name}>"), name) for name in (*arguments, "answer")]
    position, name = min(((at, name) for at, name in closings if at >= 0), default=(-1, ""))
    forged = turn.find("<result>")
    if forged >= 0 and (position < 0 or forged < position):
        return Malformed("the turn writes a result itself")
    if position < 0:
        return Malformed("the turn ends with neither a call nor an answer")
    opening = turn.rfind(f"<{name}>", 0, position)
    content = turn[opening + len(name) + 2 : position].strip() if opening >= 0 else ""
    problem = None if content else "it is empty" if opening >= 0 else f"</{name}> closes nothing"
    if name == "answer":
        spoken = _THINK_SPAN.sub("", turn[:position])
        open_call = next((tool for tool in arguments if f"<{tool}>" in spoken), None)
        if problem is None and open_call is not None:
            problem = f"<{open_call}> is not closed before it"
        return Malformed(f"the answer cannot be read: {problem}") if problem else Final(content)
    return Calls((ToolCall("0", name, {arguments[name]: content} if content else {}, problem),))


def final_answer(turn: str) -> str | None:
    """The text between the last `<answer>` and the `</answer>` after it; None when there is no such pair."""
    opening = turn.rfind("<answer>")
    closing = turn.find("</answer>", opening)
    return turn[opening + len("<answer>") : closing].strip() if 0 <= opening < closing else None


def neutralise(text: str, tag_names: Sequence[str]) -> str:
    """Rewrite the dialect's tags in foreign text so that none is left: `<answer>` becomes `&lt;answer>`."""
    names = "|".join(map(re.escape, tag_names))
    # Possessive, since a long run of blanks after "<" would otherwise take quadratic time.
    pattern = re.compile(rf"<(?=\s*+(?:/\s*+)?(?:{names})\s*+>)", re.IGNORECASE)
    return pattern.sub("&lt;", text)


def split_completion(completion: str) -> tuple[tuple[Source, str], ...]:
    """Split a demonstration into the policy's turns and the tool's results, in order."""
    parts: list[tuple[Source, str]] = []
    for index, text in enumerate(_RESULT_SPAN.split(completion)):
        if index % 2:
            parts.append((Source.TOOL, text))
        elif text.strip():
            parts.append((Source.POLICY, text))
    return tuple(parts)
