"""Optimizers and learning-rate schedules.

Several optimizers act as one here. Their state is named by parameter, so that a checkpoint does not depend on the
order of parameters.

Muon is momentum whose matrices are orthogonalised before each step (K. Jordan and others, 2024, "Muon: An optimizer for hidden
layers in neural networks", https://kellerjordan.github.io/posts/muon/). Ours differs from `torch.optim.Muon` only in the
precision of the products: that one computes in bfloat16 on every device, which is several times slower than float32 on a CPU
without bfloat16 instructions, and rounds differently from one CPU to the next.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from ramify.core.errors import DataError

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""a, b, c of the polynomial a s + b s^3 + c s^5 that one iteration applies to every singular value s."""
MIN_NORM = 1e-7


class Muon(torch.optim.Optimizer):
    """Muon with Nesterov momentum on matrices, without weight decay.

    A matrix [R, C] moves by lr sqrt(max(1, R / C)) times its orthogonalised momentum. State: `momentum_buffer`.

    Args:
        matrices: Two-dimensional parameters.
        lr: Learning rate; for a square matrix, about how far each of its singular directions moves.
        momentum: Share of the past in the running mean of gradients.
        ns_steps: Number of Newton-Schulz iterations.
    """

    def __init__(
        self, matrices: Iterable[torch.Tensor], *, lr: float, momentum: float, ns_steps: int
    ) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "ns_steps": ns_steps})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Move every matrix that has a gradient."""
        del closure
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is not None:
                    mean = self._mean(matrix, matrix.grad, group["momentum"])
                    rows, columns = matrix.shape
                    rate = group["lr"] * math.sqrt(max(1.0, rows / columns))
                    matrix.add_(orthogonalized(mean, group["ns_steps"]), alpha=-rate)

    def _mean(self, matrix: torch.Tensor, grad: torch.Tensor, momentum: float) -> torch.Tensor:
        state = self.state[matrix]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(grad)
        buffer: torch.Tensor = state["momentum_buffer"]
        buffer.lerp_(grad, 1 - momentum)
        return grad.lerp(buffer, momentum)


def orthogonalized(matrix: torch.Tensor, steps: int) -> torch.Tensor:
    """Approximately U V^T for `matrix` = U S V^T: moves its singular values to about [0.7, 1.2]. [R, C]

    Uses Newton-Schulz iterations, in bfloat16 on a GPU and in the matrix's own type on a CPU.
    """
    tall = matrix.shape[0] > matrix.shape[1]
    wide = matrix.T if tall else matrix
    if matrix.device.type != "cpu":
        wide = wide.bfloat16()
    a, b, c = COEFFICIENTS
    wide = wide / wide.norm().clamp(min=MIN_NORM)
    for _ in range(steps):
        gram = wide @ wide.T
        wide = torch.addmm(wide, torch.addmm(gram, gram, gram, beta=b, alpha=c), wide, beta=a)
    return wide.T if tall else wide


@dataclass(frozen=True, slots=True)
class Schedule:
    """A factor on the learning rates that depends on the step alone.

    It rises over `warmup_steps`, stays at one, and falls linearly from `decay_start` (a fraction of the run) to
    `final_fraction` at the end of the run; with a final fraction of one it stays constant.
    """

    warmup_steps: int = 0
    decay_start: float = 0.0
    final_fraction: float = 1.0

    def factor(self, step: int, total: int) -> float:
        """Factor for step 0 <= step < total."""
        start = self.decay_start * total
        progress = max(0.0, step - start) / (total - start)
        decay = 1 + (self.final_fraction - 1) * min(progress, 1.0)
        return min(1.0, (step + 1) / max(self.warmup_steps, 1)) * decay


@dataclass(frozen=True, slots=True)
class AdamWSettings:
    """AdamW on all parameters (arXiv 1711.05101)."""

    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.01


@dataclass(frozen=True, slots=True)
class MuonSettings:
    """Muon on the hidden matrices; AdamW on vectors and embeddings, each with a rate of its own.

    `weight_decay` applies to AdamW only; the matrices have none.
    """

    matrix_lr: float
    vector_lr: float
    embedding_lr: float
    momentum: float = 0.95
    ns_steps: int = 4
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = 0.01


OptimizerSettings: TypeAlias = AdamWSettings | MuonSettings


class Optimizers:
    """The optimizers of one model."""

    def __init__(self, model: torch.nn.Module, settings: OptimizerSettings) -> None:
        named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._named = named
        match settings:
            case AdamWSettings():
                self._optimizers = _adamw(list(named.values()), settings)
            case MuonSettings():
                self._optimizers = _muon(model, named, settings)
        self._rates = [(group, float(group["lr"])) for group in self._groups()]

    @property
    def parameters(self) -> list[torch.Tensor]:
        """All trained parameters."""
        return list(self._named.values())

    def step(self, factor: float) -> None:
        """Take one step at `factor` times the configured rates."""
        for group, rate in self._rates:
            group["lr"] = rate * factor
        for optimizer in self._optimizers:
            optimizer.step()

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=True)

    def state_tensors(self) -> dict[str, torch.Tensor]:
        """Momenta and counters, named "kind.parameter name"."""
        return {
            f"{kind}.{name}": tensor
            for name, parameter in self._named.items()
            for kind, tensor in self._owner(parameter).state.get(parameter, {}).items()
        }

    def state_bytes(self) -> int:
        """Size of `state_tensors` in bytes once every parameter has been updated."""
        return sum(
            tensor.nbytes for parameter in self.parameters for tensor in self._template(parameter).values()
        )

    def missing_bytes(self) -> int:
        """What of `state_bytes` the first step will still take."""
        return self.state_bytes() - sum(tensor.nbytes for tensor in self.state_tensors().values())

    def load_state_tensors(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Replace the whole state by what `state_tensors` returned.

        Raises:
            DataError: The tensors are not the state of these optimizers and this model; nothing is changed.
        """
        found: dict[str, dict[str, torch.Tensor]] = {}
        for key, tensor in tensors.items():
            kind, _, name = key.partition(".")
            parameter = self._named.get(name)
            expected = {} if parameter is None else self._template(parameter)
            if kind not in expected:
                raise DataError(f"{key} belongs to no parameter of this model and optimizer")
            if (tensor.dtype, tensor.shape) != (expected[kind].dtype, expected[kind].shape):
                raise DataError(
                    f"{key} is {_described(tensor)}, expected {_described(expected[kind])} for this model"
                )
            found.setdefault(name, {})[kind] = tensor
        for name, state in found.items():
            missing = self._template(self._named[name]).keys() - state.keys()
            if missing:
                raise DataError(f"{min(missing)}.{name} is missing")
        for optimizer in self._optimizers:
            optimizer.state.clear()
        for name, state in found.items():
            parameter = self._named[name]
            self._owner(parameter).state[parameter] = {
                kind: tensor.to(parameter.device, copy=True) for kind, tensor in state.items()
            }

    def _template(self, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        """The shape of a parameter's state: tensors without memory, by kind."""
        like = torch.empty_like(parameter, device="meta")
        if isinstance(self._owner(parameter), torch.optim.AdamW):
            return {
                "step": torch.empty((), dtype=torch.float32, device="meta"),
                "exp_avg": like,
                "exp_avg_sq": like,
            }
        return {"momentum_buffer": like}

    def _groups(self) -> Iterator[dict[str, Any]]:
        return (group for optimizer in self._optimizers for group in optimizer.param_groups)

    def _owner(self, parameter: torch.Tensor) -> torch.optim.Optimizer:
        for optimizer in self._optimizers:
            if any(parameter is other for group in optimizer.param_groups for other in group["params"]):
                return optimizer
        raise KeyError("parameter without an optimizer")


def _described(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _adamw(parameters: list[torch.Tensor], settings: AdamWSettings) -> list[torch.optim.Optimizer]:
    return [
        torch.optim.AdamW(
            parameters, lr=settings.lr, betas=settings.betas, weight_decay=settings.weight_decay, fused=True
        )
    ]


def _muon(
    model: torch.nn.Module, named: Mapping[str, torch.Tensor], settings: MuonSettings
) -> list[torch.optim.Optimizer]:
    tables = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    outer = [p for name, p in named.items() if id(p) in tables or name.startswith("lm_head.")]
    inner = [p for p in named.values() if not any(p is other for other in outer)]
    matrices = [p for p in inner if p.ndim == 2]
    vectors = [p for p in inner if p.ndim != 2]
    groups = [{"params": vectors, "lr": settings.vector_lr}, {"params": outer, "lr": settings.embedding_lr}]
    muon = Muon(matrices, lr=settings.matrix_lr, momentum=settings.momentum, ns_steps=settings.ns_steps)
    adamw = torch.optim.AdamW(groups, betas=settings.betas, weight_decay=settings.weight_decay, fused=True)
    return [adamw, muon]
