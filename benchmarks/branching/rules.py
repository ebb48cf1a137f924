"""The rules that are compared, with settings for the quick start's world.

Entropies there are about a tenth of a large model's and nearly all of them rise after a result, so the papers' weights
per nat and a threshold at no rise would hardly act. beta is the quick start's own, 2 per nat; the other weights are the
same multiple of the papers'; thresholds lie near the median rise, 0.1 nats.
"""

import math
from collections.abc import Mapping
from typing import Any

PROBE_TOKENS = 6
BETA = 2.0
MIN_RISE = 0.1
SPLIT_BETA = round(0.84 * BETA / 0.335, 2)
DEFECTS = (
    "stale_segment",
    "child_baseline_after_branch",
    "summed_over_tokens",
    "baseline_never_reset",
    "slot_order",
)


def rule_tables(vocab_size: int) -> dict[str, dict[str, Any]]:
    """`rollout.branching` of each rule, by name; `random` has no rate yet: it gets the one that matches `bernoulli`.

    The released rules act on sums over the window divided by ln V: their weights are those that equal ours on a full one.
    """
    full_sum = PROBE_TOKENS / math.log(vocab_size)
    on_sums = {"entropy_weight": round(BETA / full_sum, 2)}
    dynamic = {"dynamic_rollouts": True, "budget_beta": round(SPLIT_BETA / full_sum, 2)}
    off: Mapping[str, bool] = dict.fromkeys(DEFECTS, False)
    balanced = {"name": "balanced", "gamma": BETA, "budget_beta": SPLIT_BETA}
    tables: dict[str, dict[str, Any]] = {
        "none": {"name": "none"},
        "threshold": {"name": "threshold", "min_entropy_delta": MIN_RISE},
        "bernoulli": {"name": "bernoulli", "beta": BETA},
        "balanced, threshold": {**balanced, "tau": 0.5 + BETA * MIN_RISE},
        "balanced, coin": {**balanced, "draw": "bernoulli"},
        "random": {"name": "random"},
        "ARPO as released": {"name": "seed_compat_arpo", **on_sums},
        "ARPO, defects off": {"name": "seed_compat_arpo", "entropy_weight": BETA, **off},
        "AEPO as released": {"name": "seed_compat_aepo", **on_sums},
        "AEPO, dynamic": {"name": "seed_compat_aepo", **on_sums, **dynamic},
    }
    return {name: {**table, "probe_tokens": PROBE_TOKENS} for name, table in tables.items()}
