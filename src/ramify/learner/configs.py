"""Settings of the optimizer and its learning rate, apart from their code, which imports torch."""

import math
from dataclasses import dataclass
from typing import Literal

from ramify.core.config import BelowOne, Config, Count, Fraction, LearningRate, Magnitude, Weight


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleConfig(Config):
    """A factor on the learning rates that depends on the step alone.

    The learning rate warms up over `warmup_steps`, or over the share `warmup_ratio` of the run, rounded up as transformers
    does. From `decay_from` (a share of the run) it decays to `final_rate` (a share
    of the peak) at the end of the run: linearly, or as the first half of a cosine (transformers' `cosine` schedule, where
    `decay_from` is the end of the warm-up). A final rate of 1 keeps it constant.
    """

    warmup_steps: Count = 0
    warmup_ratio: BelowOne | None = None
    decay: Literal["linear", "cosine"] = "linear"
    decay_from: BelowOne = 0.0
    final_rate: Fraction = 1.0

    def __post_init__(self) -> None:
        if self.warmup_ratio is not None and self.is_changed("warmup_steps"):
            raise ValueError("warmup_ratio: expected this or warmup_steps, got both. Remove one.")
        for key in ("decay_from", "decay"):
            if self.final_rate == 1 and self.is_changed(key):
                raise ValueError(f"{key}: has no effect without final_rate below 1. Remove it.")

    def warmup(self, total: int) -> int:
        """Return the steps of the warm-up in a run of `total` steps."""
        return self.warmup_steps if self.warmup_ratio is None else math.ceil(self.warmup_ratio * total)

    def factor(self, step: int, total: int) -> float:
        """Return the factor for step 0 <= step < total."""
        start = self.decay_from * total
        progress = min(max(0.0, step - start) / (total - start), 1.0)
        fallen = progress if self.decay == "linear" else (1 - math.cos(math.pi * progress)) / 2
        return min(1.0, (step + 1) / max(self.warmup(total), 1)) * (1 + (self.final_rate - 1) * fallen)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig(ScheduleConfig):
    """AdamW (arXiv 1711.05101) on all parameters; or Muon for hidden matrices and AdamW for vectors and embeddings.

    `vector_rate` and `embedding_rate` are `rate` where they are left out. `weight_decay` and `betas` are AdamW's: Muon's
    matrices have none.
    """

    name: Literal["adamw", "muon"] = "adamw"
    rate: LearningRate
    vector_rate: LearningRate | None = None
    embedding_rate: LearningRate | None = None
    betas: tuple[BelowOne, BelowOne] = (0.9, 0.999)
    weight_decay: Weight = 0.0
    max_grad_norm: Magnitude = 1.0

    def __post_init__(self) -> None:
        for key in ("vector_rate", "embedding_rate"):
            if self.name == "adamw" and getattr(self, key) is not None:
                raise ValueError(f'{key}: has no effect without name = "muon". Remove it.')
        ScheduleConfig.__post_init__(self)
