"""The schema of an algorithm: advantages, loss, penalties, corrections. Papers are recipes over these parts."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from ramify.algos.catalog import AnyEstimator, AnyLoss
from ramify.algos.corrections import ImportanceCorrection
from ramify.config.schema_parts import Section
from ramify.config.schema_rollout import RolloutSection
from ramify.core.config import PositiveWeight, Tokens

EstimatorSection = Annotated[AnyEstimator, Field(discriminator="name")]
LossSection = Annotated[AnyLoss, Field(discriminator="name")]


class EntropyAdvantageSection(Section):
    """AEPO's entropy-aware advantage: a factor clip(1 + weight z, 0.5, 2), z the standardized entropy of the token.

    `source`: the engine's entropies of all tokens (behavior), or those of a pass of the learner (annotate).
    """

    weight: PositiveWeight = 0.2
    source: Literal["behavior", "annotate"] = "behavior"


class KlSection(Section):
    """A KL penalty towards the model that the run started from.

    In the loss: k2, k3 (as published, biased) or k3_ratio. In the reward: k1.
    """

    place: Literal["loss", "reward"]
    estimator: Literal["k1", "k2", "k3", "k3_ratio"]
    coefficient: PositiveWeight

    @model_validator(mode="after")
    def _acting(self) -> "KlSection":
        if self.place == "loss" and self.estimator == "k1":
            raise ValueError(
                'estimator: "k1" in the loss has no gradient in expectation; use k2, k3 or k3_ratio, or place = "reward"'
            )
        if self.place == "reward" and self.estimator != "k1":
            raise ValueError(f'estimator: expected "k1" with place = "reward", got {self.estimator!r}')
        return self


class AlgorithmSection(Section):
    """How rewards become a gradient.

    `shared`: how often a shared token counts (repeat: once for each trajectory; split: once; mass: unbiased).
    `advantage`: soft (each trajectory's own) or hard (their mean on shared tokens).
    `aggregation`: mean over tokens, over trajectories, or over `fixed_length` tokens per trajectory.
    `truncated`: trajectories that a limit on tokens or calls cut off are trained on, masked, or penalised for
    their length (`shape`, which also penalises answers within `overlong_margin` tokens of the limit).
    `old`: the ratio's denominator: the engine's logprobs, or the learner's own from a pass before the first update.
    `max_mismatch`: largest logprob mismatch between engine and learner that a run with `old = "behavior"` accepts;
    `max_mismatch_kl`: largest KL between them, nats per token, with `old = "recompute"`.
    """

    estimator: EstimatorSection
    loss: LossSection
    shared: Literal["repeat", "split", "mass"] = "repeat"
    advantage: Literal["soft", "hard"] = "soft"
    aggregation: Literal["token_mean", "sequence_mean", "fixed_length"] = "token_mean"
    fixed_length: Tokens | None = None
    truncated: Literal["train", "mask", "shape"] = "train"
    overlong_margin: Tokens | None = None
    old: Literal["behavior", "recompute"] = "behavior"
    max_mismatch: PositiveWeight | None = None
    max_mismatch_kl: PositiveWeight | None = None
    correction: ImportanceCorrection | None = None
    entropy_advantage: EntropyAdvantageSection | None = None
    kl: KlSection | None = None
    entropy_bonus: PositiveWeight | None = None

    @model_validator(mode="after")
    def _acting(self) -> "AlgorithmSection":
        _belongs(
            "fixed_length",
            self.fixed_length,
            'aggregation = "fixed_length"',
            self.aggregation == "fixed_length",
        )
        _belongs("overlong_margin", self.overlong_margin, 'truncated = "shape"', self.truncated == "shape")
        if self.correction is not None and self.old == "behavior":
            raise ValueError(
                'correction: with old = "behavior" the weight old / behavior is 1; set old = "recompute" or remove it'
            )
        if self.max_mismatch is not None and self.old == "recompute":
            raise ValueError('max_mismatch: has no effect without old = "behavior". Remove it.')
        if self.max_mismatch_kl is not None and self.old == "behavior":
            raise ValueError('max_mismatch_kl: has no effect without old = "recompute". Remove it.')
        if self.advantage == "hard":
            self._hard_differs()
        if self.loss.sequence_loss:
            self._suits_sequence_loss()
        return self

    def in_16_bits(self) -> "AlgorithmSection":
        """Return the algorithm of an engine that computes in 16 bits, as `corrected_in_16_bits`; `max_mismatch` is of `behavior`."""
        if {"old", "max_mismatch"} & self.model_fields_set:
            return self
        corrected = {"correction": self.correction or ImportanceCorrection(**_correction(self.loss.name))}
        return self.model_copy(update={**corrected, "old": "recompute"})

    def _hard_differs(self) -> None:
        """Refuse hard advantages that give the same gradient as soft ones."""
        if self.estimator.per_node:
            raise ValueError(
                f'advantage: estimator "{self.estimator.name}" gives all trajectories through a token the same, so "hard" '
                "has no effect. Remove it."
            )
        if self.loss.linear and self._hard_is_soft_where_linear:
            raise ValueError(
                f'advantage: loss "{self.loss.name}" clips both signs alike, so "hard" is the same as "soft". Remove it.'
            )

    @property
    def _hard_is_soft_where_linear(self) -> bool:
        """Return True if hard and soft advantages give the same gradient for a loss that is linear in the advantage.

        They differ if the trajectories through a token have different weights.
        """
        level = None if self.correction is None else self.correction.level
        return self.aggregation != "sequence_mean" and level != "sequence"

    def _suits_sequence_loss(self) -> None:
        """A sequence loss needs one advantage, one weight and one correction for each trajectory."""
        level = None if self.correction is None else self.correction.level
        needs = (
            ("aggregation", self.aggregation == "sequence_mean", '"sequence_mean"'),
            ("shared", self.shared != "split", '"repeat" or "mass"'),
            ("advantage", self.advantage == "soft", '"soft"'),
            ("entropy_advantage", self.entropy_advantage is None, "none"),
            ("correction.level", level in (None, "sequence"), '"sequence"'),
            ("estimator.name", self.estimator.per_trajectory, '"group" or "tree_grpo"'),
            ("estimator.baseline", getattr(self.estimator, "baseline", "pooled") == "pooled", '"pooled"'),
        )
        for key, right, expected in needs:
            if not right:
                raise ValueError(
                    f'{key}: expected {expected} with loss "{self.loss.name}", whose ratio is that of a trajectory'
                )

    def refuse_idle(self, rollout: RolloutSection, has_exact_entropy: bool) -> None:
        """Refuse settings that have no effect on the rollout's trees.

        `has_exact_entropy` says whether the engine provides exact entropies (ValueError)."""
        estimator, entropy, margin = self.estimator, self.entropy_advantage, self.overlong_margin
        if rollout.n == 1 and estimator.needs_group:
            raise ValueError(
                f'rollout.n: expected at least 2 with estimator "{estimator.name}": a single trajectory has nothing '
                "to be compared with"
            )
        if rollout.m == 1 and estimator.needs_roots:
            raise ValueError(
                f'algorithm.estimator.name: "{estimator.name}" with rollout.m = 1 compares within the only root twice; '
                "raise m"
            )
        if margin is not None and margin > rollout.max_tokens:
            raise ValueError(
                f"algorithm.overlong_margin: expected at most rollout.max_tokens = {rollout.max_tokens}, got {margin}"
            )
        needs_branches = (
            ("shared", self.shared != "repeat"),
            ("advantage", self.advantage != "soft"),
            ("estimator.name", estimator.needs_branches),
        )
        for key, is_set in needs_branches:
            if is_set and not rollout.shares_tokens:
                raise ValueError(
                    f"algorithm.{key}: no trajectory of this rollout branches, so it has no effect. Remove it or branch."
                )
        if entropy is not None and entropy.source == "behavior" and not has_exact_entropy:
            raise ValueError(
                'algorithm.entropy_advantage.source: this engine gives no exact entropies; set it to "annotate"'
            )

    def note_idle(
        self, problems_per_step: int, problems_per_minibatch: int, is_local: bool
    ) -> tuple[str, ...]:
        """Return a note that names settings without effect when there is one optimizer step per rollout; none if all have one.

        This is not an error: papers report such settings, and recipes of papers have them too when tried at a small
        size. `is_local`: the engine samples from the learner's weights, so the ratio is 1 up to rounding. With another
        engine the ratio may be anything, and clipping has an effect.
        """
        recomputes = self.old == "recompute"
        if problems_per_minibatch < problems_per_step or not (is_local or recomputes):
            return ()
        loss = self.loss
        edges = [key for key in ("clip_low", "clip_high") if hasattr(loss, key) and loss.is_changed(key)]
        idle = [f"algorithm.loss.{key}" for key in edges]
        if loss.name == "clip":
            idle += ["algorithm.loss.dual_clip"] if loss.dual_clip is not None else []
        elif loss.name != "file":
            idle.append(f'algorithm.loss.name = "{loss.name}"')
        if self.advantage == "hard" and self._hard_is_soft_where_linear:
            idle.append('algorithm.advantage = "hard"')
        if recomputes and is_local and self.correction is None:
            idle.append('algorithm.old = "recompute"')
        if not idle:
            return ()
        return (
            f"note: with one optimizer step a rollout (learner.problems_per_minibatch = {problems_per_minibatch}) the ratio "
            f"is 1: {' and '.join(idle)} do{'es' if len(idle) == 1 else ''} not act",
        )


def corrected_in_16_bits(algorithm: dict[str, Any]) -> dict[str, Any]:
    """Return the table of an algorithm whose engine computes in 16 bits, and so samples from a policy that is a little off.

    Unless the table says `old`, samples are weighted for that.
    """
    loss = algorithm.get("loss")
    correction = _correction(loss.get("name") if isinstance(loss, dict) else None)
    return algorithm if "old" in algorithm else {"correction": correction, **algorithm, "old": "recompute"}


def _correction(loss: object) -> dict[str, Any]:
    return {"level": "sequence" if loss == "gspo" else "token", "kind": "truncate", "cap": 2.0}


class AlgorithmTable(Section):
    """The table `[algorithm]` of a training recipe, by itself."""

    algorithm: AlgorithmSection


def _belongs(key: str, value: object, where: str, is_there: bool) -> None:
    if is_there and value is None:
        raise ValueError(f"{key}: expected a value with {where}, found none")
    if not is_there and value is not None:
        raise ValueError(f"{key}: has no effect without {where}. Remove it.")
