r"""ARPO's released scoring, reproduced with its defects (`compat` only): its evaluation, training reward and judge.

Written from its description and its outputs. Everywhere else `answer_scores` is used. The string rules are those of MATH
(Hendrycks and others, arXiv 2103.03874, released grader): both sides are rewritten and compared as text.
"""

import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from ramify.rewards.answer_scores import f1, overlap

Scores: TypeAlias = dict[str, float | str | bool]

BONUS = 0.1
_ARTICLE = re.compile(r"\b(a|an|the)\b")
_BOX, _SPACED_BOX, _TEXT = "\\boxed{", "\\boxed ", "\\text{"
_BEFORE_TEXT = (("\n", ""), ("\\!", ""), ("\\\\", "\\"), ("tfrac", "frac"), ("dfrac", "frac"))
_MARKUP = (("\\left", ""), ("\\right", ""), ("^{\\circ}", ""), ("^\\circ", ""), ("\\$", ""))
_AFTER_UNIT = (("\\%", ""), (" .", " 0."), ("{.", "{0."))
_UNIT = "\\text{ "
_LONGEST_NAME = 2
_REFUSALS = ("incorrect", "wrong", "not correct")
_LAST_LINES = 5
_JUDGE_TRIES = 3
_SCORES = ("em", "acc", "f1", "math_equal")
_MARGIN = 0.1


class NoBoxError(ValueError):
    """The answer's box cannot be read; the message is the released code's."""


def extract(output: str) -> str:
    r"""Return the prediction of the evaluation: the last box in the last answer tag, or in the whole output with tool results.

    Escaped braces count when braces are matched, and an unclosed box extends to the end. Only an exact `\boxed{..}` is
    unwrapped, and an exact `\text{..}` inside it. Without a box: the tag's text verbatim; without a tag: "".
    """
    closing = output.rfind("</answer>")
    opening = output.rfind("<answer>", 0, max(closing, 0))
    tagged = output[opening + len("<answer>") : closing] if opening >= 0 else ""
    box = _last_box(tagged or output)
    content = _unwrapped(_unwrapped(box, _BOX), _TEXT) if box.startswith(_BOX) else box
    return content or tagged


def strings_equal(prediction: object, gold: object) -> bool:
    """Return True if the string rules rewrite both to the same text or, where they fail, both are identical."""
    if prediction is None or gold is None:
        return prediction is gold
    if not isinstance(prediction, str) or not isinstance(gold, str):
        return bool(prediction == gold)
    try:
        return _rewritten(prediction) == _rewritten(gold)
    except (ValueError, IndexError):
        return prediction == gold


def math_scores(prediction: object, gold: object) -> Scores:
    """Return em, acc (substring), f1 (words) and math_equal (string rules), both sides in lower case."""
    return scored(_spaced(str(prediction).lower()), _spaced(str(gold).lower()))


def qa_scores(prediction: str, gold: object) -> Scores:
    """Return the scores of `math_scores`, each the best over the aliases; articles are removed, punctuation stays.

    A gold string that begins with "[" is split at its commas.

    Raises:
        TypeError: The gold is neither a string nor a list.
    """
    if isinstance(gold, str):
        aliases = gold.strip("[]").split(",") if gold.startswith("[") else [gold]
    else:
        aliases = [str(alias) for alias in gold]  # type: ignore[attr-defined]
    written = _spaced(_ARTICLE.sub(" ", prediction.lower()))
    best: Scores = dict.fromkeys(_SCORES, 0)
    for alias in aliases:
        scores = scored(written, _spaced(_ARTICLE.sub(" ", alias.lower())))
        best = {name: max(best[name], scores[name]) for name in _SCORES}
    return best


def sample_scores(task: str, output: str, prediction: str, gold: object) -> Scores:
    """Return a row of the metrics file: the scores, and the number of calls, counted as pairs of tags anywhere in the output."""
    prediction = prediction or last_lines(output, _LAST_LINES)
    if not prediction:
        empty: Scores = {"is_valid_answer": False, **dict.fromkeys(_SCORES, 0), "llm_equal": 0}
        return {**empty, **_tool_counts("")}
    scores = math_scores(prediction, gold) if task == "math" else qa_scores(prediction, gold)
    return {"is_valid_answer": True, **_tool_counts(output), **scores}


