"""The scores of one line of a response file, by default or as the released code of a reference gives them."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, cast

from ramify.rewards import compat_arpo_scores as arpo
from ramify.rewards.compat_arpo_extract import extract_arpo
from ramify.rewards.compat_arpo_reward import arpo_reward
from ramify.rewards.compat_toolstar_reward import toolstar_reward
from ramify.rewards.compat_toolstar_scores import kept_of, toolstar_scores
from ramify.rewards.response_scores import text_reward, text_scores

Row: TypeAlias = Mapping[str, Any]


def row_scores(response: str, gold: object, task: str, compat: str | None) -> Row:
    """The scores of one response; `task` is "math", "qa" or "reward", `compat` None, "arpo" or "toolstar".

    Raises:
        TypeError, IndexError: The released code fails on such a gold.
    """
    if task == "reward":
        return _reward(response, gold, compat)
    kind = cast(Literal["math", "qa"], task)
    if compat is None:
        return text_scores(response, gold, kind)
    prediction = extract_arpo(response)
    if compat == "toolstar":
        scores = toolstar_scores(kind, kept_of(prediction), response, gold, extract=True)
        return {"prediction": prediction, **scores}
    return {"prediction": prediction, **arpo.sample_scores(kind, response, prediction, gold)}


def averages(rows: Sequence[Row]) -> Row:
    """The number of rows and the mean of every number in them."""
    names = {
        key: None
        for row in rows
        for key, value in row.items()
        if isinstance(value, int | float) and key != "id"
    }
    means = {name: sum(float(row.get(name, 0.0)) for row in rows) / len(rows) for name in names}
    return {"n": len(rows), **means}


def _reward(response: str, gold: object, compat: str | None) -> Row:
    if compat is None:
        found = text_reward(response, gold)
        return {
            "reward": found.value,
            "correct": found.correct,
            "format": float(found.well_formed),
            "bonus": found.bonus,
        }
    golds = gold if isinstance(gold, str) else [str(each) for each in cast(Sequence[object], gold)]
    scored = arpo_reward(response, golds) if compat == "arpo" else toolstar_reward(response, golds)
    return {"reward": scored["score"], "reason": scored["reason"]}
