"""Every family: logprobs and gradients of packed rows against transformers' own class, a step of SFT and of RL, what is saved."""

import json

import numpy as np
import pytest
import torch
from plain_sums import surrogate, trajectory_logprobs
from safetensors import safe_open
from transformers import AutoModelForCausalLM

import build
from family_models import write_family
from ramify.algos.credit import Weighting, credit, denominator
from ramify.algos.grpo import ClippedSurrogate
from ramify.algos.sft import SUPERVISED, NegativeLogLikelihood
from ramify.learner.pack import pack
from ramify.modeling.configs import AdapterConfig
from ramify.modeling.load import load_model, packs_trees, save_model
from ramify.modeling.lora import add_lora
from ramify.modeling.lora_merge import write_merged
from ramify.modeling.model_config import FAMILIES, WRAPPERS
from ramify.modeling.weight_files import WITHIN
from ramify.sampler.served_weights import ServedWeights
from random_trees import credited, random_advantages, random_tree, supervised_credit, training, with_behavior

CLIP = {"low": 0.2, "high": 0.28, "dual": 3.0}
TEMPERATURE = 0.8


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture(scope="module")
def folder(family, tmp_path_factory):
    return write_family(tmp_path_factory.mktemp(family) / "model", family)


@pytest.fixture(scope="module")
def stock(folder):
    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")


@pytest.fixture(scope="module")
def trees():
    """Paths of up to thirty tokens, windows of four; some contexts begin afresh, some go on from inside a node above them."""
    rng = np.random.default_rng(6)
    grown = [random_tree(rng, depth=depth, bushy=False) for depth in (3, 4)]
    assert max(len(t.segments[-1].token_ids) for tree in grown for t in tree.trajectories) > 12
    return grown


@pytest.fixture(scope="module")
def plain(stock, trees):
    """The logprob of each written token by its node and place, as transformers computes it, with gradient."""
    return [
        {
            (node, offset): logprob
            for trajectory in tree.trajectories
            for node, offset, logprob in trajectory_logprobs(stock, trajectory, TEMPERATURE)
        }
        for tree in trees
    ]


def own_names(gradients):
    """Gradients by the decoder's names; those of other parts, which see no picture, are none."""
    return {name.replace(WITHIN, "model."): gradient for name, gradient in gradients.items()}


def assert_close(actual, expected):
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        assert (actual[name].double() - value).norm() <= 2e-5 * value.norm() + 1e-7, name


def rows_of(model, credited_trees, budget=10_000):
    return pack(credited_trees, budget, share_prefixes=packs_trees(model))


def update(model, rows, total, loss):
    """One step of an optimizer that stands still; its report, and the gradients that it saw."""
    learner = build.learner(model, loss, still=True, temperature=TEMPERATURE, chunk_tokens=7)
    report, gradients = build.collect_gradients(learner, lambda: learner.update_rows(rows, total))
    assert report.outcome == "stepped"
    return report, gradients


def test_logprobs_and_gradients_of_demonstrations_are_those_of_transformers(folder, stock, trees, plain):
    ours = load_model(folder)
    with_credit = credited(trees, [supervised_credit(tree) for tree in trees])
    learner = build.learner(ours, temperature=TEMPERATURE, chunk_tokens=7)
    rows = rows_of(ours, with_credit)
    if packs_trees(ours):
        (row,), (logprobs,) = rows, learner.logprobs(rows)
        order = [(span.node, i) for span in row.spans for i in range(span.stop - span.start)]
        expected = [plain[0].get(key) for key in order]
        first = len(plain[0])
        assert logprobs[:first] == pytest.approx([x.item() for x in expected[:first]], abs=2e-5)
        assert len(order) == sum(map(len, plain))
    stock.zero_grad()
    once = [logprob for tree in plain for logprob in tree.values()]
    loss = -sum(once) / len(once)
    loss.backward(retain_graph=True)
    total = denominator(trees, SUPERVISED)
    for budget in (10_000, 12):
        report, gradients = update(ours, rows_of(ours, with_credit, budget), total, NegativeLogLikelihood())
        assert report.loss == pytest.approx(loss.item(), rel=1e-5)
        assert_close(gradients, own_names(build.gradients_of(stock)))