def overall_scores(task: str, rows: Sequence[Mapping[str, object]]) -> Scores:
    """Return the means over the rows of a file; a row has `input`, `answer`, `prediction`, `output` and, with a judge, `judge`."""
    samples: list[Scores] = []
    for row in rows:
        sample = sample_scores(task, str(row["output"]), str(row["prediction"]), row["answer"])
        samples.append({**sample, "llm_equal": row["judge"]} if "judge" in row else sample)  # type: ignore[dict-item]
    judged = [sample for sample in samples if "llm_equal" in sample]
    means: Scores = {name: _mean(samples, name) for name in _SCORES}
    means["llm_equal"] = _mean(judged, "llm_equal")
    calls = _mean(samples, "tool_counts")
    has_judge = any("judge" in row for row in rows)
    accuracy = means["llm_equal" if has_judge else "math_equal" if task == "math" else "f1"]
    productivity = float(accuracy) * calls / (calls + _MARGIN) * 100
    used = sum(sample["tool_counts"] != 0 for sample in samples) / max(1, len(samples))
    return {
        **means,
        "num_valid_answer": f"{sum(bool(s['is_valid_answer']) for s in samples)} of {len(samples)}",
        "tool_productivity": productivity,
        "average_datas_used_tool_number": used,
        "tool_call": calls,
        "average_python_calls": _mean(samples, "python_calls"),
        "average_search_calls": _mean(samples, "search_calls"),
        "m1m2": productivity,
    }


def judge_scores(prediction: object, gold: object, reply: str, failures: int) -> Scores:
    """Return the verdict in a judge's reply; after three failed requests only the string rules decide.

    The reply, or the text in its judgment tags, is a yes if it contains "correct" and no refusal.
    """
    equal = strings_equal(prediction, gold)
    if failures >= _JUDGE_TRIES:
        return {"llm_equal": int(equal), "llm_response": "Error"}
    opening, closing = "<judgment>", "</judgment>"
    start, end = reply.find(opening), reply.find(closing)
    verdict = (reply[start + len(opening) : end] if min(start, end) >= 0 else reply).lower()
    approves = "correct" in verdict and not any(refusal in verdict for refusal in _REFUSALS)
    return {"llm_equal": int(equal or approves), "llm_response": reply.strip()}


def reward(response: str, gold: str | Sequence[str]) -> Scores:
    """Return the training reward, the same for mathematics and questions.

    Returns:
        `score`, in {-1, 0} or (0, 1.1]; the `reason`, in the released code's words; the boxed `answer`; and its
        `f1_score`, which ignores all punctuation, signs and decimal points included.
    """
    fault = format_fault(response)
    if fault:
        return _result(-1, f"bad format: {fault}", "", 0)
    try:
        answer = boxed_answer(response)
    except NoBoxError as error:
        return _result(-1, f"find box error: {error}", "", 0)
    f1_score = f1(answer, [gold] if isinstance(gold, str) else list(map(str, gold)))
    if f1_score == 0:
        return _result(0, f"wrong answer but good format: {answer}", answer, 0)
    if "</search>" in response and "</python>" in response:
        score = f1_score + BONUS
        reason = f"correct answer and calling search and python at the same time, get score: {score}"
        return _result(score, reason, answer, f1_score)
    return _result(f1_score, f"correct answer, get f1 score: {f1_score}", answer, f1_score)


def format_fault(text: str) -> str:
    """Return the fault of the tags in the released code's words; "" if there is none."""
    if text.count("<think>") != text.count("</think>"):
        return "<think> </think> not paired"
    if "<think>" not in text:
        return "<think> or </think> not found"
    if text.count("<answer>") != 1 or text.count("</answer>") != 1:
        return "<answer> or </answer> not found"
    fault = _call_fault(text, "search") or _call_fault(text, "python")
    if fault:
        return fault
    opening, closing = text.find("<answer>"), text.find("</answer>")
    if opening > closing:
        return "<answer> must be before </answer>"
    answer = text[opening:closing]
    return "" if _BOX in answer and "}" in answer else "answer is missing \\boxed{} format"


def boxed_answer(text: str) -> str:
    r"""Return the last box of the answer tag. A form with a blank, "\boxed x", always takes precedence and extends to the end.

    Raises:
        NoBoxError: There is no box, or its braces do not match.
    """
    answer = text[text.find("<answer>") + len("<answer>") : text.find("</answer>")]
    if _SPACED_BOX in answer:
        return answer.split(_SPACED_BOX)[-1].split("$")[0]
    start = answer.rfind("\\boxed")
    end = closing_brace(answer, start)
    if end is None:
        raise NoBoxError("argument of type 'NoneType' is not iterable")
    if not answer.startswith(_BOX, start):
        raise NoBoxError("")
    return answer[start + len(_BOX) : end]


def scored(prediction: str, gold: str) -> Scores:
    """Return the four scores of two normalised texts."""
    return {
        "em": int(prediction == gold),
        "acc": int(gold in prediction),
        "f1": overlap(prediction.split(), gold.split()),
        "math_equal": int(strings_equal(prediction, gold)),
    }


def last_lines(output: str, count: int) -> str:
    """Return the last lines of the stripped text, with double line breaks made single."""
    return "\n".join(output.replace("\n\n", "\n").strip().split("\n")[-count:])


