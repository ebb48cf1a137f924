"""What the settings of every estimator and loss say besides their values. A part's own settings stand beside its code."""

from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from ramify.algos.kl import KlInReward
from ramify.algos.ops import Shared
from ramify.core.config import Config
from ramify.core.protocols import Estimator

Baseline: TypeAlias = Literal["pooled", "leave_subtree_out"]
"""What a reward is compared with: the mean over the whole group, or over the leaves that are not below the token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatorConfig(Config):
    """What an estimator needs, and what its advantages are alike in."""

    needs_branches: ClassVar[bool] = False
    needs_roots: ClassVar[bool] = False
    """Whether a tree must have several roots."""
    per_node: ClassVar[bool] = False
    """Whether a shared token gets the same advantage from every trajectory through it."""
    per_trajectory: ClassVar[bool] = False
    """Whether all tokens of a trajectory get the same advantage, as a sequence loss needs."""

    name: str = ""

    @property
    def needs_group(self) -> bool:
        """Return True if a trajectory is compared with the others of its tree."""
        return True

    def build(self, shared: Shared, kl_coefficient: float) -> Estimator:
        """Return the estimator; with a coefficient above 0 the KL to the reference model is charged to the rewards."""
        estimator = self.estimator(shared)
        return KlInReward(estimator, kl_coefficient) if kl_coefficient else estimator

    def estimator(self, shared: Shared) -> Estimator:
        """Return the estimator for rewards that hold all penalties; each has its own, unless it overrides `build`."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class LossConfig(Config):
    """What a loss needs. A loss is its own settings; the edges of a clip are 1 - clip_low and 1 + clip_high."""

    linear: ClassVar[bool] = False
    """Whether both signs of the advantage are treated alike."""
    sequence_loss: ClassVar[bool] = False
    """Whether the ratio is that of a whole trajectory."""
