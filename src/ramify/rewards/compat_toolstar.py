r"""Tool-Star's released scoring, reproduced with its defects (`compat` only): its training rewards and its evaluation.

For equality of mathematics, both texts are normalised and then compared bare by math-verify. The normalisation is that
of arXiv 2206.14858, appendix D.1, without its cut at the last equals sign and with more spellings. Without math
delimiters math-verify takes the first number that it finds, and so accepts many wrong formulas.
"""

import re
from collections.abc import Sequence

from ramify.rewards import compat_arpo as arpo
from ramify.rewards.answer_scores import normalised
from ramify.rewards.compat_arpo import Scores
from ramify.rewards.math_equal import Symbolic, shared_worker

END_OF_TURN = "<|im_end|>"
_ASSISTANT = ("<|im_start|>assistant\n", "Assistant:")
_WRONG = 0.1
_SUBSTITUTIONS = (
    ("an ", ""),
    (".$", "$"),
    ("\\$", ""),
    ("\\ ", ""),
    (" ", ""),
    ("mbox", "text"),
    (",\\text{and}", ","),
    ("\\text{and}", ","),
    ("\\text{m}", "\\text{}"),
    *(("\\left", ""), ("\\right", "")),
    *(("\N{RATIO}", ":"), ("\N{FULLWIDTH COMMA}", ","), ("$", "")),
    *(("\\approx", "="), ("\\simeq", "="), ("\\sim", "=")),
    *(("^\\prime", "'"), ("^{\\prime}", "'")),
    *(("\\dfrac", "\\frac"), ("\\tfrac", "\\frac")),
    *(("^\\circ", ""), ("%", "")),
    *(("\N{SQUARE ROOT}", "\\sqrt"), ("\N{INFINITY}", "\\infty"), ("\N{UNION}", "\\cup")),
)
_WORDS = r"""
square ways integers dollars mph inches hours km units \ldots sue points feet minutes digits cents degrees cm
gm pounds meters meals edges students childrentickets multiples \text{s} \text{.}
"""
_REMOVED = (
    *_WORDS.split(),
    "\\text{\ns}",
    *("\\text{}^2", "\\text{}^3", "\\text{\n}", "\\text{}", "\\mathrm{th}", "^\\circ", "^{\\circ}"),
    *("\\;", ",\\!", "{,}", '"', "\\dots"),
)
_MAX_CHARS = 2000
_WRAPPED = tuple(re.compile(rf"\\{name}\{{(.*?)\}}") for name in ("text", "textbf", "overline"))
_BOXED = re.compile(r"\\boxed\{(.*)\}")
_FRACTION = re.compile(r"frac([^{])(.)")
_ROOT = re.compile(r"sqrt([^{])")
_MARKERS = (
    ("<python>", "</python>"),
    ("<search>", "</search>"),
    ("```python", "```"),
    ("<|begin_of_query|>", "<|end_of_query|>"),
)
_LONG, _SCORED_LINES, _ANSWER_LINES, _LAST_LINES = 200, 10, 3, 5
_BOX, _TEXT, _LABEL = "\\boxed", "\\text", "ANSWER:"


def equal(prediction: str, gold: str | None) -> bool:
    """Return True if the texts are the same but for case and surrounding blanks, or equal by math-verify; unequal on a timeout.

    Raises:
        AttributeError: The gold is neither a text nor None.
    """
    if gold is None:
        return False
    if prediction.strip().lower() == gold.strip().lower():
        return True
    if max(len(prediction), len(gold)) > _MAX_CHARS:
        return False
    return shared_worker().compare(_normalise(prediction), _normalise(gold), "bare") is Symbolic.EQUAL


def reward(chat: str, gold: str | Sequence[str]) -> Scores:
    """Return word F1 with the bonus for both tools, as in ARPO: `score`, and the `reason` in the released code's words."""
    released = arpo.reward(_response(chat), gold)
    score, reason = float(released["score"]), str(released["reason"])
    if reason.startswith("bad format"):
        reason = f"search {reason}"
    return {"score": score, "reason": reason.replace("same time, ", "same time， ")}  # noqa: RUF001


def math_reward(chat: str, gold: object) -> Scores:
    """Return 1 for a correct answer, 0.1 for a wrong one, 0 for a bad format or a turn that was cut off."""
    response = _response(chat)
    if fault := arpo.format_fault(response):
        return _result(0, f"search/python bad format: {fault}")
    try:
        answer = arpo.boxed_answer(response)
    except arpo.NoBoxError as error:
        return _result(0, f"find box error: {error}")
    if not response.endswith(END_OF_TURN):
        return _result(0, "over length")
    if gold is not None and not isinstance(gold, str):
        return _result(-1, "")
    if equal(answer, gold):
        return _result(1.0, "correct answer")
    return _result(_WRONG, "format good but wrong answer")


