"""Row 8.doctor: what `ramify doctor` says a training process takes, against the growth of its resident memory."""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.peers import Peer, PeerUnavailableError
from benchmarks.harness.rows import Row, not_measured
from ramify.commands.memory import adapter_parameters
from ramify.modeling.configs import AdapterConfig
from ramify.modeling.load import shapes_of
from ramify.modeling.memory_plan import Job, ModelSize, plan_of
from ramify.modeling.model_config import published_config

_CHILD = "benchmarks.update.doctor_child"
_MEBI = 2**20
_LOW, _HIGH = -0.05, 0.15


@dataclass(frozen=True, slots=True)
class Shape:
    """What a process trains.

    Attributes:
        model: Name of a published model, whose sizes random weights have.
        tokens: Of the largest row.
        rank: Of an adapter; 0: all weights are trained.
        reference: A frozen copy lies beside the model.
        recompute: Layers are computed again in the backward pass.
    """

    model: str
    tokens: int
    rank: int = 0
    reference: bool = False
    recompute: bool = False

    @property
    def name(self) -> str:
        """In words."""
        kind = f"adapter of rank {self.rank}" if self.rank else "all weights"
        more = ", a reference" * self.reference + ", layers computed again" * self.recompute
        return f"{self.model}, {kind}, a row of {self.tokens} tokens{more}"


SHAPES = (
    Shape("SmolLM2-135M", 2048),
    Shape("Qwen2.5-0.5B", 512),
    Shape("Qwen2.5-0.5B", 1536, rank=16),
    Shape("SmolLM2-135M", 3072, reference=True),
    Shape("Qwen3-0.6B", 2048, rank=16, recompute=True),
)


def estimate_against_growth() -> Sequence[Row]:
    """Row 8.doctor."""
    metric = "MiB that a training process takes at its peak, float32 on a CPU: doctor's estimate / growth of resident memory"
    target = "each of five shapes within -5 % and +15 %"
    try:
        measured = [_measured(shape) for shape in SHAPES]
    except PeerUnavailableError as error:
        return [not_measured("8.doctor", metric, target, str(error))]
    estimates = [_estimate(shape) for shape in SHAPES]
    errors = [ours / theirs - 1 for ours, theirs in zip(estimates, measured, strict=True)]
    worst = max(errors, key=abs)
    return [
        Row(
            "8.doctor",
            metric,
            max(estimates),
            max(measured),
            1 + worst,
            target,
            all(_LOW <= error <= _HIGH for error in errors),
            {"ours": estimates, "peer": measured},
            {
                "shapes": [asdict(shape) for shape in SHAPES],
                "errors": {shape.name: error for shape, error in zip(SHAPES, errors, strict=True)},
                "peer": "VmHWM of a fresh process less its VmRSS after imports; large tensors mapped (modeling/numerics.py)",
            },
        )
    ]


def _estimate(shape: Shape) -> float:
    """Estimate the peak of a shape as doctor does, in MiB."""
    shapes, config = shapes_of(_config(shape), shape.model)
    adapter = adapter_parameters(AdapterConfig(rank=shape.rank), shapes) if shape.rank else 0
    job = Job(
        config,
        ModelSize.of(shapes, adapter),
        number_bytes=4,
        row_tokens=shape.tokens,
        has_reference=shape.reference,
        device="cpu",
    )
    return plan_of(job, recompute=shape.recompute).total / _MEBI


def _measured(shape: Shape) -> float:
    """MiB."""
    question = {name: value for name, value in asdict(shape).items() if name != "model"}
    with Peer(_CHILD, python=Path(sys.executable)) as child:
        return float(child.ask({"config": _config(shape), **question})["peak"]) / _MEBI


def _config(shape: Shape) -> dict[str, Any]:
    config = published_config(shape.model)
    assert config is not None
    return config


ROWS = {"8.doctor": estimate_against_growth}
