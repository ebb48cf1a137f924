"""A helper for repair tools that is a function, not a model: it knows what the tiny world's programs and thoughts look like.

`ramify quickstart --tool-star` copies this file into its folder. A helper of your own for a recipe's [repair] table takes the
same messages and returns a text; nothing of ramify is needed for it.
"""

import json
import re

OPERATORS = {"plus": "+", "minus": "-", "times": "*"}
_OPERATOR = re.compile(rf"\b({'|'.join(OPERATORS)})\b")
_FACT = re.compile(r"<think> (?!find )(\w+ \w+ \w+)</think>")


def help_out(messages: list[dict[str, str]]) -> str:
    """Answer a repair tool.

    Args:
        messages: {"role", "content"}. The last one is data as JSON between two lines: {program, error} of the debugger,
            {question, work} of the refiner.

    Returns:
        The program with its operators in Python; or the facts that the work has found, as it noted them.
    """
    _, _, body = messages[-1]["content"].partition("\n")
    data = json.loads(body.rpartition("\n")[0])
    if "program" in data:
        return _OPERATOR.sub(lambda match: OPERATORS[match[0]], data["program"])
    return " ".join(_FACT.findall(data["work"]))
