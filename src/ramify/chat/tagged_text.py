"""Whole responses in the tag dialect that were recorded as text only, such as the outputs of the papers' code.

A call is a closed tool tag with a result directly after it; tags quoted in a result or a thought do not count.
"""

import re
from dataclasses import dataclass

from ramify.chat.tags import final_answer

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
    """The text without `<result> .. </result>`; an unclosed result extends to the end."""
    kept, position = [], 0
    while (opening := response.find("<result>", position)) >= 0:
        kept.append(response[position:opening])
        closing = response.find("</result>", opening)
        if closing < 0:
            return "".join(kept)
        position = closing + len("</result>")
    return "".join((*kept, response[position:]))


def _call_at_end(text: str) -> tuple[str, int]:
    """Tool name and start of the call at the end of the text; ("", length of the text) if it does not end with a call."""
    start = max(text.rfind(f"<{tool}>") for tool in TOOLS)
    match = _CALL.match(text, start) if start >= 0 else None
    return (match.group(1), start) if match else ("", len(text))


def _fault(spoken: str) -> str:
    """What is wrong with the text outside calls and results; "" if nothing is."""
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
