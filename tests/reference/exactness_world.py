"""Trees, a tiny model, and what plain passes over each trajectory find: the ground on which gradients are compared."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from precision import in_precision
from ramify.core.records import NodeAnnotations
from ramify.core.tree import Source
from ramify.modeling.load import load_model, save_model
from random_trees import node, random_tree, tree_of, with_behavior

TEMPERATURE = 0.8
TOKEN_EDGES = (0.8, 1.2, 1.28, 2.0)
PATH_EDGES = (1 - 3e-4, 1 + 4e-4, 0.9, 1.1)
SIZES = {
    "vocab_size": 30,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
}


def write_model(folder, seed=3):
    """A random model with biases that are not zero."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(Qwen2Config(**SIZES, tie_word_embeddings=True))
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                torch.nn.init.normal_(parameter, std=0.3)
        save_model(model, folder)


def our_model(folder, dtype):
    return in_precision(load_model(folder), dtype)


def stock_model(folder, dtype):
    return in_precision(AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa"), dtype)


def tree_with_empty_leaves(rng):
    """A trajectory without any written token, one whose leaf is empty, and two ordinary ones."""
    words = lambda size: rng.integers(2, SIZES["vocab_size"], size)  # noqa: E731
    return tree_of(
        [
            node((), Source.PROMPT, words(4)),
            node((0,), Source.POLICY, [], leaf=True),
            node((1,), Source.POLICY, words(3)),
            node((1, 0), Source.TOOL, words(2)),
            node((1, 0, 0), Source.POLICY, [], leaf=True),
            node((1, 0, 1), Source.POLICY, words(4), leaf=True),
            node((2,), Source.POLICY, words(5), leaf=True),
        ]
    )


@dataclass(frozen=True, eq=False)
class Trip:
    """One trajectory as the stock model sees it. Gradients are with respect to all parameters, [T, number of them].

    `places` are (node id, index in the node); old and ref are those of `World.notes`. [T] each
    """

    places: tuple
    logprobs: torch.Tensor
    entropies: torch.Tensor
    grad_logprobs: torch.Tensor
    grad_entropies: torch.Tensor
    old: torch.Tensor
    ref: torch.Tensor


class World:
    """Three trees whose old, behavior and reference logprobs lie up to a nat from the policy's.

    No ratio pi / old lies within 1e-4 of a token's clip edge, no mean ratio of a trajectory within 1e-5 of a
    trajectory's. Draws depend on the weights and the seed alone, not on the precision.
    """

    def __init__(self, folder, dtype, seed=0):
        self.folder, self.dtype = folder, dtype
        rng = np.random.default_rng(seed)
        shapes = [_moderate(rng, 3, split_turns=False), _moderate(rng, 4, split_turns=True)]
        shapes.append(tree_with_empty_leaves(rng))
        exact = stock_model(folder, torch.float64)
        self.trees, self.notes = [], []
        for shape in shapes:
            policy = _policy_logprobs(exact, shape)
            old = _off_edges(rng, shape, policy)
            behavior = {key: value - rng.uniform(-0.5, 0.5, len(value)) for key, value in old.items()}
            ref = {key: value + rng.uniform(-1, 1, len(value)) for key, value in policy.items()}
            self.trees.append(with_behavior(shape, behavior))
            self.notes.append(
                {key: NodeAnnotations(old_logprobs=old[key], ref_logprobs=ref[key]) for key in policy}
            )
        self.rewards = [rng.normal(size=len(tree.trajectories)) for tree in self.trees]
        self.ours = our_model(folder, dtype)

    @cached_property
    def trips(self):
        """Every trajectory of every tree, each token differentiated on its own. [P][G]"""
        stock = stock_model(self.folder, self.dtype)
        return [
            [_trip(stock, trajectory, notes) for trajectory in tree.trajectories]
            for tree, notes in zip(self.trees, self.notes, strict=True)
        ]


def _moderate(rng, depth, split_turns):
    """A random tree of 5 to 8 trajectories."""
    while True:
        tree = random_tree(rng, depth=depth, vocab=SIZES["vocab_size"], split_turns=split_turns)
        if 5 <= len(tree.trajectories) <= 8:
            return tree


def _written(model, trajectory):
    """(node id, index), ln pi and entropy of each written token of a trajectory, a pass for each of its contexts."""
    places, logprobs, entropies, counted = [], [], [], set()
    for segment in trajectory.segments:
        ids = torch.tensor([segment.token_ids])
        logits = model(ids, use_cache=False).logits[0] / TEMPERATURE
        table = torch.log_softmax(logits, -1)
        inside = [(n, i) for n, size in segment.parts for i in range(size)]
        for position, (n, i) in enumerate(inside):
            # Contexts may overlap; a token counts where it was written.
            if n.source is Source.POLICY and n.id not in counted:
                row = table[position - 1]
                places.append((n.id, i))
                logprobs.append(row[ids[0, position]])
                entropies.append(-(row.exp() * row).sum())
        counted.update(n.id for n in segment.nodes)
    return places, logprobs, entropies


def _policy_logprobs(model, tree):
    result = {n.id: np.zeros(len(n.token_ids)) for n in tree.nodes if n.source is Source.POLICY}
    with torch.no_grad():
        for trajectory in tree.trajectories:
            places, logprobs, _ = _written(model, trajectory)
            for (key, i), value in zip(places, logprobs, strict=True):
                result[key][i] = float(value)
    return result


def _off_edges(rng, tree, policy):
    """Old logprobs, none of whose ratios lies at an edge."""
    while True:
        shifts = {key: rng.uniform(-1, 1, len(value)) for key, value in policy.items()}
        ratios = np.exp(np.concatenate(list(shifts.values())))
        means = [
            np.exp(np.concatenate(parts).mean())
            for t in tree.trajectories
            if (parts := [shifts[n.id] for n in t.policy_nodes]) and t.num_written
        ]
        near = np.abs(ratios[:, None] - TOKEN_EDGES).min() < 1e-4
        if not near and np.abs(np.array(means)[:, None] - PATH_EDGES).min() >= 1e-5:
            return {key: policy[key] - shifts[key] for key in policy}


def _trip(model, trajectory, notes):
    places, logprobs, entropies = _written(model, trajectory)
    parameters = list(model.parameters())

    def gradients(values):
        rows = [torch.autograd.grad(value, parameters, retain_graph=True) for value in values]
        flat = [torch.cat([g.flatten() for g in row]).double() for row in rows]
        return torch.stack(flat) if flat else torch.zeros(0, sum(p.numel() for p in parameters)).double()

    def numbers(values):
        return torch.tensor([value.item() for value in values], dtype=torch.float64)

    return Trip(
        places=tuple(places),
        logprobs=numbers(logprobs),
        entropies=numbers(entropies),
        grad_logprobs=gradients(logprobs),
        grad_entropies=gradients(entropies),
        old=numbers(notes[key].old_logprobs[i] for key, i in places),
        ref=numbers(notes[key].ref_logprobs[i] for key, i in places),
    )
