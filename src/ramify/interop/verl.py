"""Our advantages in verl, as its advantage estimator "ramify".

    VERL_USE_EXTERNAL_MODULES=ramify.interop.verl_plugin python -m verl.trainer.main_ppo algorithm.adv_estimator=ramify \\
        +algorithm.ramify=rloo

verl imports `verl_plugin`, which registers the estimator. `algorithm.ramify` is the name of an algorithm of ours, or a table with
keys of `[algorithm]`. verl passes an estimator the rewards, the mask and the `uid` of each sample. A uid that `tree_uid` returns
also says where in the tree the sample stands; samples with plain uids share no token.
"""

import json
from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from ramify.core.errors import DataError, MachineError
from ramify.interop.samples import (
    Lineage,
    Sample,
    SampleCredit,
    flat_lineage,
    format_lineage,
    parse_lineage,
)

if TYPE_CHECKING:
    import torch

NAME = "ramify"
_MARK = "#"
"""Stands in a uid between the group and the lineage."""


def tree_uid(group: str, lineage: Lineage) -> str:
    """Return the uid of a sample: of its group, and of its place in the tree."""
    return f"{group}{_MARK}{format_lineage(lineage)}"


def compute_advantage(
    token_level_rewards: "torch.Tensor",
    response_mask: "torch.Tensor",
    index: Sequence[Any] | None = None,
    config: Any = None,  # noqa: ANN401 - verl's table `algorithm`, of either of its two kinds
    **unused: Any,  # noqa: ANN401 - whatever else verl has for an estimator
) -> "tuple[torch.Tensor, torch.Tensor]":
    """Return advantages and returns, which are the same, as verl's estimators do. [B, T] each

    Args:
        token_level_rewards: [B, T]
        response_mask: 1 where the policy wrote the token. [B, T]
        index: uid of each sample; equal groups are compared. [B]
        config: verl's `algorithm`; its key `ramify` is an algorithm of ours, "arpo" without it.
        unused: Other values.

    Raises:
        ConfigError: The algorithm is wrong, or needs values that verl does not pass.
        DataError: There are no uids, or the samples of a group make no tree.
    """
    del unused
    if index is None:
        raise DataError("verl passes no uid. Set one for each sample, equal for samples of the same prompt.")
    mask = response_mask.detach().cpu().numpy().astype(bool)
    rewards = token_level_rewards.detach().cpu().numpy().astype(np.float64)
    rows: dict[str, list[int]] = {}
    for row, uid in enumerate(index):
        rows.setdefault(str(uid).partition(_MARK)[0], []).append(row)
    groups = [
        [_sample(str(index[row]), position, mask[row], rewards[row]) for position, row in enumerate(members)]
        for members in rows.values()
    ]
    advantages = np.zeros_like(rewards)
    credit = _credit(json.dumps(_settings(config)))
    for members, group in zip(rows.values(), credit.advantages(groups), strict=True):
        for row, values in zip(members, group, strict=True):
            advantages[row, mask[row]] = values
    result = token_level_rewards.new_tensor(advantages)
    return result, result


def _sample(uid: str, position: int, mask: np.ndarray[Any, Any], rewards: np.ndarray[Any, Any]) -> Sample:
    """Return a sample with a lineage that fits its written tokens: verl may have cut the response."""
    _, mark, text = uid.partition(_MARK)
    if not mark:
        lineage = flat_lineage(position, (len(list(run)) for written, run in groupby(mask) if written))
    else:
        left = int(mask.sum())
        cut = []
        for name, size in parse_lineage(text):
            cut.append((name, min(size, left)))
            left -= cut[-1][1]
        if left:
            raise DataError(f"uid {uid!r:.80}: the sample has {left} written tokens more than its nodes")
        lineage = tuple(cut)
    return Sample(lineage, float(rewards.sum()), rewards[mask])


def _settings(config: Any) -> Any:  # noqa: ANN401 - a name or a table
    """Return `algorithm.ramify` as plain values."""
    own = None if config is None else config.get(NAME, None)
    if own is None:
        return "arpo"
    if isinstance(own, str | dict):
        return own
    from omegaconf import OmegaConf

    return OmegaConf.to_container(own, resolve=True)


@lru_cache(maxsize=8)
def _credit(settings: str) -> SampleCredit:
    table = json.loads(settings)
    # A table says what differs from ARPO, as `ramify.algorithms.ARPO(**table)` does.
    from ramify.algorithms import named

    return SampleCredit.of(table if isinstance(table, str) else named("arpo", **table))


def register() -> None:
    """Register the estimator with verl.

    Raises:
        MachineError: verl cannot be imported.
    """
    try:
        from verl.trainer.ppo.core_algos import register_adv_est
    except ImportError as error:
        raise MachineError(f"ramify.interop.verl needs verl: {error}. Install verl 0.9.") from None
    register_adv_est(NAME)(compute_advantage)
