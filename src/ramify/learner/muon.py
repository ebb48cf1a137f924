"""Muon: momentum whose matrices are orthogonalised before each step (K. Jordan and others, 2024).

Source: "Muon: An optimizer for hidden layers in neural networks", https://kellerjordan.github.io/posts/muon/. It differs
from `torch.optim.Muon` only in the precision of the products. That one computes in bfloat16 on every device, which is
several times slower than float32 on a CPU without bfloat16 instructions, and rounds differently from one CPU to the next.
"""

import math
from collections.abc import Callable, Iterable

import torch

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