def scored_part(output: str) -> str:
    """Return the scored part of a row's output: all of it, or its last ten lines if it has more than 200 characters."""
    return output if len(output) <= _LONG else "\n".join(output.split("\n")[-_SCORED_LINES:])


def scores(task: str, output: str, full_output: str, gold: object, extract: bool) -> Scores:
    """Return the row of the metrics file. If there are several aliases, the last one decides.

    Raises:
        IndexError: The gold is an empty string and the task is not maths.
    """
    if extract:
        prediction = _extracted(output)
    else:
        prediction = arpo.last_lines(output, _ANSWER_LINES) if task == "math" else output.strip()
    written = prediction or arpo.last_lines(output, _LAST_LINES)
    measures: Scores = {"acc": 0, "em": 0, "f1": 0, "math_equal": False}
    if task == "math":
        measures = arpo.scored(*(" ".join(text.lower().split()) for text in (written, str(gold))))
    else:
        for alias in _aliases(gold):
            measures = arpo.scored(normalised(written), normalised(alias))
    calls = num_calls(full_output)
    valid: Scores = {"pred_answer": prediction, "is_valid_answer": prediction != ""}
    return {**valid, **measures, "llm_equal": 0, "tool_counts": calls, "tool_use": int(calls > 0)}


def num_calls(full_output: str) -> int:
    """Return the number of closed pairs of call markers, including nested ones.

    Counts up to the last closing answer tag; without such a tag, up to the last box.
    """
    end = full_output.rfind("</answer>")
    if end < 0:
        end = full_output.rfind(_BOX)
    text = full_output[:end] if end >= 0 else full_output
    return sum(_num_pairs(text, opening, closing) for opening, closing in _MARKERS)


def _normalise(text: str) -> str:
    text = _undelimited(text.strip())
    for old, new in _SUBSTITUTIONS:
        text = text.replace(old, new)
    for word in _REMOVED:
        text = text.replace(word, "")
    for wrapped in (*_WRAPPED, _BOXED):
        text = wrapped.sub(r"\1", text)
    text = _ROOT.sub(r"sqrt{\1}", _FRACTION.sub(r"frac{\1}{\2}", text))
    digits = text.replace(",", "")
    return _undelimited(digits if digits.isdigit() else text).strip()


def _undelimited(text: str) -> str:
    text = text[2:] if text.startswith(("\\(", "\\[")) else text
    return text[:-2] if text.endswith(("\\)", "\\]")) else text


def _response(chat: str) -> str:
    marker = next((marker for marker in _ASSISTANT if marker in chat), None)
    return chat if marker is None else chat.split(marker)[1]


def _result(score: float, reason: str) -> Scores:
    return {"score": score, "reason": reason}


def _num_pairs(text: str, opening: str, closing: str) -> int:
    is_open = count = 0
    for marker in re.findall(f"{re.escape(opening)}|{re.escape(closing)}", text):
        if marker == opening:
            is_open += 1
        elif is_open:
            is_open, count = is_open - 1, count + 1
    return count


def _extracted(output: str) -> str:
    """Return the last box, if some line has a whole box; else the text after the last label. A text macro in it is unwrapped.

    As in the released code, the box keeps its opening brace but not its closing one.
    """
    answer = output
    if _last_braced(output, _BOX) is not None:
        box = output[output.rfind(_BOX) :]
        end = arpo.closing_brace(box, 0)
        answer = box if end is None else box[len(_BOX) : end]
    elif _LABEL in output:
        answer = output.split(_LABEL)[-1].strip("*").strip()
    if _TEXT not in answer:
        return answer
    inner = _last_braced(answer, _TEXT)
    return (answer if inner is None else inner).strip("()")


def _last_braced(text: str, macro: str) -> str | None:
    """Return what the first such macro of a line and the line's last brace enclose, in the last line that has both."""
    for line in reversed(text.split("\n")):
        _, opening, content = line.partition(macro + "{")
        if opening and "}" in content:
            return content[: content.rfind("}")]
    return None


def _aliases(gold: object) -> list[str]:
    if isinstance(gold, str):
        return gold.strip("[]").split(",") if gold[0] == "[" else [gold]
    return [str(alias) for alias in gold]  # type: ignore[attr-defined]
