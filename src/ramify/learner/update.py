"""The learner: packs trees into rows, deals these to the ranks, and takes one optimizer step on what they computed.

The ranks compute passes, gradients and steps (`learner.worker`). Losses are sums over tokens, divided once by a denominator
that is counted over the whole optimizer step (dead groups included). So it does not matter how tokens are split into rows,
or rows over ranks.
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
        schedule: Schedule of the learning rates.
        total_steps: Length of the run in optimizer steps, for the schedule.
        objective: Losses to minimise, and the credit that their tokens get.
        temperature: Temperature of the sampling distribution; logits are divided by it.
        max_grad_norm: Gradients are scaled down to this norm.
        token_budget: Maximum number of tokens in one forward pass; a larger row is computed in stages.
        chunk_tokens: Number of tokens whose logits are in memory at a time.
        max_skipped_in_a_row: Training ends after this many consecutive non-finite steps; None: never.
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
        """Maximum number of tokens in one forward pass."""
        return self._token_budget

    @property
    def model(self) -> PreTrainedModel:
        """This rank's model, or its shard."""
        return self.ranks.worker.model

    @property
    def optimizers(self) -> Optimizers:
        """This rank's optimizers."""
        return self.ranks.worker.optimizers

    @property
    def has_reference(self) -> bool:
        """True if there is a reference model."""
        return self.ranks.worker.has_reference

    def update(
        self, trees: Sequence[TrainingTree], max_mismatch: float | None = None, max_kl: float | None = None
    ) -> UpdateReport:
        """Take one optimizer step on one mini-batch. The schedule advances even if the step is skipped.

        Args:
            trees: The mini-batch.
            max_mismatch: Refuse to step if the mean |ln(policy / behavior)| is above this, nats per token.
            max_kl: Refuse to step if KL(behavior || policy) is above this, nats per token.

        Raises:
            DataError: An advantage or a logprob is not a finite number.
            TrainingError: Loss or gradient was not finite too often in a row, or the mismatch is too large.
        """
        objective = self._objective
        shares = self.pack_and_deal([objective.credit(tree) for tree in trees], objective.keeps_dead)
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
        """Take one optimizer step on rows that are packed already.

        Args:
            rows: The mini-batch.
            denominator: Denominator of the loss of the whole mini-batch.
            paths: The trajectories that the rows' spans index; needed for a sequence loss.
            max_mismatch: See `update`.
            max_kl: See `update`.

        Raises:
            TrainingError: Loss or gradient was not finite too often in a row, or the mismatch is too large.
        """
        return self._update(self._deal(rows), denominator, paths, max_mismatch, max_kl)

    def pack_and_deal(self, trees: Sequence[CreditedTree], keep_dead: bool = False) -> Shares:
        """Pack trees into rows, and deal these to the ranks.

        Raises:
            DataError: An advantage or a logprob is not a finite number.
        """

        # Ranks that gather weights layer by layer must run equally many passes, and the stages of a large row would be
        # passes that the others do not run. There a row is always one pass, and trees above the budget are cut.
        in_stages, budget = not computes_by_layer(self.model), self._token_budget

        def cut_into_rows(most_tokens: int | None) -> tuple[PackedRow, ...]:
            rows = tree_rows(
                trees,
                budget,
                keep_dead=keep_dead,
                share_prefixes=packs_trees(self.model),
                most_tokens=most_tokens if in_stages else min(budget, most_tokens or budget),
            )
            if in_stages:
                return rows
            # A single context longer than the budget cannot be cut: raise the row's own budget, or it would get stages.
            return tuple(replace(row, token_budget=max(budget, len(row.token_ids))) for row in rows)

        shares = deal_trees(cut_into_rows, self.ranks.rank.size, Cost.of(self.model.config))
        if not packs_trees(self.model):
            return shares
        # Only now, because rows of one tree each can be dealt more evenly than full ones.
        return Shares(tuple(join(rows, self._token_budget) for rows in shares.rows), shares.unevenness)

    def forward(
        self, shares: Shares, settings: PassSettings, *, of_reference: bool = False
    ) -> tuple[RowValues, ...]:
        """Return logprobs, and entropies on request, of the written tokens of each of `shares.all_rows`.

        They are those of the current weights, or of the reference model.

        Raises:
            ValueError: There is no reference model.
        """
        arguments = [(rows, settings, of_reference, shares.passes) for rows in shares.rows]
        return tuple(values for of_rank in self.ranks.each("forward", arguments) for values in of_rank)

    def logprobs(self, rows: Sequence[PackedRow]) -> tuple[Floats, ...]:
        """Return logprobs of the written tokens of each row under the current weights, nats. [W] each"""
        shares = self._deal(rows)
        results = self.forward(shares, replace(self._pass, with_entropy=False))
        # Dealing changes the order of rows.
        of_row = {id(row): logprobs for row, (logprobs, _) in zip(shares.all_rows, results, strict=True)}
        return tuple(of_row[id(row)] for row in rows)

    def score(self, token_ids: Sequence[int]) -> Floats:
        """Return the logprob of each token after the first, given those before it, at temperature 1, nats. [T] -> [T - 1], T at least 2"""
        shares = self.pack_and_deal([sequence_tree(token_ids)])
        ((logprobs, _),) = self.forward(shares, replace(self._pass, temperature=1.0, with_entropy=False))
        return logprobs

    def try_row(self, row: PackedRow) -> None:
        """Compute gradients for a row on every rank and drop them, to see whether the row fits beside the optimizer's state."""
        # With a sequence loss too, whether or not the objective has one: the largest pass that a step can need.
        losses, no_gradients = tuple(self._objective.token_losses), (np.zeros(len(row.written)),)
        work = RowGradients((row,), self._pass, losses, no_gradients, denominator=1.0, passes=1)
        self.ranks.all("try_gradients", work)

    def whole_parameter(self, name: str) -> torch.Tensor:
        """Return a parameter gathered from all ranks, without gradient; a single process returns the model's own tensor."""
        return self.whole_parameters((name,), (None,))[0]

    def whole_parameters(
        self, names: tuple[str, ...], dtypes: tuple[str | None, ...], *, on_cpu: bool = True
    ) -> list[torch.Tensor]:
        """Return several parameters (see `whole_parameter`), each cast to its dtype before ranks send it; None: its own."""
        # Rank 0 alone gets the tensors; the others only send their shards.
        arguments = [(names, dtypes, rank == 0, on_cpu) for rank in range(self.ranks.rank.size)]
        parameters: list[torch.Tensor] = self.ranks.each("whole_parameters", arguments)[0]
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
        totals, norm = self._compute_gradients(shares, denominator, paths)
        sums = totals.sums(shares.unevenness)
        outcome: Outcome = "empty"
        if not sums.is_empty:
            _check_mismatch(sums, max_mismatch, max_kl)
            outcome = "stepped" if math.isfinite(sums.loss) and math.isfinite(norm) else "non_finite"
        self._step_or_drop(outcome, factor)
        return sums.report(outcome, norm, factor, denominator)

    def _compute_gradients(
        self, shares: Shares, denominator: float, paths: PathCredit | None
    ) -> tuple[Totals, float]:
        """Compute the gradients on all ranks; returns the sums over all rows, and the norm of the gradients."""
        totals = Totals()
        if not shares.passes:
            return totals, 0.0
        sequence_gradients = self._sequence_gradients(shares, paths, totals)
        work = [
            RowGradients(
                rows=rows,
                settings=self._pass,
                losses=tuple(self._objective.token_losses),
                sequence_gradients=None if sequence_gradients is None else sequence_gradients[rank],
                denominator=denominator,
                passes=shares.passes,
            )
            for rank, rows in enumerate(shares.rows)
        ]
        results = self.ranks.each("gradients", [(of_rank,) for of_rank in work])
        for rank_totals, _ in results:
            totals.join(rank_totals)
        # Every rank returns the norm of all ranks' gradients together.
        return totals, results[0][1]

    def _step_or_drop(self, outcome: Outcome, factor: float) -> None:
        """Step with the gradients, or drop them if they are not finite.

        Raises:
            TrainingError: They were not finite too often in a row.
        """
        if outcome == "stepped":
            self.ranks.all("step", factor, self._max_grad_norm)
            self.skipped_in_a_row = 0
        elif outcome == "non_finite":
            self.ranks.all("drop")
            self.skipped_in_a_row += 1
        limit = self._max_skipped_in_a_row
        if limit is not None and self.skipped_in_a_row >= limit:
            raise TrainingError(
                f"the loss or the gradient was not finite in {limit} optimizer steps in a row, the last was step {self.step}. "
                "Lower learner.optimizer.rate, or the coefficient of a KL or entropy term"
            )

    def _sequence_gradients(
        self, shares: Shares, paths: PathCredit | None, totals: Totals
    ) -> list[tuple[Floats, ...]] | None:
        """Return the gradient of the sequence loss with respect to each token's logprob, for each rank's rows. [W] each"""
        loss = self._objective.sequence_loss
        if loss is None:
            return None
        if paths is None:
            raise ValueError("a sequence loss needs the trajectories of its rows. Pass paths")
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
        return [tuple(_token_gradients(row, output.gradients) for row in of_rank) for of_rank in shares.rows]


