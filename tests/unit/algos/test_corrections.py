import math

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from ramify.algos.corrections import ImportanceCorrection
from ramify.core.errors import ConfigError, EngineError, TrainingError
from ramify.core.records import NO_ANNOTATIONS, NodeAnnotations
from ramify.core.tree import Source, make_tree
from random_trees import annotated, forked_tree, random_tree, with_behavior

FORKED = forked_tree([3], [], root=[])
"""Two leaves behind one result; the second was cut before it wrote anything."""


def notes(trunk, leaf):
    """The learner's logprobs, given as ratios to the engine's, which are exp(-1)."""
    return {
        "0": NodeAnnotations(old_logprobs=np.log(trunk) - 1),
        "0.0.0": NodeAnnotations(old_logprobs=np.log(leaf) - 1),
    }


NOTES = notes([1.5, 4.0], [0.25])


@pytest.mark.parametrize(
    ("level", "kind", "cap", "floor", "expected"),
    [
        ("token", "truncate", 2.0, None, [[1.5, 2.0, 0.25], [1.5, 2.0], []]),
        ("token", "mask", 2.0, None, [[1.5, 0.0, 0.25], [1.5, 0.0], []]),
        ("token", "mask", 5.0, 0.5, [[1.5, 4.0, 0.0], [1.5, 4.0], []]),
        ("sequence", "truncate", 2.0, None, [[1.5, 1.5, 1.5], [2.0, 2.0], []]),
        ("sequence", "mask", 2.0, None, [[1.5, 1.5, 1.5], [0.0, 0.0], []]),
        ("sequence", "mask", 7.0, 0.9, [[1.5, 1.5, 1.5], [6.0, 6.0], []]),
    ],
)
def test_by_hand(level, kind, cap, floor, expected):
    weights = ImportanceCorrection(level, kind, cap, floor).weights(annotated(FORKED, None, NOTES))
    assert [w.tolist() for w in weights] == [pytest.approx(row) for row in expected]


def test_both_edges_of_a_mask_are_inside():
    exact = {
        "0": NodeAnnotations(old_logprobs=np.array([-1.0, -1.0])),
        "0.0.0": NodeAnnotations(old_logprobs=np.array([-1.0])),
    }
    for cap, floor in ((1.0, 0.5), (2.0, 1.0)):
        mask = ImportanceCorrection("token", "mask", cap, floor)
        assert mask.weights(annotated(FORKED, None, exact))[0].tolist() == [1, 1, 1]


@pytest.mark.parametrize("kind", ["truncate", "mask"])
def test_ratios_beyond_the_range_of_floats_are_bounded_in_silence(kind):
    tree = with_behavior(FORKED, {"0": [-900.0, -900.0], "0.0.0": [-1.0], "0.0.1": [], "1": []})
    far = {
        "0": NodeAnnotations(old_logprobs=np.zeros(2)),
        "0.0.0": NodeAnnotations(old_logprobs=np.array([-1.0])),
    }
    for level in ("token", "sequence"):
        weights = ImportanceCorrection(level, kind, 2.0, None).weights(annotated(tree, None, far))
        assert weights[0][0] == (2.0 if kind == "truncate" else 0.0)
        assert all(np.isfinite(w).all() for w in weights)
    vanishing = notes([1.0, 1.0], [1.0]) | {"0": NodeAnnotations(old_logprobs=np.array([-2000.0, -2000.0]))}
    assert (
        not ImportanceCorrection("sequence", kind, 2.0, None)
        .weights(annotated(FORKED, None, vanishing))[0]
        .any()
    )


def test_missing_and_broken_logprobs_are_refused():
    correction = ImportanceCorrection("token", "truncate", 2.0, None)
    with pytest.raises(
        ConfigError, match=r"node '0' has no logprobs of the learner\. Set algorithm\.old = .recompute"
    ):
        correction.weights(annotated(FORKED, None, NO_ANNOTATIONS))
    for broken in (math.nan, -math.inf):
        with pytest.raises(
            TrainingError, match=r"node '0\.0\.0': the learner found a logprob that is not finite"
        ):
            correction.weights(
                annotated(FORKED, None, NOTES | {"0.0.0": NodeAnnotations(old_logprobs=np.array([broken]))})
            )
        tree = with_behavior(FORKED, {"0": [-1.0, broken], "0.0.0": [-1.0], "0.0.1": [], "1": []})
        with pytest.raises(EngineError, match="node '0': the engine gave a logprob that is not finite"):
            correction.weights(annotated(tree, None, NOTES))


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("seed", range(5))
def test_tokens_above_the_start_of_a_tree_do_not_count(seed, level):
    """A plain loop over the tokens that are trained on."""
    rng = np.random.default_rng(seed)
    grown = random_tree(rng)
    start = next(node for node in grown.nodes if node.source is Source.TOOL)
    below = [n for n in grown.nodes if n.path[: len(start.path)] == start.path[: len(n.path)]]
    tree = make_tree(grown.problem, grown.key, below, start=start.id)
    old = {
        n.id: NodeAnnotations(old_logprobs=rng.normal(-1, 0.3, len(n.token_ids)))
        for n in tree.nodes
        if n.source is Source.POLICY
    }
    correction = ImportanceCorrection(level, "truncate", 1000.0, None)
    for trajectory, weights in zip(
        tree.trajectories, correction.weights(annotated(tree, None, old)), strict=True
    ):
        ratios = []
        for part in trajectory.policy_nodes:
            for token in range(len(part.token_ids)):
                trained = len(part.path) > len(start.path)
                ratios.append(math.exp(old[part.id].old_logprobs[token] + 1.0) if trained else 1.0)
        whole = math.prod(ratios)
        assert weights == pytest.approx([whole] * len(ratios) if level == "sequence" else ratios)


@pytest.mark.parametrize(
    ("kind", "cap", "floor", "message"),
    [
        ("truncate", 2.0, 0.5, "floor: has no effect without"),
        ("mask", 1.0, 1.0, "floor: expected a number below cap"),
    ],
)
def test_bounds_that_do_not_fit_each_other_are_refused(kind, cap, floor, message):
    table = {"level": "token", "kind": kind, "cap": cap, "floor": floor}
    with pytest.raises(ValidationError, match=message):
        TypeAdapter(ImportanceCorrection).validate_python(table)
