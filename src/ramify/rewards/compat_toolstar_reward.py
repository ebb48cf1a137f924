"""Tool-Star's two released training rewards, read from the text of a whole chat (`compat` only)."""

from collections.abc import Sequence

from ramify.rewards import compat_arpo_reward as arpo
from ramify.rewards.compat_arpo_scores import Scores
from ramify.rewards.compat_toolstar_math import toolstar_equal
from ramify.rewards.math_workers import MathWorkers

END_OF_TURN = "<|im_end|>"
_ASSISTANT = ("<|im_start|>assistant\n", "Assistant:")
_WRONG = 0.1


def toolstar_reward(chat: str, gold: str | Sequence[str]) -> Scores:
    """Word F1 with the bonus for both tools, as ARPO's: `score` and the `reason` in the released words."""
    response = _response(chat)
    fault = arpo.format_fault(response)
    if fault:
        return _result(-1, f"search bad format: {fault}")
    try:
        answer = arpo.boxed_answer(response)
    except arpo.NoBoxError as error:
        return _result(-1, f"find box error: {error}")
    found = arpo.reward_f1(answer, gold)
    if found == 0:
        return _result(0, f"wrong answer but good format: {answer}")
    if arpo.uses_both_tools(response):
        score = found + arpo.BONUS
        reason = f"correct answer and calling search and python at the same time， get score: {score}"  # noqa: RUF001
        return _result(score, reason)
    return _result(found, f"correct answer, get f1 score: {found}")


def toolstar_math_reward(chat: str, gold: object, workers: MathWorkers | None = None) -> Scores:
    """1 for an equal answer, 0.1 for another one, 0 for a bad format or a turn that has not ended."""
    response = _response(chat)
    fault = arpo.format_fault(response)
    if fault:
        return _result(0, f"search/python bad format: {fault}")
    try:
        answer = arpo.boxed_answer(response)
    except arpo.NoBoxError as error:
        return _result(0, f"find box error: {error}")
    if not response.endswith(END_OF_TURN):
        return _result(0, "over length")
    if gold is not None and not isinstance(gold, str):
        return _result(-1, "")
    if toolstar_equal(answer, gold, workers):
        return _result(1.0, "correct answer")
    return _result(_WRONG, "format good but wrong answer")


def _response(chat: str) -> str:
    marker = next((marker for marker in _ASSISTANT if marker in chat), None)
    return chat if marker is None else chat.split(marker)[1]


def _result(score: float, reason: str) -> Scores:
    return {"score": score, "reason": reason}
