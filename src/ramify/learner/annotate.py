"""The annotation pass: one pass without gradient over a rollout's unique tokens, for what the engine did not provide."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
import torch
from transformers import PreTrainedModel

from ramify.algos.sft import counted_once
from ramify.core.records import (
    AnnotatedTree,
    Annotations,
    Floats,
    NodeAnnotations,
    PackedRow,
    ScoredTree,
    behavior_annotations,
)
from ramify.core.tree import Tree
from ramify.learner.forward import PassSettings, forward_row
from ramify.learner.pack import pack
from ramify.modeling.load import packs_trees

Reference: TypeAlias = Callable[[], AbstractContextManager[PreTrainedModel]]
"""Opens the reference model: a frozen copy, or the trained one with its adapters off."""

_Found: TypeAlias = dict[str, dict[str, Floats]]
"""Results of the passes, by node id and name of the note."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the notes hold; passes that this does not need are not made.

    Attributes:
        old: Whose logprobs are the old ones: "behavior" the engine's, "recompute" the learner's, from a pass.
        entropies: Whether to compute the policy's entropies.
        ref_logprobs: Whether to compute the reference model's logprobs.
    """

    old: Literal["behavior", "recompute"] = "behavior"
    entropies: bool = False
    ref_logprobs: bool = False


def annotate(
    model: PreTrainedModel,
    trees: Sequence[ScoredTree],
    wanted: Wanted,
    *,
    reference: Reference | None,
    temperature: float,
    token_budget: int,
    chunk_tokens: int = 1024,
) -> tuple[AnnotatedTree, ...]:
    """The trees with annotations of each policy node, from at most one pass of the policy and one of the reference model.

    Args:
        model: The policy, with the weights to annotate under.
        trees: The trees of the rollout.
        wanted: What to compute.
        reference: Opens the reference model; needed for `ref_logprobs`.
        temperature: Temperature of the sampling distribution.
        token_budget: Most tokens of a row.
        chunk_tokens: Number of tokens whose logits exist at a time.

    Raises:
        ValueError: `ref_logprobs` without a reference model.
    """
    if wanted == Wanted():
        return tuple(AnnotatedTree(s.tree, s.rewards, behavior_annotations(s.tree)) for s in trees)
    rows = pack(
        [counted_once(scored.tree) for scored in trees], token_budget, share_prefixes=packs_trees(model)
    )
    found: list[_Found] = [{} for _ in trees]

    def run(opened: PreTrainedModel, row: PackedRow, with_entropy: bool) -> tuple[Floats, Floats | None]:
        logprobs, entropies = forward_row(opened, row, PassSettings(temperature, chunk_tokens, with_entropy))
        return _floats(logprobs), None if entropies is None else _floats(entropies)

    if wanted.old == "recompute" or wanted.entropies:
        for row in rows:
            logprobs, entropies = run(model, row, wanted.entropies)
            if wanted.old == "recompute":
                _keep(found, row, "old_logprobs", logprobs)
            if entropies is not None:
                _keep(found, row, "entropies", entropies)
    if wanted.ref_logprobs:
        if reference is None:
            raise ValueError("reference logprobs need a reference model")
        with reference() as opened:
            for row in rows:
                _keep(found, row, "ref_logprobs", run(opened, row, False)[0])
    return tuple(
        AnnotatedTree(scored.tree, scored.rewards, _annotations(scored.tree, of_tree, wanted))
        for scored, of_tree in zip(trees, found, strict=True)
    )


def _keep(found: Sequence[_Found], row: PackedRow, name: str, values: Floats) -> None:
    for span in row.spans:
        found[span.tree].setdefault(span.node, {})[name] = values[span.start : span.stop]


def _annotations(tree: Tree, found: _Found, wanted: Wanted) -> Annotations:
    """The one place that decides which logprobs are the old ones."""
    nodes = behavior_annotations(tree)
    if wanted.old == "recompute":
        # A node that a deadline cut before its first token is in no row.
        nodes = {key: NodeAnnotations(np.empty(0)) for key in nodes}
    return {key: replace(note, **found.get(key, {})) for key, note in nodes.items()}


def _floats(tensor: torch.Tensor) -> Floats:
    return tensor.double().cpu().numpy()