def sequence_tree(token_ids: Sequence[int]) -> CreditedTree:
    """Return a sequence as a tree: the first token is its prompt, the others are its response, with credit 1. [T], T at least 2"""
    prompt = Node("", (), None, Source.PROMPT, tuple(token_ids[:1]), "")
    response, unknown = tuple(token_ids[1:]), (0.0,) * (len(token_ids) - 1)
    leaf = Node("0", (0,), "", Source.POLICY, response, "", unknown, stop=StopReason.TOKENS)
    return counted_once(make_tree(Problem("sequence", (), ()), TreeKey(0, 0), [prompt, leaf]))


def _check_mismatch(sums: StepSums, max_mismatch: float | None, max_kl: float | None) -> None:
    # A NaN mismatch passes both comparisons: it comes with a loss that is not finite, so the step is skipped and counted.
    if max_mismatch is not None and sums.mismatch_mean > max_mismatch:
        raise TrainingError(
            f"the engine's logprobs differ from the learner's by {sums.mismatch_mean:.2g} nats a token on average "
            f"(at most {sums.mismatch_max:.2g}), more than algorithm.max_mismatch = {max_mismatch:g}. "
            'Set algorithm.old = "recompute" (with a correction), or a larger max_mismatch'
        )
    if max_kl is not None and sums.mismatch_kl > max_kl:
        raise TrainingError(
            f"the engine's policy is not the learner's: KL {sums.mismatch_kl:.2g} nats a token (99th percentile of the "
            f"mismatch {sums.mismatch_p99:.2g}), more than algorithm.max_mismatch_kl = {max_kl:g}, so the step was not "
            "taken. Check the engine's dtype, flags and weights, or set a larger limit"
        )


def _path_sums(rows: Sequence[PackedRow], tokens: Sequence[Floats], size: int) -> Floats:
    """Sum the rows' arrays ([W] each) over the written tokens of each trajectory. [J]"""
    sums = np.zeros(size)
    for row, array in zip(rows, tokens, strict=True):
        for span in row.spans:
            sums[span.paths] += array[span.start : span.stop].sum()
    return sums


def _token_gradients(row: PackedRow, gradients: Floats) -> Floats:
    """Return for each written token the sum of the gradients ([J]) of the trajectories through it. [W]"""
    return np.concatenate(
        [np.empty(0), *(np.full(span.stop - span.start, gradients[span.paths].sum()) for span in row.spans)]
    )
