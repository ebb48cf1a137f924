"""What the scores decide: rewritings of true answers and wrong ones, published suites, notations, verdicts under load.

12.rewritten and 12.spoiled pay answers to real training golds with the reward of a recipe. All need the data that
`RAMIFY_SHARED` names, but 12.steady.
"""

import asyncio
import json
import multiprocessing
import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from benchmarks.evaluation.mistakes import MISTAKES
from benchmarks.evaluation.notations import LAYOUT, NOTATIONS
from benchmarks.evaluation.real_golds import NO_DATA, Gold, all_golds, shared_folder, training_golds
from benchmarks.harness.rows import Row, not_measured

Way: TypeAlias = tuple[str, str, Callable[[random.Random, str], str | None]]
"""Name, kind of gold, and what it makes of one."""

RECIPE = Path("recipes/arpo_reasoning_7b.toml")
_ANSWERS, _SEED = 2000, 20261122
_SHOWN = 12
_TIMES = 1000
_SLOW = r"\sum_{k=1}^{400} \frac{1}{k(k+1)}", r"\frac{400}{401}"
_ENDLESS = r"\int_0^{\pi} \frac{\sin^{9}(x^3)}{1+x^{7}} dx", r"\frac{1}{7}"


def rewritten() -> Sequence[Row]:
    """Rows 12.rewritten and 12.spoiled: the share of right and wrong answers that a recipe pays in full."""
    folder = shared_folder()
    if folder is None:
        return [
            not_measured(row, "share paid in full", "", NO_DATA) for row in ("12.rewritten", "12.spoiled")
        ]
    golds = training_golds(folder)
    right: list[Way] = [
        (n.name, n.kind, lambda _, gold, n=n: n.write(gold))  # type: ignore[misc]
        for n in NOTATIONS
        if not n.lenient
    ]
    wrong: list[Way] = [(mistake.name, mistake.kind, mistake.spoil) for mistake in MISTAKES]
    return [
        _paid(
            "12.rewritten",
            "right answers in another notation",
            _drawn(golds, right, twice=True),
            0.99,
            at_least=True,
        ),
        _paid("12.spoiled", "wrong answers", _drawn(golds, wrong, twice=False), 0.005, at_least=False),
    ]


def suites() -> Sequence[Row]:
    """Row 12.suites: agreement with the published cases of answer equality; ours and those of each suite."""
    folder = shared_folder()
    metric = "share of published cases of answer equality that we decide as they do"
    if folder is None:
        return [not_measured("12.suites", metric, "", NO_DATA)]
    from ramify.rewards.math_equal import math_equal
    from ramify.rewards.responses import answer_in

    counts: Counter[str] = Counter()
    false_accepts = []
    cases = [
        json.loads(line) for line in (folder / "suites" / "equality.jsonl").read_text("utf-8").splitlines()
    ]
    for case in cases:
        prediction, gold = (read_case(case[side], answer_in) for side in ("pred", "gold"))
        equal = math_equal(prediction, [gold]) == 1.0
        counts.update(
            [f"{case['suite']}: cases"] + [f"{case['suite']}: as they do"] * (equal == case["expected"])
        )
        if equal and not case["expected"]:
            false_accepts.append([case["suite"], case["pred"], case["gold"]])
    share = sum(n for name, n in counts.items() if name.endswith("do")) / len(cases)
    settings = {**counts, "false_accepts": false_accepts}
    return [Row("12.suites", metric, share, None, share, "at least 0.85", share >= 0.85, settings=settings)]


def notations() -> Sequence[Row]:
    """Row 12.notations: for each notation the number of golds that it serves, and whether the score takes them all."""
    folder = shared_folder()
    metric = "notations whose answers are all taken for their golds"
    if folder is None:
        return [not_measured("12.notations", metric, "", NO_DATA)]
    counts = served(all_golds(folder))
    taken = sum(count == accepted for count, accepted in counts.values())
    share = taken / len(counts)
    return [
        Row(
            "12.notations", metric, taken, len(counts), share, "at least 0.95", share >= 0.95, settings=counts
        )
    ]


def steady() -> Sequence[Row]:
    """Row 12.steady: verdicts of one slow pair and one endless pair, while other processes keep every core busy."""
    from ramify.rewards.math_equal import MathWorker

    stop = multiprocessing.Event()
    busy = [multiprocessing.Process(target=_spin, args=(stop,), daemon=True) for _ in range(4)]
    for process in busy:
        process.start()
    verdicts: Counter[str] = Counter()
    worker = MathWorker(cpu_seconds=0.5)
    try:
        for number in range(_TIMES):
            verdicts[f"slow: {worker.ask(*_SLOW)}"] += 1
            if number % 10 == 0:
                verdicts[f"endless: {worker.ask(*_ENDLESS)}"] += 1
    finally:
        worker.close()
        stop.set()
    kinds = len(verdicts)
    metric = f"different verdicts on two pairs, {_TIMES} and {_TIMES // 10} times, {len(busy)} busy processes beside them"
    return [Row("12.steady", metric, kinds, None, kinds, "at most 2", kinds <= 2, settings=dict(verdicts))]


