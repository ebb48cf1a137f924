import json

import pytest

from model_folders import write_model
from ramify.commands.check_files import require_model
from ramify.core.errors import ConfigError
from ramify.modeling.configs import AdapterConfig
from ramify.modeling.load import load_model, save_model
from ramify.modeling.lora import add_lora


@pytest.fixture
def adapter(tmp_path):
    base = write_model(tmp_path / "base")
    model = load_model(base)
    add_lora(model, AdapterConfig(rank=2, alpha=2), seed=0)
    save_model(model, tmp_path / "adapter")
    (tmp_path / "adapter" / "tokenizer.json").write_bytes((base / "tokenizer.json").read_bytes())
    return tmp_path / "adapter"


def test_an_adapter_beside_its_base_is_a_model(adapter):
    require_model(adapter)
    (adapter / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match=r"adapter/tokenizer\.json is missing"):
        require_model(adapter)


def test_weights_are_asked_of_both(adapter):
    base = adapter.parent / "base"
    for weights in (adapter / "adapter_model.safetensors", base / "model.safetensors"):
        kept = weights.read_bytes()
        weights.unlink()
        with pytest.raises(ConfigError, match=rf"{weights.parent}: .*{weights.name}"):
            require_model(adapter)
        weights.write_bytes(kept)


def test_a_base_that_is_nowhere(adapter):
    file = adapter / "adapter_config.json"
    file.write_text(json.dumps({"base_model_name_or_path": "some/model"}))
    with pytest.raises(
        ConfigError,
        match=r"model\.path: .* no model folder at base_model_name_or_path = 'some/model': put the base model there",
    ):
        require_model(adapter)
    file.write_text("[]")
    with pytest.raises(ConfigError, match="expected a JSON object, found a list"):
        require_model(adapter)
