"""Refuses or notes settings of a reinforcement-learning recipe that have no effect with its other sections."""

from ramify.config.schema_algorithm import AlgorithmSection
from ramify.config.schema_guard import GuardSection
from ramify.config.schema_parts import ModelSection, OptimizerSection, is_changed
from ramify.config.schema_reward import RewardSection
from ramify.config.schema_rollout import BernoulliBranching, RandomBranching, RolloutSection
from ramify.config.schema_tools import ToolsSection


def refuse_inert_rollout(rollout: RolloutSection) -> None:
    """Refuse a branching rule that can never branch, or not into as many children as it asks for.

    Raises:
        ValueError: The rule cannot.
    """
    rule = rollout.branching
    if rule.name != "none" and not rollout.shares_tokens:
        reason = f"m = n = {rollout.n}" if rollout.max_calls else "max_calls = 0"
        raise ValueError(
            f'rollout.branching: "{rule.name}" can never branch with {reason}; set branching to "none" or change that'
        )
    asked, m = getattr(rule, "children", 1), rollout.m or 1
    if rule.name != "none" and asked > rollout.n - m:
        left = f"rollout.n - rollout.m = {rollout.n - m}" if rollout.m else f"rollout.n - 1 = {rollout.n - 1}"
        raise ValueError(
            f"rollout.branching.children: expected at most {left}, the trajectories that are left to branch, got {asked}"
        )
    never = (isinstance(rule, RandomBranching) and rule.rate == 0) or (
        isinstance(rule, BernoulliBranching) and rule.alpha == 0 and rule.beta == 0
    )
    if never:
        raise ValueError(
            f'rollout.branching: "{rule.name}" branches with probability 0; raise it or set branching to "none"'
        )


def refuse_inert_algorithm(
    algorithm: AlgorithmSection, rollout: RolloutSection, has_exact_entropy: bool
) -> None:
    """Refuse settings of the algorithm that have no effect on the rollout's trees.

    `has_exact_entropy` says whether the engine provides exact entropies.

    Raises:
        ValueError: A setting has no effect.
    """
    estimator = algorithm.estimator
    if rollout.n == 1 and estimator.name != "reinforce_pp":
        raise ValueError(
            f'rollout.n: expected at least 2 with estimator "{estimator.name}": a single trajectory has nothing to be '
            "compared with"
        )
    if rollout.n == 1 and estimator.name == "reinforce_pp" and estimator.group_mean:
        raise ValueError(
            "algorithm.estimator.group_mean: the mean of a single trajectory is its own reward, so nothing is left of it; "
            "leave it out or set rollout.n to 2 or more"
        )
    if estimator.name == "tree_grpo" and rollout.m == 1:
        raise ValueError(
            'algorithm.estimator.name: "tree_grpo" with rollout.m = 1 compares within the only root twice; raise m'
        )
    margin = algorithm.overlong_margin
    if margin is not None and margin > rollout.max_tokens:
        raise ValueError(
            f"algorithm.overlong_margin: expected at most rollout.max_tokens = {rollout.max_tokens}, got {margin}"
        )
    if not rollout.shares_tokens:
        inert = (
            ("shared", algorithm.shared != "repeat"),
            ("advantage", algorithm.advantage != "soft"),
            ("estimator.name", estimator.name in ("tree_grpo", "node_value")),
        )
        for key, is_set in inert:
            if is_set:
                raise ValueError(
                    f"algorithm.{key}: no trajectory of this rollout branches, so it cannot act; leave it out or branch"
                )
    entropy = algorithm.entropy_advantage
    if entropy is not None and entropy.source == "behavior" and not has_exact_entropy:
        raise ValueError(
            'algorithm.entropy_advantage.source: this engine gives no exact entropies; set it to "annotate"'
        )


def note_inert_clips(
    algorithm: AlgorithmSection, problems_per_step: int, problems_per_minibatch: int, is_local: bool
) -> tuple[str, ...]:
    """A note that names settings without effect when there is one optimizer step per rollout; none if all have one.

    This is not an error: papers report such settings, and recipes of papers have them too when tried at a small size.
    `is_local`: the engine samples from the learner's weights, so the ratio is 1 up to rounding. With another engine the
    ratio may be anything, and clipping has an effect.
    """
    recomputes = algorithm.old == "recompute"
    if problems_per_minibatch < problems_per_step or not (is_local or recomputes):
        return ()
    loss = algorithm.loss
    idle = [f"algorithm.loss.{key}" for key in ("clip_low", "clip_high") if key in loss.model_fields_set]
    if loss.name != "clip":
        idle.append(f'algorithm.loss.name = "{loss.name}"')
    elif loss.dual_clip is not None:
        idle.append("algorithm.loss.dual_clip")
    if algorithm.advantage == "hard" and algorithm.hard_is_soft_where_linear:
        idle.append('algorithm.advantage = "hard"')
    if recomputes and is_local and algorithm.correction is None:
        idle.append('algorithm.old = "recompute"')
    if not idle:
        return ()
    return (
        f"note: with one optimizer step a rollout (learner.problems_per_minibatch = {problems_per_minibatch}) the ratio "
        f"is 1: {' and '.join(idle)} do{'es' if len(idle) == 1 else ''} not act",
    )


def refuse_inert_rewards(reward: RewardSection, rollout: RolloutSection, tools: ToolsSection) -> None:
    """Refuse settings that have no effect with the recipe's reward and tools.

    Raises:
        ValueError: There is such a setting.
    """
    if rollout.dynamic_sampling is not None and reward.name in ("length", "parts"):
        raise ValueError(
            f'rollout.dynamic_sampling: needs a reward that tells right from wrong, "{reward.name}" does not; leave it out'
        )
    if reward.name not in ("hierarchical", "answer"):
        return
    has_both = tools.search is not None and tools.python is not None
    if not has_both and reward.bonus and is_changed(reward, "bonus"):
        raise ValueError(
            "reward.bonus: is given for using search and python, and one of them is not there; leave it out"
        )


def refuse_compat_reward(model: ModelSection, reward: RewardSection) -> None:
    """Refuse the reward of the papers' code for a dialect that it cannot read.

    Raises:
        ValueError: It would find no answer in any trajectory.
    """
    if reward.name == "compat" and model.dialect != "tags":
        raise ValueError(
            f'reward.name: "compat" reads tags only, expected another reward with model.dialect = "{model.dialect}"'
        )


def refuse_inert_guard(guard: GuardSection | None, rollout: RolloutSection) -> None:
    """Refuse thresholds of the collapse detector that are always broken, or never.

    Raises:
        ValueError: There is such a threshold.
    """
    if guard is None:
        return
    if guard.max_zero_variance is not None and rollout.n == 1:
        raise ValueError(
            "guard.max_zero_variance: groups of one trajectory never vary, so every step would break it; leave it out"
        )
    if guard.max_invalid_calls is not None and not guard.after_passing and rollout.max_calls == 0:
        raise ValueError("guard.max_invalid_calls: rollout.max_calls = 0 allows no calls; leave it out")


def refuse_inert_rates(optimizer: OptimizerSection, trains_adapter: bool) -> None:
    """Refuse learning rates for parameters that an adapter does not have.

    Raises:
        ValueError: There is such a rate.
    """
    for key in ("vector_rate", "embedding_rate"):
        if trains_adapter and getattr(optimizer, key) is not None:
            raise ValueError(
                f"learner.optimizer.{key}: an adapter has matrices only; leave it out with model.lora"
            )
