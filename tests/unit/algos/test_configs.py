"""A recipe's values for losses and corrections have bounds, which stand at the components' settings."""

import math

import pytest
from pydantic import TypeAdapter, ValidationError

from ramify.algos.aepo import StopGradientClip
from ramify.algos.corrections import ImportanceCorrection
from ramify.algos.grpo import ClippedSurrogate
from ramify.algos.losses import CispoSurrogate, GppoSurrogate, GspoSurrogate


@pytest.mark.parametrize(
    "schema", [ClippedSurrogate, StopGradientClip, GppoSurrogate, CispoSurrogate, GspoSurrogate]
)
@pytest.mark.parametrize("clips", [{"clip_low": 1.0}, {"clip_low": -0.1}, {"clip_high": -0.1}])
def test_senseless_clips_are_refused(schema, clips):
    right = {"clip_low": 0.2, "clip_high": 0.3}
    assert TypeAdapter(schema).validate_python(right).clip_high == 0.3
    with pytest.raises(ValidationError, match=next(iter(clips))):
        TypeAdapter(schema).validate_python(right | clips)


@pytest.mark.parametrize("schema", [ClippedSurrogate, StopGradientClip])
def test_a_dual_clip_is_above_one(schema):
    with pytest.raises(ValidationError, match="dual_clip"):
        TypeAdapter(schema).validate_python({"dual_clip": 1.0})


@pytest.mark.parametrize(
    ("kind", "cap", "floor", "key"),
    [
        ("truncate", 0.9, None, "cap"),
        ("mask", math.nan, None, "cap"),
        ("mask", math.inf, None, "cap"),
        ("truncate", 2.0, 0.5, "floor: has no effect without"),
        ("mask", 2.0, 0.0, "floor"),
        ("mask", 2.0, 1.5, "floor"),
        ("mask", 1.0, 1.0, "floor: expected a number below cap"),
    ],
)
def test_bounds_out_of_order_are_refused(kind, cap, floor, key):
    with pytest.raises(ValidationError, match=key):
        TypeAdapter(ImportanceCorrection).validate_python(
            {"level": "token", "kind": kind, "cap": cap, "floor": floor}
        )
