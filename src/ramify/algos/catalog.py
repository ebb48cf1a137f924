"""Every loss, estimator and branching rule that a recipe can name; all that reads them by name reads these unions."""

from typing import TypeAlias

from ramify.algos.aepo import StopGradientClip
from ramify.algos.branch_aepo import BalancedConfig
from ramify.algos.branch_arpo import BernoulliConfig, ThresholdConfig
from ramify.algos.branch_controls import OracleConfig, QuantileConfig, ShuffledConfig, YokedConfig
from ramify.algos.branch_rules import FlatConfig, RandomConfig
from ramify.algos.branch_seed_compat import ReleasedAepoConfig, ReleasedArpoConfig
from ramify.algos.estimators import NodeValueConfig, TreeGrpoConfig
from ramify.algos.file_parts import FileEstimator, FileLoss, FileRule
from ramify.algos.grpo import ClippedSurrogate, GroupConfig
from ramify.algos.losses import CispoSurrogate, GppoSurrogate, GspoSurrogate
from ramify.algos.reinforce_pp import ReinforcePlusPlusConfig
from ramify.algos.turn_level import TurnLevelConfig

AnyLoss: TypeAlias = (
    ClippedSurrogate | StopGradientClip | GppoSurrogate | CispoSurrogate | GspoSurrogate | FileLoss
)
AnyEstimator: TypeAlias = (
    GroupConfig | ReinforcePlusPlusConfig | TreeGrpoConfig | NodeValueConfig | TurnLevelConfig | FileEstimator
)
AnyRule: TypeAlias = (
    FlatConfig
    | ThresholdConfig
    | BernoulliConfig
    | BalancedConfig
    | RandomConfig
    | YokedConfig
    | ShuffledConfig
    | OracleConfig
    | QuantileConfig
    | ReleasedArpoConfig
    | ReleasedAepoConfig
    | FileRule
)
