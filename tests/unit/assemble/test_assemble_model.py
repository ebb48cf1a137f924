import json
import shutil

import pytest
import torch
from pydantic import TypeAdapter
from safetensors.torch import load_file
from transformers import AutoTokenizer

from family_models import write_family
from model_folders import write_model
from ramify.assemble.model import build_model, build_tokenizer
from ramify.assemble.worker import WorkerPlan
from ramify.core.errors import ConfigError, DataError
from ramify.core.rank import Rank
from ramify.core.records import SegmentSpan
from ramify.learner.configs import OptimizerConfig
from ramify.learner.tree_attention import TreeAttention
from ramify.modeling.configs import AdapterConfig, ModelConfig, TrainedModelConfig
from ramify.modeling.load import save_model
from ramify.modeling.lora import adapter_settings, has_adapters

CHECKED = TypeAdapter(TrainedModelConfig)


def test_a_tokenizer_with_more_ids_than_the_model_has_rows_is_refused(tmp_path):
    folder = write_model(tmp_path / "m", "qwen3")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 20}))
    with pytest.raises(DataError, match=r"tokenizer\.json has \d+ tokens, config\.json vocab_size = 20"):
        build_tokenizer(folder)


def test_a_folders_own_fast_tokenizer_is_honoured(tmp_path):
    """AutoTokenizer makes a Qwen2Tokenizer of every folder of that family, whatever its tokenizer.json says."""
    folder = write_model(tmp_path / "m", "qwen2")
    notes = []
    ours = build_tokenizer(folder, notes.append)
    theirs = AutoTokenizer.from_pretrained(folder)
    text = "12 + 30 \u4e2d"
    assert theirs(text, add_special_tokens=False)["input_ids"] != list(ours.encode(text))
    assert ours.decode(ours.encode(text)) == text
    (note,) = notes
    assert "its own tokenizer.json is used" in note
    assert "Qwen2Tokenizer" in note


@pytest.fixture
def folder(tmp_path):
    return write_model(tmp_path / "m", "qwen3")


def with_lora(path, **changes):
    return CHECKED.validate_python({"path": path, "lora": {"rank": 4, "alpha": 8, **changes}})


def drawn(model):
    return {name: p.tolist() for name, p in model.named_parameters() if "lora_A" in name}


def test_a_fresh_adapter_where_the_recipe_asks_for_one(folder):
    assert not has_adapters(build_model(TrainedModelConfig(path=folder), 100))
    model = build_model(with_lora(folder, targets=["q_proj", "o_proj"]), 100, seed=5)
    assert adapter_settings(model).targets == ("o_proj", "q_proj")
    assert drawn(model) == drawn(build_model(with_lora(folder, targets=["q_proj", "o_proj"]), 100, seed=5))
    assert drawn(model) != drawn(build_model(with_lora(folder, targets=["q_proj", "o_proj"]), 100, seed=6))


def test_an_adapters_folder_opens_as_it_is_or_under_the_same_settings(folder, tmp_path):
    model = build_model(with_lora(folder), 100, seed=5)
    save_model(model, tmp_path / "adapter")
    for section in (with_lora(tmp_path / "adapter"), ModelConfig(path=tmp_path / "adapter")):
        assert drawn(build_model(section, 100, seed=9)) == drawn(model)
    with pytest.raises(ConfigError, match=r"model\.lora: expected the settings of the adapter at .*rank = 4"):
        build_model(with_lora(tmp_path / "adapter", rank=8), 100)


