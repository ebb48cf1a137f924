"""What the schemas of recipes share: their base class, checks of several sections, and the list of rewriters.

A required field has no default; an unknown key is refused. Paths are relative to the working directory.
"""

from collections.abc import Callable
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict

from ramify.learner.configs import OptimizerConfig
from ramify.rollout.configs import LimitsConfig, RewriterConfig
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
    mistakes = []
    for check in checks:
        try:
            check()
        except ValueError as error:
            mistakes.append(str(error))
    if mistakes:
        raise ValueError("\n".join(mistakes))


def _named_apart(rewriters: tuple[RewriterConfig, ...]) -> tuple[RewriterConfig, ...]:
    names = [rewriter.name or rewriter.function for rewriter in rewriters]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"two are called {twice[0]!r}; give one another name")
    return rewriters


Rewriters = Annotated[tuple[RewriterConfig, ...], AfterValidator(_named_apart)]
"""Functions of the user's own that have a trajectory go on from elsewhere, asked in this order."""


def refuse_clocks(run: RunConfig, limits: LimitsConfig, name: str) -> None:
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


def refuse_idle_rates(optimizer: OptimizerConfig, trains_adapter: bool) -> None:
    """Refuse learning rates for parameters that an adapter does not have (ValueError)."""
    for key in ("vector_rate", "embedding_rate"):
        if trains_adapter and getattr(optimizer, key) is not None:
            raise ValueError(
                f"learner.optimizer.{key}: an adapter has matrices only. Remove it or model.lora."
            )
