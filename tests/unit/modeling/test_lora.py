import json
import shutil

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from model_folders import write_model
from ramify.core.errors import ConfigError, DataError
from ramify.modeling.configs import AdapterConfig
from ramify.modeling.load import load_model, save_model
from ramify.modeling.lora import (
    adapter_settings,
    adapters_off,
    add_lora,
    has_adapters,
    merged_weight,
    spelt_out,
)
from ramify.modeling.model_config import read_model_config
from ramify.modeling.tensor_files import weights_checksum

IDS = torch.arange(3, 40)[None]
SETTINGS = AdapterConfig(rank=4, alpha=6)


@pytest.fixture(params=["qwen2", "qwen3", "llama"])
def family(request):
    return request.param


@pytest.fixture
def base(tmp_path, family):
    return write_model(tmp_path / "base", family)


def logits(model):
    with torch.no_grad():
        return model(IDS).logits


def trained(folder, settings=SETTINGS, seed=0):
    """A model whose adapter does something."""
    model = load_model(folder)
    add_lora(model, settings, seed)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0.0, 0.1, generator=generator)
    return model


def test_a_fresh_adapter_changes_nothing_and_alone_is_trained(base):
    model, plain = load_model(base), logits(load_model(base))
    assert not has_adapters(model)
    assert adapter_settings(model) is None
    add_lora(model, SETTINGS, 0)
    assert torch.equal(logits(model), plain)
    trained_names = [name for name, p in model.named_parameters() if p.requires_grad]
    assert len(trained_names) == 2 * 7 * 2
    assert all(".lora_A." in name or ".lora_B." in name for name in trained_names)
    assert all(m.p == 0 for m in model.modules() if isinstance(m, torch.nn.Dropout))


def test_it_depends_on_the_seed_alone_and_leaves_the_global_state(tmp_path):
    folder = write_model(tmp_path / "base")
    models = []
    for number, seed in enumerate((3, 3, 4)):
        torch.manual_seed(number)
        models.append(load_model(folder))
        state = torch.get_rng_state()
        add_lora(models[-1], SETTINGS, seed)
        assert torch.equal(state, torch.get_rng_state())
    drawn = [
        torch.cat([p.detach().flatten() for name, p in m.named_parameters() if "lora_A" in name])
        for m in models
    ]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert drawn[0].abs().max() <= 1 / 8
    assert drawn[0].std().item() == pytest.approx(0.066, abs=0.008)


def test_the_adapter_adds_its_scaled_product(tmp_path):
    folder = write_model(tmp_path / "base", "qwen2")
    model = trained(folder)
    expected = load_model(folder)
    with torch.no_grad():
        for name, module in expected.named_modules():
            if isinstance(module, torch.nn.Linear) and name != "lm_head":
                layer = model.get_submodule(name)
                product = layer.lora_B["default"].weight @ layer.lora_A["default"].weight
                module.weight += 6 / 4 * product
                torch.testing.assert_close(merged_weight(layer), module.weight)
    torch.testing.assert_close(logits(model), logits(expected), atol=1e-4, rtol=1e-5)


def test_off_is_the_base_and_gradients_of_a_pass_before_it_are_whole(base):
    model, plain = trained(base), logits(load_model(base))
    model(IDS).logits.square().mean().backward()
    whole = {name: p.grad.clone() for name, p in model.named_parameters() if p.requires_grad}
    model.zero_grad()
    loss = model(IDS).logits.square().mean()
    with adapters_off(model):
        assert torch.equal(logits(model), plain)
        layer = model.model.layers[0].mlp.up_proj
        assert merged_weight(layer) is layer.base_layer.weight
    loss.backward()
    assert all(torch.equal(p.grad, whole[name]) for name, p in model.named_parameters() if p.requires_grad)
    assert len(whole) == 28
    assert not torch.allclose(logits(model), plain)


def test_off_ends_also_after_an_error_and_asks_for_an_adapter(tmp_path):
    folder = write_model(tmp_path / "base")
    model = trained(folder)
    before = logits(model)

    def fail():
        with adapters_off(model):
            raise KeyError("inside")

    with pytest.raises(KeyError):
        fail()
    assert torch.equal(logits(model), before)
    with pytest.raises(ValueError, match="no adapter"), adapters_off(load_model(folder)):
        pass


