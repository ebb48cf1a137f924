r"""Published cases of answer equality (math-verify, Hendrycks MATH, Qwen2.5-Math and others), where they are present.

A side is read as a policy's answer is: what its box holds, or what an answer tag around it would. Each disagreement is listed
here by the end of its prediction, under its reason.
"""

import json

import pytest
from benchmarks.evaluation.verdict_rows import read_case

from ramify.rewards.math_equal import math_equal
from ramify.rewards.responses import answer_in

REASONS = {
    "a comma separates values, decimals have a point": ["1000,99", "1.22", "0.111", "Soucis : 2,74 $ a.."],
    "decimals are exact, so a rounded one is another number": [
        "$0.0833333333333333$", "0.0833333333333333", r"0.2 \end{pmatrix}$", "(0.6,2.6667]$",
    ],
    "an answer in prose, without a box: one statement is read, not the last number of a text": [
        *(2 * ["the number is not 10 which is 1,000.99€"]), "so the number is 10 which is 1,000.99m²",
        "not it's not 10 it's 1,000.99m²", "the game is 2/3. <|im_start|>user", "given conditions. I hope it is correct. <|im_start|>user",
        "the system is $(7, 6)$. <|im_start|>user", "ABCDEFGH$ is 120. I hope it is correct.",
        "12,000,023. I hope it is correct. <|im_start|>user", r"\sqrt{10.5}}{27}$. I hope it is correct.",
        "3 hours ago. I hope it is correct. <|im_start|>user", "$f(x)$ is 19. <|im_start|>user", "increases by 100%.",
        "$14{,}916$. I hope it is correct.", "final answer is 7.78.", "final answer is $100$. I hope it is correct.",
        "final answer is $10,455$. I hope it is correct.", r"\((-6, 10)\). I hope it is correct.",
        "Thank you!] [Note",
    ],
    "a gold that is a whole solution in prose": [r"total loss of $\boxed{28\%}$."],
    "boxes with words between them are several tries, and the last one counts": [
        r"for part (a) and } \boxed{(1, 1)}$$", r"\boxed{3(x + 2)^2 - 2} \) ", r"$\boxed{1,2}$", "${35 cm,4}$", r"$\boxed{1,2}$",
    ],
    "a value that is given twice is another list": [*(2 * ["(17,3,3,7), (37,3,3,13)}$"])],
    "a list without brackets has no order": ["10, 4, -2", "0.1, 4, 2"],
    "not read": [
        r"$ \frac{1}{2} \$ = \frac{10}{9} $", r"\begin{pmatrix}1 & 0 \\ 0 & 1\end{pmatrix} \begin{pmatrix}1 & 0 \\ 0 & 1\end{pmatrix}$",
        "$(5,2),(7,2)$", "W(x)=1orW(x)=-1",
    ],
    "the label is wrong": [r"$1 + \frac{1}{\mathrm{e}}$"],
}  # fmt: skip
FALSE_ACCEPTS = ["10, 4, -2", "0.1, 4, 2"]


def test_every_disagreement_has_a_reason(shared_dir) -> None:
    file = shared_dir / "suites" / "equality.jsonl"
    if not file.is_file():
        pytest.skip(f"no suites at {file} (RAMIFY_SHARED)")
    left = [end for ends in REASONS.values() for end in ends]
    without_reason, accepted = [], []
    for case in map(json.loads, file.read_text("utf-8").splitlines()):
        prediction, gold = (read_case(case[side], answer_in) for side in ("pred", "gold"))
        equal = math_equal(prediction, [gold]) == 1.0
        if equal is case["expected"]:
            continue
        if end := next((end for end in left if case["pred"].endswith(end)), None):
            left.remove(end)
        else:
            without_reason.append((case["pred"], case["gold"]))
        accepted += [case["pred"]] if equal else []
    assert without_reason == []
    assert accepted == FALSE_ACCEPTS
    assert left == [], "agreed by now"
