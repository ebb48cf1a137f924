"""Losses and gradients against those of TRL's own trainers on equal inputs; the figures are made by `make parity`.

Both sides compute in float64, but for what transformers and TRL themselves compute in float32: norms of hidden
states, rewards and advantages.
"""

import json
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from parity_inputs import (
    DPO_BETAS,
    DPO_PAIRS,
    GRPO_CASES,
    REFERENCE,
    RLOO,
    SAMPLED,
    SIZES,
    TRAINED,
    groups,
    one_turn,
    projections,
    set_weights,
)
from pydantic import TypeAdapter
from transformers import Qwen3Config, Qwen3ForCausalLM

import build
from ramify.algos.dpo import DpoLoss, pair
from ramify.algos.losses import Objective
from ramify.algos.ops import STD_FLOOR
from ramify.algos.sft import NegativeLogLikelihood, demonstrated
from ramify.assemble.algorithm import annotation_request, build_estimator, build_objective
from ramify.config.schema_algorithm import AlgorithmSection
from ramify.core.messages import Message, Problem
from ramify.core.records import Reward, ScoredTree
from ramify.core.tree import Node, Source, StopReason, TreeKey, make_tree, node_id
from ramify.modeling.attention import ATTENTION_NAME
from ramify.train.supervised import prefer

TRL = json.loads((Path(__file__).parent / "trl_figures.json").read_text())
PRECISION = 1e-5
EXAMPLES_PRECISION = 1e-6
"""Of the losses of SFT and DPO, into which neither rewards nor advantages go."""
TRL_STD_FLOOR = 1e-4
"""TRL adds this to a group's standard deviation, ramify `STD_FLOOR`."""


def model_with(which):
    with torch.random.fork_rng(devices=[]):
        model = Qwen3ForCausalLM(Qwen3Config(**SIZES)).double()
    model.set_attn_implementation(ATTENTION_NAME)
    assert set_weights(model, which) == TRL["weights"][str(which)]
    return model.train()


def learner_for(model, objective, temperature=1.0, budget=10_000):
    sizes = {"total_steps": 1, "temperature": temperature, "token_budget": budget}
    return build.learner(model, objective, still=True, reference=reference(), **sizes)


def tree_of(number, chosen, group=None):
    """Completions of one prompt as a tree whose roots share nothing but the prompt."""
    group = group or groups()[number]
    first = sum(len(before.answers) for before in groups()[:number])
    nodes = [Node("", (), None, Source.PROMPT, group.prompt, "")]
    for root, index in enumerate(chosen):
        answer, logprobs = group.answers[index], iter(TRL["sampled_logprobs"][first + index])
        ends = StopReason.TOKENS if answer.is_cut else StopReason.ANSWERED
        for depth, part in enumerate(answer.parts):
            path = (root, *(0,) * depth)
            source = Source.TOOL if depth % 2 else Source.POLICY
            sampled = tuple(next(logprobs) for _ in part)
            nodes.append(
                Node(
                    id=node_id(path),
                    path=path,
                    parent=node_id(path[:-1]),
                    source=source,
                    token_ids=part,
                    text="",
                    behavior_logprobs=sampled if source is Source.POLICY else (),
                    stop=ends if depth == len(answer.parts) - 1 else None,
                )
            )
    return make_tree(Problem(str(number), (Message.of("user", "?"),), ()), TreeKey(0, number), nodes)


def reference():
    model = model_with(REFERENCE)

    @contextmanager
    def opened():
        yield model

    return opened


def check(report, caught, expected, factor=1.0, of_loss=PRECISION):
    """`factor`: TRL's denominator over ramify's."""
    assert report.loss == pytest.approx(expected["loss"] * factor, rel=of_loss)
    assert report.grad_norm == pytest.approx(expected["grad_norm"] * factor, rel=PRECISION)
    check_gradients(caught, expected, factor)


def check_gradients(caught, expected, factor=1.0):
    assert caught.keys() == expected["grad_norms"].keys()
    for name, norm in expected["grad_norms"].items():
        assert float(caught[name].norm()) == pytest.approx(norm * factor, rel=PRECISION), name
    np.testing.assert_allclose(
        projections(caught),
        np.array(expected["projections"]) * factor,
        rtol=0,
        atol=PRECISION * expected["grad_norm"] * factor,
    )


@pytest.mark.parametrize("budget", [1, 10_000])
def test_sft(budget):
    """TRL: SFTTrainer with num_items_in_batch, tool results masked in the labels."""
    trees = [tree_of(g, [i]) for g, group in enumerate(groups()) for i in range(len(group.answers))]
    learner = learner_for(model_with(TRAINED), Objective(NegativeLogLikelihood()), budget=budget)
    caught = build.collect_gradients(learner, lambda: learner.update([demonstrated(tree) for tree in trees]))
    check(*caught, TRL["sft"], of_loss=EXAMPLES_PRECISION)


