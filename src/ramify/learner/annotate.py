"""The annotation pass: one pass without gradient over the unique tokens of a rollout, for what the engine did not give."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from transformers import PreTrainedModel

from ramify.algos.sft import supervised_credit
from ramify.core.records import Floats, NodeNotes, Notes, PackedRow
from ramify.core.tree import Tree
from ramify.learner.forward import PassSettings, forward_row
from ramify.learner.pack import pack
from ramify.modeling.load import packs_trees

Reference: TypeAlias = Callable[[], AbstractContextManager[PreTrainedModel]]
"""Opens the reference model: a frozen copy, or the trained one with its adapters off."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the pass is asked for; nothing is computed that is not."""

    policy_logprobs: bool = False
    entropies: bool = False
    ref_logprobs: bool = False


def annotate(
    model: PreTrainedModel,
    trees: Sequence[Tree],
    wanted: Wanted,
    *,
    reference: Reference | None,
    temperature: float,
    token_budget: int,
    chunk_tokens: int = 1024,
) -> tuple[Notes, ...]:
    """Notes of each tree: at most one pass of the policy and one of the reference model.

    Args:
        model: The policy with the weights that the notes are to be of.
        trees: Of the rollout.
        wanted: What to find.
        reference: Needed for `ref_logprobs`.
        temperature: Of the sampling distribution.
        token_budget: Tokens of a row.
        chunk_tokens: Tokens whose logits exist at a time.

    Raises:
        ValueError: `ref_logprobs` without a reference model.
    """
    rows = pack(
        trees,
        [supervised_credit(tree) for tree in trees],
        token_budget,
        share_prefixes=packs_trees(model),
    )
    notes: list[dict[str, NodeNotes]] = [{} for _ in trees]

    def run(opened: PreTrainedModel, row: PackedRow, with_entropy: bool) -> tuple[Floats, Floats | None]:
        logprobs, entropies = forward_row(opened, row, PassSettings(temperature, chunk_tokens, with_entropy))
        return _floats(logprobs), None if entropies is None else _floats(entropies)

    if wanted.policy_logprobs or wanted.entropies:
        for row in rows:
            logprobs, entropies = run(model, row, wanted.entropies)
            _note(notes, row, "policy_logprobs", logprobs if wanted.policy_logprobs else None)
            _note(notes, row, "entropies", entropies)
    if wanted.ref_logprobs:
        if reference is None:
            raise ValueError("reference logprobs need a reference model")
        with reference() as opened:
            for row in rows:
                _note(notes, row, "ref_logprobs", run(opened, row, False)[0])
    return tuple(notes)


def _note(notes: Sequence[dict[str, NodeNotes]], row: PackedRow, name: str, values: Floats | None) -> None:
    if values is None:
        return
    for span in row.spans:
        before = notes[span.tree].get(span.node, NodeNotes())
        notes[span.tree][span.node] = replace(before, **{name: values[span.start : span.stop]})


def _floats(tensor: torch.Tensor) -> Floats:
    return tensor.double().cpu().numpy()
