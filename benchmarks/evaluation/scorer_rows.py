"""Rows 12.qa and 12.math: answers that the scorers take a second, on one core."""

import importlib.metadata
import os
import time
from collections.abc import Callable, Sequence

from benchmarks.evaluation.answers import Pair, answers_in_words, formulas
from benchmarks.harness.rows import Row

_WORDS, _FORMULAS, _ROUNDS = 20_000, 2_000, 5
_HARD_EVERY = 100
_PEER_FORMULAS = 300


def words() -> Sequence[Row]:
    """Row 12.qa: exact match and F1, published and lenient."""
    from ramify.rewards.answer_scores import exact_match, f1, lenient_f1

    def score(prediction: str, gold: str) -> None:
        exact_match(prediction, [gold])
        f1(prediction, [gold])
        lenient_f1(prediction, [gold])

    runs = [_rate(score, list(answers_in_words(_WORDS, seed))) for seed in range(_ROUNDS)]
    return [
        _row(
            "12.qa",
            "exact match, F1 and lenient F1 of an answer in words, answers a CPU second",
            runs,
            None,
            15_000,
        )
    ]


def mathematics() -> Sequence[Row]:
    """Row 12.math: symbolic equality; beside it math-verify alone on the same formulas.

    The time is CPU time, that of the process of math-verify too, but for its start.
    """
    from math_verify import parse, verify

    from ramify.rewards.math_equal import decide, math_equal, shared_worker

    def peer(prediction: str, gold: str) -> None:
        verify(
            *(parse(f"${text}$", parsing_timeout=None) for text in (gold, prediction)), timeout_seconds=None
        )

    def score(prediction: str, gold: str) -> None:
        math_equal(prediction, [gold])

    def rate_of(scored: Callable[[str, str], None], pairs: Sequence[Pair]) -> float:
        begun = _cpu_seconds()
        for pair in pairs:
            scored(*pair)
        shared_worker().close()
        return len(pairs) / (_cpu_seconds() - begun - start)

    begun = _cpu_seconds()
    shared_worker().ask("1", "1")
    shared_worker().close()
    start = _cpu_seconds() - begun
    runs, peers = [], []
    for seed in range(_ROUNDS):
        pairs = list(formulas(_FORMULAS, seed, _HARD_EVERY))
        runs.append(rate_of(score, pairs))
        peers.append(_rate(peer, pairs[:_PEER_FORMULAS]))
    undecided = sum(decide(*pair) is None for pair in formulas(_FORMULAS, 0, _HARD_EVERY))
    right = sum(
        bool(math_equal(prediction, [gold])) == (number % 2 == 0)
        for number, (prediction, gold) in enumerate(formulas(_FORMULAS, 0, _HARD_EVERY))
    )
    settings = {
        "formulas": _FORMULAS,
        "right_verdicts": right,
        "asked_of_math_verify": undecided,
        "peer": f"math-verify in one process, the first {_PEER_FORMULAS} of the same formulas",
    }
    metric = "symbolic equality of formulas, answers a CPU second (of both processes)"
    return [_row("12.math", metric, runs, peers, 1000, settings)]


def _cpu_seconds() -> float:
    """Return the CPU seconds of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _rate(score: Callable[[str, str], None], pairs: Sequence[Pair]) -> float:
    begun = time.process_time()
    for prediction, gold in pairs:
        score(prediction, gold)
    return len(pairs) / (time.process_time() - begun)


def _row(
    row: str,
    metric: str,
    runs: Sequence[float],
    peers: Sequence[float] | None,
    least: float,
    settings: dict[str, object] | None = None,
) -> Row:
    ours = sorted(runs)[len(runs) // 2]
    return Row(
        row,
        metric,
        ours=ours,
        peer=sorted(peers)[len(peers) // 2] if peers else None,
        ratio=ours,
        target=f"at least {least:g} a second and core",
        met=ours >= least,
        runs={"ours": list(runs), **({"peer": list(peers)} if peers else {})},
        settings={"rounds": _ROUNDS, **(settings or {"answers": _WORDS})},
        peer_versions={"math-verify": importlib.metadata.version("math-verify")} if peers else {},
    )


ROWS = {"12.qa": words, "12.math": mathematics}
