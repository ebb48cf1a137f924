"""Schemas of a training rollout: the branching rules, and the size of one step's trees.

Weights of rules are per nat of the mean entropy over `probe_tokens` tokens, except in the `seed_compat_*` rules.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError, model_validator

from ramify.config.bounds import (
    Fraction,
    InsideOne,
    PositiveInt,
    Rounds,
    SignedWeight,
    Tokens,
    Trajectories,
    Weight,
)
from ramify.config.schema_parts import LimitsSection, Section, UserPath

_PAPER = TypeAdapter(tuple[SignedWeight, SignedWeight, SignedWeight])
"""The paper's alpha, beta and tau."""


class _Branching(Section):
    """Base class of all rules."""

    branches: ClassVar[bool] = True
    looks_at_entropy: ClassVar[bool] = True
    """Whether entropies can change a decision."""
    name: str

    @property
    def needs_m(self) -> bool:
        """Whether the recipe must set m, the number of trajectories that start from the prompt."""
        return True

    @property
    def never(self) -> bool:
        """Whether the probability of a branch is 0."""
        return False


class NoBranching(_Branching):
    """Flat sampling: every trajectory starts from the prompt."""

    branches = False
    looks_at_entropy = False
    name: Literal["none"]
    probe_tokens: Tokens = 20

    @property
    def needs_m(self) -> bool:
        """False: all n start from the prompt."""
        return False


class ThresholdBranching(_Branching):
    """Branch when the entropy after a result rises by more than `min_rise` nats per token (ARPO, section 3.1).

    `alpha`, `beta` and `tau` of the paper may be given instead: min_rise = (tau - alpha) / beta.
    """

    name: Literal["threshold"]
    min_rise: SignedWeight = 0.0
    probe_tokens: Tokens = 20
    children: Trajectories = 1

    @model_validator(mode="before")
    @classmethod
    def _from_paper(cls, data: Any) -> Any:  # noqa: ANN401 - any TOML value
        if not isinstance(data, dict) or not {"alpha", "beta", "tau"} & data.keys():
            return data
        rest = {key: value for key, value in data.items() if key not in ("alpha", "beta", "tau")}
        try:
            alpha, beta, tau = _PAPER.validate_python((data.get("alpha"), data.get("beta"), data.get("tau")))
        except ValidationError:
            raise ValueError(
                "expected alpha, beta and tau together, as numbers (finite, -1000 to 1000)"
            ) from None
        if "min_rise" in data or beta <= 0:
            raise ValueError("expected min_rise or alpha, beta > 0 and tau, not both")
        return {**rest, "min_rise": (tau - alpha) / beta}


class BernoulliBranching(_Branching):
    """Branch with probability clip(alpha + beta * entropy delta); beta per nat (the release's 0.2 on 20-token sums)."""

    name: Literal["bernoulli"]
    alpha: Fraction = 0.5
    beta: SignedWeight = 0.335
    probe_tokens: Tokens = 20
    children: Trajectories = 1

    @property
    def never(self) -> bool:
        """Whether both weights are 0."""
        return self.alpha == 0 and self.beta == 0


class BalancedBranching(_Branching):
    """AEPO (arXiv 2510.14545): a monitored trajectory splits the budget, and consecutive branches become less likely.

    m = n sigmoid(budget_beta (H_root - H_tool)), at least a quarter of n; leave out `rollout.m`.
    P = clip((alpha + gamma * entropy delta) * (1 - slope * l)), with l the number of consecutive tool results just
    before this one at which entropy rose and a branch was wanted. `draw = "threshold"` (paper) branches if P > `tau`
    (0.5 by default), `draw = "bernoulli"` with probability P.
    """

    name: Literal["balanced"]
    alpha: Fraction = 0.5
    gamma: SignedWeight = 0.335
    slope: Fraction = 0.05
    draw: Literal["threshold", "bernoulli"] = "threshold"
    tau: Fraction | None = None
    budget_beta: Weight = 0.84
    probe_tokens: Tokens = 20
    children: Trajectories = 1

    @model_validator(mode="before")
    @classmethod
    def _with_tau(cls, data: Any) -> Any:  # noqa: ANN401 - any TOML value
        if (
            isinstance(data, dict)
            and data.get("draw", "threshold") == "threshold"
            and data.get("tau") is None
        ):
            return {**data, "tau": 0.5}
        return data

    @model_validator(mode="after")
    def _acting(self) -> "BalancedBranching":
        if self.draw == "bernoulli" and self.tau is not None:
            raise ValueError('tau: acts with draw = "threshold" only; leave it out')
        return self

    @property
    def needs_m(self) -> bool:
        """False: the rule computes m."""
        return False


