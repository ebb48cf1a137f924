"""Schemas of the sections that recipes share: model, engine, limits, optimizer, run.

A required field has no default; an unknown key is refused. Paths are relative to the working directory.
"""

from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    model_validator,
)

from ramify.core.config import (
    BelowOne,
    Calls,
    Count,
    Fraction,
    LearningRate,
    Magnitude,
    PositiveInt,
    Seconds,
    Temperature,
    Tokens,
    Weight,
)
from ramify.rollout.configs import RewriterConfig
from ramify.runs.configs import RunConfig


class Section(BaseModel):
    """A table of a recipe."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=False, allow_inf_nan=False, defer_build=True
    )


def refuse_all(*checks: Callable[[], None]) -> None:
    """Run all checks of a recipe, to report all its mistakes at once.

    Raises:
        ValueError: Some check failed; one line for each.
    """
    found = []
    for check in checks:
        try:
            check()
        except ValueError as error:
            found.append(str(error))
    if found:
        raise ValueError("\n".join(found))


class LimitsSection(Section):
    """Limits of one trajectory: tokens after the prompt (results included), tool calls, and time.

    `max_result_chars` truncates a tool result; `trajectory_seconds` and `step_seconds` are deadlines for a trajectory
    and for all trajectories of a step.
    """

    max_tokens: Tokens
    max_calls: Calls
    temperature: Temperature = 1.0
    max_result_chars: PositiveInt = 20_000
    trajectory_seconds: Seconds | None = None
    step_seconds: Seconds | None = None


def _named_apart(rewriters: tuple[RewriterConfig, ...]) -> tuple[RewriterConfig, ...]:
    names = [rewriter.name or rewriter.function for rewriter in rewriters]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"two are called {twice[0]!r}; give one another name")
    return rewriters


Rewriters = Annotated[tuple[RewriterConfig, ...], AfterValidator(_named_apart)]
"""Functions of the user's own that have a trajectory go on from elsewhere, asked in this order."""


class OptimizerSection(Section):
    """AdamW; or Muon for hidden matrices and AdamW for vectors and embeddings.

    The learning rate warms up over `warmup_steps`. From `decay_from` (a share of the run) it decays to `final_rate` (a share of
    the peak) at the end of the run, linearly or as half a cosine; a final rate of 1 keeps it constant.
    """

    name: Literal["adamw", "muon"] = "adamw"
    rate: LearningRate
    vector_rate: LearningRate | None = None
    embedding_rate: LearningRate | None = None
    betas: tuple[BelowOne, BelowOne] = (0.9, 0.999)
    weight_decay: Weight = 0.0
    warmup_steps: Count = 0
    decay: Literal["linear", "cosine"] = "linear"
    decay_from: BelowOne = 0.0
    final_rate: Fraction = 1.0
    max_grad_norm: Magnitude = 1.0

    @model_validator(mode="after")
    def _acting(self) -> "OptimizerSection":
        for key in ("vector_rate", "embedding_rate"):
            if self.name == "adamw" and getattr(self, key) is not None:
                raise ValueError(f'{key}: acts with name = "muon" only; leave it out')
        for key, idle in (("decay_from", 0.0), ("decay", "linear")):
            if self.final_rate == 1 and getattr(self, key) != idle:
                raise ValueError(f"{key}: acts with final_rate below 1 only; leave it out")
        return self


def refuse_clocks(run: RunConfig, limits: LimitsSection, name: str) -> None:
    """Refuse deadlines in a deterministic run, because what they cut off differs from run to run (ValueError)."""
    for key in ("trajectory_seconds", "step_seconds"):
        if run.deterministic and getattr(limits, key) is not None:
            raise ValueError(
                f"{name}.{key}: expected no deadline with run.deterministic; use max_calls and max_tokens"
            )


def refuse_unrepeatable(run: RunConfig, repeats: bool) -> None:
    """Refuse a deterministic run of an engine that does not answer the same way twice (ValueError)."""
    if run.deterministic and not repeats:
        raise ValueError("run.deterministic: expected false, a service does not answer the same way twice")


def refuse_idle_rates(optimizer: OptimizerSection, trains_adapter: bool) -> None:
    """Refuse learning rates for parameters that an adapter does not have (ValueError)."""
    for key in ("vector_rate", "embedding_rate"):
        if trains_adapter and getattr(optimizer, key) is not None:
            raise ValueError(
                f"learner.optimizer.{key}: an adapter has matrices only; leave it out with model.lora"
            )
