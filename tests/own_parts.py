"""Parts of an algorithm as a user writes them in a file of their own; they equal `bernoulli`, `group` and `clip`."""


def rule(candidate, alpha=0.5, beta=0.335):
    return alpha + beta * candidate.entropy_delta


def advantage(rewards, tree):
    if rewards.min() == rewards.max():
        return 0 * rewards
    return (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)


def clip(ratio, sign, clip_low=0.2, clip_high=0.2):
    return ratio.clamp(max=1 + clip_high) if sign > 0 else ratio.clamp(min=1 - clip_low)