def read_case(text: str, answer_in: Callable[[str], str]) -> str:
    """Return a side of a published case: the content of its box, or the text as an answer tag."""
    answer = (
        answer_in(text) if re.search(r"\\(?:boxed|fbox)", text) else answer_in(f"<answer>{text}</answer>")
    )
    return answer or text


def served(golds: Sequence[Gold]) -> dict[str, tuple[int, int]]:
    """Count for each notation the golds that it can write, and those whose result is accepted."""
    from ramify.rewards.answer_scores import SCORES
    from ramify.rewards.responses import answer_in

    counts = Counter(golds)
    results = {}
    for notation in NOTATIONS:
        score = SCORES["lenient" if notation.lenient else "answer"]
        written = {gold: notation.write(gold.text) for gold in counts if gold.kind == notation.kind}
        served = {gold: text for gold, text in written.items() if text is not None and is_plain(gold)}
        accepted = sum(
            counts[gold]
            for gold, text in served.items()
            if score(answer_in(rf"\boxed{{{text}}}"), [gold.text]) == 1.0
        )
        results[f"{notation.kind}: {notation.name}"] = (sum(counts[gold] for gold in served), accepted)
    return results


def is_plain(gold: Gold) -> bool:
    """Words without LaTeX, or a formula, whose brackets balance: others are broken rows."""
    if gold.kind == "words" and "\\" in gold.text:
        return False
    return all(gold.text.count(a) == gold.text.count(b) for a, b in ("{}", ("\\left", "\\right")))


def _drawn(golds: Sequence[Gold], ways: Sequence[Way], *, twice: bool) -> list[tuple[str, str, str]]:
    """(way, answer, gold): a gold is drawn, and one of the ways that have something to do with it; half of them are laid out anew
    `twice`."""
    draw = random.Random(_SEED)
    answers: list[tuple[str, str, str]] = []
    while len(answers) < _ANSWERS:
        gold = draw.choice(golds)
        if not is_plain(gold):
            continue
        name, answer = _written(draw, gold.text, gold.kind, ways)
        if answer is not None and twice and draw.random() < 0.5:
            further, again = _written(draw, answer, gold.kind, [way for way in ways if way[0] in LAYOUT])
            name, answer = (name, answer) if again is None else (f"{name}, {further}", again)
        if answer is not None:
            answers.append((name, answer, gold.text))
    return answers


def _written(draw: random.Random, text: str, kind: str, ways: Sequence[Way]) -> tuple[str, str | None]:
    """Draw one of the ways that change the text; return its name and the changed text."""
    rewritten = [(name, write(draw, text)) for name, of, write in ways if of == kind]
    possible = [(name, answer) for name, answer in rewritten if answer and answer != text]
    return draw.choice(possible) if possible else ("", None)


def _paid(
    row: str, what: str, answers: Sequence[tuple[str, str, str]], bound: float, *, at_least: bool
) -> Row:
    values = rewards_of([(answer, gold) for _, answer, gold in answers])
    full = [value >= 1.0 for value in values]
    share = sum(full) / len(full)
    met = share >= bound if at_least else share <= bound
    odd = [each for each, paid in zip(answers, full, strict=True) if paid is not at_least]
    settings = {
        "recipe": str(RECIPE),
        "seed": _SEED,
        "answers": len(answers),
        "ways": dict(Counter(way for name, *_ in answers for way in name.split(", "))),
        "against": dict(Counter(way for name, *_ in odd for way in name.split(", "))),
        "some": odd[:_SHOWN],
    }
    target = f"at {'least' if at_least else 'most'} {bound:g}"
    return Row(
        row, f"share of {what} that is paid in full", share, None, share, target, met, settings=settings
    )


def rewards_of(pairs: Sequence[tuple[str, str]]) -> list[float]:
    """Score boxed answers to problems with these golds as the recipe does."""
    from pydantic import TypeAdapter

    from ramify.assemble.reward import build_reward
    from ramify.config.load import read_toml
    from ramify.config.schema_parts import RewardSection
    from ramify.core.messages import Final, Message, Problem
    from ramify.core.tree import Node, Source, StopReason, Trajectory, node_id

    section = TypeAdapter(RewardSection).validate_python(read_toml(RECIPE)["reward"])
    trajectories = []
    for answer, gold in pairs:
        turn = Final(rf"\boxed{{{answer}}}")
        prompt = Node("", (), None, Source.PROMPT, (0,), "?")
        leaf = Node(
            node_id((0,)),
            (0,),
            "",
            Source.POLICY,
            (1,),
            turn.answer,
            (-0.5,),
            turn=turn,
            stop=StopReason.ANSWERED,
        )
        trajectories.append(Trajectory(Problem("p", (Message.of("user", "?"),), (gold,)), (prompt, leaf)))
    return [reward.value for reward in asyncio.run(build_reward(section).fn.score(trajectories))]


def _spin(stop: "multiprocessing.synchronize.Event") -> None:
    while not stop.is_set():
        sum(range(100_000))


ROWS = {
    "12.rewritten": rewritten,
    "12.spoiled": rewritten,
    "12.suites": suites,
    "12.notations": notations,
    "12.steady": steady,
}
