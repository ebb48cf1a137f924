r"""The scores of Tool-Star's released evaluation for one row (`compat` only)."""

import re
import string

from ramify.rewards.compat_arpo_scores import Scores, last_lines, word_f1
from ramify.rewards.compat_arpo_strings import strings_equal

_ARTICLE = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_MARKERS = (
    ("<python>", "</python>"),
    ("<search>", "</search>"),
    ("```python", "```"),
    ("<|begin_of_query|>", "<|end_of_query|>"),
)
_LONG, _KEPT_LINES, _ANSWER_LINES, _LAST_LINES = 200, 10, 3, 5
_BOX, _TEXT, _LABEL = "\\boxed", "\\text", "ANSWER:"


def kept_of(output: str) -> str:
    """What is scored of a row's output: all of it, or the last ten lines of more than 200 characters."""
    return output if len(output) <= _LONG else "\n".join(output.split("\n")[-_KEPT_LINES:])


def toolstar_scores(task: str, output: str, full_output: str, gold: object, extract: bool) -> Scores:
    """The row of the metrics file. Of several aliases the last one decides.

    Raises:
        IndexError: The gold is an empty string and the task is not maths.
    """
    if extract:
        prediction = _extracted(output)
    else:
        prediction = last_lines(output, _ANSWER_LINES) if task == "math" else output.strip()
    written = prediction or last_lines(output, _LAST_LINES)
    scores: Scores = {"acc": 0, "em": 0, "f1": 0, "math_equal": False}
    if task == "math":
        scores = _scored(*(" ".join(text.lower().split()) for text in (written, str(gold))))
    else:
        for alias in _aliases(gold):
            scores = _scored(_normalise(written), _normalise(alias))
    calls = num_calls(full_output)
    valid: Scores = {"pred_answer": prediction, "is_valid_answer": prediction != ""}
    return {**valid, **scores, "llm_equal": 0, "tool_counts": calls, "tool_use": int(calls > 0)}


def num_calls(full_output: str) -> int:
    """Closed pairs of call markers, nested ones too, before the last closing answer tag, or without one before the last
    box."""
    end = full_output.rfind("</answer>")
    if end < 0:
        end = full_output.rfind(_BOX)
    text = full_output[:end] if end >= 0 else full_output
    return sum(_num_pairs(text, opening, closing) for opening, closing in _MARKERS)


def _num_pairs(text: str, opening: str, closing: str) -> int:
    is_open = count = 0
    for marker in re.findall(f"{re.escape(opening)}|{re.escape(closing)}", text):
        if marker == opening:
            is_open += 1
        elif is_open:
            is_open, count = is_open - 1, count + 1
    return count


def _extracted(output: str) -> str:
    """The last box with its opening brace and without its closing one, where a line holds a whole box; else what follows
    the last label. Of a text macro in it, the content."""
    found = output
    if _last_braced(output, _BOX) is not None:
        found = _box(output[output.rfind(_BOX) :])
    elif _LABEL in output:
        found = output.split(_LABEL)[-1].strip("*").strip()
    if _TEXT not in found:
        return found
    inner = _last_braced(found, _TEXT)
    return (found if inner is None else inner).strip("()")


def _box(text: str) -> str:
    depth = 0
    for position, letter in enumerate(text):
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if depth == 0 and letter == "}":
            return text[len(_BOX) : position]
    return text


def _last_braced(text: str, macro: str) -> str | None:
    """What stands between the first such macro's brace and the last brace of its line, in the last line that has both."""
    for line in reversed(text.split("\n")):
        _, opening, rest = line.partition(macro + "{")
        if opening and "}" in rest:
            return rest[: rest.rfind("}")]
    return None


def _aliases(gold: object) -> list[str]:
    if isinstance(gold, str):
        return gold.strip("[]").split(",") if gold[0] == "[" else [gold]
    return [str(alias) for alias in gold]  # type: ignore[attr-defined]


def _scored(written: str, wanted: str) -> Scores:
    return {
        "acc": int(wanted in written),
        "em": int(written == wanted),
        "f1": word_f1(written, wanted),
        "math_equal": strings_equal(written, wanted),
    }


def _normalise(text: str) -> str:
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())
