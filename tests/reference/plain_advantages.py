"""Advantages and importance weights as their papers write them: plain loops over trajectories and tokens.

Slow on purpose; shares no code with what it checks beyond the tree itself. Tokens are (node id, index in the node) of
the written tokens of a trajectory, in order; results are lists [G][T].
"""

import math

from ramify.core.tree import Source


def tokens(trajectory):
    """The written tokens of a trajectory."""
    return [(n.id, i) for n in trajectory.nodes if n.source is Source.POLICY for i in range(len(n.token_ids))]


def through(tree, identifier):
    """Numbers of the trajectories through a node: an id is a path, so they start with it."""
    start = identifier.split(".") if identifier else []
    return [j for j, t in enumerate(tree.trajectories) if t.leaf.id.split(".")[: len(start)] == start]


def omega(tree, j):
    """Mass: one over the children of each node on the path, the prompt aside."""
    mass = 1.0
    for n in tree.trajectories[j].nodes:
        siblings = [m for m in tree.nodes if m.parent == n.id]
        if n.id != "" and siblings:
            mass = mass / len(siblings)
    return mass


def leaf_weight(tree, j, shared):
    return omega(tree, j) if shared == "mass" else 1.0


def mean_and_std(pairs):
    """The weighted mean of (weight, value) pairs, and the root of the variance over V1 - V2 / V1."""
    total = sum(w for w, _ in pairs)
    squares = sum(w * w for w, _ in pairs)
    mean = sum(w * x for w, x in pairs) / total
    if len(pairs) == 1:
        return mean, 0.0
    variance = sum(w * (x - mean) ** 2 for w, x in pairs) / (total - squares / total)
    return mean, math.sqrt(variance)


def group_relative(tree, rewards, shared, scale, baseline):
    """GRPO (arXiv 2402.03300, section 4.1.2); without std Dr. GRPO (arXiv 2503.20783, section 3.2).

    With the baseline of the leaves that are not below the token: RLOO (arXiv 2402.14740, equation 7) on flat groups.
    """
    group = [(leaf_weight(tree, j, shared), r) for j, r in enumerate(rewards)]
    mean, std = mean_and_std(group)
    divisor = std + 1e-6 if scale == "std" else 1.0
    result = []
    for j, trajectory in enumerate(tree.trajectories):
        row = []
        for identifier, _ in tokens(trajectory):
            if baseline == "pooled":
                row.append((rewards[j] - mean) / divisor)
                continue
            below = through(tree, identifier)
            others = [pair for k, pair in enumerate(group) if k not in below]
            if others:
                expected = sum(w * r for w, r in others) / sum(w for w, _ in others)
                row.append((rewards[j] - expected) / divisor)
            else:
                row.append(0.0)
        result.append(row)
    return result


def tree_grpo(tree, rewards, shared):
    """Tree-GRPO (arXiv 2509.21240): the advantage in the tree of a leaf plus the advantage in the group of trees."""
    everyone = range(len(rewards))
    result = []
    for j, trajectory in enumerate(tree.trajectories):
        root = trajectory.leaf.id.split(".")[0]
        relatives = [k for k in everyone if tree.trajectories[k].leaf.id.split(".")[0] == root]
        total = 0.0
        for leaves in (relatives, everyone):
            mean, std = mean_and_std([(leaf_weight(tree, k, shared), rewards[k]) for k in leaves])
            total += (rewards[j] - mean) / (std + 1e-6)
        result.append([total for _ in tokens(trajectory)])
    return result


def value(tree, rewards, shared, identifier):
    """V: the mean reward of the leaves below a node."""
    below = through(tree, identifier)
    total = sum(leaf_weight(tree, j, shared) for j in below)
    return sum(leaf_weight(tree, j, shared) * rewards[j] for j in below) / total


def node_value(tree, rewards, shared):
    """V of a token's node minus V of the closest node above with more leaves below; 0 where there is none."""
    result = []
    for trajectory in tree.trajectories:
        row = []
        for identifier, _ in tokens(trajectory):
            names = [n.id for n in trajectory.nodes]
            here = len(through(tree, identifier))
            wider = [a for a in names[: names.index(identifier)] if len(through(tree, a)) > here]
            if wider:
                row.append(value(tree, rewards, shared, identifier) - value(tree, rewards, shared, wider[-1]))
            else:
                row.append(0.0)
        result.append(row)
    return result


