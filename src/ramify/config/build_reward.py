"""Builds the reward of a checked recipe."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ramify.config.build_services import chat_model
from ramify.config.schema_reward import (
    AnswerRewardSection,
    CompatRewardSection,
    HierarchicalRewardSection,
    JudgeSection,
    LengthRewardSection,
    PartsRewardSection,
    RewardSection,
    ScoreName,
)
from ramify.core.closing import Closable, close_all
from ramify.core.protocols import Cache, Json, RewardFn

if TYPE_CHECKING:
    from ramify.rewards.judge import Judge
    from ramify.rewards.parts import WeightedPart


@dataclass(frozen=True, slots=True)
class BuiltReward:
    """A reward with its judge.

    Attributes:
        fn: The reward function.
        judge: The judge whose verdicts are a part of the reward, if any.
        notes: Notes for the user about their own files.
        identities: What the reward depends on besides the recipe: the judge's prompt, checksums of the user's files.
        resources: What `close` closes.
    """

    fn: RewardFn
    judge: "Judge | None" = None
    notes: tuple[str, ...] = ()
    identities: Mapping[str, Json] = field(default_factory=dict)
    resources: tuple[Closable, ...] = ()

    async def close(self) -> None:
        """Close connections and files."""
        await close_all(reversed(self.resources))


def build_reward(section: RewardSection, reported: Sequence[ScoreName] = ()) -> BuiltReward:
    """The reward; if it scores answers, it also reports the scores `reported`, in addition to those of the recipe.

    Raises:
        ConfigError: A file of the user's own cannot be used.
        MachineError: The environment variable with the judge's key is not set.
    """
    if isinstance(section, LengthRewardSection):
        from ramify.rewards.trajectory_rewards import LengthReward

        return BuiltReward(LengthReward())
    base = None if isinstance(section, PartsRewardSection) else _base(section, reported)
    parts: list[WeightedPart] = []
    notes: list[str] = []
    identities: dict[str, Json] = {}
    for own in section.own:
        from ramify.rewards.parts import WeightedPart, load_reward

        part, sha256 = load_reward(own.path, own.function, own.args, name=own.name)
        parts.append(WeightedPart(part, own.weight))
        identities[part.name] = {"sha256": sha256}
        notes.append(f"reward {part.name}: {own.function} of {own.path}, sha256 {sha256[:16]}")
    judge: Judge | None = None
    resources: tuple[Closable, ...] = ()
    if section.judge is not None:
        from ramify.rewards.parts import JudgePart, WeightedPart

        judge, resources = _judge(section.judge)
        identities["judge"] = dict(judge.identity)
        parts.append(WeightedPart(JudgePart(judge.score), section.judge.weight))
    if not parts:
        assert base is not None
        return BuiltReward(base)
    from ramify.rewards.parts import PartsReward

    return BuiltReward(PartsReward(base, parts), judge, tuple(notes), identities, resources)


def _base(
    section: HierarchicalRewardSection | AnswerRewardSection | CompatRewardSection,
    reported: Sequence[ScoreName],
) -> RewardFn:
    if isinstance(section, CompatRewardSection):
        from ramify.rewards.trajectory_rewards import CompatReward

        return CompatReward(section.system)
    from ramify.rewards.answer_scores import SCORES, AnswerScore
    from ramify.rewards.trajectory_rewards import AnswerReward

    counted: tuple[ScoreName, ...] = ("unread", "timeout")
    if isinstance(section, HierarchicalRewardSection):
        names = (*reported, *counted)
        others: Mapping[str, AnswerScore] = {name: SCORES[name] for name in names}
        return AnswerReward(SCORES["answer"], others, bonus=section.bonus)
    names = (*section.reported, *reported, *counted)
    return AnswerReward(
        SCORES[section.score],
        {name: SCORES[name] for name in names},
        correct_weight=section.correct_weight,
        format_weight=section.format_weight,
        bonus=section.bonus,
        malformed=section.malformed if section.needs_form else None,
    )


def _judge(section: JudgeSection) -> "tuple[Judge, tuple[Closable, ...]]":
    from ramify.rewards.judge import Judge, JudgeSettings

    # One key decides when a judge that is down stops the run, however many requests are pending together.
    model = chat_model(
        "reward.judge",
        section.url,
        section.model,
        section.key_variable,
        section.http,
        failures_to_open=section.failures_to_stop,
    )
    cache: Cache | None = None
    if section.cache is not None:
        from ramify.cache.sqlite import SqliteCache

        cache = SqliteCache(section.cache)
    settings = JudgeSettings(
        max_tokens=section.max_tokens,
        attempts=section.attempts,
        in_flight=section.in_flight,
        timeout_seconds=section.timeout_seconds,
        failures_to_stop=section.failures_to_stop,
        skip_equal=section.skip_equal,
    )
    return Judge(model, settings, cache), (model, *((cache,) if cache is not None else ()))
