from contextlib import contextmanager

import numpy as np
import pytest
import torch

from model_makers import annotations_of, learner_for, tiny
from ramify.algos.sft import NegativeLogLikelihood
from ramify.core.tree import Source
from ramify.learner.learning import AnnotationRequest
from ramify.learner.pack import pack
from random_trees import credited, node, random_tree, supervised_credit, tree_of, with_behavior

SETTINGS = {"temperature": 0.8, "token_budget": 10_000}


def forest(count=3):
    rng = np.random.default_rng(0)
    return [random_tree(rng, depth=3) for _ in range(count)]


def tree_with_an_empty_leaf():
    return tree_of(
        [
            node((), Source.PROMPT, [5]),
            node((0,), Source.POLICY, [1, 2]),
            node((0, 0), Source.TOOL, [9]),
            node((0, 0, 0), Source.POLICY, [3], leaf=True),
            node((0, 0, 1), Source.POLICY, [], leaf=True),
        ]
    )


def counted(model):
    calls = []
    model.base_model.register_forward_hook(lambda *_: calls.append(1))
    return calls


@contextmanager
def opened(model):
    yield model


@pytest.mark.parametrize("budget", [20, 10_000])
def test_notes_are_the_learners_logprobs_of_each_node_however_rows_are_cut(budget):
    model, trees = tiny(), forest()
    notes = annotations_of(
        model,
        trees,
        AnnotationRequest(old="recompute", entropies=True),
        reference=None,
        temperature=0.8,
        token_budget=budget,
    )
    learner = learner_for(model, NegativeLogLikelihood(), temperature=0.8)
    for tree, found in zip(trees, notes, strict=True):
        assert found.keys() == {n.id for n in tree.nodes if n.source is Source.POLICY}
        (row,) = pack(credited([tree], [supervised_credit(tree)]), 10_000)
        (logprobs,) = learner.logprobs([row])
        for span in row.spans:
            note = found[span.node]
            assert note.old_logprobs == pytest.approx(logprobs[span.start : span.stop], abs=1e-5)
            assert len(note.entropies) == len(note.old_logprobs)
            assert ((note.entropies > 0) & (note.entropies <= np.log(50) + 1e-6)).all()
            assert note.ref_logprobs is None


def test_what_is_not_wanted_is_not_computed():
    model, reference = tiny(0), tiny(1)
    ours, theirs = counted(model), counted(reference)
    both = AnnotationRequest(old="recompute", entropies=True, ref_logprobs=True)
    for wanted, passes in (
        (AnnotationRequest(old="recompute"), (1, 0)),
        (AnnotationRequest(entropies=True), (1, 0)),
        (AnnotationRequest(ref_logprobs=True), (0, 1)),
        (both, (1, 1)),
    ):
        ours.clear()
        theirs.clear()
        annotations_of(model, forest(), wanted, reference=lambda: opened(reference), **SETTINGS)
        assert (len(ours), len(theirs)) == passes


@pytest.mark.parametrize("more", [{}, {"entropies": True}, {"entropies": True, "ref_logprobs": True}])
def test_the_old_logprobs_are_those_that_were_asked_for_whatever_else_a_pass_finds(more):
    model, trees = tiny(), [tree_with_an_empty_leaf(), *forest(1)]
    trees = [with_behavior(t, {n.id: [-7.0] * len(n.token_ids) for n in t.nodes}) for t in trees]
    for old in ("behavior", "recompute"):
        wanted = AnnotationRequest(old, **more)
        notes = annotations_of(model, trees, wanted, reference=lambda: opened(tiny(1)), **SETTINGS)
        for tree, found in zip(trees, notes, strict=True):
            policy = [node for node in tree.nodes if node.source is Source.POLICY]
            assert [len(found[node.id].old_logprobs) for node in policy] == [len(n.token_ids) for n in policy]
            given = np.concatenate([found[node.id].old_logprobs for node in policy])
            assert (given == -7.0).all() if old == "behavior" else (given != -7.0).all()
        rows = pack(credited(trees, [supervised_credit(tree) for tree in trees], notes), 10_000)
        assert all((row.behavior_logprobs == -7.0).all() for row in rows)
        assert all((row.old_logprobs == -7.0).all() == (old == "behavior") for row in rows)


def test_reference_logprobs_are_the_reference_models():
    model, reference, trees = tiny(0), tiny(1), forest(1)
    wanted = AnnotationRequest(old="recompute", ref_logprobs=True)
    (notes,) = annotations_of(model, trees, wanted, reference=lambda: opened(reference), **SETTINGS)
    (own,) = annotations_of(reference, trees, AnnotationRequest(old="recompute"), reference=None, **SETTINGS)
    for key, note in notes.items():
        assert note.ref_logprobs.tolist() == own[key].old_logprobs.tolist()
        assert note.old_logprobs.tolist() != note.ref_logprobs.tolist()
    with pytest.raises(ValueError, match="need a reference model"):
        annotations_of(model, trees, wanted, reference=None, **SETTINGS)


def test_a_pass_leaves_no_gradient_behind():
    model = tiny()
    annotations_of(model, forest(1), AnnotationRequest(old="recompute"), reference=None, **SETTINGS)
    assert all(p.grad is None for p in model.parameters())
    assert torch.is_grad_enabled()