def test_loss_and_gradients_of_branching_trees_are_those_of_plain_loops(folder, stock, trees, plain):
    ours, rng = load_model(folder), np.random.default_rng(1)
    advantages = [random_advantages(rng, tree) for tree in trees]
    sampled = [
        with_behavior(
            tree,
            {
                n.id: np.array(
                    [float(known.get((n.id, i), torch.zeros(())).detach()) for i in range(len(n.token_ids))]
                )
                + rng.uniform(-0.15, 0.15, len(n.token_ids))
                for n in tree.nodes
            },
        )
        for tree, known in zip(trees, plain, strict=True)
    ]
    stock.zero_grad()
    sums = [
        surrogate(stock, tree, own, "repeat", "soft", **CLIP, temperature=TEMPERATURE)
        for tree, own in zip(sampled, advantages, strict=True)
    ]
    total = sum(weight for _, weight in sums)
    loss = sum(value for value, _ in sums) / total
    loss.backward()
    credits = [
        credit(training(tree, own), Weighting()) for tree, own in zip(sampled, advantages, strict=True)
    ]
    rows = rows_of(ours, credited(sampled, credits))
    report, gradients = update(ours, rows, total, ClippedSurrogate(*CLIP.values()))
    assert report.loss == pytest.approx(loss.item(), rel=1e-5, abs=1e-7)
    assert_close(gradients, own_names(build.gradients_of(stock)))


def tensors_of(folder):
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping


def test_steps_lower_the_loss_and_what_is_saved_is_the_whole_model(family, folder, trees, tmp_path):
    model = load_model(folder)
    learner = build.learner(model)
    rows = rows_of(model, credited(trees, [supervised_credit(tree) for tree in trees]))
    losses = [learner.update_rows(rows, denominator(trees, SUPERVISED)).loss for _ in range(3)]
    assert losses[2] < losses[0]
    save_model(model, tmp_path / "trained")
    before, after = tensors_of(folder), tensors_of(tmp_path / "trained")
    assert before.keys() == after.keys()
    # An embedding of ids that no tree has, and what is no decoder's, stay as they were.
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert not any("vision" in name for name in moved)
    assert any("layers.1.self_attn" in name for name in moved)
    assert family not in WRAPPERS or any("vision" in name for name in before)
    configs = [json.loads((path / "config.json").read_text()) for path in (folder, tmp_path / "trained")]
    assert [config["model_type"] for config in configs] == [family, family]
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "trained", attn_implementation="eager")
    ids = torch.randint(2, 50, (1, 20), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert torch.allclose(again(ids).logits, model.eval()(ids).logits, atol=1e-4)
        # With the same attention there is no rounding between them.
        model.set_attn_implementation("eager")
        assert torch.equal(again(ids).logits, model(ids).logits)


def test_an_adapter_is_trained_and_peft_loads_it_into_the_whole_model(family, folder, trees, tmp_path):
    from peft import PeftModel

    model = load_model(folder)
    targets = ("q_proj", "o_proj")
    add_lora(model, AdapterConfig(rank=2, alpha=4, targets=targets), 0)
    rows = rows_of(model, credited(trees, [supervised_credit(tree) for tree in trees]))
    learner = build.learner(model)
    losses = [learner.update_rows(rows, denominator(trees, SUPERVISED)).loss for _ in range(3)]
    assert losses[2] < losses[0]
    save_model(model, tmp_path / "adapter")
    again = load_model(tmp_path / "adapter")
    whole = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    adapted = PeftModel.from_pretrained(whole, tmp_path / "adapter").eval()
    assert not any("lora_" in name for name, _ in adapted.named_parameters() if "vision" in name)
    ids = torch.randint(2, 50, (1, 20), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        ours = model.eval()(ids).logits
        assert torch.equal(again.eval()(ids).logits, ours)
        assert torch.allclose(adapted(ids).logits, ours, atol=2e-5)
        merged = write_merged(tmp_path / "adapter", tmp_path / "merged")
        plain = AutoModelForCausalLM.from_pretrained(merged, attn_implementation="eager")
        assert torch.allclose(plain(ids).logits, ours, atol=2e-5)


def test_servers_get_the_weights_under_the_names_of_the_files(folder):
    learner = build.learner(load_model(folder))
    served = ServedWeights(learner)
    stored = tensors_of(folder)
    names = [name for name in served.shapes if name in stored]
    # A tied head goes along.
    assert [name for name in served.shapes if name not in stored] in (
        [],
        ["lm_head.weight"],
        ["language_model.lm_head.weight"],
    )
    parts = ("vision", "projector", "layer_scalar")
    assert {name for name in stored if not any(part in name for part in parts)} == set(names)
    tensors = served.tensors(names, torch.float32)
    assert all(torch.equal(stored[name], tensor) for name, tensor in zip(names, tensors, strict=True))
    assert all(served.shapes[name] == tuple(stored[name].shape) for name in names)
