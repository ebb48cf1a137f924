"""Counts of what stood behind tool calls: pages that were read or not, summaries of them, answers from the cache.

A call that gives a result may still have read no page: the policy then got snippets. So `rollout.calls` counts each outcome, as
"pages/OUTCOME", "summaries/OUTCOME" or "cache/TOOL/hits" and "cache/TOOL/misses"; the outcome is "ok" or the kind of failure.
"""

from collections import Counter
from collections.abc import Mapping

_WARN_FROM = 0.1
_INSTEAD = {
    "pages": ("page reads", "the policy got snippets in their place"),
    "summaries": ("summaries", "the policy got the passages in their place"),
}


def service_metrics(counts: Mapping[str, int]) -> dict[str, float]:
    """Return the metrics of a step; a name is absent if there is nothing to count."""
    metrics: dict[str, float] = {}
    for kind in _INSTEAD:
        outcomes = _outcomes(counts, kind)
        if outcomes:
            metrics |= {
                f"{kind}/ok": float(outcomes["ok"]),
                f"{kind}/failed": float(outcomes.total() - outcomes["ok"]),
            }
    cached = _cached(counts)
    return metrics | {f"cache/{name}": float(count) for name, count in cached.items() if cached.total()}


def service_notes(counts: Mapping[str, int]) -> tuple[str, ...]:
    """Return a warning for each kind of which more than a tenth failed."""
    notes = []
    for kind, (name, instead) in _INSTEAD.items():
        outcomes = _outcomes(counts, kind)
        failed = outcomes.total() - outcomes["ok"]
        if failed > _WARN_FROM * outcomes.total():
            reasons = ", ".join(f"{outcome} {n}" for outcome, n in outcomes.most_common() if outcome != "ok")
            notes.append(
                f"warning: {failed} of {outcomes.total()} {name} failed ({reasons}); {instead}. Check tools.browser"
            )
    return tuple(notes)


def service_table(counts: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Return the outcomes by kind, for a summary; kinds of which there are none are left out."""
    kinds = {kind: _outcomes(counts, kind) for kind in (*_INSTEAD, "cache")}
    return {kind: dict(sorted(outcomes.items())) for kind, outcomes in kinds.items() if outcomes}


def _outcomes(counts: Mapping[str, int], kind: str) -> Counter[str]:
    return Counter(
        {name.removeprefix(f"{kind}/"): n for name, n in counts.items() if name.startswith(f"{kind}/")}
    )


def _cached(counts: Mapping[str, int]) -> Counter[str]:
    cached = Counter({"hits": 0, "misses": 0})
    for name, count in _outcomes(counts, "cache").items():
        cached[name.rpartition("/")[2]] += count
    return cached
