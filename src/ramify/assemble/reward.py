"""Builds the reward of a checked recipe."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, assert_never

from ramify.assemble.services import chat_model
from ramify.config.schema_parts import RewardSection
from ramify.core.closing import Closable
from ramify.core.protocols import Cache, ChatModel, Json, RewardFn
from ramify.rewards.configs import (
    AnswerRewardConfig,
    CompatRewardConfig,
    EnvironmentRewardConfig,
    HierarchicalRewardConfig,
    JudgeConfig,
    LengthRewardConfig,
    OwnPartConfig,
    PartsRewardConfig,
    ScoreName,
)
from ramify.sampler.task import BuiltReward

if TYPE_CHECKING:
    from ramify.rewards.judge import Judge
    from ramify.rewards.parts import FunctionPart


def build_reward(section: RewardSection, reported: Sequence[ScoreName] = ()) -> BuiltReward:
    """Build the reward; if it scores answers, it also reports the scores `reported`, in addition to those of the recipe.

    Raises:
        ConfigError: A file of the user's own cannot be used.
        MachineError: The environment variable with the judge's key is not set.
    """
    if isinstance(section, LengthRewardConfig):
        from ramify.rewards.trajectory_rewards import LengthReward

        return BuiltReward(LengthReward())
    from ramify.rewards.parts import JudgePart, PartsReward, WeightedPart

    base = None if isinstance(section, PartsRewardConfig) else _base(section, reported)
    parts: list[WeightedPart] = []
    notes: list[str] = []
    identities: dict[str, Json] = {}
    for own, part, sha256 in build_own_parts(section):
        parts.append(WeightedPart(part, own.weight))
        identities[part.name] = {"sha256": sha256}
        notes.append(f"reward {part.name}: {own.function} of {own.path}, sha256 {sha256[:16]}")
    judge: Judge | None = None
    resources: tuple[Closable, ...] = ()
    if section.judge is not None:
        judge, resources = build_judge(section.judge)
        identities["judge"] = dict(judge.identity)
        parts.append(WeightedPart(JudgePart(judge.score), section.judge.weight))
    if not parts:
        assert base is not None
        return BuiltReward(base)
    return BuiltReward(PartsReward(base, parts), judge, tuple(notes), identities, resources)


def build_own_parts(section: RewardSection) -> "list[tuple[OwnPartConfig, FunctionPart, str]]":
    """Load the functions of the user's own, each with its settings and the SHA-256 of its file.

    Raises:
        ConfigError: A file cannot be used.
    """
    from ramify.rewards.parts import load_reward

    if isinstance(section, LengthRewardConfig):
        return []
    return [(own, *load_reward(own)) for own in section.own]


def _base(
    config: HierarchicalRewardConfig | AnswerRewardConfig | CompatRewardConfig | EnvironmentRewardConfig,
    reported: Sequence[ScoreName],
) -> RewardFn:
    from ramify.rewards.trajectory_rewards import AnswerReward, CompatReward, EnvironmentReward

    match config:
        case EnvironmentRewardConfig():
            return EnvironmentReward(config.right_at)
        case CompatRewardConfig():
            return CompatReward(config.system)
        case HierarchicalRewardConfig():
            return AnswerReward(AnswerRewardConfig(bonus=config.bonus), (*reported, "unread", "timeout"))
        case AnswerRewardConfig():
            return AnswerReward(config, (*reported, "unread", "timeout"))
        case _:
            assert_never(config)


def build_judge(config: JudgeConfig) -> "tuple[Judge, tuple[Closable, ...]]":
    """Return the judge, and what whoever uses it closes.

    Raises:
        MachineError: The environment variable with its key is not set.
        DataError: Its cache cannot be used.
    """
    from ramify.rewards.judge import Judge

    model, cache, resources = open_judge_service(config, "reward.judge")
    return Judge(model, config, cache), resources


def open_judge_service(
    config: JudgeConfig, name: str
) -> tuple[ChatModel, Cache | None, tuple[Closable, ...]]:
    """Return a judge's model and its cache, if it has one, and what whoever uses them closes; raises as `build_judge`.

    `name` is the section of its settings in messages.
    """
    # One key decides when a judge that is down stops the run, however many requests are pending together.
    model = chat_model(name, config, failures_to_open=config.failures_to_stop)
    if config.cache is None:
        return model, None, (model,)
    from ramify.cache.sqlite import SqliteCache

    cache = SqliteCache(config.cache)
    return model, cache, (model, cache)
