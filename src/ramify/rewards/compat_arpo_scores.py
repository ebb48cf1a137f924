"""The scores of ARPO's released evaluation: one answer, one sample, a whole file, a judge's verdict (`compat` only)."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from ramify.rewards.compat_arpo_strings import strings_equal

Scores: TypeAlias = dict[str, float | str | bool]

_ARTICLE = re.compile(r"\b(a|an|the)\b")
_REFUSALS = ("incorrect", "wrong", "not correct")
_LAST_LINES = 5
_JUDGE_TRIES = 3
_SCORES = ("em", "acc", "f1", "math_equal")
_MARGIN = 0.1


def math_scores(prediction: object, gold: object) -> Scores:
    """em, acc (substring), f1 (words) and math_equal (string rules), both sides in lower case."""
    return _scores(_spaced(str(prediction).lower()), _spaced(str(gold).lower()))


def qa_scores(prediction: str, gold: object) -> Scores:
    """The same four, each the best over the aliases; articles are removed, punctuation is not.

    A string that begins with "[" is split at its commas.

    Raises:
        TypeError: The gold is neither a string nor a list.
    """
    aliases = _aliases(gold) if isinstance(gold, str) else [str(alias) for alias in gold]  # type: ignore[attr-defined]
    written = _without_articles(prediction)
    best: Scores = dict.fromkeys(_SCORES, 0)
    for alias in aliases:
        found = _scores(written, _without_articles(alias))
        best = {name: max(best[name], found[name]) for name in _SCORES}
    return best


def sample_scores(task: str, output: str, prediction: str, gold: object) -> Scores:
    """A row of the metrics file: the scores, and calls counted as pairs of tags anywhere in the output."""
    prediction = prediction or last_lines(output, _LAST_LINES)
    if not prediction:
        empty: Scores = {"is_valid_answer": False, **dict.fromkeys(_SCORES, 0), "llm_equal": 0}
        return {**empty, **_tool_counts("")}
    scores = math_scores(prediction, gold) if task == "math" else qa_scores(prediction, gold)
    return {"is_valid_answer": True, **_tool_counts(output), **scores}


def overall_scores(task: str, rows: Sequence[Mapping[str, object]]) -> Scores:
    """Means over the rows of a file (`input`, `answer`, `prediction`, `output` and, with a judge, its verdict `judge`)."""
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
    """The verdict read from a judge's reply; after three failed requests only the string rules decide."""
    equal = strings_equal(prediction, gold)
    if failures >= _JUDGE_TRIES:
        return {"llm_equal": int(equal), "llm_response": "Error"}
    return {"llm_equal": int(equal or approves(reply)), "llm_response": reply.strip()}


def approves(reply: str) -> bool:
    """Whether the reply, or what stands in its judgment tags, has "correct" in it and no refusal."""
    opening, closing = "<judgment>", "</judgment>"
    start, end = reply.find(opening), reply.find(closing)
    verdict = (reply[start + len(opening) : end] if min(start, end) >= 0 else reply).lower()
    return "correct" in verdict and not any(refusal in verdict for refusal in _REFUSALS)


def last_lines(output: str, count: int) -> str:
    """The last lines of the stripped text, double line ends halved."""
    return "\n".join(output.replace("\n\n", "\n").strip().split("\n")[-count:])


def word_f1(prediction: str, gold: str) -> float:
    """F1 of the words shared, with repetition; 0 when there are none."""
    written, wanted = prediction.split(), gold.split()
    shared = (Counter(written) & Counter(wanted)).total()
    if shared == 0:
        return 0.0
    precision, recall = shared / len(written), shared / len(wanted)
    return 2 * precision * recall / (precision + recall)


def _scores(prediction: str, gold: str) -> Scores:
    return {
        "em": int(prediction == gold),
        "acc": int(gold in prediction),
        "f1": word_f1(prediction, gold),
        "math_equal": int(strings_equal(prediction, gold)),
    }


def _aliases(gold: str) -> list[str]:
    return gold.strip("[]").split(",") if gold.startswith("[") else [gold]


def _without_articles(text: str) -> str:
    return _spaced(_ARTICLE.sub(" ", text.lower()))


def _spaced(text: str) -> str:
    return " ".join(text.split())


def _tool_counts(output: str) -> Scores:
    python, search = _pairs(output, "python"), _pairs(output, "search")
    names = {(True, True): "both", (True, False): "python", (False, True): "search", (False, False): "none"}
    return {
        "python_calls": python,
        "search_calls": search,
        "tools_used": names[python > 0, search > 0],
        "tool_counts": python + search,
        "output_length": len(_without(_without(output, "r"), "result").strip()),
    }


def _without(output: str, tag: str) -> str:
    """The text without closed pairs of a tag and what is in them."""
    kept, position = [], 0
    while (opening := output.find(f"<{tag}>", position)) >= 0:
        closing = output.find(f"</{tag}>", opening)
        if closing < 0:
            break
        kept.append(output[position:opening])
        position = closing + len(f"</{tag}>")
    return "".join((*kept, output[position:]))


def _pairs(output: str, tag: str) -> int:
    count = position = 0
    while (opening := output.find(f"<{tag}>", position)) >= 0:
        closing = output.find(f"</{tag}>", opening)
        if closing < 0:
            break
        count, position = count + 1, closing
    return count


def _mean(samples: Sequence[Scores], name: str) -> float:
    return sum(float(sample[name]) for sample in samples) / len(samples) if samples else 0.0
