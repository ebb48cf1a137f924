"""The annotation pass: one pass without gradient over a rollout's unique tokens, for what the engine did not provide."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np

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
from ramify.learner.forward import PassSettings
from ramify.learner.update import Learner

_NodeValues: TypeAlias = dict[str, dict[str, Floats]]
"""Results of the passes, by node id and name of the annotation."""


@dataclass(frozen=True, slots=True)
class AnnotationRequest:
    """The per-token values to compute; passes that none of them needs are skipped.

    Attributes:
        old: Whose logprobs are the old ones: "behavior" the engine's, "recompute" the learner's, from a pass.
        entropies: Compute the policy's entropies.
        ref_logprobs: Compute the reference model's logprobs.
    """

    old: Literal["behavior", "recompute"] = "behavior"
    entropies: bool = False
    ref_logprobs: bool = False


def annotate(
    learner: Learner,
    trees: Sequence[ScoredTree],
    wanted: AnnotationRequest,
    *,
    temperature: float,
    chunk_tokens: int = 1024,
) -> tuple[AnnotatedTree, ...]:
    """Annotate each policy node of the trees, with at most one pass of the policy and one of the reference model.

    Args:
        learner: Holds the policy, with the weights to annotate under, and the reference model.
        trees: The trees of the rollout.
        wanted: What to compute.
        temperature: Temperature of the sampling distribution.
        chunk_tokens: Number of tokens whose logits exist at a time.

    Raises:
        ValueError: `ref_logprobs` without a reference model.
    """
    if wanted == AnnotationRequest():
        return tuple(AnnotatedTree(s.tree, s.rewards, behavior_annotations(s.tree)) for s in trees)
    shares = learner.share_out([counted_once(scored.tree) for scored in trees])
    rows = shares.all_rows
    computed: list[_NodeValues] = [{} for _ in trees]
    if wanted.old == "recompute" or wanted.entropies:
        settings = PassSettings(temperature, chunk_tokens, with_entropy=wanted.entropies)
        for row, (logprobs, entropies) in zip(rows, learner.forward(shares, settings), strict=True):
            if wanted.old == "recompute":
                _keep(computed, row, "old_logprobs", logprobs)
            if entropies is not None:
                _keep(computed, row, "entropies", entropies)
    if wanted.ref_logprobs:
        settings = PassSettings(temperature, chunk_tokens, with_entropy=False)
        of_reference = learner.forward(shares, settings, of_reference=True)
        for row, (logprobs, _) in zip(rows, of_reference, strict=True):
            _keep(computed, row, "ref_logprobs", logprobs)
    return tuple(
        AnnotatedTree(scored.tree, scored.rewards, _annotations(scored.tree, of_tree, wanted))
        for scored, of_tree in zip(trees, computed, strict=True)
    )


def _keep(computed: Sequence[_NodeValues], row: PackedRow, name: str, values: Floats) -> None:
    for span in row.spans:
        computed[span.tree].setdefault(span.node, {})[name] = values[span.start : span.stop]


def _annotations(tree: Tree, computed: _NodeValues, wanted: AnnotationRequest) -> Annotations:
    """Decide, here only, which logprobs are the old ones."""
    nodes = behavior_annotations(tree)
    if wanted.old == "recompute":
        # A node that a deadline cut before its first token is in no row.
        nodes = {key: NodeAnnotations(np.empty(0)) for key in nodes}
    return {key: replace(note, **computed.get(key, {})) for key, note in nodes.items()}
