r"""Reading the answer of a trajectory, from what the policy wrote in its last turn: a marked answer, or a box.

so \boxed{ 42 }  ->  42
"""

import re
from dataclasses import dataclass
from itertools import takewhile

from ramify.core.tree import Source, Trajectory

_BOX_OR_BRACE = re.compile(r"\\+(?:(?:boxed|fbox|framebox)\s*\{|[{}])?|[{}]")
_BRACELESS = re.compile(r"\\(?:boxed|fbox)[ \t]+(?=[^\s{<$])((?:(?!\\[\])]|\.\s)[^\n$<])+)")
_TEXT = r"\\(?:text(?:bf|it|rm|sf|tt|normal)?|emph|mbox|hbox)\s*\{([^{}]*)\}"
_AROUND = re.compile(r"\A(\*\*|\"|`)(.+)\1\Z", re.DOTALL)
"""Markdown or quotes around the whole text."""
_ONE_TEXT = re.compile(_TEXT)
_ONLY_TEXT = re.compile(rf"(?:{_TEXT}|[\s,;.、])*+")
_CONTROL_TOKEN = re.compile(r"<\|\w{1,40}\|>")
"""Such as <|im_end|>."""
_PLACEHOLDERS = frozenset(
    {"answer here", "your answer", "final answer", "your answer here", "...", "\\dots", "\\ldots"}
)
"""Placeholders that prompts show inside a box; a policy that only repeats its prompt has not answered."""
_ANSWER_IS = re.compile(
    r"[\s*_]*(?:(?:so|thus|hence|therefore),?\s+)?(?:the\s+|my\s+)?(?:(?:final|correct|right)\s+)?answer[\s*_]*(?:is\b|:|=)\**[\s:]*(?=\S)",
    re.IGNORECASE,
)
_GAP = r"(?:\\q?quad|\\?[\s()\[\]]|\$)*+"
_BETWEEN = re.compile(
    rf"{_GAP}(?:[,;]|\band\b|\bor\b|\\text\s*\{{\s*(?:and|or)\s*\}}){_GAP}(?:and\b|or\b)?{_GAP}"
)
"""The text between boxes that belong together, as in "\\boxed{1} and \\boxed{2}"."""


@dataclass(frozen=True, slots=True)
class Box:
    """The stripped content of a box; `closed` says whether its braces balance."""

    content: str
    closed: bool


def answer_of(trajectory: Trajectory) -> str:
    """Return the answer in the policy's last turn; "" if there is none."""
    return read_answer(trajectory.final_answer, last_turn(trajectory))


def read_answer(marked: str, written: str) -> str:
    """Return the last box of the text that the policy marked as its answer, or that text itself.

    Args:
        marked: The marked text; "" if there is none.
        written: All that the policy wrote; its last box counts if nothing is marked.
    """
    box = last_box(marked or written)
    if box:
        answer = plain(box.content)
    else:
        prefix = _ANSWER_IS.match(marked)
        answer = marked[prefix.end() :] if prefix else marked
    return "" if answer.casefold().strip(". ") in _PLACEHOLDERS else answer


def last_turn(trajectory: Trajectory) -> str:
    """Return the text of the last turn: the leaf, and the policy nodes before it if a weight update split the turn."""
    nodes = takewhile(lambda node: node.source is Source.POLICY, reversed(trajectory.nodes))
    return "".join(reversed([node.text for node in nodes]))


def last_box(text: str) -> Box | None:
    r"""Return the last box that is closed or has no braces (`\boxed 7`); if there is none, the last unclosed box.

    Reads `\boxed`, `\fbox` and `\framebox`, also with blanks before the brace. Of nested boxes the inner one counts.
    Boxes with only "and" or the like between them form one list. Escaped braces are content. Takes linear time.
    """
    closed, unclosed = _braced_boxes(text)
    braceless = [*_BRACELESS.finditer(text, closed[-1][1] if closed else 0)]
    if braceless:
        return Box(braceless[-1].group(1).strip(), True)
    if not closed:
        return Box(text[unclosed:].strip(), False) if unclosed >= 0 else None
    position = len(closed) - 1
    while position and _BETWEEN.fullmatch(text, closed[position - 1][2] + 1, closed[position][0]):
        position -= 1
    return Box(", ".join(text[start:end].strip() for _, start, end in closed[position:]), True)


def has_closed_box(text: str) -> bool:
    """Return True if the text has a box whose braces balance."""
    return bool(_braced_boxes(text)[0])


def plain(content: str) -> str:
    r"""Return the content of a box without a surrounding `\text{}` or similar macro, Markdown or quotes."""
    content = _AROUND.sub(r"\2", content)
    if not content.startswith("\\"):
        return content
    if _ONLY_TEXT.fullmatch(content):
        return _ONE_TEXT.sub(r"\1", content).strip()
    inner = _wrapped(content)
    return content if inner is None else inner


def response_of(trajectory: Trajectory) -> str:
    """Return the text after the prompt without control tokens, as the papers' code, verl and their servers have it."""
    return _CONTROL_TOKEN.sub("", "".join(node.text for node in trajectory.nodes[1:]))


def _braced_boxes(text: str) -> tuple[list[tuple[int, int, int]], int]:
    """Return the closed boxes as (start, start of content, end of content), and the start of the last unclosed box's content.

    Boxes around other boxes are left out. The second value is -1 if every box is closed.
    """
    closed: list[tuple[int, int, int]] = []
    open_boxes: list[tuple[int, int] | None] = []
    for match in _BOX_OR_BRACE.finditer(text):
        token = match.group()
        if "box" in token:
            open_boxes.append(match.span())
        elif token.count("\\") % 2 or token[-1] == "\\":
            continue  # an escaped brace, or only backslashes
        elif token[-1] == "{":
            open_boxes.append(None)
        elif open_boxes and (box := open_boxes.pop()) and (not closed or box[0] >= closed[-1][2]):
            closed.append((*box, match.start()))
    unclosed = [box[1] for box in open_boxes if box]
    return closed, unclosed[-1] if unclosed else -1


def _wrapped(content: str) -> str | None:
    r"""Return the content of one `\text{..}` around all of `content`, possibly with braces inside; else None."""
    match = re.match(r"\\text\s*\{", content)
    if match is None or not content.endswith("}"):
        return None
    depth = 0
    for token in re.finditer(r"\\.|[{}]", content):
        depth += {"{": 1, "}": -1}.get(token.group(), 0)
        if depth == 0 and token.group() == "}":
            return content[match.end() : -1].strip() if token.end() == len(content) else None
    return None
