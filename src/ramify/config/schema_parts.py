"""Schemas of the parts that recipes share: model, engine, limits, reward, optimizer, run.

A required field has no default; an unknown key is refused. Paths are relative to the working directory.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)

from ramify.config.bounds import (
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
    Temperature,
    Threads,
    Tokens,
    Weight,
)
from ramify.modeling.hub import local_folder


def _usable(path: Path) -> Path:
    if "\0" in str(path):
        raise ValueError("expected a path without a null character")
    try:
        str(path).encode()
    except UnicodeEncodeError:
        # Recipes are UTF-8: one with this path could not be written into the run's folder.
        raise ValueError("expected a path in UTF-8; give the file or folder another name") from None
    return path


UserPath = Annotated[Path, AfterValidator(_usable)]


class Section(BaseModel):
    """A table of a recipe."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _true_or_false(cls, table: Any) -> Any:  # noqa: ANN401 - any TOML value
        """Where a switch stands, 0 and "yes" are none."""
        for name, field in cls.model_fields.items() if isinstance(table, dict) else ():
            kinds = get_args(field.annotation) or (field.annotation,)
            given = table.get(name, False)
            if bool in kinds and not isinstance(given, bool) and not (given is None and type(None) in kinds):
                raise ValueError(f"{name}: expected true or false, got {given!r:.80}")
        return table


def refuse_all(*checks: Callable[[], None]) -> None:
    """Make every check of a recipe, so that all its mistakes are told at once.

    Raises:
        ValueError: Some raised one; a line for each.
    """
    found = []
    for check in checks:
        try:
            check()
        except ValueError as error:
            found.append(str(error))
    if found:
        raise ValueError("\n".join(found))


def is_changed(section: Section, key: str) -> bool:
    """Whether a key is other than by default; a resolved recipe holds every key and has to load again."""
    return bool(getattr(section, key) != type(section).model_fields[key].default)


class ModelSection(Section):
    """Which model: a Hugging Face folder, or an id of the hub ("org/name", "org/name@revision"), which is fetched.

    "auto" is a GPU where there is one, else the CPU.

    Training keeps its weights in float32: at the papers' rates most updates are too small for bfloat16.
    """

    path: UserPath
    dtype: Literal["float32", "bfloat16"] = "float32"
    device: Literal["auto", "cpu", "cuda"] = "auto"

    @property
    def folder(self) -> Path:
        """Where the model lies on this machine.

        Raises:
            MachineError: An id of the hub that has not been fetched.
        """
        return local_folder(self.path)


def _one_target(value: Any) -> Any:  # noqa: ANN401 - any TOML value
    """`targets = "q_proj"` is short for `targets = ["q_proj"]`."""
    return (value,) if isinstance(value, str) and value != "all-linear" else value


class LoraSection(Section):
    """Train an adapter (LoRA, arXiv 2106.09685) and leave the model as it is; alpha / rank scales it.

    `targets` names modules such as "q_proj"; "all-linear" is all linear maps but the head.
    """

    rank: Reserved = 16
    alpha: Magnitude = 32.0
    targets: Annotated[
        Literal["all-linear"] | Annotated[tuple[str, ...], Field(min_length=1)], BeforeValidator(_one_target)
    ] = "all-linear"


class TrainedModelSection(ModelSection):
    """A model that is trained, or an adapter of it; `path` may be an adapter's folder, which is trained further."""

    dtype: Literal["float32"] = "float32"
    lora: LoraSection | None = None


class LocalEngineSection(Section):
    """The engine in this process: `slots` sequences at once."""

    name: Literal["local"]
    slots: Reserved = 128


class ScriptedEngineSection(Section):
    """An engine that plays the turns of a script file (see engines/scripted.py)."""

    name: Literal["scripted"]
    script: UserPath


EngineSection = Annotated[LocalEngineSection | ScriptedEngineSection, Field(discriminator="name")]


class LimitsSection(Section):
    """What one trajectory may use: tokens after the prompt (results included), tool calls, and time.

    `max_result_chars` cuts a tool result; `trajectory_seconds` and `step_seconds` end what is not ready by then.
    """

    max_tokens: Tokens
    max_calls: Calls
    temperature: Temperature = 1.0
    max_result_chars: PositiveInt = 20_000
    trajectory_seconds: Seconds | None = None
    step_seconds: Seconds | None = None


class OptimizerSection(Section):
    """AdamW; or Muon for hidden matrices with AdamW for vectors and embeddings.

    The rate warms up over `warmup_steps`, then falls in a straight line from `decay_from` (share of
    the run) to `final_rate` (share of the peak) at its end; a final rate of 1 keeps it constant.
    """

    name: Literal["adamw", "muon"] = "adamw"
    rate: LearningRate
    vector_rate: LearningRate | None = None
    embedding_rate: LearningRate | None = None
    betas: tuple[BelowOne, BelowOne] = (0.9, 0.999)
    weight_decay: Weight = 0.0
    warmup_steps: Count = 0
    decay_from: BelowOne = 0.0
    final_rate: Fraction = 1.0
    max_grad_norm: Magnitude = 1.0

    @model_validator(mode="after")
    def _acting(self) -> "OptimizerSection":
        for key in ("vector_rate", "embedding_rate"):
            if self.name == "adamw" and getattr(self, key) is not None:
                raise ValueError(f'{key}: acts with name = "muon" only; leave it out')
        if self.final_rate == 1 and self.decay_from > 0:
            raise ValueError("decay_from: acts with final_rate below 1 only; leave it out")
        return self


class RunSection(Section):
    """Where a run lives, and how it is repeated."""

    dir: UserPath
    seed: Seed = 0
    threads: Threads | None = None
    deterministic: bool = False


class TrainingRunSection(RunSection):
    """And how many steps it has, and which checkpoints stay: the last ones and those of the best score.

    Without `steps` a run ends after `data.epochs`. The schedule of the rate follows either.
    """

    steps: PositiveInt | None = None
    save_every: PositiveInt = 5
    keep_last: PositiveInt = 2
    keep_best: Count = 1


def refuse_clocks(run: RunSection, limits: LimitsSection, name: str) -> None:
    """A run that is to be repeated exactly counts calls and tokens: what ends by the clock differs each time.

    Raises:
        ValueError: Such a run has a deadline for trajectories or steps.
    """
    for key in ("trajectory_seconds", "step_seconds"):
        if run.deterministic and getattr(limits, key) is not None:
            raise ValueError(
                f"{name}.{key}: expected no deadline with run.deterministic; use max_calls and max_tokens"
            )
