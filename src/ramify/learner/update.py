"""The one learner: what an optimizer step is made of. Its ranks compute it (`learner.worker`).

Losses are sums over tokens, divided once by a denominator that the caller counts over the whole optimizer step (dead groups
included). So it does not matter how tokens are split into rows, or rows over ranks.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from transformers import PreTrainedModel

from ramify.algos.losses import Objective, SequenceInputs
from ramify.algos.sft import counted_once
from ramify.core.errors import TrainingError
from ramify.core.messages import Problem
from ramify.core.records import CreditedTree, Floats, PackedRow, PathCredit, TrainingTree
from ramify.core.tree import Node, Source, StopReason, TreeKey, make_tree
from ramify.learner.configs import ScheduleConfig
from ramify.learner.deal import Cost, Shares, deal_rows, deal_trees
from ramify.learner.forward import PassSettings
from ramify.learner.optimizer import Optimizers
from ramify.learner.pack import join, tree_rows
from ramify.learner.parallel import Ranks
from ramify.learner.report import Outcome, StepSums, Totals, UpdateReport
from ramify.learner.sharding import computes_by_layer
from ramify.learner.worker import RowGradients, RowValues
from ramify.modeling.load import packs_trees

MAX_SKIPPED_IN_A_ROW = 10


class Learner:
    """Trains one model.

    Args:
        ranks: Hold the model and its optimizer.
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
        ranks: Ranks,
        *,
        schedule: ScheduleConfig,
        total_steps: int,
        objective: Objective,
        temperature: float,
        max_grad_norm: float,
        token_budget: int,
        chunk_tokens: int = 1024,
        max_skipped_in_a_row: int | None = MAX_SKIPPED_IN_A_ROW,
    ) -> None:
        self.ranks = ranks
        self.step = 0
        self.skipped_in_a_row = 0
        self._schedule, self._total_steps = schedule, total_steps
        self._objective, self._pass = objective, PassSettings(temperature, chunk_tokens)
        self._max_grad_norm, self._token_budget = max_grad_norm, token_budget
        self._max_skipped_in_a_row = max_skipped_in_a_row

    @property
    def token_budget(self) -> int:
        """Most tokens of a row that are computed at a time."""
        return self._token_budget

    @property
    def model(self) -> PreTrainedModel:
        """This rank's model, or its shard."""
        return self.ranks.worker.model

    @property
    def optimizers(self) -> Optimizers:
        """The optimizers of this process."""
        return self.ranks.worker.optimizers

    @property
    def has_reference(self) -> bool:
        """True if there is a reference model."""
        return self.ranks.worker.has_reference

    def update(
        self, trees: Sequence[TrainingTree], max_mismatch: float | None = None, max_kl: float | None = None
    ) -> UpdateReport:
        """Take one optimizer step on one mini-batch. A step that is skipped still counts for the schedule.

        Args:
            trees: The mini-batch.
            max_mismatch: Refuse to step if the mean |ln(policy / behavior)| is above this, nats per token.
            max_kl: Refuse to step if KL(behavior || policy) is above this, nats per token.

        Raises:
            DataError: An advantage or a logprob is not a finite number.
            TrainingError: Loss or gradient were not finite too often in a row, or the mismatch is too large.
        """
        objective = self._objective
        shares = self.share_out([objective.credit(tree) for tree in trees], objective.keeps_dead)
        return self._update(
            shares, objective.denominator(trees), objective.paths(trees), max_mismatch, max_kl
        )

    def update_rows(
        self,
        rows: Sequence[PackedRow],
        denominator: float,
        paths: PathCredit | None = None,
        max_mismatch: float | None = None,
        max_kl: float | None = None,
    ) -> UpdateReport:
        """Take one optimizer step on rows that are packed.

        Args:
            rows: The mini-batch.
            denominator: Denominator of the whole mini-batch.
            paths: The trajectories that the rows' spans index; needed for a loss on whole trajectories.
            max_mismatch: See `update`.
            max_kl: See `update`.

        Raises:
            TrainingError: Loss or gradient were not finite too often in a row, or the mismatch is too large.
        """
        return self._update(self._deal(rows), denominator, paths, max_mismatch, max_kl)

    def share_out(self, trees: Sequence[CreditedTree], keep_dead: bool = False) -> Shares:
        """Pack trees into rows, and deal these to the ranks.

        Raises:
            DataError: An advantage or a logprob is not a finite number.
        """

        # Where layers are gathered one by one, a row is one pass and not several stages: what is too large is cut.
        in_stages, budget = not computes_by_layer(self.model), self._token_budget

        def rows(most_tokens: int | None) -> tuple[PackedRow, ...]:
            packed = tree_rows(
                trees,
                budget,
                keep_dead=keep_dead,
                share_prefixes=packs_trees(self.model),
                most_tokens=most_tokens if in_stages else min(budget, most_tokens or budget),
            )
            if in_stages:
                return packed
            return tuple(replace(row, token_budget=max(budget, len(row.token_ids))) for row in packed)

        dealt = deal_trees(rows, self.ranks.rank.size, Cost.of(self.model.config))
        if not packs_trees(self.model):
            return dealt
        return Shares(tuple(join(mine, self._token_budget) for mine in dealt.rows), dealt.unevenness)

    def forward(
        self, shares: Shares, settings: PassSettings, *, of_reference: bool = False
    ) -> tuple[RowValues, ...]:
        """Logprobs, and entropies on request, of the written tokens of `shares.all_rows` under the current weights.

        Raises:
            ValueError: There is no reference model to compute them with.
        """
        parts = [(rows, settings, of_reference, shares.passes) for rows in shares.rows]
        return tuple(values for mine in self.ranks.each("forward", parts) for values in mine)

    def logprobs(self, rows: Sequence[PackedRow]) -> tuple[Floats, ...]:
        """Return logprobs of the written tokens of each row under the current weights, nats. [W] each"""
        shares = self._deal(rows)
        results = self.forward(shares, replace(self._pass, with_entropy=False))
        of_row = {id(row): logprobs for row, (logprobs, _) in zip(shares.all_rows, results, strict=True)}
        return tuple(of_row[id(row)] for row in rows)

    def score(self, token_ids: Sequence[int]) -> Floats:
        """Return the logprob of each token after the first, given those before it, at temperature 1, nats. [T] -> [T - 1], T at least 2"""
        shares = self._deal(self.share_out([written(token_ids)]).all_rows[:1])
        ((logprobs, _),) = self.forward(shares, replace(self._pass, temperature=1.0, with_entropy=False))
        return logprobs

    def try_row(self, row: PackedRow) -> None:
        """Compute gradients for a row on every rank as an optimizer step does, and drop them."""
        losses, linear = tuple(self._objective.token_losses), (np.zeros(len(row.written)),)
        work = RowGradients((row,), self._pass, losses, linear, denominator=1.0, passes=1)
        self.ranks.all("gradients", work)
        self.ranks.all("drop")

    def whole_parameter(self, name: str) -> torch.Tensor:
        """Return a parameter of the model with the parts of all ranks, without gradient; of a single process its own tensor."""
        return self.whole_parameters((name,), (None,))[0]

    def whole_parameters(
        self, names: tuple[str, ...], dtypes: tuple[str | None, ...], *, on_cpu: bool = True
    ) -> list[torch.Tensor]:
        """As `whole_parameter` for several; each is cast to a type of its own before ranks send it, unless that is None."""
        parts = [(names, dtypes, number == 0, on_cpu) for number in range(self.ranks.rank.size)]
        parameters: list[torch.Tensor] = self.ranks.each("whole_parameters", parts)[0]
        return parameters

    def _deal(self, rows: Sequence[PackedRow]) -> Shares:
        return deal_rows(rows, self.ranks.rank.size, Cost.of(self.model.config))

    def _update(
        self,
        shares: Shares,
        denominator: float,
        paths: PathCredit | None,
        max_mismatch: float | None,
        max_kl: float | None,
    ) -> UpdateReport:
        factor = self._schedule.factor(self.step, self._total_steps)
        self.step += 1
        totals, norm = self._gradients(shares, denominator, paths)
        sums = totals.sums(shares.unevenness)
        outcome: Outcome = "empty"
        if not sums.is_empty:
            _check_mismatch(sums, max_mismatch, max_kl)
            outcome = "stepped" if math.isfinite(sums.loss) and math.isfinite(norm) else "non_finite"
        self._finish(outcome, factor)
        return sums.report(outcome, norm, factor, denominator)

    def _gradients(
        self, shares: Shares, denominator: float, paths: PathCredit | None
    ) -> tuple[Totals, float]:
        """Compute the gradients; returns what all rows measured, and the gradients' norm."""
        totals = Totals()
        if not shares.passes:
            return totals, 0.0
        linear = self._linear(shares, paths, totals)
        work = [
            RowGradients(
                rows=rows,
                settings=self._pass,
                losses=tuple(self._objective.token_losses),
                linear=None if linear is None else linear[number],
                denominator=denominator,
                passes=shares.passes,
            )
            for number, rows in enumerate(shares.rows)
        ]
        answers = self.ranks.each("gradients", [(part,) for part in work])
        for of_rank, _ in answers:
            totals.join(of_rank)
        return totals, answers[0][1]

    def _finish(self, outcome: Outcome, factor: float) -> None:
        if outcome == "stepped":
            self.ranks.all("step", factor, self._max_grad_norm)
            self.skipped_in_a_row = 0
        elif outcome == "non_finite":
            self.ranks.all("drop")
            self.skipped_in_a_row += 1
        limit = self._max_skipped_in_a_row
        if limit is not None and self.skipped_in_a_row >= limit:
            raise TrainingError(
                f"loss or gradient not finite {limit} optimizer steps in a row, up to number {self.step}. Lower "
                "learner.optimizer.rate, or the coefficient of a KL or entropy term"
            )

    def _linear(
        self, shares: Shares, paths: PathCredit | None, totals: Totals
    ) -> list[tuple[Floats, ...]] | None:
        """Return the gradient of the sequence loss with respect to each token's logprob, for each rank's rows. [W] each"""
        loss = self._objective.sequence_loss
        if loss is None:
            return None
        if paths is None:
            raise ValueError("a loss on whole trajectories needs them: pass paths")
        rows, size = shares.all_rows, len(paths.advantages)
        logprobs = [row for row, _ in self.forward(shares, replace(self._pass, with_entropy=False))]
        refs = [row.ref_logprobs for row in rows if row.ref_logprobs is not None]
        output = loss(
            SequenceInputs(
                policy_logprobs=_path_sums(rows, logprobs, size),
                old_logprobs=_path_sums(rows, [row.old_logprobs for row in rows], size),
                ref_logprobs=_path_sums(rows, refs, size) if len(refs) == len(rows) else None,
                advantages=paths.advantages,
                weights=paths.weights,
                num_written=paths.num_written,
                tree=paths.tree,
            )
        )
        totals.add_sequence_loss(output, size)
        return [tuple(_token_gradients(row, output.gradients) for row in mine) for mine in shares.rows]


