"""Schemas of the sections that recipes share: model, engine, limits, optimizer, run.

A required field has no default; an unknown key is refused. Paths are relative to the working directory.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
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
    Reserved,
    Seconds,
    Seed,
    Switch,
    Temperature,
    Threads,
    Tokens,
    UserPath,
    Weight,
)
from ramify.modeling.hub import local_folder
from ramify.rollout.configs import RewriterConfig


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


Dialect = Literal["tags", "hermes"]
"""How the policy writes calls and answers: the papers' tags, or JSON calls as Qwen and Hermes models write them."""


class ModelSection(Section):
    """Which model: a Hugging Face folder, or an id of the hub ("org/name", "org/name@revision"), which is downloaded.

    `device = "auto"` uses a GPU if there is one, else the CPU. `dtype` is the type that the model computes in. Training
    keeps weights in float32 beside it, because at the papers' learning rates most updates are too small for bfloat16; only
    a base below an adapter is kept in `dtype`. `dialect` is how the model writes calls and answers.
    """

    path: UserPath
    dialect: Dialect = "tags"
    dtype: Literal["float32", "bfloat16"] = "float32"
    device: Literal["auto", "cpu", "cuda"] = "auto"

    @property
    def folder(self) -> Path:
        """The model's folder on this machine.

        Raises:
            MachineError: The path is an id of the hub that has not been downloaded.
        """
        return local_folder(self.path)


def _one_target(value: Any) -> Any:  # noqa: ANN401 - any TOML value
    """`targets = "q_proj"` is short for `targets = ["q_proj"]`."""
    return (value,) if isinstance(value, str) and value != "all-linear" else value


class LoraSection(Section):
    """Train an adapter (LoRA, arXiv 2106.09685) and keep the model frozen; the adapter is scaled by alpha / rank.

    `targets` are names of modules such as "q_proj"; "all-linear" means all linear layers except the head.
    """

    rank: Reserved = 16
    alpha: Magnitude = 32.0
    targets: Annotated[
        Literal["all-linear"] | Annotated[tuple[str, ...], Field(min_length=1)], BeforeValidator(_one_target)
    ] = "all-linear"


class TrainedModelSection(ModelSection):
    """The model to train, or to add an adapter to; if `path` is an adapter's folder, it is trained further."""

    lora: LoraSection | None = None


class LocalEngineSection(Section):
    """The engine in this process; it generates up to `slots` sequences at once."""

    computes_here: ClassVar[bool] = True
    """The model runs in this process, with exact entropies."""
    repeats: ClassVar[bool] = True
    name: Literal["local"]
    slots: Reserved = 128


class TrainingEngineSection(LocalEngineSection):
    """The engine of a training run in this process.

    Its `weights` are the learner's own ("shared"), or those of a model of its own, into which the learner's are copied
    after each step and compared on a fixed prompt ("copy"). Without this key they are shared where they can be: in one
    process that computes in float32.
    """

    weights: Literal["shared", "copy"] | None = None


class ScriptedEngineSection(Section):
    """An engine that plays the turns of a script file (see engines/scripted.py)."""

    computes_here: ClassVar[bool] = False
    repeats: ClassVar[bool] = True
    name: Literal["scripted"]
    script: UserPath


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


class RunSection(Section):
    """The folder of a run, and what makes it reproducible."""

    dir: UserPath
    seed: Seed = 0
    threads: Threads | None = None
    deterministic: Switch = False


class TrainingRunSection(RunSection):
    """A training run: its number of steps, and which checkpoints are kept: the last ones and the best ones.

    Without `steps` a run ends after `data.epochs`. The learning-rate schedule covers the whole run in either case.
    """

    steps: PositiveInt | None = None
    save_every: PositiveInt = 5
    keep_last: PositiveInt = 2
    keep_best: Count = 1


def refuse_clocks(run: RunSection, limits: LimitsSection, name: str) -> None:
    """Refuse deadlines in a deterministic run, because what they cut off differs from run to run (ValueError)."""
    for key in ("trajectory_seconds", "step_seconds"):
        if run.deterministic and getattr(limits, key) is not None:
            raise ValueError(
                f"{name}.{key}: expected no deadline with run.deterministic; use max_calls and max_tokens"
            )


def refuse_unrepeatable(run: RunSection, repeats: bool) -> None:
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
