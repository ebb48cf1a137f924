"""Settings of a model and its adapter, apart from their code, which imports torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from ramify.core.config import Config, Length, Magnitude, Reserved, UserPath, ValueCheck
from ramify.core.messages import Dialect
from ramify.modeling.model_path import local_folder


def _one_target(value: Any) -> Any:  # noqa: ANN401 - any TOML value
    """Read `targets = "q_proj"` as short for `targets = ["q_proj"]`."""
    return (value,) if isinstance(value, str) and value != "all-linear" else value


Targets: TypeAlias = Literal["all-linear"] | Annotated[tuple[str, ...], Length(1, 1000)]


@dataclass(frozen=True, slots=True)
class AdapterConfig(Config):
    """Train an adapter (LoRA, arXiv 2106.09685) and keep the model frozen: B A is scaled by alpha / rank.

    `targets` are names of modules such as "q_proj"; "all-linear" means all linear layers except the head.
    """

    rank: Reserved = 16
    alpha: Magnitude = 32.0
    targets: Annotated[Targets, ValueCheck(_one_target, first=True)] = "all-linear"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig(Config):
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedModelConfig(ModelConfig):
    """The model to train, or to add an adapter to; if `path` is an adapter's folder, it is trained further."""

    lora: AdapterConfig | None = None