def turn_level(tree, rewards, events, shared, discount, scale):
    """Returns to go of turns (Sutton and Barto, equation 3.8), each against the same turn of the others (arXiv 2505.11821).

    The others of a token are the trajectories that do not pass through its node; if none of them has the turn, their last
    turns are compared. `events`: for each trajectory what was paid, by node id; the rest of its reward is paid at the last
    turn.
    """
    to_go, nodes_of = [], []
    for j, trajectory in enumerate(tree.trajectories):
        turns, before = [], None
        for n in trajectory.nodes:
            if n.source is Source.POLICY:
                if before is not Source.POLICY:
                    turns.append([])
                turns[-1].append(n)
            before = n.source
        paid = [sum(events[j].get(n.id, 0.0) for n in turn) for turn in turns]
        paid[-1] += rewards[j] - sum(paid)
        to_go.append(
            [
                sum(discount ** (later - i) * paid[later] for later in range(i, len(paid)))
                for i in range(len(paid))
            ]
        )
        nodes_of.append(turns)
    result = []
    for j, turns in enumerate(nodes_of):
        row = []
        for i, turn in enumerate(turns):
            reached = [own[i] if len(own) > i else own[-1] for own in to_go]
            _, std = mean_and_std([(leaf_weight(tree, k, shared), r) for k, r in enumerate(reached)])
            for n in turn:
                below = through(tree, n.id)
                others = [k for k in range(len(to_go)) if k not in below]
                same = [k for k in others if len(to_go[k]) > i] or others
                gain = 0.0
                if same:
                    total = sum(leaf_weight(tree, k, shared) for k in same)
                    baseline = sum(leaf_weight(tree, k, shared) * reached[k] for k in same) / total
                    gain = (to_go[j][i] - baseline) / (std + 1e-6 if scale == "std" else 1.0)
                row += [gain] * len(n.token_ids)
        result.append(row)
    return result


def pair_weight(tree, j, identifier, shared):
    """Weight of a trajectory's copy of a token in statistics over the batch."""
    if shared == "split":
        return 1.0 / len(through(tree, identifier))
    return leaf_weight(tree, j, shared)


def k1(node, notes, i):
    """ln(old / ref) of one token."""
    return notes[node.id].old_logprobs[i] - notes[node.id].ref_logprobs[i]


def reinforce_pp(trees, rewards, notes, shared, group_mean, beta):
    """REINFORCE++ (arXiv 2501.03262, section 3): R - beta sum_{i >= t} k1_i, normalized over the batch."""
    pairs, returns = [], []
    for tree, group, annotations in zip(trees, rewards, notes, strict=True):
        own = []
        baseline = value(tree, group, shared, "") if group_mean else 0.0
        for j, trajectory in enumerate(tree.trajectories):
            places, row = tokens(trajectory), []
            for t, (identifier, _) in enumerate(places):
                total = group[j] - baseline
                if beta:
                    for later, i in places[t:]:
                        total -= beta * k1(tree.by_id[later], annotations, i)
                row.append(total)
                pairs.append((pair_weight(tree, j, identifier, shared), total))
            own.append(row)
        returns.append(own)
    mean, std = mean_and_std(pairs)
    return [[[(g - mean) / (std + 1e-6) for g in row] for row in own] for own in returns]


def entropy_factors(trees, entropies, shared, a):
    """AEPO (arXiv 2510.14545): 1 + a (H_t - mean H) / std H, held in [0.5, 2]. `entropies`: [P] by node id."""
    pairs = []
    for tree, by_node in zip(trees, entropies, strict=True):
        for j, trajectory in enumerate(tree.trajectories):
            for identifier, i in tokens(trajectory):
                pairs.append((pair_weight(tree, j, identifier, shared), by_node[identifier][i]))
    mean, std = mean_and_std(pairs)
    return [
        [
            [min(max(1 + a * (by_node[n][i] - mean) / std, 0.5), 2.0) for n, i in tokens(trajectory)]
            for trajectory in tree.trajectories
        ]
        for tree, by_node in zip(trees, entropies, strict=True)
    ]


def importance_weights(tree, notes, level, kind, cap, floor):
    """rho of truncated and masked importance sampling, on the level of tokens or of sequences."""
    result = []
    for trajectory in tree.trajectories:
        ratios = [
            math.exp(notes[n].old_logprobs[i] - tree.by_id[n].behavior_logprobs[i])
            for n, i in tokens(trajectory)
        ]
        if level == "sequence":
            ratios = [math.prod(ratios)] * len(ratios)
        if kind == "truncate":
            result.append([min(r, cap) for r in ratios])
        else:
            result.append([r if (floor or 0.0) <= r <= cap else 0.0 for r in ratios])
    return result
