"""The signal-to-noise ratio of gradients, against gradients whose ratio is known."""

import numpy as np
import pytest
from benchmarks.branching.gradients import signal_to_noise


def test_the_ratio_of_gradients_with_a_known_mean_and_variance():
    draws = np.random.default_rng(0)
    mean = np.full(50, 0.2)
    # |mean|^2 = 2 and tr Var = 50 x 0.25: a ratio of 0.16.
    samples = [mean + draws.normal(0, 0.5, (100, 50)) for _ in range(200)]
    ratios, errors = np.transpose([signal_to_noise(g.astype(np.float32)) for g in samples])
    assert ratios.mean() == pytest.approx(0.16, rel=0.02)
    assert errors.mean() == pytest.approx(ratios.std(), rel=0.1)


def test_gradients_without_signal_have_a_ratio_around_zero():
    draws = np.random.default_rng(1)
    ratios = [signal_to_noise(draws.normal(0, 1, (20, 30)).astype(np.float32))[0] for _ in range(200)]
    assert abs(np.mean(ratios)) < 0.01
    assert min(ratios) < 0 < max(ratios)
