"""Published sizes against the parameter counts that their makers state."""

from math import prod

import pytest

from ramify.modeling.load import shapes_of
from ramify.modeling.model_config import PUBLISHED, published_config

PARAMETERS = {
    "Qwen2.5-0.5B": 494_032_768,
    "Qwen2.5-1.5B": 1_543_714_304,
    "Qwen2.5-3B": 3_085_938_688,
    "Qwen2.5-7B": 7_615_616_512,
    "Qwen2.5-14B": 14_770_033_664,
    "Qwen2.5-32B": 32_763_876_352,
    "QwQ-32B": 32_763_876_352,
    "Qwen3-0.6B": 596_049_920,
    "Qwen3-1.7B": 1_720_574_976,
    "Qwen3-4B": 4_022_468_096,
    "Qwen3-8B": 8_190_735_360,
    "Qwen3-14B": 14_768_307_200,
    "Qwen3-32B": 32_762_123_264,
    "Llama-3.1-8B": 8_030_261_248,
    "SmolLM2-135M": 134_515_008,
    "SmolLM2-360M": 361_821_120,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_number_of_parameters_is_the_published_one(name):
    shapes, _ = shapes_of(published_config(name), name)
    assert sum(map(prod, shapes.values())) == PARAMETERS[name]


def test_names_of_folders_and_variants():
    base = published_config("Qwen2.5-7B")
    for name in (
        "Qwen/Qwen2.5-7B-Instruct",
        "models/Qwen2.5-7B-Instruct",
        "Qwen/Qwen2.5-7B-Instruct@main",
        "qwen2.5-7b",
    ):
        assert published_config(name) == base
    for name in ("models/tool-star-sft-7b", "Qwen2.5-7B-mine", "", "Qwen2.5-70B"):
        assert published_config(name) is None
