"""Models that compute in one type throughout."""

import torch


class WideNorm(torch.nn.Module):
    """RMSNorm in the precision of its input; transformers' own falls back to float32."""

    def __init__(self, weight, epsilon):
        super().__init__()
        self.weight, self.epsilon = weight, epsilon

    def forward(self, x):
        return self.weight * x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.epsilon)


def in_precision(model, dtype):
    """The model with weights and all arithmetic in `dtype`; in float32 it is as it was loaded, with its own norms."""
    model = model.to(dtype)
    if dtype is torch.float32:
        return model
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child).__name__.endswith("RMSNorm"):
                setattr(parent, name, WideNorm(child.weight, child.variance_epsilon))
    return model