@pytest.mark.parametrize("start", ["whole", "fresh adapter", "adapter trained further"])
def test_the_reference_is_the_recipes_model_whatever_has_been_trained_since(folder, tmp_path, start):
    section = TrainedModelConfig(path=folder) if start == "whole" else with_lora(folder)
    if start == "adapter trained further":
        moved(before := build_model(section, 100))
        save_model(before, tmp_path / "adapter")
        section = with_lora(tmp_path / "adapter")
    worker = WorkerPlan(section, section.folder, 100, 0, OptimizerConfig(rate=0.01), with_reference=True)(
        Rank()
    )
    model = worker.model
    first = logits(model)
    moved(model)
    assert not torch.equal(logits(model), first)
    with worker._opened(of_reference=True) as reference:
        assert torch.equal(logits(reference), first)
        assert not any(p.requires_grad for p in reference.parameters())
    assert not torch.equal(logits(model), first)


def test_a_run_that_goes_on_saves_a_whole_model_when_the_checkpoint_that_it_began_at_is_gone(tmp_path):
    """Checkpoints of a model that reads pictures copy its other parts from files, and old checkpoints are deleted."""
    base, checkpoint = write_family(tmp_path / "base", "gemma3"), tmp_path / "step-000001"
    section = TrainedModelConfig(path=base)

    def worker(source):
        return WorkerPlan(section, source, 100, 0, OptimizerConfig(rate=0.01), with_reference=False)(Rank())

    first = worker(base)
    moved(first.model)
    save_model(first.model, checkpoint)
    second = worker(checkpoint)
    shutil.rmtree(checkpoint)
    save_model(second.model, tmp_path / "step-000002")
    saved, began = (load_file(folder / "model.safetensors") for folder in (tmp_path / "step-000002", base))
    assert saved.keys() == began.keys()
    for name, tensor in saved.items():
        assert torch.equal(tensor, began[name]) != name.startswith("language_model."), name


def moved(model):
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1)


def logits(model):
    with torch.no_grad():
        positions = torch.arange(5)[None]
        plan = TreeAttention((SegmentSpan(-1, 0, 5),), model.device, model.dtype)
        return model(torch.arange(10, 15)[None], position_ids=positions, attention_plan=plan).logits


def test_the_tokenizer_beside_an_adapter_is_held_against_its_base(folder, tmp_path):
    save_model(build_model(with_lora(folder), 100), tmp_path / "adapter")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (tmp_path / "adapter" / name).write_bytes((folder / name).read_bytes())
    assert build_tokenizer(tmp_path / "adapter").vocab_size <= 600
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 20}))
    with pytest.raises(DataError, match=r"config\.json vocab_size = 20"):
        build_tokenizer(tmp_path / "adapter")


@pytest.mark.parametrize("wrong", [{"rank": 0}, {"alpha": 0.0}, {"targets": []}, {"targets": 3}])
def test_senseless_sizes_of_an_adapter(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        TypeAdapter(AdapterConfig).validate_python({"rank": 4, "alpha": 8.0} | wrong)


def test_one_target_may_stand_by_itself():
    assert TypeAdapter(AdapterConfig).validate_python({"targets": "q_proj"}).targets == ("q_proj",)
    assert AdapterConfig(rank=2, alpha=4.0).targets == "all-linear"


def test_an_adapter_of_a_higher_rank_than_every_target_is_refused_with_a_size(folder):
    """The family's keys and values are 64 wide and 32 high, the rest at least 64 by 64."""
    build_model(with_lora(folder, rank=64), 100)
    with pytest.raises(
        ConfigError, match=r"rank: expected at most 64, the smaller side of the largest target, .*, got 65"
    ):
        build_model(with_lora(folder, rank=65), 100)
    with pytest.raises(ConfigError, match=r"expected at most 32, .* k_proj \[32, 64\], got 33"):
        build_model(with_lora(folder, rank=33, targets=["k_proj"]), 100)


def test_an_empty_table_asks_for_an_adapter_with_defaults(folder):
    section = CHECKED.validate_python({"path": folder, "lora": {}})
    assert (section.lora.rank, section.lora.alpha, section.lora.targets) == (16, 32.0, "all-linear")
    settings = adapter_settings(build_model(section, 100))
    assert (settings.rank, settings.alpha) == (16, 32.0)
