r"""The one reader of answers, for training and evaluation. It never reads what a tool answered.

    <think> .. </think> <search> q </search> <result> .. \boxed{9} .. </result> <answer> so \boxed{ 42 } </answer>  ->  42

From a recorded trajectory only the policy's own last turn counts. From plain text the results are cut out first.
"""

import re
from dataclasses import dataclass
from itertools import takewhile

from ramify.chat.tags import final_answer
from ramify.core.tree import Source, Trajectory

_BOX_OR_BRACE = re.compile(r"\\+(?:(?:boxed|fbox|framebox)\s*\{|[{}])?|[{}]")
_BRACELESS = re.compile(r"\\(?:boxed|fbox)[ \t]+(?=[^\s{<$])((?:(?!\\[\])]|\.\s)[^\n$<])+)")
_TEXT = r"\\(?:text(?:bf|it|rm|sf|tt|normal)?|emph|mbox|hbox)\s*\{([^{}]*)\}"
_AROUND = re.compile(r"\A(\*\*|\"|`)(.+)\1\Z", re.DOTALL)
"""Markdown and quotes around all of it."""
_ONE_TEXT = re.compile(_TEXT)
_ONLY_TEXT = re.compile(rf"(?:{_TEXT}|[\s,;.、])*+")
_PLACEHOLDERS = frozenset(
    {"answer here", "your answer", "final answer", "your answer here", "...", "\\dots", "\\ldots"}
)
"""What prompts show inside a box; a policy that repeats its prompt has not answered."""
_ANSWER_IS = re.compile(
    r"[\s*_]*(?:(?:so|thus|hence|therefore),?\s+)?(?:the\s+|my\s+)?(?:(?:final|correct|right)\s+)?answer[\s*_]*(?:is\b|:|=)\**[\s:]*(?=\S)",
    re.IGNORECASE,
)
_GAP = r"(?:\\q?quad|\\?[\s()\[\]]|\$)*+"
_BETWEEN = re.compile(
    rf"{_GAP}(?:[,;]|\band\b|\bor\b|\\text\s*\{{\s*(?:and|or)\s*\}}){_GAP}(?:and\b|or\b)?{_GAP}"
)
"""Between boxes that belong together: "\\boxed{1} and \\boxed{2}"."""


@dataclass(frozen=True, slots=True)
class Box:
    """What a box holds, stripped; `closed` when its braces balance."""

    content: str
    closed: bool


def answer_of(trajectory: Trajectory) -> str:
    """The answer that the policy gave in its last turn; "" when it gave none."""
    return _answer_in_written(last_turn(trajectory))


def answer_in(response: str) -> str:
    r"""The answer in the text of a whole response: the last box of its last answer tag, or that tag's text.

    Without an answer tag (or with an empty one) the last box of all that the policy wrote; "" when there is none.
    """
    return _answer_in_written(without_results(response))


def last_turn(trajectory: Trajectory) -> str:
    """Text of the last turn: the leaf, and the nodes before it where new weights split the turn."""
    nodes = takewhile(lambda node: node.source is Source.POLICY, reversed(trajectory.nodes))
    return "".join(reversed([node.text for node in nodes]))


def without_results(response: str) -> str:
    """The text without `<result> .. </result>`; one that is not closed reaches to the end."""
    kept, position = [], 0
    while (opening := response.find("<result>", position)) >= 0:
        kept.append(response[position:opening])
        closing = response.find("</result>", opening)
        if closing < 0:
            return "".join(kept)
        position = closing + len("</result>")
    return "".join((*kept, response[position:]))


def last_box(text: str) -> Box | None:
    r"""The last box that is closed or has no braces (`\boxed 7`); failing that the last one that is not closed.

    Forms: `\boxed`, `\fbox` and `\framebox`, blanks before the brace, boxes in boxes (the inner one counts). Several with
    nothing but "and" and the like between them are one list. Escaped braces are content. Linear in the length of the text.
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
    """Whether there is a box whose braces balance."""
    return bool(_braced_boxes(text)[0])


def plain(content: str) -> str:
    r"""The content of a box without `\text{}` and its like, Markdown or quotes, where these are around all of it."""
    content = _AROUND.sub(r"\2", content)
    if not content.startswith("\\"):
        return content
    if _ONLY_TEXT.fullmatch(content):
        return _ONE_TEXT.sub(r"\1", content).strip()
    inner = _wrapped(content)
    return content if inner is None else inner


def _braced_boxes(text: str) -> tuple[list[tuple[int, int, int]], int]:
    """Of each closed box, those around others left out: start, start and end of its content; of the last unclosed one the
    start of its content, -1 for none."""
    closed: list[tuple[int, int, int]] = []
    open_boxes: list[tuple[int, int] | None] = []
    for match in _BOX_OR_BRACE.finditer(text):
        token = match.group()
        if "box" in token:
            open_boxes.append(match.span())
        elif token.count("\\") % 2 or token[-1] == "\\":
            continue  # an escaped brace, or no brace at all
        elif token[-1] == "{":
            open_boxes.append(None)
        elif open_boxes and (box := open_boxes.pop()) and (not closed or box[0] >= closed[-1][2]):
            closed.append((*box, match.start()))
    unclosed = [box[1] for box in open_boxes if box]
    return closed, unclosed[-1] if unclosed else -1


def _answer_in_written(written: str) -> str:
    tagged = final_answer(written) or ""
    box = last_box(tagged or written)
    found = plain(box.content) if box else tagged[_answer_starts(tagged) :]
    return "" if found.casefold().strip(". ") in _PLACEHOLDERS else found


def _answer_starts(tagged: str) -> int:
    """Behind "The answer is"."""
    match = _ANSWER_IS.match(tagged)
    return match.end() if match else 0


def _wrapped(content: str) -> str | None:
    r"""The inside of one `\text{..}` that spans all of `content`, braces inside it too."""
    match = re.match(r"\\text\s*\{", content)
    if match is None or not content.endswith("}"):
        return None
    depth = 0
    for token in re.finditer(r"\\.|[{}]", content):
        depth += {"{": 1, "}": -1}.get(token.group(), 0)
        if depth == 0 and token.group() == "}":
            return content[match.end() : -1].strip() if token.end() == len(content) else None
    return None