def test_a_saved_adapter_opens_here_in_peft_and_in_transformers(base, tmp_path):
    model = trained(base)
    save_model(model, tmp_path / "adapter")
    assert sorted(path.name for path in (tmp_path / "adapter").iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
        "base_weights.json",
    ]
    again = load_model(tmp_path / "adapter")
    assert again.training
    pairs = zip(model.named_parameters(), again.named_parameters(), strict=True)
    for (name, before), (name_again, after) in pairs:
        assert name == name_again
        assert torch.equal(before, after)
        assert before.requires_grad == after.requires_grad
    assert torch.equal(logits(again), logits(model))
    assert adapter_settings(again) == adapter_settings(model) == spelt_out(load_model(base), SETTINGS)
    stock = AutoModelForCausalLM.from_pretrained(tmp_path / "adapter")
    torch.testing.assert_close(logits(stock), logits(model), atol=1e-4, rtol=1e-5)
    plain = AutoModelForCausalLM.from_pretrained(base)
    wrapped = PeftModel.from_pretrained(plain, tmp_path / "adapter")
    torch.testing.assert_close(logits(wrapped), logits(model), atol=1e-4, rtol=1e-5)
    assert read_model_config(tmp_path / "adapter") == read_model_config(base)


def test_saving_again_writes_the_same_bytes(tmp_path):
    folder = write_model(tmp_path / "base")
    for name in ("a", "b"):
        save_model(trained(folder), tmp_path / name)
    for name in ("adapter_config.json", "adapter_model.safetensors", "base_weights.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_some_targets_only(tmp_path):
    model = trained(
        write_model(tmp_path / "base"), AdapterConfig(rank=2, alpha=2, targets=("v_proj", "q_proj"))
    )
    assert sum(p.requires_grad for p in model.parameters()) == 2 * 2 * 2
    assert adapter_settings(model) == AdapterConfig(rank=2, alpha=2, targets=("q_proj", "v_proj"))
    save_model(model, tmp_path / "adapter")
    assert torch.equal(logits(load_model(tmp_path / "adapter")), logits(model))


def test_an_adapter_of_peft_is_opened(tmp_path):
    from peft import LoraConfig, get_peft_model

    folder = write_model(tmp_path / "base")
    config = LoraConfig(r=3, lora_alpha=9, target_modules=["q_proj", "down_proj"], use_rslora=True)
    theirs = get_peft_model(AutoModelForCausalLM.from_pretrained(folder), config)
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0.0, 0.1)
    theirs.save_pretrained(tmp_path / "adapter")
    torch.testing.assert_close(logits(load_model(tmp_path / "adapter")), logits(theirs), atol=1e-4, rtol=1e-5)


def test_an_adapter_of_the_embedding_is_refused_with_the_way_out(tmp_path):
    from peft import LoraConfig, get_peft_model

    model = AutoModelForCausalLM.from_pretrained(write_model(tmp_path / "base", "llama"))
    config = LoraConfig(r=3, target_modules=["q_proj", "embed_tokens"])
    get_peft_model(model, config).save_pretrained(tmp_path / "adapter", save_embedding_layers=False)
    with pytest.raises(
        DataError, match=r"embed_tokens\.lora_embedding_A is of the embedding.*ramify merge lora"
    ):
        load_model(tmp_path / "adapter")


@pytest.mark.parametrize("with_weights", [True, False])
def test_an_adapter_of_the_head_is_refused_with_the_way_out(tmp_path, with_weights):
    """The head reads its weight directly, so such an adapter would have no effect."""
    from peft import LoraConfig, get_peft_model

    model = AutoModelForCausalLM.from_pretrained(write_model(tmp_path / "base", "llama"))
    config = LoraConfig(r=3, target_modules=["q_proj", "lm_head"])
    get_peft_model(model, config).save_pretrained(tmp_path / "adapter", save_embedding_layers=with_weights)
    with pytest.raises(DataError, match=r"target_modules include the head.*ramify merge lora"):
        load_model(tmp_path / "adapter")


