"""Scores of benchmarks with a corpus of their own: which of the evidence a trajectory found, and how sure it was of its answer."""

import re
from collections.abc import Mapping

from ramify.core.tree import Trajectory
from ramify.rewards.extract import last_turn

_CONFIDENCE = re.compile(r"confidence\W{1,12}(\d{1,3}(?:\.\d+)?)\s*\\?%", re.IGNORECASE)


def retrieval_scores(trajectory: Trajectory) -> Mapping[str, float]:
    """Return `evidence_recall` and `confidence`, in [0, 1], of a problem with `evidence_docs`; nothing for other problems.

    `evidence_recall` is the share of these documents that its searches showed. `confidence` is absent if its last turn states none.
    """
    evidence = trajectory.problem.info.get("evidence_docs")
    if not isinstance(evidence, list) or not evidence:
        return {}
    shown: set[str] = set()
    for _, result in trajectory.exchanges:
        passages = result.info.get("passages")
        shown.update(map(str, passages) if isinstance(passages, list) else ())
    wanted = set(map(str, evidence))
    scores = {"evidence_recall": len(wanted & shown) / len(wanted)}
    stated = _CONFIDENCE.findall(last_turn(trajectory))
    if stated and float(stated[-1]) <= 100:
        scores["confidence"] = float(stated[-1]) / 100
    return scores