def written(token_ids: Sequence[int]) -> CreditedTree:
    """Return a sequence as a tree of which all tokens but the first are written, each with credit 1. [T], T at least 2"""
    prompt = Node("", (), None, Source.PROMPT, tuple(token_ids[:1]), "")
    response, unknown = tuple(token_ids[1:]), (0.0,) * (len(token_ids) - 1)
    leaf = Node("0", (0,), "", Source.POLICY, response, "", unknown, stop=StopReason.TOKENS)
    return counted_once(make_tree(Problem("sequence", (), ()), TreeKey(0, 0), [prompt, leaf]))


def _check_mismatch(sums: StepSums, max_mismatch: float | None, max_kl: float | None) -> None:
    # A NaN mismatch comes from a forward pass with NaNs; that step is skipped and counted.
    if max_mismatch is not None and sums.mismatch_mean > max_mismatch:
        raise TrainingError(
            f"the engine's logprobs differ from the learner's by {sums.mismatch_mean:.2g} nats a token in the mean "
            f"(largest {sums.mismatch_max:.2g}), more than algorithm.max_mismatch = {max_mismatch:g}: they cannot serve as the old ones. "
            'Set algorithm.old = "recompute" (with a correction), or a larger max_mismatch'
        )
    if max_kl is not None and sums.mismatch_kl > max_kl:
        raise TrainingError(
            f"the engine samples from another policy than the learner's: KL {sums.mismatch_kl:.2g} nats a token (99th "
            f"percentile of the mismatch {sums.mismatch_p99:.2g}), more than algorithm.max_mismatch_kl = {max_kl:g}, and "
            "nothing was learned from it. Check the engine's dtype, flags and weights, or set a larger limit"
        )


def _path_sums(rows: Sequence[PackedRow], tokens: Sequence[Floats], size: int) -> Floats:
    """Sum [W] arrays over the written tokens of each trajectory. [J]"""
    sums = np.zeros(size)
    for row, array in zip(rows, tokens, strict=True):
        for span in row.spans:
            sums[span.paths] += array[span.start : span.stop].sum()
    return sums


def _token_gradients(row: PackedRow, gradients: Floats) -> Floats:
    """Sum the gradients of the trajectories through each written token. [W]"""
    return np.concatenate(
        [np.empty(0), *(np.full(span.stop - span.start, gradients[span.paths].sum()) for span in row.spans)]
    )