class RandomBranching(_Branching):
    """The control: branch with probability `rate`, regardless of entropy.

    `rate_from` is the folder of another run: the rate is then the one at which this rule branches as often as that
    run's rule did (`branch/matched_rate` in its metrics, read when this run starts).
    """

    looks_at_entropy = False
    name: Literal["random"]
    rate: Fraction | None = None
    rate_from: UserPath | None = None
    probe_tokens: Tokens = 20
    children: Trajectories = 1

    @model_validator(mode="after")
    def _one_rate(self) -> "RandomBranching":
        if (self.rate is None) == (self.rate_from is None):
            raise ValueError("expected rate or rate_from, one of the two")
        return self

    @property
    def never(self) -> bool:
        """Whether the rate is 0."""
        return self.rate == 0


class _ReleasedArithmetic(_Branching):
    """Switches for defects in the released code of both papers, on as released; B1 to B23 refer to docs/paper-index.md.

    Attributes:
        stale_segment: B2. dh uses the turn before the tool result, not the one after it.
        child_baseline_after_branch: B2. The baseline of a branch is its own first turn, not its root's.
        summed_over_tokens: B3. A sum over the window divided by ln V, not a mean in nats. The other half of B3, sums
            over the ten likeliest tokens, is not reproduced: engines report entropies, not the terms of the sum.
        baseline_never_reset: B1. A slot of the batch keeps the first baseline that it has ever seen, even for other
            problems. Checkpoints keep these baselines.
        slot_order: B5. The first root's branches are served first.
    """

    branch_probability: InsideOne = 0.5
    entropy_weight: SignedWeight = 0.2
    probe_tokens: Tokens = 20
    stale_segment: bool = True
    child_baseline_after_branch: bool = True
    summed_over_tokens: bool = True
    baseline_never_reset: bool = True
    slot_order: bool = True


class SeedCompatArpoBranching(_ReleasedArithmetic):
    """The arithmetic of ARPO's released code: branch with probability clip(branch_probability + entropy_weight * dh).

    A branch has one child (`beam_size` 2).
    """

    name: Literal["seed_compat_arpo"]


class SeedCompatAepoBranching(_ReleasedArithmetic):
    """The arithmetic of AEPO's released code: P = clip(1 + entropy_weight * dh - branch_probability / (1 - 0.05 l)).

    Attributes:
        penalty_per_prompt: B23. l counts the rounds in which any path of the prompt got a new trajectory. Nearly every
            round brings one until the budget is spent, so l is the number of rounds so far. Off: as in `balanced`.
        dynamic_rollouts: m = clip(int(n sigmoid(budget_beta (H_root - H_tool))) + 1, 1, n) from a monitored trajectory,
            which is one of the n; leave out `rollout.m`. Off, as in the released scripts: m is `rollout.m`.
        root_segment_in_average: B20. H_tool averages over all segments of the monitored trajectory, also the first.
    """

    name: Literal["seed_compat_aepo"]
    penalty_per_prompt: bool = True
    dynamic_rollouts: bool = False
    budget_beta: Weight = 0.5
    root_segment_in_average: bool = True

    @model_validator(mode="after")
    def _acting(self) -> "SeedCompatAepoBranching":
        if not self.dynamic_rollouts:
            for key in ("budget_beta", "root_segment_in_average"):
                if getattr(self, key) != type(self).model_fields[key].default:
                    raise ValueError(f"{key}: acts with dynamic_rollouts = true only; leave it out")
        return self

    @property
    def needs_m(self) -> bool:
        """Unless m is computed from a monitored trajectory."""
        return not self.dynamic_rollouts


