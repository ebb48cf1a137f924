"""Adapters of peft are merged as peft merges them, or refused with the name of the tensor or the setting."""

import json
import random
import shutil

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from model_folders import write_model
from ramify.core.errors import DataError
from ramify.modeling.load import load_model, require_fit
from ramify.modeling.lora_merge import adapted_folder, write_merged
from ramify.modeling.lora_products import EMBEDDING, HEAD

FAMILIES = ("qwen2", "qwen3", "llama")
"""The first two tie the head to the embedding."""

ROWS, MORE_ROWS = 600, 608

TARGETS = (
    ["q_proj", "v_proj"],
    ["model.layers.1.mlp.down_proj", "o_proj"],
    "all-linear",
    r".*\.(q|k)_proj",
    r"model\.layers\.\d+\.mlp\.(up|down)_proj",
    ["q_proj", "lm_head"],
    ["embed_tokens", "gate_proj"],
    ["embed_tokens", "lm_head", "k_proj"],
)

RANKS = (
    {},
    {"q_proj": 3},
    {"layers.0.self_attn.q_proj": 2, "q_proj": 5},
    {r".*\.layers\.1\..*": 5},
    {"^model.layers.0.mlp.down_proj": 7, "embed_tokens": 1},
)

ALPHAS = (
    {},
    {"v_proj": 4, "proj": 100},
    {r"layers\.[01]\.self_attn\.\w+": 3},
    {"embed_tokens": 9, "lm_head": 5},
    {"(q|o|up)_proj": 11, "q_proj": 1},
)


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bases")
    return {family: write_model(folder / family, family) for family in FAMILIES}


def drawn_settings(seed):
    draw = random.Random(seed)
    targets = TARGETS[seed % len(TARGETS)]
    layers = {} if isinstance(targets, str) else {"layers_to_transform": draw.choice([0, [1], [0, 1]])}
    return {
        "r": draw.randint(1, 6),
        "lora_alpha": draw.choice([1, 6, 16]),
        "target_modules": targets,
        "use_rslora": draw.random() < 0.5,
        "lora_dropout": draw.choice([0.0, 0.05]),
        "rank_pattern": draw.choice(RANKS),
        "alpha_pattern": draw.choice(ALPHAS),
        **draw.choice([{}, layers, {"exclude_modules": ["layers.0.self_attn.k_proj"]}]),
    }


def write_adapter(folder, base, seed=0, rows=ROWS, **settings):
    """Save a random adapter with peft; returns the model with it."""
    model = AutoModelForCausalLM.from_pretrained(base)
    if rows != ROWS:
        model.resize_token_embeddings(rows, mean_resizing=False)
    wrapped = get_peft_model(model, LoraConfig(**settings))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if "lora_" in name:
                parameter.normal_(0.0, 0.2, generator=generator)
    wrapped.save_pretrained(folder)
    return wrapped.eval()


def change_settings(folder, **changes):
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def change_tensors(folder, change):
    file = folder / "adapter_model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    change(tensors)
    save_file(tensors, file)


def merged_by_peft(base, adapter, rows=ROWS):
    """The weights after peft's own merge, into a base that was untied before, as peft advises."""
    model = AutoModelForCausalLM.from_pretrained(base)
    if model.config.tie_word_embeddings:
        model.config.tie_word_embeddings = False
        model.lm_head.weight = torch.nn.Parameter(model.model.embed_tokens.weight.detach().clone())
    if rows != ROWS:
        model.resize_token_embeddings(rows, mean_resizing=False)
    return PeftModel.from_pretrained(model, adapter).merge_and_unload().state_dict()


@pytest.mark.parametrize("seed", range(30))
def test_thirty_adapters_are_merged_as_by_peft(tmp_path, bases, seed):
    # 30 adapters see each of 3 families with each of 8 kinds of targets.
    base, settings = bases[FAMILIES[seed % 3]], drawn_settings(seed)
    with_embedding = {"embed_tokens", "lm_head"} & set(settings["target_modules"])
    rows = MORE_ROWS if seed % 5 == 0 and not with_embedding else ROWS
    adapter = tmp_path / "adapter"
    write_adapter(adapter, base, seed, rows, **settings)
    # peft writes names in place of "all-linear", and False for layers that it knows.
    if settings["target_modules"] == "all-linear":
        change_settings(adapter, target_modules="all-linear")
    change_settings(adapter, fan_in_fan_out=seed % 4 == 0)
    merged = adapted_folder(adapter)
    require_fit(merged.config, base / "config.json", merged.weights.shapes)
    expected = merged_by_peft(base, adapter, rows)
    changed = 0
    original = load_file(base / "model.safetensors")
    for name in merged.weights.shapes:
        tensor = merged.weights.tensor(name, torch.float32)
        torch.testing.assert_close(tensor, expected[name], atol=1e-5, rtol=1e-5)
        changed += not (name in original and torch.equal(tensor, original[name]))
    assert changed > 0
    if left_out := expected.keys() - merged.weights.shapes.keys():
        assert left_out == {HEAD}
        assert merged.config["tie_word_embeddings"]
        torch.testing.assert_close(expected[HEAD], expected[EMBEDDING])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("targets", [["embed_tokens"], ["lm_head"], ["embed_tokens", "lm_head", "v_proj"]])
