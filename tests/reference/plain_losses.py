"""Surrogates and penalties as their papers write them, for the tokens of one trajectory; sg(x) is `x.detach()`.

Every function of a surrogate takes ln pi, the old logprobs and advantages (float64, [T] each) and gives what the paper
maximises at each token and whether that is clipped. A penalty gives what is minimised at each token.
"""

import torch


def ppo(logprobs, old, value, low, high, dual=None):
    """PPO (arXiv 1707.06347), equation 7: min(r A, clip(r) A); dual clip: arXiv 1912.09729, equation 5."""
    ratio = torch.exp(logprobs - old)
    term = torch.min(ratio * value, torch.clamp(ratio, 1 - low, 1 + high) * value)
    clipped = ((value > 0) & (ratio > 1 + high)) | ((value < 0) & (ratio < 1 - low))
    if dual is not None:
        term = torch.where(value < 0, torch.max(term, dual * value), term)
        clipped = clipped | ((value < 0) & (ratio > dual))
    return term, clipped


def gppo(logprobs, old, value, low, high):
    """GPPO (arXiv 2508.07629): min(r A, clip(r, (1 - low) / sg(r) r, (1 + high) / sg(r) r) A)."""
    ratio = torch.exp(logprobs - old)
    held = torch.clamp(ratio, (1 - low) / ratio.detach() * ratio, (1 + high) / ratio.detach() * ratio)
    clipped = ((value > 0) & (ratio > 1 + high)) | ((value < 0) & (ratio < 1 - low))
    return torch.min(ratio * value, held * value), clipped


def aepo(logprobs, old, value, low, high, dual=None):
    """AEPO (arXiv 2510.14545): min(r A, clip(r, 1 - low, (1 + high) / sg(r) r) A), and the dual clip."""
    ratio = torch.exp(logprobs - old)
    held = torch.clamp(ratio, torch.full_like(ratio, 1 - low), (1 + high) / ratio.detach() * ratio)
    term = torch.min(ratio * value, held * value)
    clipped = ((value > 0) & (ratio > 1 + high)) | ((value < 0) & (ratio < 1 - low))
    if dual is not None:
        term = torch.where(value < 0, torch.max(term, dual * value), term)
        clipped = clipped | ((value < 0) & (ratio > dual))
    return term, clipped


def cispo(logprobs, old, value, low, high):
    """CISPO (arXiv 2506.13585), equations 4 and 5: sg(clip(r, 1 - low, 1 + high)) A ln pi; low None: no lower edge."""
    ratio = torch.exp(logprobs - old).detach()
    weight = torch.clamp(ratio, None if low is None else 1 - low, 1 + high)
    return weight * value * logprobs, weight != ratio


def gspo(logprobs, old, value, low, high):
    """GSPO (arXiv 2507.18071), equations 5 and 7, for the whole trajectory: `value` is its one advantage."""
    ratio = torch.exp((logprobs - old).sum() / len(logprobs))
    term = torch.min(ratio * value, torch.clamp(ratio, 1 - low, 1 + high) * value)
    clipped = ((value > 0) & (ratio > 1 + high)) | ((value < 0) & (ratio < 1 - low))
    return term, clipped


def k2(logprobs, old, ref):
    """(ln ref / pi)^2 / 2 (Schulman, Approximating KL divergence)."""
    return (ref - logprobs) ** 2 / 2


def k3(logprobs, old, ref):
    """ref / pi - 1 - ln ref / pi (GRPO, arXiv 2402.03300, equation 4)."""
    return torch.exp(ref) / torch.exp(logprobs) - 1 - torch.log(torch.exp(ref) / torch.exp(logprobs))


def k3_ratio(logprobs, old, ref):
    """(pi / old) k3."""
    return torch.exp(logprobs - old) * k3(logprobs, old, ref)
