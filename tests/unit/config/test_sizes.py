"""What only the data can refuse is told with the number that the data allow."""

import pytest

from ramify.config.sizes import note_long_warmup, refuse_large_steps
from ramify.core.errors import ConfigError
from ramify.learner.configs import OptimizerConfig


def test_a_step_takes_no_example_twice():
    assert refuse_large_steps("rollout.problems_per_step", 8, 8) is None
    with pytest.raises(ConfigError) as caught:
        refuse_large_steps("rollout.problems_per_step", 1_000_000_000, 8)
    assert str(caught.value) == (
        "rollout.problems_per_step: expected at most 8, the number of usable rows of data.train, got 1000000000"
    )


def test_a_run_that_ends_within_its_warm_up_is_noted():
    assert note_long_warmup(OptimizerConfig(rate=1e-3, warmup_steps=5), 5) == ()
    (note,) = note_long_warmup(OptimizerConfig(rate=1e-3, warmup_steps=320), 8)
    assert "learner.optimizer.warmup_steps = 320" in note
    assert "0.025 of its peak" in note