@pytest.mark.parametrize("target", ["lm_head", "embed_tokens", "input_layernorm", "query"])
def test_targets_that_are_no_linear_map_of_the_decoder(tmp_path, target):
    model = load_model(write_model(tmp_path / "base", "llama"))
    with pytest.raises(ConfigError, match=rf"model\.lora\.targets: '{target}' is not a linear layer"):
        add_lora(model, AdapterConfig(rank=4, alpha=4, targets=("q_proj", target)), 0)
    assert not has_adapters(model)


def test_a_second_adapter_is_refused(tmp_path):
    model = trained(write_model(tmp_path / "base"))
    with pytest.raises(ConfigError, match="has an adapter already"):
        add_lora(model, SETTINGS, 0)


@pytest.fixture
def adapter(made_adapter, tmp_path):
    """A copy of one adapter beside a copy of its base."""
    for name in ("base", "adapter"):
        shutil.copytree(made_adapter / name, tmp_path / name)
    rewrite(tmp_path / "adapter", base_model_name_or_path=str(tmp_path / "base"))
    return tmp_path / "adapter"


@pytest.fixture(scope="module")
def made_adapter(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    save_model(trained(write_model(folder / "base")), folder / "adapter")
    return folder


def rewrite(adapter, **changes):
    file = adapter / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"base_model_name_or_path": "/nowhere"},
            r"no model folder at base_model_name_or_path = '/nowhere': put the base model there, or a link to it \(ln -s\)",
        ),
        ({"base_model_name_or_path": None}, "no model folder at base_model_name_or_path = None"),
        ({"lora_dropout": 0.1}, "lora_dropout = 0.1 is not supported, expected plain LoRA without dropout"),
        ({"use_dora": True}, "use_dora = True is not supported"),
        ({"bias": "all"}, "bias = 'all' is not supported"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights = 'pissa' is not supported"),
        ({"peft_type": "IA3"}, "peft_type = 'IA3' is not supported, expected 'LORA'"),
        ({"target_modules": "all-linear"}, "expected target_modules to be a list of names"),
        ({"target_modules": ["query"]}, "does not fit the model at base_model_name_or_path"),
        ({"r": 5}, r"lora_A.weight is \[4, \d+\], the base model takes \[5, \d+\]"),
        ({"target_modules": ["q_proj"]}, "the base model takes none. Set base_model_name_or_path"),
    ],
)
def test_settings_that_cannot_be_meant(adapter, changes, message):
    rewrite(adapter, **changes)
    with pytest.raises(DataError, match=message):
        load_model(adapter)


def test_an_adapter_of_another_base(adapter, tmp_path):
    other = write_model(tmp_path / "other", layers=3)
    rewrite(adapter, base_model_name_or_path=str(other))
    with pytest.raises(DataError, match=r"layers\.2\..* is missing, the base model takes \["):
        load_model(adapter)
    rewrite(adapter, base_model_name_or_path=str(shutil.copytree(adapter, tmp_path / "copy")))
    with pytest.raises(DataError, match=r"is an adapter\. Name a whole model's folder"):
        load_model(adapter)


def test_an_adapter_of_other_weights_of_the_same_shape(adapter, tmp_path):
    before = logits(load_model(adapter))
    base, other = tmp_path / "base", write_model(tmp_path / "other", seed=5)
    base.rename(tmp_path / "elsewhere")
    base.symlink_to(tmp_path / "elsewhere")
    assert torch.equal(logits(load_model(adapter)), before)
    base.unlink()
    base.symlink_to(other)
    with pytest.raises(DataError) as error:
        load_model(adapter)
    own, others = (weights_checksum(folder) for folder in (tmp_path / "elsewhere", other))
    assert own != others
    assert str(error.value) == (
        f"{adapter}: trained on a base whose weights have checksum {own}, those at "
        f"base_model_name_or_path = '{base}' have {others}. Put the model there that the adapter was trained on"
    )


