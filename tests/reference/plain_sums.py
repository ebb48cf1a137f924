"""The losses as their papers write them: plain loops over trajectories, one forward pass each.

Slow on purpose; shares no code with what it checks beyond the tree itself.
"""

import torch

from ramify.core.tree import Source


def segment_logprobs(model, segment, temperature):
    """ln pi(y_t | y_<t) of every token but the first of one context, as the stock model sees it. [T - 1]"""
    ids = torch.tensor([segment.token_ids])
    logits = model(ids, use_cache=False).logits[0, :-1] / temperature
    return torch.log_softmax(logits.float(), -1).gather(1, ids[0, 1:, None])[:, 0]


def trajectory_logprobs(model, trajectory, temperature):
    """(node id, index in the node, ln pi) of each written token of a trajectory, in order."""
    result, counted = [], set()
    for segment in trajectory.segments:
        logprobs = segment_logprobs(model, segment, temperature)
        places = [(n, i) for n, size in segment.parts for i in range(size)]
        for position, (n, i) in enumerate(places):
            # Contexts may overlap; a token counts where it was written.
            if n.source is Source.POLICY and n.id not in counted:
                result.append((n.id, i, logprobs[position - 1]))
        counted.update(n.id for n in segment.nodes)
    return result


def leaves_below(tree, identifier):
    """Trajectories that go through a node."""
    return [
        j for j, trajectory in enumerate(tree.trajectories) if identifier in [n.id for n in trajectory.nodes]
    ]


def mass(tree, j):
    """omega_j: the product of 1 / (number of children) over the nodes between prompt and leaf that branch."""
    omega = 1.0
    for n in tree.trajectories[j].nodes[1:-1]:
        omega *= 1.0 / sum(other.parent == n.id for other in tree.nodes)
    return omega


def loss_weight(tree, j, identifier, shared):
    """w_{j,t}: what a trajectory's copy of a token counts."""
    if shared == "repeat":
        return 1.0
    if shared == "split":
        return 1.0 / len(leaves_below(tree, identifier))
    return mass(tree, j)


def advantage(tree, advantages, j, identifier, offset, shared, sharing):
    """A_{j,t} (soft), or the mean over the d trajectories that share the token (hard; ARPO, section 3.2)."""
    if sharing == "soft":
        return float(advantages[j][offset])
    total = weight = 0.0
    for other in leaves_below(tree, identifier):
        omega = mass(tree, other) if shared == "mass" else 1.0
        total += omega * float(advantages[other][offset])
        weight += omega
    return total / weight


def clipped_term(ratio, value, low, high, dual):
    """PPO (arXiv 1707.06347) equation 7, with the dual clip of arXiv 1912.09729 equation 5."""
    clipped = torch.clamp(ratio, 1 - low, 1 + high)
    term = torch.min(ratio * value, clipped * value)
    if dual is not None and value < 0:
        term = torch.max(term, torch.tensor(dual * value))
    return term


def surrogate(model, tree, advantages, shared, sharing, *, low, high, dual, temperature):
    """-sum_j sum_t w_{j,t} clipped(r_t, A_{j,t}), the sum of all w_{j,t}, and the share of it that is clipped."""
    old = {n.id: n.behavior_logprobs for n in tree.nodes}
    loss = torch.zeros(())
    denominator = 0.0
    for j, trajectory in enumerate(tree.trajectories):
        for offset, (identifier, i, logprob) in enumerate(
            trajectory_logprobs(model, trajectory, temperature)
        ):
            value = advantage(tree, advantages, j, identifier, offset, shared, sharing)
            weight = loss_weight(tree, j, identifier, shared)
            ratio = torch.exp(logprob - old[identifier][i])
            loss = loss - weight * clipped_term(ratio, value, low, high, dual)
            denominator += weight
    return loss, denominator
