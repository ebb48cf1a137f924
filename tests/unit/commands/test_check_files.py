import json
from pathlib import Path

import pytest

from model_folders import write_model
from ramify.commands.check_files import input_files, require_model
from ramify.config import shipped_recipes
from ramify.config.load import load_recipe
from ramify.config.schema_train import TrainRecipe
from ramify.core.errors import ConfigError
from ramify.modeling.configs import AdapterConfig
from ramify.modeling.load import load_model, save_model
from ramify.modeling.lora import add_lora
from ramify.tools.configs import OwnEnvironmentConfig


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
        content = weights.read_bytes()
        weights.unlink()
        with pytest.raises(ConfigError, match=rf"{weights.parent}: .*{weights.name}"):
            require_model(adapter)
        weights.write_bytes(content)


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


def test_every_file_that_a_recipe_reads_is_looked_for():
    own = "{{path = '{}.py', function = 'f'}}"
    recipe = load_recipe(
        TrainRecipe,
        shipped_recipes() / "arpo_reasoning_7b.toml",
        [
            f"tools.own=[{own.format('one')}, {own.format('two')}]",
            f"rollout.rewriters=[{own.format('rewriter')}]",
            f"reward.own=[{own.format('part')}]",
            "repair={debugger = {}, helper = {name = 'file', path = 'helper.py', function = 'f'}}",
            "engine={name = 'scripted', script = 'script.toml'}",
        ],
    )
    assert [(key, str(path)) for key, path in input_files("", recipe)] == [
        ("rollout.rewriters.path", "rewriter.py"),
        ("engine.script", "script.toml"),
        ("tools.search.corpus", "data/passages.jsonl"),
        ("tools.own.path", "one.py"),
        ("tools.own.path", "two.py"),
        ("repair.helper.path", "helper.py"),
        ("reward.own.path", "part.py"),
    ]


def test_the_file_of_one_of_several_environments_is_named_by_its_table():
    environments = {"maze": OwnEnvironmentConfig(path="maze.py", function="Maze")}
    assert list(input_files("environments", environments)) == [("environments.maze.path", Path("maze.py"))]
