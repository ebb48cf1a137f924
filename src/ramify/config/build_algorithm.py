"""Builds a recipe's algorithm: estimator, weighting, correction, objective, and the annotations that they need."""

from typing import TYPE_CHECKING

from ramify.config.schema_algorithm import (
    AlgorithmSection,
    CispoLoss,
    ClipLoss,
    GppoLoss,
    GroupEstimator,
    GspoLoss,
    LossSection,
    NodeValueEstimator,
    ReinforcePlusPlusEstimator,
    StopGradientClipLoss,
    TreeGrpoEstimator,
)
from ramify.config.schema_train import TrainRecipe
from ramify.core.protocols import Estimator, RewardFn

if TYPE_CHECKING:
    from ramify.algos.corrections import ImportanceCorrection
    from ramify.algos.losses import Objective, PolicyLoss, TokenLoss
    from ramify.learner.annotate import Wanted
    from ramify.learner.learning import Learning
    from ramify.learner.update import Learner

GAP_TOLERANCE = 1e-4
"""Largest mean |ln(policy / behavior)|, nats per token, at which an engine's logprobs may be the old ones (float32)."""


def build_estimator(section: AlgorithmSection) -> Estimator:
    """The advantage estimator, wrapped in what changes its rewards (KL) and advantages (entropy)."""
    from ramify.algos.aepo import EntropyAwareAdvantage
    from ramify.algos.grpo import GroupRelative
    from ramify.algos.kl import KlInReward
    from ramify.algos.node_value import NodeValue
    from ramify.algos.reinforce_pp import ReinforcePlusPlus
    from ramify.algos.tree_grpo import TreeGrpo

    kl = section.kl.coefficient if section.kl is not None and section.kl.place == "reward" else 0.0
    estimator: Estimator
    match section.estimator:
        case GroupEstimator(scale=scale, baseline=baseline):
            estimator = GroupRelative(section.shared, scale, baseline)
        case TreeGrpoEstimator():
            estimator = TreeGrpo(section.shared)
        case NodeValueEstimator():
            estimator = NodeValue(section.shared)
        case ReinforcePlusPlusEstimator(group_mean=group_mean):
            # It applies the KL penalty per token, so that each token is charged only for itself and later tokens.
            estimator = ReinforcePlusPlus(section.shared, group_mean=group_mean, kl_coefficient=kl)
    if kl and not isinstance(section.estimator, ReinforcePlusPlusEstimator):
        estimator = KlInReward(estimator, kl)
    if section.entropy_advantage is not None:
        entropy = section.entropy_advantage
        estimator = EntropyAwareAdvantage(estimator, section.shared, entropy.weight, entropy.source)
    return estimator


def build_shaping(section: AlgorithmSection, reward: RewardFn, max_tokens: int) -> RewardFn:
    """The reward for training: `reward`, minus the algorithm's penalty for trajectories near `max_tokens`."""
    from ramify.rewards.trajectory_rewards import OverlongReward

    if section.overlong_margin is None:
        return reward
    return OverlongReward(reward, max_tokens, section.overlong_margin)


def build_correction(section: AlgorithmSection) -> "ImportanceCorrection | None":
    """The importance weights; None without a correction."""
    from ramify.algos.corrections import ImportanceCorrection

    correction = section.correction
    if correction is None:
        return None
    return ImportanceCorrection(correction.level, correction.kind, correction.cap, correction.floor)


def build_objective(section: AlgorithmSection) -> "Objective":
    """What the learner minimises."""
    from ramify.algos.credit import Weighting
    from ramify.algos.kl import EntropyBonus, KlPenalty
    from ramify.algos.losses import Objective

    penalties: list[TokenLoss] = []
    kl = section.kl
    if kl is not None and kl.place == "loss":
        assert kl.estimator != "k1"
        penalties.append(KlPenalty(kl.estimator, kl.coefficient))
    if section.entropy_bonus is not None:
        penalties.append(EntropyBonus(section.entropy_bonus))
    weighting = Weighting(section.shared, section.advantage, section.aggregation, section.fixed_length)
    return Objective(_surrogate(section.loss), tuple(penalties), weighting)


def _surrogate(section: LossSection) -> "PolicyLoss":
    from ramify.algos.aepo import StopGradientClip
    from ramify.algos.cispo import CispoSurrogate
    from ramify.algos.gppo import GppoSurrogate
    from ramify.algos.grpo import ClippedSurrogate
    from ramify.algos.gspo import GspoSurrogate

    match section:
        case ClipLoss(clip_low=low, clip_high=high, dual_clip=dual):
            return ClippedSurrogate(low, high, dual)
        case StopGradientClipLoss(clip_low=low, clip_high=high, dual_clip=dual):
            return StopGradientClip(low, high, dual)
        case GppoLoss(clip_low=low, clip_high=high):
            return GppoSurrogate(low, high)
        case CispoLoss(clip_low=lowest, clip_high=high):
            return CispoSurrogate(lowest, high)
        case GspoLoss(clip_low=low, clip_high=high):
            return GspoSurrogate(low, high)


def wanted_annotations(section: AlgorithmSection) -> "Wanted":
    """What the annotation pass must compute; nothing if the engine provides all that the algorithm needs."""
    from ramify.learner.annotate import Wanted

    entropy = section.entropy_advantage
    return Wanted(
        old=section.old,
        entropies=entropy is not None and entropy.source == "annotate",
        ref_logprobs=section.kl is not None,
    )


def build_learning(recipe: TrainRecipe, learner: "Learner", minibatches: int) -> "Learning":
    """The algorithm of a recipe, applied to a learner.

    Raises:
        DataError: The reference model cannot be read.
    """
    from ramify.config.build_model import build_reference
    from ramify.learner.learning import Learning

    algorithm = recipe.algorithm
    wanted = wanted_annotations(algorithm)
    return Learning(
        learner=learner,
        estimator=build_estimator(algorithm),
        correction=build_correction(algorithm),
        masks_truncated=algorithm.truncated == "mask",
        wanted=wanted,
        reference=build_reference(recipe.model, learner.model) if wanted.ref_logprobs else None,
        problems_per_minibatch=recipe.learner.problems_per_minibatch,
        minibatches=minibatches,
        token_budget=recipe.learner.token_budget,
        temperature=recipe.rollout.temperature,
        max_gap=(algorithm.max_gap or GAP_TOLERANCE) if algorithm.old == "behavior" else None,
    )