def _last_box(text: str) -> str:
    start = text.rfind("\\boxed")
    if start < 0:
        start = text.rfind("\\fbox")
    if start < 0:
        return ""
    end = closing_brace(text, start)
    return text[start:].strip() if end is None else text[start : end + 1]


def closing_brace(text: str, start: int) -> int | None:
    """Return the position of the first closing brace after which the text from `start` on has as many closing as opening braces."""
    depth = 0
    for position in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0 and text[position] == "}":
            return position
    return None


def _unwrapped(text: str, opening: str) -> str:
    exact = text.startswith(opening) and text.endswith("}")
    return text[len(opening) : -1] if exact else text


def _rewritten(text: str) -> str:
    """Return the text after all string rules, in their order.

    Raises:
        ValueError: The text has two units.
        IndexError: A square root or a fraction has no argument.
    """
    parts = _replaced(_replaced(text, _BEFORE_TEXT), _MARKUP).split(_UNIT)
    if len(parts) > 2:
        raise ValueError("two units")
    text = _replaced(parts[0], _AFTER_UNIT)
    if not text:
        return text
    if text[0] == ".":
        text = "0" + text
    name, equals, value = text.partition("=")
    if equals and "=" not in value and len(name) <= _LONGEST_NAME:
        text = value
    text = _braced_fractions(_braced_roots(text).replace(" ", ""))
    return "\\frac{1}{2}" if text == "0.5" else _slash_as_fraction(text)


def _replaced(text: str, pairs: tuple[tuple[str, str], ...]) -> str:
    for old, new in pairs:
        text = text.replace(old, new)
    return text


def _braced_roots(text: str) -> str:
    first, *roots = text.split("\\sqrt")
    return first + "".join(
        "\\sqrt" + (root if root[0] == "{" else f"{{{root[0]}}}{root[1:]}") for root in roots
    )


def _braced_fractions(text: str) -> str:
    first, *fractions = text.split("\\frac")
    written = [first]
    for fraction in fractions:
        if fraction[0] == "{":
            written.append("\\frac" + fraction)
        elif len(fraction) < 2:
            return text
        elif fraction[1] == "{":
            written.append(f"\\frac{{{fraction[0]}}}{fraction[1:]}")
        else:
            written.append(f"\\frac{{{fraction[0]}}}{{{fraction[1]}}}{fraction[2:]}")
    return "".join(written)


def _slash_as_fraction(text: str) -> str:
    above, slash, below = text.partition("/")
    if not slash:
        return text
    try:
        a, b = int(above), int(below)
    except ValueError:
        return text
    return f"\\frac{{{a}}}{{{b}}}" if text == f"{a}/{b}" else text


def _call_fault(text: str, tool: str) -> str:
    position = 0
    while (call := text.find(f"<{tool}>", position)) >= 0:
        call_end, result = text.find(f"</{tool}>", call), text.find("<result>", call)
        result_end = text.find("</result>", result)
        if min(call_end, result, result_end) < 0:
            return f"{tool}/result tags are incomplete"
        if not call < call_end < result < result_end:
            return f"{tool}/result tags are nested in the wrong order"
        position = result_end
    return ""


def _spaced(text: str) -> str:
    return " ".join(text.split())


def _tool_counts(output: str) -> Scores:
    python, search = (len(_pairs(output, tag)) for tag in ("python", "search"))
    names = {(True, True): "both", (True, False): "python", (False, True): "search", (False, False): "none"}
    length = len(_without(_without(output, "r"), "result").strip())
    return {
        "python_calls": python,
        "search_calls": search,
        "tools_used": names[python > 0, search > 0],
        "tool_counts": python + search,
        "output_length": length,
    }


def _pairs(output: str, tag: str) -> list[tuple[int, int]]:
    """Return the start and the end of each pair of an opening tag and the next closing one; the search continues after the pair."""
    pairs, position = [], 0
    while (opening := output.find(f"<{tag}>", position)) >= 0:
        closing = output.find(f"</{tag}>", opening)
        if closing < 0:
            break
        position = closing + len(f"</{tag}>")
        pairs.append((opening, position))
    return pairs


def _without(output: str, tag: str) -> str:
    """Return the text without closed pairs of a tag and their contents."""
    pieces, position = [], 0
    for start, end in _pairs(output, tag):
        pieces.append(output[position:start])
        position = end
    return "".join((*pieces, output[position:]))


def _mean(samples: Sequence[Scores], name: str) -> float:
    return sum(float(sample[name]) for sample in samples) / len(samples) if samples else 0.0


def _result(score: float, reason: str, answer: str, f1_score: float) -> Scores:
    return {"score": score, "reason": reason, "answer": answer, "f1_score": f1_score}