def test_the_merged_model_computes_as_the_base_with_the_adapter(tmp_path, bases, family, targets):
    wrapped = write_adapter(tmp_path / "adapter", bases[family], target_modules=targets, lora_dropout=0.1)
    model = load_model(write_merged(tmp_path / "adapter", tmp_path / "out"))
    assert model.config.tie_word_embeddings is False
    ids = torch.arange(3, 40)[None]
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, wrapped(ids).logits, atol=1e-4, rtol=1e-5)


def test_an_adapter_that_peft_ties_is_merged_into_both(tmp_path, bases):
    settings = {"target_modules": ["embed_tokens", "q_proj"], "ensure_weight_tying": True}
    wrapped = write_adapter(tmp_path / "adapter", bases["qwen3"], **settings)
    merged = adapted_folder(tmp_path / "adapter").weights
    torch.testing.assert_close(*(merged.tensor(name, torch.float32) for name in (EMBEDDING, HEAD)))
    model = load_model(write_merged(tmp_path / "adapter", tmp_path / "out"))
    ids = torch.arange(3, 40)[None]
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, wrapped(ids).logits, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize(
    ("family", "targets"),
    [("qwen3", ["q_proj"]), ("llama", ["q_proj"]), ("llama", ["q_proj", "embed_tokens", "lm_head"])],
)
def test_a_resized_vocabulary_is_taken_over(tmp_path, bases, family, targets):
    wrapped = write_adapter(tmp_path / "adapter", bases[family], rows=MORE_ROWS, target_modules=targets)
    model = load_model(write_merged(tmp_path / "adapter", tmp_path / "out"))
    assert model.config.vocab_size == MORE_ROWS
    ids = torch.arange(MORE_ROWS - 30, MORE_ROWS)[None]
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, wrapped(ids).logits, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("head", ["the embedding's", "another"])
def test_a_tied_base_that_stores_a_head_too(tmp_path, bases, head):
    base = shutil.copytree(bases["qwen3"], tmp_path / "base")
    tensors = load_file(base / "model.safetensors")
    tensors[HEAD] = tensors[EMBEDDING] * (1 if head == "the embedding's" else -1)
    save_file(tensors, base / "model.safetensors", metadata={"format": "pt"})
    wrapped = write_adapter(tmp_path / "adapter", base, target_modules=["q_proj"])
    model = load_model(write_merged(tmp_path / "adapter", tmp_path / "out"))
    assert model.config.tie_word_embeddings == (head == "the embedding's")
    ids = torch.arange(3, 40)[None]
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, wrapped(ids).logits, atol=1e-4, rtol=1e-5)


def test_a_whole_head_that_is_not_the_tied_embedding_is_refused(tmp_path, bases):
    adapter = tmp_path / "adapter"
    write_adapter(adapter, bases["qwen3"], rows=MORE_ROWS, target_modules=["q_proj"])
    change_tensors(adapter, lambda tensors: tensors[f"base_model.model.{HEAD}"].add_(1))
    with pytest.raises(DataError, match="differ, but the base ties them"):
        adapted_folder(adapter)


@pytest.fixture
def adapter(tmp_path, bases):
    """A plain adapter, of linear layers of an untied base."""
    write_adapter(tmp_path / "adapter", bases["llama"], r=4, target_modules=["q_proj", "v_proj"])
    return tmp_path / "adapter"


@pytest.mark.parametrize(
    "changes",
    [
        {"lora_dropout": 0.3, "fan_in_fan_out": True, "megatron_core": "other", "inference_mode": False},
        {"init_lora_weights": "eva", "eva_config": {"rho": 2.0}, "ensure_weight_tying": True},
        {"target_modules": "all-linear"},
        {"target_modules": None},
        {"target_modules": r"^(?!.*(?:lm_head|visual)).*\.(?:q_proj|v_proj)"},
        {"target_modules": r"(?:.*?(?:language|model).*?(?:self_attn).*?(?:q_proj|v_proj).*?)"},
    ],
)
def test_settings_that_leave_the_sum_as_it_is(adapter, changes):
    before = adapted_folder(adapter).weights
    change_settings(adapter, **changes)
    after = adapted_folder(adapter).weights
    for name in before.shapes:
        assert torch.equal(before.tensor(name, torch.float32), after.tensor(name, torch.float32))


