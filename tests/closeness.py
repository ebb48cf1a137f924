"""Arrays of numbers beside others."""

import numpy as np


def are_close(actual, expected, tolerance):
    """Compare as pytest.approx does with `tolerance` as `rel` and `abs`, without an object for each number."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    allowed = tolerance * np.maximum(np.abs(expected), 1.0)
    return actual.shape == expected.shape and bool((np.abs(actual - expected) <= allowed).all())
