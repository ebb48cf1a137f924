"""The schema of a training rollout: the size of one step's trees, and the branching rule, whose settings it owns."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError

from ramify.algos.catalog import AnyRule
from ramify.config.schema_parts import Rewriters
from ramify.core.config import PositiveInt, SignedWeight, Trajectories
from ramify.rollout.configs import LimitsConfig
from ramify.sampler.configs import DynamicSamplingConfig

_PAPER = TypeAdapter(tuple[SignedWeight, SignedWeight, SignedWeight])
"""The paper's alpha, beta and tau."""


def _written_out(value: Any) -> Any:  # noqa: ANN401 - any TOML value
    """A rule's table where the recipe is shorter: a name alone, the paper's numbers of a threshold, no tau."""
    if isinstance(value, str):
        value = {"name": value}
    if not isinstance(value, dict):
        return value
    if value.get("name") == "threshold":
        return _min_entropy_delta(value)
    if value.get("name") == "shuffled" and "rule" in value:
        rule = _written_out(value["rule"])
        probe = {key: rule[key] for key in ("probe_tokens",) if isinstance(rule, dict) and key in rule}
        return {**probe, **value, "rule": rule}
    is_paper = value.get("name") == "balanced" and value.get("draw", "threshold") == "threshold"
    return {**value, "tau": 0.5} if is_paper and value.get("tau") is None else value


def _min_entropy_delta(table: dict[str, Any]) -> dict[str, Any]:
    """The paper's `alpha`, `beta` and `tau` (ARPO, section 3.1) as min_entropy_delta = (tau - alpha) / beta."""
    if not {"alpha", "beta", "tau"} & table.keys():
        return table
    others = {key: value for key, value in table.items() if key not in ("alpha", "beta", "tau")}
    try:
        alpha, beta, tau = _PAPER.validate_python((table.get("alpha"), table.get("beta"), table.get("tau")))
    except ValidationError:
        raise ValueError(
            "expected alpha, beta and tau together, as numbers (finite, -1000 to 1000)"
        ) from None
    if "min_entropy_delta" in table or beta <= 0:
        raise ValueError("expected min_entropy_delta or alpha, beta > 0 and tau, not both")
    return {**others, "min_entropy_delta": (tau - alpha) / beta}


BranchingSection = Annotated[AnyRule, Field(discriminator="name"), BeforeValidator(_written_out)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSection(LimitsConfig):
    """The trees of a step: n trajectories per problem, m of them from the prompt (leave m out if the rule computes it).

    `branch_at`: branches start at the tool result, as in the papers (before_probe), or after the tokens whose entropy
    decided, which they then share (after_probe); this avoids the papers' bias towards what those tokens happen to be.

    `rewriters` are functions of the user's own that have a trajectory go on from elsewhere, asked in this order.
    """

    problems_per_step: PositiveInt
    n: Trajectories
    m: Trajectories | None = None
    branching: BranchingSection
    branch_at: Literal["before_probe", "after_probe"] = "before_probe"
    dynamic_sampling: DynamicSamplingConfig | None = None
    rewriters: Rewriters = ()

    def __post_init__(self) -> None:
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
            raise ValueError(f'm: branching "{rule.name}" computes m itself, got {self.m}. Remove it.')
        if not rule.branches and self.branch_at != "before_probe":
            raise ValueError('branch_at: branching "none" has no branches. Remove it.')
        if self.dynamic_sampling is not None and rule.name == "yoked":
            raise ValueError(
                'dynamic_sampling: a "yoked" run needs the problems of its pair in each step. Remove it.'
            )
        if self.temperature <= 0:
            raise ValueError("temperature: training samples, so it must be above 0")
        if self.dynamic_sampling is not None and self.n == 1:
            raise ValueError("dynamic_sampling: one trajectory cannot be both right and wrong. Remove it.")

    @property
    def shares_tokens(self) -> bool:
        """Return True if trajectories of a tree can share tokens of the policy."""
        # A rule that computes m starts at least one trajectory.
        return self.branching.branches and (self.m or 1) != self.n and self.max_calls > 0

    def refuse_idle_rule(self) -> None:
        """Refuse a branching rule that can never branch, or not into as many children as it asks for (ValueError)."""
        rule = self.branching
        if not rule.branches:
            return
        if not self.shares_tokens:
            reason = f"m = n = {self.n}" if self.max_calls else "max_calls = 0"
            raise ValueError(
                f'rollout.branching: "{rule.name}" can never branch with {reason}; set branching to "none" or change that'
            )
        children, left = getattr(rule, "children", 1), self.n - (self.m or 1)
        if children > left:
            total = f"rollout.n - {'rollout.m' if self.m else 1} = {left}"
            raise ValueError(
                f"rollout.branching.children: expected at most {total}, the trajectories that are left to branch, got {children}"
            )
        if rule.never:
            raise ValueError(
                f'rollout.branching: "{rule.name}" branches with probability 0; raise it or set branching to "none"'
            )
