"""Rewards; public: `rf.rewards`. A plain function is a reward too, alone or beside one of these."""

from ramify.rewards.configs import AnswerRewardConfig as Answer
from ramify.rewards.configs import CompatRewardConfig as Compat
from ramify.rewards.configs import EnvironmentRewardConfig as Environment
from ramify.rewards.configs import HierarchicalRewardConfig as Hierarchical
from ramify.rewards.configs import JudgeConfig as Judge
from ramify.rewards.configs import LengthRewardConfig as Length

__all__ = ["Answer", "Compat", "Environment", "Hierarchical", "Judge", "Length"]