@pytest.mark.parametrize("budget", [1, 10_000])
@pytest.mark.parametrize("beta", DPO_BETAS)
def test_dpo(beta, budget):
    """TRL: DPOTrainer, loss_type sigmoid, tool results masked in completion_mask (which its collator does not do)."""
    trees = [pair(tree_of(g, [chosen]), tree_of(g, [rejected])) for g, chosen, rejected in DPO_PAIRS]
    learner = learner_for(model_with(TRAINED), Objective(DpoLoss(beta)), budget=budget)
    report, caught = build.collect_gradients(learner, lambda: prefer(learner, trees))
    expected = TRL["dpo"][str(beta)]
    check(report, caught, expected, of_loss=EXAMPLES_PRECISION)
    names = {"accuracies": "accuracy", "margins": "margin"}
    for theirs, ours in (names | {side: f"{side}_reward" for side in ("chosen", "rejected")}).items():
        assert report.metrics[ours] == pytest.approx(expected["metrics"][theirs], rel=PRECISION)


def learning_for(learner, section, temperature):
    return build.learning(
        learner,
        estimator=build_estimator(section),
        correction=section.correction,
        masks_truncated=section.truncated == "mask",
        request=annotation_request(section),
        problems_per_minibatch=len(groups()),
        temperature=temperature,
    )


def as_trl_scales(advantages, rewards):
    """Advantages divided by std + 1e-4 instead of std + 1e-6."""
    std = np.std([reward.value for reward in rewards], ddof=1)
    return tuple(a * (std + STD_FLOOR) / (std + TRL_STD_FLOOR) for a in advantages)


@pytest.mark.parametrize("name", GRPO_CASES)
def test_grpo_family(name):
    """TRL: GRPOTrainer with the settings of the case; advantages, old and reference logprobs are its own too."""
    case, expected = GRPO_CASES[name], TRL["grpo"][name]
    section = TypeAdapter(AlgorithmSection).validate_python({"old": "recompute", **case.ours})
    trees = [tree_of(g, range(len(group.answers))) for g, group in enumerate(groups())]
    rewards = [tuple(Reward(answer.reward, {}) for answer in group.answers) for group in groups()]
    learner = learner_for(model_with(SAMPLED), build_objective(section), case.temperature)
    learning = learning_for(learner, section, case.temperature)

    learned = learning.credit([ScoredTree(*pair) for pair in zip(trees, rewards, strict=True)])
    if section.estimator.scale == "std":
        learned = [
            replace(tree, advantages=as_trl_scales(tree.advantages, tree_rewards))
            for tree, tree_rewards in zip(learned, rewards, strict=True)
        ]
    flat = [float(a[0]) for tree in learned for a in tree.advantages]
    assert flat == pytest.approx(expected["advantages"], rel=PRECISION)

    set_weights(learner.model, TRAINED)
    ((report,), caught) = build.collect_gradients(learner, lambda: learning.update(learned))
    # What carries no loss stays in ramify's denominator.
    factor = kept_share() if case.counts_kept_only else 1.0
    check(report, caught, expected, factor)


def test_rloo():
    """TRL: RLOOTrainer, on policy, k1 in the reward. Its value is that of a ratio, so gradients are compared alone."""
    section = TypeAdapter(AlgorithmSection).validate_python({"old": "recompute", **RLOO.ours})
    flat = [one_turn(group) for group in groups()]
    trees = [tree_of(g, range(len(group.answers)), group) for g, group in enumerate(flat)]
    rewards = [tuple(Reward(answer.reward, {}) for answer in group.answers) for group in flat]
    learner = learner_for(model_with(SAMPLED), build_objective(section))
    learning = learning_for(learner, section, 1.0)

    learned = learning.credit([ScoredTree(*pair) for pair in zip(trees, rewards, strict=True)])
    flat_advantages = [float(a[0]) for tree in learned for a in tree.advantages]
    assert flat_advantages == pytest.approx(TRL["rloo"]["advantages"], rel=PRECISION)
    _, caught = build.collect_gradients(learner, lambda: learning.update(learned))
    check_gradients(caught, TRL["rloo"])


def kept_share():
    """Tokens of the completions that ended by themselves, as a share of all written ones."""
    answers = [answer for group in groups() for answer in group.answers]
    ended = sum(sum(answer.written) for answer in answers if not answer.is_cut)
    return ended / sum(sum(answer.written) for answer in answers)


def test_the_cases_differ():
    """Each setting acts on these inputs."""
    norms = {name: figures["grad_norm"] for name, figures in TRL["grpo"].items()}
    assert len({f"{norm:.6g}" for norm in norms.values()}) == len(norms)
