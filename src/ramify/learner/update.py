"""The one learner: forward and backward over packed rows, clipping, one optimizer step.

Losses are sums over tokens, divided once by a denominator that the caller counts over the whole optimizer step and all
ranks (dead groups included). So it does not matter how tokens are split into rows, or rows over ranks.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from transformers import PreTrainedModel

from ramify.algos.losses import LossInputs, LossOutput, Objective, SequenceInputs
from ramify.algos.sft import counted_once
from ramify.core.errors import TrainingError
from ramify.core.messages import Problem
from ramify.core.records import Floats, Ints, PackedRow, PathCredit, TrainingTree
from ramify.core.tree import Node, Source, StopReason, TreeKey, make_tree
from ramify.learner.forward import PassSettings, backward_row, forward_row
from ramify.learner.optimizer import Optimizers, OptimizerSettings, Schedule
from ramify.learner.pack import pack
from ramify.learner.ranks import sum_gradients, sum_over_ranks
from ramify.learner.report import Outcome, StepSums, Totals, UpdateReport
from ramify.modeling.load import packs_trees

MAX_SKIPPED_IN_A_ROW = 10


class Learner:
    """Trains one model.

    Args:
        model: Loaded by `ramify.modeling`.
        optimizer: Settings of the optimizer.
        schedule: Factor on the learning rates.
        total_steps: Length of the run in optimizer steps, for the schedule.
        objective: What to minimise.
        temperature: Temperature of the sampling distribution; logits are divided by it.
        max_grad_norm: Gradients are scaled down to this norm.
        token_budget: Most tokens of a row that are computed at a time.
        chunk_tokens: Number of tokens whose logits exist at a time.
        max_skipped_in_a_row: Training ends after this many consecutive non-finite steps; None: it goes on.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        optimizer: OptimizerSettings,
        schedule: Schedule,
        total_steps: int,
        objective: Objective,
        temperature: float,
        max_grad_norm: float,
        token_budget: int,
        chunk_tokens: int = 1024,
        max_skipped_in_a_row: int | None = MAX_SKIPPED_IN_A_ROW,
    ) -> None:
        self.model = model
        self.optimizers = Optimizers(model, optimizer)
        self.step = 0
        self.skipped_in_a_row = 0
        self._schedule, self._total_steps = schedule, total_steps
        self._objective, self._pass = objective, PassSettings(temperature, chunk_tokens)
        self._max_grad_norm, self._token_budget = max_grad_norm, token_budget
        self._max_skipped_in_a_row = max_skipped_in_a_row

    def update(
        self, trees: Sequence[TrainingTree], max_mismatch: float | None = None, max_kl: float | None = None
    ) -> UpdateReport:
        """Take one optimizer step on one mini-batch. A step that is skipped still counts for the schedule.

        Args:
            trees: This rank's part of the mini-batch.
            max_mismatch: Refuse to step if the mean |ln(policy / behavior)| is above this, nats per token.
            max_kl: Refuse to step if KL(behavior || policy) is above this, nats per token.

        Raises:
            DataError: An advantage or a logprob is not a finite number.
            TrainingError: Loss or gradient were not finite too often in a row, or the mismatch is too large.
        """
        objective = self._objective
        rows = pack(
            [objective.credit(tree) for tree in trees],
            self._token_budget,
            keep_dead=objective.keeps_dead,
            share_prefixes=packs_trees(self.model),
        )
        whole = sum_over_ranks({"denominator": objective.denominator(trees)})["denominator"]
        return self.update_rows(rows, whole, objective.paths(trees), max_mismatch, max_kl)

    def update_rows(
        self,
        rows: Sequence[PackedRow],
        denominator: float,
        paths: PathCredit | None = None,
        max_mismatch: float | None = None,
        max_kl: float | None = None,
    ) -> UpdateReport:
        """Take one optimizer step on packed rows.

        Args:
            rows: This rank's part of the mini-batch.
            denominator: Denominator of the whole mini-batch, over all ranks.
            paths: The trajectories that the rows' spans index; needed for a loss on whole trajectories.
            max_mismatch: Refuse to step if the mean |ln(policy / behavior)| is above this, nats per token.
            max_kl: Refuse to step if KL(behavior || policy) is above this, nats per token.

        Raises:
            TrainingError: Loss or gradient were not finite too often in a row, or the mismatch is too large.
        """
        factor = self._schedule.factor(self.step, self._total_steps)
        self.step += 1
        self.optimizers.zero_grad()
        totals = Totals()
        gradients = self._path_gradients(rows, paths, totals)
        for row in rows:
            self._accumulate(row, denominator, gradients, totals)
        sums = totals.over_ranks()
        outcome: Outcome = "empty"
        norm = 0.0
        if not sums.is_empty:
            _check_mismatch(sums, max_mismatch, max_kl)
            sum_gradients(self.optimizers.parameters)
            norm = float(torch.nn.utils.clip_grad_norm_(self.optimizers.parameters, self._max_grad_norm))
            outcome = "stepped" if math.isfinite(sums.loss) and math.isfinite(norm) else "non_finite"
        self._finish(outcome, factor)
        return sums.report(outcome, norm, factor, denominator)

    def logprobs(self, rows: Sequence[PackedRow]) -> tuple[Floats, ...]:
        """Logprobs of the written tokens of each row under the current weights, nats. [W] each"""
        settings = replace(self._pass, with_entropy=False)
        parts = [forward_row(self.model, row, settings)[0] for row in rows]
        return tuple(part.double().cpu().numpy() for part in parts)

    def score(self, token_ids: Sequence[int]) -> Floats:
        """Logprob of each token after the first, given those before it, at temperature 1, nats. [T] -> [T - 1], T at least 2"""
        prompt = Node("", (), None, Source.PROMPT, tuple(token_ids[:1]), "")
        rest, unknown = tuple(token_ids[1:]), (0.0,) * (len(token_ids) - 1)
        leaf = Node("0", (0,), "", Source.POLICY, rest, "", unknown, stop=StopReason.TOKENS)
        tree = make_tree(Problem("score", (), ()), TreeKey(0, 0), [prompt, leaf])
        rows = pack([counted_once(tree)], self._token_budget, share_prefixes=packs_trees(self.model))
        settings = replace(self._pass, temperature=1.0, with_entropy=False)
        return forward_row(self.model, rows[0], settings)[0].double().cpu().numpy()

    def _finish(self, outcome: Outcome, factor: float) -> None:
        if outcome == "stepped":
            self.optimizers.step(factor)
            self.skipped_in_a_row = 0
        elif outcome == "non_finite":
            self.skipped_in_a_row += 1
        self.optimizers.zero_grad()
        limit = self._max_skipped_in_a_row
        if limit is not None and self.skipped_in_a_row >= limit:
            raise TrainingError(
                f"loss or gradient not finite {limit} optimizer steps in a row, up to number {self.step}: lower "
                "learner.optimizer.rate, or the coefficient of a KL or entropy term"
            )

    def _path_gradients(
        self, rows: Sequence[PackedRow], paths: PathCredit | None, totals: Totals
    ) -> Floats | None:
        """d loss / d (sum of policy logprobs) of each trajectory, for a surrogate on whole trajectories. [J]"""
        loss = self._objective.sequence_loss
        if loss is None:
            return None
        if paths is None:
            raise ValueError("a loss on whole trajectories needs them: pass paths")
        size = len(paths.advantages)
        # A rank without rows has no trajectories, or none that it learns from: its sums are empty or zero.
        has_ref = all(row.ref_logprobs is not None for row in rows)
        output = loss(
            SequenceInputs(
                policy_logprobs=_path_sums(rows, self.logprobs(rows), size),
                old_logprobs=_path_sums(rows, [row.old_logprobs for row in rows], size),
                ref_logprobs=_path_sums(
                    rows, [r for row in rows if (r := row.ref_logprobs) is not None], size
                )
                if has_ref
                else None,
                advantages=paths.advantages,
                weights=paths.weights,
                num_written=paths.num_written,
                tree=paths.tree,
            )
        )
        totals.add_sequence_loss(output, size)
        return output.gradients

    def _accumulate(
        self, row: PackedRow, denominator: float, gradients: Floats | None, totals: Totals
    ) -> None:
        token_gradients = None if gradients is None else _token_gradients(row, gradients)

        def loss(some: Ints, logprobs: torch.Tensor, entropies: torch.Tensor | None) -> torch.Tensor:
            assert entropies is not None
            inputs = LossInputs(
                s_plus=self._tensor(row.s_plus[some]),
                s_minus=self._tensor(row.s_minus[some]),
                weight=self._tensor(row.weight[some]),
                num_paths=self._tensor(row.num_paths[some]),
                policy_logprobs=logprobs,
                old_logprobs=self._tensor(row.old_logprobs[some]),
                entropies=entropies,
                ref_logprobs=None if row.ref_logprobs is None else self._tensor(row.ref_logprobs[some]),
            )
            outputs: list[LossOutput] = [term(inputs) for term in self._objective.token_losses]
            for output in outputs:
                totals.add_token_loss(output)
            terms = [output.loss for output in outputs]
            if token_gradients is not None:
                terms.append((self._tensor(token_gradients[some]) * logprobs).sum())
            return sum(terms, logprobs.new_zeros(())) / denominator

        logprobs, entropies = backward_row(self.model, row, self._pass, loss)
        assert entropies is not None
        totals.add(row, logprobs, entropies)

    def _tensor(self, values: Floats) -> torch.Tensor:
        dtype = torch.promote_types(self.model.dtype, torch.float32)
        return torch.from_numpy(values).to(self.model.device, dtype)


