"""Builds what learns: the estimator, the objective, and the algorithm applied to a learner.

Imports are inside the functions, so that checking a recipe loads none of the libraries that running it needs.
"""

from typing import TYPE_CHECKING

from ramify.config.schema_algorithm import AlgorithmSection
from ramify.config.schema_train import TrainRecipe
from ramify.core.protocols import Estimator, RewardFn

if TYPE_CHECKING:
    from ramify.algos.credit import Weighting
    from ramify.algos.losses import Objective, TokenLoss
    from ramify.learner.learning import AnnotationRequest, Learning
    from ramify.learner.update import Learner

MISMATCH_TOLERANCE = 1e-4
"""Largest mean |ln(policy / behavior)|, nats per token, at which an engine's logprobs may be the old ones (float32)."""
MISMATCH_KL = 0.015
"""Largest KL(engine || learner), nats per token, that an importance correction may have to mend."""


def build_estimator(section: AlgorithmSection) -> Estimator:
    """Build the advantage estimator, wrapped in what changes its rewards (KL) and advantages (entropy)."""
    from ramify.algos.aepo import EntropyAwareAdvantage

    kl = section.kl.coefficient if section.kl is not None and section.kl.place == "reward" else 0.0
    estimator = section.estimator.build(section.shared, kl)
    if section.entropy_advantage is not None:
        entropy = section.entropy_advantage
        estimator = EntropyAwareAdvantage(estimator, section.shared, entropy.weight, entropy.source)
    return estimator


def build_shaping(section: AlgorithmSection, reward: RewardFn, max_tokens: int) -> RewardFn:
    """Build the reward for training: `reward`, minus the algorithm's penalty for trajectories near `max_tokens`."""
    from ramify.rewards.trajectory_rewards import OverlongReward

    if section.overlong_margin is None:
        return reward
    return OverlongReward(reward, max_tokens, section.overlong_margin)


def build_objective(section: AlgorithmSection) -> "Objective":
    """Return what the learner minimises.

    Raises:
        ConfigError: A loss of the user's own cannot be used.
    """
    from ramify.algos.file_parts import FileLoss
    from ramify.algos.kl import EntropyBonus, KlPenalty
    from ramify.algos.losses import Objective

    penalties: list[TokenLoss] = []
    kl = section.kl
    if kl is not None and kl.place == "loss":
        assert kl.estimator != "k1"
        penalties.append(KlPenalty(kl.estimator, kl.coefficient))
    if section.entropy_bonus is not None:
        penalties.append(EntropyBonus(section.entropy_bonus))
    loss = section.loss.build() if isinstance(section.loss, FileLoss) else section.loss
    return Objective(loss, tuple(penalties), build_weighting(section))


def build_weighting(section: AlgorithmSection) -> "Weighting":
    """Return how much each token of each trajectory counts."""
    from ramify.algos.credit import Weighting

    return Weighting(section.shared, section.advantage, section.aggregation, section.fixed_length)


def annotation_request(section: AlgorithmSection) -> "AnnotationRequest":
    """Return the values that the annotation pass must compute; none if the engine provides all that are needed."""
    from ramify.learner.learning import AnnotationRequest

    entropy = section.entropy_advantage
    return AnnotationRequest(
        old=section.old,
        entropies=entropy is not None and entropy.source == "annotate",
        ref_logprobs=section.kl is not None,
    )


def build_learning(recipe: TrainRecipe, learner: "Learner", minibatches: int) -> "Learning":
    """Build the algorithm of a recipe, applied to a learner."""
    return apply_algorithm(
        recipe.algorithm,
        learner,
        problems_per_minibatch=recipe.learner.problems_per_minibatch,
        minibatches=minibatches,
        temperature=recipe.rollout.temperature,
        # A script is no policy, so its turns may be as unlikely as they are.
        is_policy=recipe.engine.script_file is None,
    )


def apply_algorithm(
    algorithm: AlgorithmSection,
    learner: "Learner",
    *,
    problems_per_minibatch: int,
    minibatches: int,
    temperature: float,
    is_policy: bool = True,
) -> "Learning":
    """Apply an algorithm to a learner.

    Args:
        algorithm: The algorithm.
        learner: Holds the weights.
        problems_per_minibatch: Trees in one optimizer step.
        minibatches: Optimizer steps in a step with a full batch.
        temperature: Of the sampling distribution.
        is_policy: The weights wrote the trees; otherwise a script did.
    """
    from ramify.learner.learning import Learning

    return Learning(
        learner=learner,
        estimator=build_estimator(algorithm),
        correction=algorithm.correction,
        masks_truncated=algorithm.truncated == "mask",
        request=annotation_request(algorithm),
        problems_per_minibatch=problems_per_minibatch,
        minibatches=minibatches,
        temperature=temperature,
        max_mismatch=(algorithm.max_mismatch or MISMATCH_TOLERANCE) if algorithm.old == "behavior" else None,
        max_kl=algorithm.max_mismatch_kl
        or (MISMATCH_KL if is_policy and algorithm.old != "behavior" else None),
    )
