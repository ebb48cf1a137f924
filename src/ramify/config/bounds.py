"""Types for the numbers of a recipe, each with a smallest and a largest value; `true` is not a number.

The bounds are far outside of what anybody trains with. Values beyond them would later overflow, hang or fill memory.
"""

from typing import Annotated

from pydantic import AfterValidator, Field

# Whole numbers.

Count = Annotated[int, Field(ge=0, le=2**31 - 1, strict=True)]
PositiveInt = Annotated[int, Field(ge=1, le=2**31 - 1, strict=True)]
Tokens = Annotated[int, Field(ge=1, le=2**24, strict=True)]
"""Tokens of a sequence or a row."""
Calls = Annotated[int, Field(ge=0, le=2**16, strict=True)]
"""Tool calls of one trajectory."""
Trajectories = Annotated[int, Field(ge=1, le=4096, strict=True)]
"""Trajectories of one tree."""
Reserved = Annotated[int, Field(ge=1, le=2**16, strict=True)]
"""Counts of things that each take memory: slots, ranks, attempts, passages of an answer."""
Rounds = Annotated[int, Field(ge=1, le=1000, strict=True)]
"""Rounds of growing within one step."""
Threads = Annotated[int, Field(ge=1, le=512, strict=True)]
Attempts = Annotated[int, Field(ge=1, le=20, strict=True)]
"""Attempts of one request to a service."""
Level = Annotated[int, Field(ge=0, le=4, strict=True)]
"""Isolation level of the sandbox."""
Seed = Annotated[int, Field(ge=-(2**63), le=2**63 - 1, strict=True)]

# Shares, probabilities and edges below one.

Fraction = Annotated[float, Field(ge=0, le=1, strict=True, allow_inf_nan=False)]
PositiveFraction = Annotated[float, Field(ge=1e-9, le=1, strict=True, allow_inf_nan=False)]
BelowOne = Annotated[float, Field(ge=0, lt=1, strict=True, allow_inf_nan=False)]
InsideOne = Annotated[float, Field(ge=1e-9, lt=1, strict=True, allow_inf_nan=False)]

# Factors and coefficients.

Weight = Annotated[float, Field(ge=0, le=1000, strict=True, allow_inf_nan=False)]
PositiveWeight = Annotated[float, Field(gt=0, le=1000, strict=True, allow_inf_nan=False)]
SignedWeight = Annotated[float, Field(ge=-1000, le=1000, strict=True, allow_inf_nan=False)]
FromOne = Annotated[float, Field(ge=1, le=1000, strict=True, allow_inf_nan=False)]
AboveOne = Annotated[float, Field(gt=1, le=1000, strict=True, allow_inf_nan=False)]
Magnitude = Annotated[float, Field(ge=1e-9, le=1e6, strict=True, allow_inf_nan=False)]
"""The alpha of an adapter, the norm of a gradient."""
LearningRate = Annotated[float, Field(ge=1e-12, le=10, strict=True, allow_inf_nan=False)]
"""With a smaller rate no float32 weight changes."""

# Times, entropies, temperatures.

Seconds = Annotated[float, Field(ge=1e-3, le=1e6, strict=True, allow_inf_nan=False)]
Days = Annotated[float, Field(ge=1e-6, le=1e5, strict=True, allow_inf_nan=False)]
Rate = Annotated[float, Field(ge=1e-6, le=1e5, strict=True, allow_inf_nan=False)]
"""Requests per second."""
Nats = Annotated[float, Field(gt=0, le=20, strict=True, allow_inf_nan=False)]
"""An entropy; no vocabulary reaches 20 nats."""


def _not_tiny(temperature: float) -> float:
    if 0 < temperature < 1e-3:
        raise ValueError(f"expected 0 (greedy) or at least 0.001, got {temperature}")
    return temperature


Temperature = Annotated[
    float, Field(ge=0, le=100, strict=True, allow_inf_nan=False), AfterValidator(_not_tiny)
]
"""Divides the logits; 0 is greedy."""
