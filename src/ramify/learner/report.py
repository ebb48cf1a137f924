"""What an optimizer step measured, summed over its rows on all ranks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
import torch

from ramify.algos.losses import MAX_LOG_RATIO, LossOutput, SequenceOutput
from ramify.core.records import Floats, PackedRow

Outcome: TypeAlias = Literal["stepped", "empty", "non_finite"]


@dataclass(frozen=True, slots=True)
class UpdateReport:
    """What one optimizer step did; everything was measured before the step.

    Attributes:
        outcome: `empty` if there were no rows, `non_finite` if the step was skipped for that.
        loss: Sum over tokens / denominator.
        grad_norm: Gradient norm before clipping.
        lr_factor: The schedule's factor on the learning rates.
        num_written: Number of unique written tokens in the rows.
        num_tokens: Number of tokens that were computed, repeated ones included.
        num_repeated: Number of tokens computed again because the model cannot share prefixes.
        mismatch_mean, mismatch_max: Mean and maximum of |ln(policy / behavior)| over written tokens, nats; at the first step after a
            rollout this is the difference between engine and learner.
        mismatch_p99: The 99th percentile of the same.
        mismatch_kl: Estimate of KL(behavior || policy), nats a token: the mean of r - 1 - ln r, r = policy / behavior (k3).
        mismatch_ess: Effective sample size of the weights policy / behavior of whole trajectories, as a share of their number;
            1 if engine and learner agree.
        entropy: Mean entropy over written tokens, nats.
        unevenness: See `Shares.unevenness`; 1 in one process.
        metrics: The losses' own means (such as `clip_fraction`).
    """

    outcome: Outcome
    loss: float
    grad_norm: float
    lr_factor: float
    num_written: int
    num_tokens: int
    num_repeated: int
    mismatch_mean: float
    mismatch_max: float
    mismatch_p99: float
    mismatch_kl: float
    mismatch_ess: float
    entropy: float
    unevenness: float
    metrics: Mapping[str, float]


@dataclass(slots=True)
class Totals:
    """Sums over the rows of one step, by name.

    Attributes:
        loss: Sum of the losses.
        counts: All other sums.
        mismatches: |ln(policy / behavior)| of each row's written tokens. [W] each
        log_weights: Sum of ln(policy / behavior) over the written tokens of each trajectory, by its index.
    """

    loss: float = 0.0
    counts: dict[str, float] = field(default_factory=dict)
    mismatches: list[Floats] = field(default_factory=list)
    log_weights: dict[int, float] = field(default_factory=dict)

    def add(self, row: PackedRow, logprobs: torch.Tensor, entropies: torch.Tensor) -> None:
        """Add a row. `logprobs` and `entropies`: [W], nats, detached."""
        difference = logprobs.double().cpu().numpy() - row.behavior_logprobs
        ratio = np.exp(np.clip(difference, -MAX_LOG_RATIO, MAX_LOG_RATIO))
        self._count(
            rows=1,
            written=len(row.written),
            tokens=len(row.token_ids),
            repeated=row.num_repeated,
            paths=float(row.num_paths.sum()),
            mismatch=float(np.abs(difference).sum()),
            kl=float((ratio - 1.0 - difference).sum()),
            entropy=float(entropies.sum()),
        )
        self.mismatches.append(np.abs(difference))
        for span in row.spans:
            part = float(difference[span.start : span.stop].sum())
            for path in span.paths.tolist():
                self.log_weights[path] = self.log_weights.get(path, 0.0) + part

    def add_token_loss(self, output: LossOutput) -> None:
        """Add the loss of a row."""
        self.loss += float(output.loss.detach())
        self._count(**{f"loss.{key}": float(value) for key, value in output.sums.items()})

    def add_sequence_loss(self, output: SequenceOutput, num_trajectories: int) -> None:
        """Add the loss of a step on whole trajectories."""
        self.loss += output.loss
        self._count(
            trajectories=num_trajectories, **{f"path.{key}": value for key, value in output.sums.items()}
        )

    def _count(self, **values: float) -> None:
        for name, value in values.items():
            self.counts[name] = self.counts.get(name, 0.0) + value

    def join(self, other: "Totals") -> None:
        """Add what another rank measured on its rows."""
        self.loss += other.loss
        self._count(**other.counts)
        self.mismatches.extend(other.mismatches)
        for path, weight in other.log_weights.items():
            self.log_weights[path] = self.log_weights.get(path, 0.0) + weight

    def sums(self, unevenness: float) -> "StepSums":
        """Return the sums over the rows of all ranks."""
        weights = np.exp(np.clip(list(self.log_weights.values()), -MAX_LOG_RATIO, MAX_LOG_RATIO))
        sums = {
            **self.counts,
            "loss": self.loss,
            "weights": float(weights.sum()),
            "weights.squared": float((weights**2).sum()),
            "weights.count": float(len(weights)),
        }
        mismatches = np.concatenate([np.empty(0), *self.mismatches])
        return StepSums(
            sums,
            mismatch_max=float(mismatches.max(initial=0.0)),
            mismatch_p99=float(np.quantile(mismatches, 0.99)) if len(mismatches) else 0.0,
            unevenness=unevenness,
        )


@dataclass(frozen=True, slots=True)
class StepSums:
    """Sums over all rows of all ranks."""

    sums: Mapping[str, float]
    mismatch_max: float
    mismatch_p99: float
    unevenness: float

    @property
    def is_empty(self) -> bool:
        """True if no rank had a row."""
        return not self.sums.get("rows")

    @property
    def loss(self) -> float:
        """The sum of the loss, not divided by the denominator."""
        return self.sums["loss"]

    @property
    def mismatch_mean(self) -> float:
        """See `UpdateReport`."""
        return self._mean("mismatch", "written")

    @property
    def mismatch_kl(self) -> float:
        """See `UpdateReport`."""
        return self._mean("kl", "written")

    def report(self, outcome: Outcome, norm: float, factor: float, denominator: float) -> UpdateReport:
        """Return the report of the step."""
        squares = self.sums["weights.squared"] * self.sums["weights.count"]
        losses = {k.removeprefix("loss."): self._mean(k, "paths") for k in self.sums if k.startswith("loss.")}
        paths = {
            k.removeprefix("path."): self._mean(k, "trajectories") for k in self.sums if k.startswith("path.")
        }
        return UpdateReport(
            outcome=outcome,
            loss=0.0 if self.is_empty else self.loss / denominator,
            grad_norm=norm,
            lr_factor=factor,
            num_written=int(self.sums.get("written", 0)),
            num_tokens=int(self.sums.get("tokens", 0)),
            num_repeated=int(self.sums.get("repeated", 0)),
            mismatch_mean=self.mismatch_mean,
            mismatch_max=self.mismatch_max,
            mismatch_p99=self.mismatch_p99,
            mismatch_kl=self.mismatch_kl,
            mismatch_ess=self.sums["weights"] ** 2 / squares if squares else 1.0,
            entropy=self._mean("entropy", "written"),
            unevenness=self.unevenness,
            metrics={**losses, **paths},
        )

    def _mean(self, total: str, count: str) -> float:
        return self.sums.get(total, 0.0) / max(self.sums.get(count, 0.0), 1.0)