def _name_only(value: Any) -> Any:  # noqa: ANN401 - any TOML value
    """`branching = "none"` is short for `branching = {name = "none"}`."""
    return {"name": value} if isinstance(value, str) else value


BranchingSection = Annotated[
    NoBranching
    | ThresholdBranching
    | BernoulliBranching
    | BalancedBranching
    | RandomBranching
    | SeedCompatArpoBranching
    | SeedCompatAepoBranching,
    Field(discriminator="name"),
    BeforeValidator(_name_only),
]


class DynamicSamplingSection(Section):
    """DAPO (arXiv 2503.14476, section 3.2): learn only from problems with both right and wrong answers.

    Other problems are replaced by the next ones in the data's order, in at most `max_attempts` rounds of rollouts.
    After that the step continues with the problems it has. `step_seconds` applies to each round.
    """

    max_attempts: Rounds = 3


class RolloutSection(LimitsSection):
    """The trees of a step: n trajectories per problem, m of them from the prompt (leave m out if the rule computes it).

    `branch_at`: branches start at the tool result, as in the papers (before_probe), or after the tokens whose entropy
    decided, which they then share (after_probe); this avoids the papers' bias towards what those tokens happen to be.
    """

    problems_per_step: PositiveInt
    n: Trajectories
    m: Trajectories | None = None
    branching: BranchingSection
    branch_at: Literal["before_probe", "after_probe"] = "before_probe"
    dynamic_sampling: DynamicSamplingSection | None = None

    @model_validator(mode="after")
    def _budget(self) -> "RolloutSection":
        rule = self.branching
        if self.m is None:
            if rule.needs_m:
                raise ValueError("m: expected a value, found none")
        elif self.m > self.n:
            raise ValueError(f"m: expected at most n = {self.n}, got {self.m}")
        elif not rule.branches and self.m < self.n:
            raise ValueError(
                f'm: branching "none" starts all n = {self.n} from the prompt; leave m out, got {self.m}'
            )
        elif rule.branches and not rule.needs_m:
            raise ValueError(f'm: branching "{rule.name}" finds m by itself; leave it out, got {self.m}')
        if not rule.branches and self.branch_at != "before_probe":
            raise ValueError('branch_at: branching "none" has no branches; leave it out')
        if self.temperature <= 0:
            raise ValueError("temperature: training samples, so it must be above 0")
        if self.dynamic_sampling is not None and self.n == 1:
            raise ValueError("dynamic_sampling: one trajectory cannot be both right and wrong; leave it out")
        return self

    @property
    def shares_tokens(self) -> bool:
        """Whether trajectories of a tree can share tokens of the policy."""
        # A rule that computes m starts at least one trajectory.
        return self.branching.branches and (self.m or 1) != self.n and self.max_calls > 0

    def refuse_idle_rule(self) -> None:
        """Refuse a branching rule that can never branch, or not into as many children as it asks for.

        Raises:
            ValueError: The rule cannot.
        """
        rule = self.branching
        if not rule.branches:
            return
        if not self.shares_tokens:
            reason = f"m = n = {self.n}" if self.max_calls else "max_calls = 0"
            raise ValueError(
                f'rollout.branching: "{rule.name}" can never branch with {reason}; set branching to "none" or change that'
            )
        asked, left = getattr(rule, "children", 1), self.n - (self.m or 1)
        if asked > left:
            total = f"rollout.n - {'rollout.m' if self.m else 1} = {left}"
            raise ValueError(
                f"rollout.branching.children: expected at most {total}, the trajectories that are left to branch, got {asked}"
            )
        if rule.never:
            raise ValueError(
                f'rollout.branching: "{rule.name}" branches with probability 0; raise it or set branching to "none"'
            )