@pytest.mark.parametrize(
    ("settings", "messages"),
    [
        ({"use_dora": True}, ("q_proj.lora_magnitude_vector and 1 more", "use_dora = True")),
        ({"bias": "all"}, ("k_proj.bias and ", "bias = 'all'")),
        ({"bias": "lora_only"}, ("q_proj.base_layer.bias", "bias = 'lora_only'")),
        ({"lora_bias": True}, ("q_proj.lora_B.bias", "lora_bias = True")),
        ({"modules_to_save": ["lm_head"]}, ("model.lm_head.weight", "modules_to_save = ['lm_head']")),
        ({"modules_to_save": ["model.norm"]}, ("model.norm.weight", "modules_to_save = ['model.norm']")),
        ({"trainable_token_indices": [1, 2]}, ("trainable_tokens", "trainable_token_indices = [1, 2]")),
    ],
)
def test_tensors_that_are_not_merged_are_named(tmp_path, bases, settings, messages):
    targets = ["model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.q_proj"]
    write_adapter(tmp_path / "adapter", bases["qwen2"], target_modules=targets, **settings)
    with pytest.raises(DataError) as refused:
        adapted_folder(tmp_path / "adapter")
    for message in (*messages, "adapter_model.safetensors: base_model.model.", "merge_and_unload()"):
        assert message in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"peft_type": "LOHA"}, "peft_type = 'LOHA' is not supported"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights = 'pissa_niter_4' has changed the base's weights"),
        ({"alora_invocation_tokens": [1]}, r"alora_invocation_tokens = \[1\] cannot be merged"),
        ({"layer_replication": [[0, 2], [1, 2]]}, "layer_replication = .* cannot be merged"),
        ({"use_dora": True}, "use_dora = True cannot be merged"),
        ({"a_setting_to_come": True}, "a_setting_to_come = True cannot be merged"),
        ({"rank_pattern": 3}, "rank_pattern = 3, expected an object"),
        ({"rank_pattern": {"q_proj": 3}}, r"says rank 3 for model\.layers\.\d\.self_attn\.q_proj\.weight, but"),
        ({"alpha_pattern": {"(": 3}}, "alpha_pattern: '\\(' is no regular expression"),
        ({"alpha_pattern": {r"([\w.]+)+!": 3}}, "alpha_pattern: .* may take too long"),
        ({"target_modules": r"(?x) ([a-z.0-9_]+) +!"}, "target_modules: .* may take too long"),
        ({"target_modules": ".*.*.*.*.*.*.*!"}, "target_modules: .* may take too long"),
        ({"target_modules": 3}, "target_modules = 3, expected names or a regular expression"),
        ({"target_modules": ["v_proj"]}, r"q_proj\.lora_A\.weight is of no target"),
        ({"target_modules": r".*\.v_proj"}, r"q_proj\.lora_A\.weight is of no target"),
        ({"exclude_modules": r".*\.0\..*"}, r"layers\.0\.self_attn\.[qv]_proj\.lora_A\.weight is of no target"),
        ({"layers_to_transform": [1]}, r"layers\.0\.self_attn\.[qv]_proj\.lora_A\.weight is of no target"),
        ({"layers_to_transform": "1"}, "layers_to_transform = '1', expected numbers of layers"),
        ({"layers_pattern": "layers"}, "peft cannot read .*layers_to_transform"),
    ],
)  # fmt: skip
def test_settings_that_are_not_merged_are_named(adapter, changes, message):
    change_settings(adapter, **changes)
    with pytest.raises(DataError, match=message):
        adapted_folder(adapter)


Q = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.update({"base_model.model.model.norm.weight": torch.ones(64)}), r"norm\.weight cannot be merged"),
        (lambda tensors: tensors.update({f"{Q}.lora_C.weight": torch.ones(4, 4)}), r"lora_C\.weight cannot be merged"),
        (
            lambda tensors: tensors.update(
                {f"base_model.model.lm_head.{part}weight": torch.ones(ROWS, 64) for part in ("", "base_layer.")}
            ),
            r"lm_head\.(base_layer\.)?weight is there under another name too",
        ),
        (lambda tensors: tensors.clear(), "adapter_model.safetensors: no tensors"),
        (lambda tensors: tensors.pop(f"{Q}.lora_B.weight"), "q_proj.weight has one of lora_A and lora_B only"),
        (lambda tensors: tensors.update({f"{Q}.lora_A.other.weight": torch.ones(4, 64)}), "are for one weight"),
        (lambda tensors: tensors.update({f"{Q}.lora_A.weight": torch.ones(4, 32)}), "their product is not"),
        (lambda tensors: tensors.update({f"{Q}.lora_A.weight": torch.tensor(1.0)}), r"q_proj\.lora_A\.weight is \[\]"),
        (
            lambda tensors: tensors.update(
                {f"{Q}.lora_embedding_A": torch.ones(4, 64), f"{Q}.lora_embedding_B": torch.ones(64, 4)}
            ),
            r"q_proj\.lora_embedding_A is of the wrong kind",
        ),
    ],
)  # fmt: skip
def test_tensors_that_do_not_belong_are_named(adapter, change, message):
    change_tensors(adapter, change)
    with pytest.raises(DataError, match=message):
        adapted_folder(adapter)
