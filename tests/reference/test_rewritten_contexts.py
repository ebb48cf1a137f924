"""Trees that were really grown, with contexts opened in mid-trajectory, against plain passes over each context."""

import itertools

import numpy as np
import pytest
from plain_sums import advantage, leaves_below, loss_weight, surrogate, trajectory_logprobs
from transformers import AutoModelForCausalLM

import build
from ramify.algos.branch_arpo import ThresholdBrancher
from ramify.algos.credit import Weighting, credit, denominator
from ramify.algos.grpo import ClippedSurrogate
from ramify.algos.sft import NegativeLogLikelihood
from ramify.core.tree import Source
from ramify.learner.pack import pack
from ramify.modeling.load import load_model
from random_trees import credited, random_advantages, supervised_credit, training, with_behavior
from scripted_agents import Backtracks, FoldsMemory, agent, grow, problem

TEMPERATURE = 0.8


@pytest.fixture(
    scope="module", params=itertools.product(("before_probe", "after_probe"), ("folds", "backtracks"))
)
def trees(request, model_folder):
    branch_at, kind = request.param
    rewriter = FoldsMemory(1) if kind == "folds" else Backtracks(1)
    rule = ThresholdBrancher(m=2, min_entropy_delta=-0.2, children=1, probe_tokens=3)
    parts = agent(model_folder, rule, n=5, rewriters=(rewriter,), branch_at=branch_at)
    grown, _ = grow(parts, [problem("p0"), problem("p1", "solve the number sum")])
    split = any(len(t.policy_nodes) > 1 + len(t.exchanges) for tree in grown for t in tree.trajectories)
    assert split == (branch_at == "after_probe")
    assert {len(t.segments) for tree in grown for t in tree.trajectories} == {1, 2}
    assert any(decision.taken for tree in grown for decision in tree.decisions)
    return grown


@pytest.fixture(scope="module")
def models(model_folder):
    stock = AutoModelForCausalLM.from_pretrained(model_folder, attn_implementation="eager")
    return stock, load_model(model_folder)


def learner_for(model, loss):
    return build.learner(model, loss, still=True, temperature=TEMPERATURE, chunk_tokens=64)


def plain_logprobs(stock, tree):
    """ln pi of each written token, from one pass of the stock model over each context: {(node id, index): value}."""
    result = {}
    for trajectory in tree.trajectories:
        for identifier, i, logprob in trajectory_logprobs(stock, trajectory, TEMPERATURE):
            result[identifier, i] = float(logprob.detach())
    return result


def test_packed_rows_give_the_logprobs_of_each_context_alone(models, trees):
    stock, ours = models
    learner = learner_for(ours, NegativeLogLikelihood())
    rows = pack(credited(trees, [supervised_credit(tree) for tree in trees]), 100_000)
    plain = [plain_logprobs(stock, tree) for tree in trees]
    expected = [
        plain[span.tree][span.node, i] for span in rows[0].spans for i in range(span.stop - span.start)
    ]
    assert len(expected) == sum(map(len, plain))
    assert learner.logprobs(rows)[0] == pytest.approx(expected, abs=2e-5)


FOLDED = [("before_probe", "folds"), ("after_probe", "folds")]


@pytest.mark.parametrize("trees", FOLDED, indirect=True)
def test_positions_restart_and_no_context_attends_to_another(trees):
    for tree in trees:
        (row,) = pack(credited([tree], [supervised_credit(tree)]), 100_000)
        position, starts = 0, {}
        # Depth-first, the fresh contexts behind the prompt's.
        for node in sorted(tree.nodes, key=lambda n: [o.id for o in tree.path_to(n) if o.context == "fresh"]):
            starts[node.id] = position
            position += len(node.token_ids)
        assert position == len(row.token_ids)
        attended = {}
        for index, span in enumerate(row.segments):
            above = attended[span.parent] if span.parent >= 0 else []
            attended[index] = [*above, *range(span.start, span.stop)]
        for trajectory in tree.trajectories:
            for segment in trajectory.segments:
                rows = [starts[n.id] + i for n in segment.nodes for i in range(len(n.token_ids))]
                assert row.positions[rows].tolist() == list(range(len(rows)))
                last = next(i for i, s in enumerate(row.segments) if s.start <= rows[-1] < s.stop)
                assert [at for at in attended[last] if at <= rows[-1]] == rows
        openings = [n for n in tree.nodes if n.context == "fresh"]
        assert openings
        assert all(row.positions[starts[n.id]] == 0 for n in openings)


@pytest.mark.parametrize("shared", ["repeat", "split", "mass"])
@pytest.mark.parametrize("sharing", ["soft", "hard"])
def test_credit_reaches_the_tokens_of_all_contexts(trees, shared, sharing):
    rng = np.random.default_rng(2)
    for tree in trees:
        advantages = random_advantages(rng, tree)
        credits = credit(training(tree, advantages), Weighting(shared, sharing))
        offsets = [
            {n.id: sum(len(o.token_ids) for o in t.policy_nodes[:at]) for at, n in enumerate(t.policy_nodes)}
            for t in tree.trajectories
        ]
        for node in tree.nodes:
            if node.source is not Source.POLICY:
                continue
            below = leaves_below(tree, node.id)
            for i in range(len(node.token_ids)):
                plus = minus = total = 0.0
                for j in below:
                    weight = loss_weight(tree, j, node.id, shared)
                    value = advantage(tree, advantages, j, node.id, offsets[j][node.id] + i, shared, sharing)
                    plus += weight * max(value, 0.0)
                    minus += weight * min(value, 0.0)
                    total += weight
                got = credits[node.id]
                assert (got.s_plus[i], got.s_minus[i]) == pytest.approx((plus, minus))
                assert (got.weight[i], got.num_paths[i]) == pytest.approx((total, len(below)))


@pytest.mark.parametrize("shared", ["repeat", "mass"])
def test_the_loss_is_the_sum_over_trajectories_of_all_their_contexts(models, trees, shared):
    stock, ours = models
    rng = np.random.default_rng(6)
    old, advantages = [], []
    for tree in trees:
        plain = plain_logprobs(stock, tree)
        shifted = {
            n.id: [plain.get((n.id, i), 0.0) + rng.uniform(-0.15, 0.15) for i in range(len(n.token_ids))]
            for n in tree.nodes
        }
        old.append(with_behavior(tree, shifted))
        advantages.append(random_advantages(rng, tree))
    credits = [credit(training(tree, a), Weighting(shared)) for tree, a in zip(old, advantages, strict=True)]
    settings = {"low": 0.2, "high": 0.28, "dual": 3.0, "temperature": TEMPERATURE}
    sums = [surrogate(stock, t, a, shared, "soft", **settings) for t, a in zip(old, advantages, strict=True)]
    total = sum(weight for _, weight in sums)
    report = learner_for(ours, ClippedSurrogate(0.2, 0.28, 3.0)).update_rows(
        pack(credited(old, credits), 100_000), total
    )
    assert denominator(old, Weighting(shared)) == pytest.approx(total)
    assert report.loss == pytest.approx(sum(float(v.detach()) for v, _ in sums) / total, rel=1e-4)
    assert report.mismatch_max == pytest.approx(0.15, abs=0.02)
