"""Optimizers.

Several optimizers act as one here. Their state is named by parameter, so that a checkpoint does not depend on the
order of parameters.

Muon is momentum whose matrices are orthogonalised before each step (K. Jordan and others, 2024, "Muon: An optimizer for hidden
layers in neural networks", https://kellerjordan.github.io/posts/muon/). Ours differs from `torch.optim.Muon` only in the
precision of the products: that one computes in bfloat16 on every device, which is several times slower than float32 on a CPU
without bfloat16 instructions, and rounds differently from one CPU to the next.
"""

import math
from collections.abc import Callable, Iterable, Mapping

import torch

from ramify.core.errors import DataError
from ramify.learner.configs import OptimizerConfig
from ramify.learner.optimizer_files import StoredState
from ramify.learner.sharding import own_part, own_rows, whole, with_own_part
from ramify.modeling.tensor_files import TensorHead

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""a, b, c of the polynomial a s + b s^3 + c s^5 that one iteration applies to every singular value s."""
MIN_NORM = 1e-7
MOMENTUM = 0.95
NS_STEPS = 4


class Muon(torch.optim.Optimizer):
    """Muon with Nesterov momentum on matrices, without weight decay.

    A matrix [R, C] moves by lr sqrt(max(1, R / C)) times its orthogonalised momentum, and so does each of a stack of matrices
    [N, R, C]. State: `momentum_buffer`.

    Args:
        matrices: Parameters of two dimensions, or stacks of three.
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
                    rows, columns = matrix.shape[-2:]
                    rate = group["lr"] * math.sqrt(max(1.0, rows / columns))
                    if matrix.ndim == 3:
                        # Stacks are split between their matrices.
                        for expert, momentum in zip(own_part(matrix), own_part(mean), strict=True):
                            expert.add_(orthogonalized(momentum, group["ns_steps"]), alpha=-rate)
                        continue
                    # Each process orthogonalises the whole matrix, and moves its own rows.
                    direction = orthogonalized(whole(mean), group["ns_steps"])
                    own_part(matrix).add_(direction[own_rows(matrix)], alpha=-rate)

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


class Optimizers:
    """The optimizers of one model."""

    def __init__(self, model: torch.nn.Module, config: OptimizerConfig) -> None:
        named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._named = named
        if config.name == "adamw":
            adamw = torch.optim.AdamW(
                list(named.values()),
                lr=config.rate,
                betas=config.betas,
                weight_decay=config.weight_decay,
                fused=True,
            )
            self._optimizers: list[torch.optim.Optimizer] = [adamw]
        else:
            self._optimizers = _muon(model, named, config)
        groups = (group for optimizer in self._optimizers for group in optimizer.param_groups)
        self._rates = [(group, float(group["lr"])) for group in groups]

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
        """Size of `state_tensors` in bytes, over all processes, once every parameter has been updated."""
        return sum(
            head.nbytes for parameter in self.parameters for head in self._template(parameter).values()
        )

    def missing_bytes(self) -> int:
        """Return the bytes that the first step will allocate in this process; 0 after it."""
        if self.state_tensors():
            return 0
        return sum(
            own_part(parameter).nbytes if head.shape else head.nbytes
            for parameter in self.parameters
            for head in self._template(parameter).values()
        )

    def load_state_tensors(self, stored: StoredState) -> None:
        """Replace the whole state by what `state_tensors` returned, in this number of processes or in another.

        Raises:
            DataError: The tensors are not the state of these optimizers and this model; nothing is changed.
        """
        kinds: dict[str, set[str]] = {}
        for key in stored.names:
            kind, _, name = key.partition(".")
            parameter = self._named.get(name)
            expected = {} if parameter is None else self._template(parameter)
            if kind not in expected:
                raise DataError(f"{key} belongs to no parameter of this model and optimizer")
            if stored.head(key) != expected[kind]:
                raise DataError(
                    f"{key} is {_described(stored.head(key))}, expected {_described(expected[kind])} for this model"
                )
            kinds.setdefault(name, set()).add(kind)
        for name, present in kinds.items():
            if missing := self._template(self._named[name]).keys() - present:
                raise DataError(f"{min(missing)}.{name} is missing")
        states = {name: self._read(stored, name, present) for name, present in kinds.items()}
        for optimizer in self._optimizers:
            optimizer.state.clear()
        for name, state in states.items():
            self._owner(self._named[name]).state[self._named[name]] = state

    def _read(self, stored: StoredState, name: str, kinds: Iterable[str]) -> dict[str, torch.Tensor]:
        """Return the state of one parameter, as far as this process keeps it."""
        parameter, state = self._named[name], {}
        for kind in sorted(kinds):
            is_split = bool(stored.head(f"{kind}.{name}").shape)
            rows = own_rows(parameter) if is_split else slice(None)
            part = stored.rows(f"{kind}.{name}", rows).to(parameter.device, copy=True)
            state[kind] = with_own_part(parameter, part) if is_split else part
        return state

    def _template(self, parameter: torch.Tensor) -> dict[str, TensorHead]:
        """Return the type and shape of a parameter's whole state, by kind."""
        like = TensorHead(parameter.dtype, tuple(parameter.shape))
        if isinstance(self._owner(parameter), torch.optim.AdamW):
            return {"step": TensorHead(torch.float32, ()), "exp_avg": like, "exp_avg_sq": like}
        return {"momentum_buffer": like}

    def _owner(self, parameter: torch.Tensor) -> torch.optim.Optimizer:
        for optimizer in self._optimizers:
            if any(parameter is other for group in optimizer.param_groups for other in group["params"]):
                return optimizer
        raise KeyError("parameter without an optimizer")


def _described(head: TensorHead) -> str:
    return f"{str(head.dtype).removeprefix('torch.')} {list(head.shape)}"


def _muon(
    model: torch.nn.Module, named: Mapping[str, torch.Tensor], config: OptimizerConfig
) -> list[torch.optim.Optimizer]:
    tables = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    outer = [p for name, p in named.items() if id(p) in tables or name.startswith("lm_head.")]
    inner = {name: p for name, p in named.items() if not any(p is other for other in outer)}
    # Routed experts are stacks of matrices; a convolution has three dimensions too.
    matrices = [p for name, p in inner.items() if p.ndim == 2 or (p.ndim == 3 and ".experts." in name)]
    vectors = [p for p in inner.values() if not any(p is matrix for matrix in matrices)]
    groups = [
        {"params": vectors, "lr": config.vector_rate or config.rate},
        {"params": outer, "lr": config.embedding_rate or config.rate},
    ]
    muon = Muon(matrices, lr=config.rate, momentum=MOMENTUM, ns_steps=NS_STEPS)
    adamw = torch.optim.AdamW(groups, betas=config.betas, weight_decay=config.weight_decay, fused=True)
    return [adamw, muon]
