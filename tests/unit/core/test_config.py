import copy
import math
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from ramify.core.config import (
    AboveOne,
    BelowOne,
    Fraction,
    FromOne,
    InsideOne,
    PositiveFraction,
    PositiveWeight,
    Weight,
)
from ramify.core.errors import ConfigError
from ramify.engines.configs import VllmEngineConfig
from ramify.modeling.configs import AdapterConfig, TrainedModelConfig
from ramify.rollout.configs import LimitsConfig, RolloutLimits


@pytest.mark.parametrize(
    ("construct", "message"),
    [
        (lambda: AdapterConfig(rank=0), "AdapterConfig.rank: expected a number greater than or equal to 1, got 0"),
        (lambda: replace(AdapterConfig(), rank=True), "AdapterConfig.rank: expected a valid integer, got True"),
        (lambda: AdapterConfig(rnk=4), "AdapterConfig.rnk: unknown key"),
        (lambda: AdapterConfig(targets=3), "AdapterConfig.targets: expected 'all-linear', got 3"),
        (TrainedModelConfig, "TrainedModelConfig.path: expected a value, found none"),
        (lambda: TrainedModelConfig(path="m", lora=3), "TrainedModelConfig.lora: expected a table, got 3"),
        (
            lambda: TrainedModelConfig(path="m", lora={"rank": 0}),
            "TrainedModelConfig.lora.rank: expected a number greater than or equal to 1, got 0",
        ),
        (
            lambda: VllmEngineConfig(name="vllm"),
            "VllmEngineConfig.urls: expected the addresses of servers, or launch = true, not both",
        ),
        (
            lambda: LimitsConfig(max_tokens=0, max_calls=-1),
            "2 mistakes: (1) LimitsConfig.max_tokens: expected a number greater than or equal to 1, got 0 "
            "(2) LimitsConfig.max_calls: expected a number greater than or equal to 0, got -1",
        ),
    ],
)  # fmt: skip
def test_wrong_values_in_python_are_refused_in_one_line(construct, message):
    with pytest.raises(ConfigError) as refused:
        construct()
    assert str(refused.value) == message


def test_values_in_python_are_converted_as_those_of_a_recipe():
    model = TrainedModelConfig(path="m", lora={"rank": 4, "targets": "q_proj"})
    assert model.path == Path("m")
    assert model.lora == AdapterConfig(rank=4, targets=("q_proj",))
    assert copy.deepcopy(model) == pickle.loads(pickle.dumps(model)) == replace(model) == model


def test_limits_of_trees_are_those_of_their_trajectories():
    limits = LimitsConfig(max_tokens=9, max_calls=2, step_seconds=5)
    assert limits.of_trees(3) == RolloutLimits(n=3, max_tokens=9, max_calls=2, step_seconds=5.0)
    with pytest.raises(ConfigError, match="n: expected a number greater than or equal to 1, got 0"):
        limits.of_trees(0)


def test_pydantic_is_imported_with_the_first_settings():
    code = "import sys, ramify.core.config; assert 'pydantic' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("kind", "outside", "inside"),
    [
        (Fraction, (-0.1, 1.1), (0.0, 1.0)),
        (PositiveFraction, (0.0, 1.1), (1e-9, 1.0)),
        (BelowOne, (-0.1, 1.0), (0.0, 0.9)),
        (InsideOne, (0.0, 1.0), (1e-9, 0.9)),
        (Weight, (-0.1, 1001.0), (0.0, 1000.0)),
        (PositiveWeight, (0.0, 1001.0), (0.1, 1000.0)),
        (FromOne, (0.9, math.nan), (1.0, 1000.0)),
        (AboveOne, (1.0, math.inf), (1.1, 1000.0)),
    ],
)
def test_the_edges_of_shares_and_factors(kind, outside, inside):
    adapter = TypeAdapter(kind)
    assert [adapter.validate_python(number) for number in inside] == list(inside)
    for number in outside:
        with pytest.raises(ValidationError):
            adapter.validate_python(number)
