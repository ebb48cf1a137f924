"""The one learner: forward and backward over packed rows, clipping, one optimizer step.

Losses are sums over tokens, divided once by a denominator that the caller counts over the whole optimizer step
(dead groups included), so that how tokens are split into rows changes nothing.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from transformers import PreTrainedModel

from ramify.algos.losses import LossInputs, PolicyLoss
from ramify.core.errors import TrainingError
from ramify.core.records import Floats, PackedRow
from ramify.learner.optimizer import Optimizers, OptimizerSettings, Schedule
from ramify.learner.tree_attention import TreeAttention
from ramify.modeling.head import written_logprobs

MAX_SKIPPED_IN_A_ROW = 10


@dataclass(frozen=True, slots=True)
class UpdateReport:
    """What one optimizer step did; everything was measured before the step.

    Attributes:
        outcome: `empty` when there were no rows, `non_finite` when the step was skipped for that.
        loss: Sum over tokens / denominator.
        grad_norm: Before clipping.
        lr_factor: What the schedule gave.
        num_written, num_tokens: Unique written tokens and all unique tokens of the rows.
        gap_mean, gap_max: |ln(policy / behavior)| over written tokens; at the first step after a rollout this is
            the difference between engine and learner.
        entropy: Mean over written tokens, nats.
        metrics: The loss's own sums (such as `clip_fraction`) over the sum of num_paths.
    """

    outcome: Literal["stepped", "empty", "non_finite"]
    loss: float
    grad_norm: float
    lr_factor: float
    num_written: int
    num_tokens: int
    gap_mean: float
    gap_max: float
    entropy: float
    metrics: Mapping[str, float]


class Learner:
    """Trains one model.

    Args:
        model: Loaded by `ramify.modeling`, so that it takes an attention plan.
        optimizer: What to step with.
        schedule: Factor on its rates.
        total_steps: Length of the run, for the schedule.
        loss: Sum over the written tokens of a row.
        temperature: Of the sampling distribution; logits are divided by it.
        max_grad_norm: Gradients are scaled down to this norm.
        chunk_tokens: Tokens whose logits exist at a time.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        optimizer: OptimizerSettings,
        schedule: Schedule,
        total_steps: int,
        loss: PolicyLoss,
        temperature: float,
        max_grad_norm: float,
        chunk_tokens: int = 1024,
    ) -> None:
        self.model = model
        self.optimizers = Optimizers(model, optimizer)
        self.step = 0
        self._schedule, self._total_steps = schedule, total_steps
        self._loss, self._temperature = loss, temperature
        self._max_grad_norm, self._chunk_tokens = max_grad_norm, chunk_tokens
        self._skipped_in_a_row = 0

    def update(self, rows: Sequence[PackedRow], denominator: float) -> UpdateReport:
        """Take one optimizer step on one mini-batch. A step that is skipped still counts for the schedule.

        Raises:
            TrainingError: Loss or gradient were not finite ten times in a row.
        """
        factor = self._schedule.factor(self.step, self._total_steps)
        self.step += 1
        self.optimizers.zero_grad()
        totals = _Totals()
        for row in rows:
            self._accumulate(row, denominator, totals)
        outcome: Literal["stepped", "empty", "non_finite"] = "empty"
        norm = 0.0
        if rows:
            norm = float(torch.nn.utils.clip_grad_norm_(self.optimizers.parameters, self._max_grad_norm))
            outcome = "stepped" if math.isfinite(totals.loss) and math.isfinite(norm) else "non_finite"
        self._finish(outcome, factor)
        return totals.report(outcome, norm, factor, denominator)

    def logprobs(self, rows: Sequence[PackedRow]) -> tuple[Floats, ...]:
        """Log-probabilities of the written tokens of each row under the current weights. [W] each"""
        with torch.no_grad():
            parts = [self._forward(row, with_entropy=False)[0] for row in rows]
        return tuple(part.double().cpu().numpy() for part in parts)

    def _finish(self, outcome: str, factor: float) -> None:
        if outcome == "stepped":
            self.optimizers.step(factor)
            self._skipped_in_a_row = 0
        elif outcome == "non_finite":
            self._skipped_in_a_row += 1
        self.optimizers.zero_grad()
        if self._skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW:
            raise TrainingError(
                f"step {self.step - 1}: loss or gradient not finite {MAX_SKIPPED_IN_A_ROW} times in a row"
            )

    def _accumulate(self, row: PackedRow, denominator: float, totals: "_Totals") -> None:
        logprobs, entropies = self._forward(row, with_entropy=True)
        behavior = self._tensor(row.behavior_logprobs)
        inputs = LossInputs(
            s_plus=self._tensor(row.s_plus),
            s_minus=self._tensor(row.s_minus),
            weight=self._tensor(row.weight),
            num_paths=self._tensor(row.num_paths),
            policy_logprobs=logprobs,
            old_logprobs=behavior,
            entropies=entropies,
        )
        output = self._loss(inputs)
        (output.loss / denominator).backward()  # type: ignore[no-untyped-call]
        assert entropies is not None
        gap = (logprobs.detach() - behavior).abs()
        totals.add(row, float(output.loss.detach()), gap, entropies.detach(), output.sums)

    def _forward(self, row: PackedRow, with_entropy: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Log-probabilities and entropies of the written tokens. [W]"""
        device = self.model.device
        ids = torch.from_numpy(row.token_ids).to(device)
        decoder: Callable[..., Any] = self.model.base_model
        hidden: torch.Tensor = decoder(
            input_ids=ids[None],
            position_ids=torch.from_numpy(row.positions).to(device)[None],
            use_cache=False,
            attention_plan=TreeAttention(row.segments, device, self.model.dtype),
        ).last_hidden_state[0]
        # An embedding look-up gathers rows with a fast backward pass, also where a row predicts many tokens.
        states = F.embedding(torch.from_numpy(row.predictor).to(device), hidden)
        targets = ids[torch.from_numpy(row.written).to(device)]
        head = self.model.get_output_embeddings()  # type: ignore[no-untyped-call]
        weight: torch.Tensor = head.weight
        return written_logprobs(states, weight, targets, self._temperature, with_entropy, self._chunk_tokens)

    def _tensor(self, values: Floats) -> torch.Tensor:
        return torch.from_numpy(values.astype(np.float32)).to(self.model.device)


@dataclass(slots=True)
class _Totals:
    """Sums over the rows of one step."""

    loss: float = 0.0
    written: int = 0
    tokens: int = 0
    paths: float = 0.0
    gap: float = 0.0
    gap_max: float = 0.0
    entropy: float = 0.0
    sums: dict[str, float] | None = None

    def add(
        self,
        row: PackedRow,
        loss: float,
        gap: torch.Tensor,
        entropies: torch.Tensor,
        sums: Mapping[str, torch.Tensor],
    ) -> None:
        self.loss += loss
        self.written += len(row.written)
        self.tokens += len(row.token_ids)
        self.paths += float(row.num_paths.sum())
        self.gap += float(gap.sum())
        self.gap_max = max(self.gap_max, float(gap.max()))
        self.entropy += float(entropies.sum())
        before = self.sums or {}
        self.sums = {key: before.get(key, 0.0) + float(value) for key, value in sums.items()}

    def report(
        self,
        outcome: Literal["stepped", "empty", "non_finite"],
        norm: float,
        factor: float,
        denominator: float,
    ) -> UpdateReport:
        count = max(self.written, 1)
        return UpdateReport(
            outcome=outcome,
            loss=self.loss / denominator if self.written else 0.0,
            grad_norm=norm,
            lr_factor=factor,
            num_written=self.written,
            num_tokens=self.tokens,
            gap_mean=self.gap / count,
            gap_max=self.gap_max,
            entropy=self.entropy / count,
            metrics={key: value / max(self.paths, 1.0) for key, value in (self.sums or {}).items()},
        )