def _check_mismatch(sums: StepSums, max_mismatch: float | None, max_kl: float | None) -> None:
    # A NaN mismatch comes from a forward pass with NaNs; that step is skipped and counted.
    if max_mismatch is not None and sums.mismatch_mean > max_mismatch:
        raise TrainingError(
            f"the engine's logprobs differ from the learner's by {sums.mismatch_mean:.2g} nats a token in the mean "
            f"(largest {sums.mismatch_max:.2g}), more than algorithm.max_mismatch = {max_mismatch:g}: they cannot serve as the old ones; "
            'set algorithm.old = "recompute" (with a correction), or a larger max_mismatch'
        )
    if max_kl is not None and sums.mismatch_kl > max_kl:
        raise TrainingError(
            f"the engine samples from another policy than the learner's: KL {sums.mismatch_kl:.2g} nats a token (99th "
            f"percentile of the mismatch {sums.mismatch_p99:.2g}), more than algorithm.max_mismatch_kl = {max_kl:g}, and "
            "nothing was learned from it; look at the engine's dtype, flags and weights, or set a larger limit"
        )


def _path_sums(rows: Sequence[PackedRow], tokens: Sequence[Floats], size: int) -> Floats:
    """Sums of [W] arrays over the written tokens of each trajectory. [J]"""
    sums = np.zeros(size)
    for row, array in zip(rows, tokens, strict=True):
        for span in row.spans:
            sums[span.paths] += array[span.start : span.stop].sum()
    return sums


def _token_gradients(row: PackedRow, gradients: Floats) -> Floats:
    """For each written token, the sum of the gradients of the trajectories through it. [W]"""
    return np.concatenate(
        [np.empty(0), *(np.full(span.stop - span.start, gradients[span.paths].sum()) for span in row.spans)]
    )
