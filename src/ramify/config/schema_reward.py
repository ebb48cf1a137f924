"""The schema of rewards, which own their settings (rewards/configs.py), and checks against other sections."""

from typing import Annotated

from pydantic import Field

from ramify.config.schema_tools import EnvironmentSection, ToolsSection
from ramify.modeling.configs import ModelConfig
from ramify.rewards.configs import (
    AnswerRewardConfig,
    CompatRewardConfig,
    EnvironmentRewardConfig,
    HierarchicalRewardConfig,
    LengthRewardConfig,
    PartsRewardConfig,
)

RewardSection = Annotated[
    HierarchicalRewardConfig
    | AnswerRewardConfig
    | CompatRewardConfig
    | EnvironmentRewardConfig
    | PartsRewardConfig
    | LengthRewardConfig,
    Field(discriminator="name"),
]


def refuse_compat_reward(model: ModelConfig, reward: RewardSection) -> None:
    """Refuse the reward of the papers' code for a dialect that it cannot read (ValueError)."""
    if reward.reads_tags_only and model.dialect != "tags":
        raise ValueError(
            f'reward.name: "{reward.name}" reads tags only, expected another reward with model.dialect = "{model.dialect}"'
        )


def refuse_absent_environment(reward: RewardSection, environment: EnvironmentSection | None) -> None:
    """Refuse a reward that an environment pays where there is none (ValueError)."""
    if isinstance(reward, EnvironmentRewardConfig) and environment is None:
        raise ValueError('reward.name: "environment" takes an [environment], which is missing')


def refuse_idle_bonus(reward: RewardSection, tools: ToolsSection) -> None:
    """Refuse a bonus for using search and Python where a tool of the two is missing (ValueError)."""
    has_both = tools.search is not None and tools.python is not None
    if not has_both and getattr(reward, "bonus", None) and reward.is_changed("bonus"):
        raise ValueError(
            "reward.bonus: has no effect without both [tools.search] and [tools.python]. Remove it."
        )
