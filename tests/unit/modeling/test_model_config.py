"""Published sizes against the parameter counts that their makers state."""

from math import prod
from types import SimpleNamespace

import pytest
from transformers import CONFIG_MAPPING

from ramify.modeling.load import shapes_of
from ramify.modeling.memory_plan import ModelSize, row_bytes
from ramify.modeling.model_config import OMITTED, PUBLISHED, published_config, text_config

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


GEMMA_3_4B = {
    "model_type": "gemma3",
    "eos_token_id": [1, 106],
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10_240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "vision_config": {"hidden_size": 1152},
}
"""As published: the decoder's other sizes are transformers' defaults."""


def test_a_published_wrapper_gives_the_sizes_that_it_omits():
    decoder = text_config(GEMMA_3_4B, "config.json")
    shapes, config = shapes_of(GEMMA_3_4B, "config.json")
    assert decoder["eos_token_id"] == config.eos_token_id == [1, 106]
    size = ModelSize.of(shapes)
    # Table 1 of the report (arXiv 2503.19786): 3,209 million beside the embedding.
    assert size.base - size.head == pytest.approx(3.209e9, rel=5e-3)
    assert row_bytes(SimpleNamespace(**decoder), 100, 4) == row_bytes(config, 100, 4)


@pytest.mark.parametrize("family", OMITTED)
def test_omitted_sizes_are_the_defaults_of_transformers(family):
    config = vars(CONFIG_MAPPING[family]())
    assert {key: config[key] for key in OMITTED[family]} == OMITTED[family]
