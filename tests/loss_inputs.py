"""Tokens and trajectories for tests of losses, without a model."""

import numpy as np
import torch

from ramify.algos.losses import LossInputs, SequenceInputs


def token_inputs(plus, minus, log_ratio, paths=None, weight=None, ref=None, dtype=torch.float32):
    """Tokens whose old logprob is -1.5 and whose entropies are 1.2, both with gradient; `ref`: ln(ref / pi)."""
    plus, minus, log_ratio = (torch.tensor(part, dtype=dtype) for part in (plus, minus, log_ratio))
    old = torch.full_like(plus, -1.5)
    policy = (old + log_ratio).requires_grad_()
    ones = torch.ones_like(plus)
    return LossInputs(
        s_plus=plus,
        s_minus=minus,
        weight=ones if weight is None else torch.tensor(weight, dtype=dtype),
        num_paths=ones if paths is None else torch.tensor(paths, dtype=dtype),
        policy_logprobs=policy,
        old_logprobs=old,
        entropies=torch.full_like(plus, 1.2).requires_grad_(),
        ref_logprobs=None if ref is None else policy.detach() + torch.tensor(ref, dtype=dtype),
    )


def logprob_gradients(loss, inputs):
    """d loss / d ln pi of each token."""
    return torch.autograd.grad(loss(inputs).loss, inputs.policy_logprobs)[0].tolist()


def path_inputs(mean_log_ratio, advantages, weights=None, num_written=None):
    """Trajectories of five tokens, or of `num_written`, whose old logprobs are -1.5 each."""
    advantages = np.array(advantages, dtype=np.float64)
    length = np.full(len(advantages), 5) if num_written is None else np.array(num_written)
    old = -1.5 * length
    return SequenceInputs(
        policy_logprobs=old + np.array(mean_log_ratio) * length,
        old_logprobs=old,
        ref_logprobs=None,
        advantages=advantages,
        weights=np.ones(len(advantages)) if weights is None else np.array(weights, dtype=np.float64),
        num_written=length,
        tree=np.zeros(len(advantages), dtype=np.int64),
    )