def test_how_weights_are_spread_over_files_is_not_part_of_their_checksum(tmp_path):
    whole, split = write_model(tmp_path / "whole"), tmp_path / "split"
    split.mkdir()
    weights = load_file(whole / "model.safetensors")
    names = list(weights)
    for part, names_of_part in (("a", names[::2]), ("b", names[1::2])):
        save_file({name: weights[name] for name in names_of_part}, split / f"{part}.safetensors")
    assert weights_checksum(split) == weights_checksum(whole)
    name = names[0]
    weights[name] = weights[name].clone()
    weights[name].view(-1)[-1] += 1e-3
    save_file({name: weights[name] for name in names[::2]}, split / "a.safetensors")
    assert weights_checksum(split) != weights_checksum(whole)
    (split / "a.safetensors").write_bytes(b"{")
    with pytest.raises(DataError, match=r"a\.safetensors: cannot be read"):
        weights_checksum(split)


def test_files_that_are_missing_or_damaged(adapter, tmp_path):
    weights = {name: t.clone() for name, t in load_file(adapter / "adapter_model.safetensors").items()}
    (adapter / "adapter_model.safetensors").write_bytes(b"\x01")
    with pytest.raises(DataError, match=r"adapter_model\.safetensors: cannot be read"):
        load_model(adapter)
    (adapter / "adapter_model.safetensors").unlink()
    with pytest.raises(DataError, match=r"adapter_model\.safetensors is missing"):
        load_model(adapter)
    del weights["base_model.model.model.layers.1.mlp.up_proj.lora_A.weight"]
    save_file(weights, adapter / "adapter_model.safetensors")
    with pytest.raises(DataError, match=r"up_proj\.lora_A\.weight is missing"):
        load_model(adapter)
    (adapter / "adapter_config.json").write_text("{")
    with pytest.raises(DataError, match="broken JSON"):
        load_model(adapter)


NAN = float("nan")


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("base_model_name_or_path", (None, 3, [], "", "\0", "x" * 5000)),
        ("peft_type", (None, 3, [], "LOHA")),
        ("target_modules", (None, "q_proj", [], [3], {"q_proj": 1}, ["nowhere"])),
        ("r", (0, -1, 1.5, "4", 10**9, True, [4], NAN)),
        ("lora_alpha", (0, -1, "8", 1e300, True, [8], NAN)),
        ("rank_pattern", ({"q_proj": "x"}, {"q_proj": 10**9}, 3, "x", [1])),
        ("alpha_pattern", ({"q_proj": NAN}, {"q_proj": []}, 3, "x")),
        ("use_dora", (True, "yes")),
        ("modules_to_save", (["lm_head"], 3)),
    ],
)
def test_settings_of_an_adapter_that_cannot_be_are_one_line(adapter, key, values, capfd):
    for value in values:
        rewrite(adapter, **{key: value})
        with pytest.raises((DataError, ConfigError)) as refused:
            load_model(adapter)
        message = str(refused.value)
        assert str(adapter) in message
        assert key in message or key == "target_modules"
        assert "\n" not in message.strip()
        assert len(message) < 700
        assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("pattern", "value", "expected"),
    [
        ("rank_pattern", "x", r"rank_pattern\['q_proj'\] = 'x', expected a number from 1 to 65,536"),
        ("alpha_pattern", NAN, r"alpha_pattern\['q_proj'\] = nan, expected a number from 1e-09 to 1,000,000"),
    ],
)
def test_a_number_of_a_pattern_is_refused_under_its_own_key(adapter, pattern, value, expected):
    rewrite(adapter, **{pattern: {"q_proj": value}})
    with pytest.raises(DataError, match=expected):
        load_model(adapter)


@pytest.mark.parametrize("part", ["lora_A", "lora_B"])
def test_matrices_of_an_adapter_that_are_no_numbers(adapter, part):
    file = adapter / "adapter_model.safetensors"
    weights = {name: tensor.clone() for name, tensor in load_file(file).items()}
    name = next(name for name in weights if part in name)
    weights[name][0, 0] = NAN
    save_file(weights, file)
    with pytest.raises(DataError, match=rf"{part}\.weight holds NaN or infinity"):
        load_model(adapter)
    save_file(weights | {name: weights[name].to(torch.int8)}, file)
    with pytest.raises(DataError, match=rf"{part}\.weight is of type I8"):
        load_model(adapter)
