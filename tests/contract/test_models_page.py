"""docs/models.md says of every family what the code does with a model of it."""

import pytest
import torch

from doc_pages import read_page
from family_models import write_family
from model_folders import write_tokenizer
from ramify.chat.tokenizer import ChatTokenizer
from ramify.core.errors import ConfigError, DataError
from ramify.engines.local import LocalEngine
from ramify.learner.flex_attention import FlexTreeAttention
from ramify.learner.forward import PassSettings, forward_row
from ramify.learner.pack import pack
from ramify.learner.update import sequence_tree
from ramify.modeling.configs import AdapterConfig
from ramify.modeling.load import load_model, load_unfilled, packs_trees
from ramify.modeling.lora import add_lora
from ramify.modeling.model_config import FAMILIES, WRAPPERS

NAMES = {
    "qwen2": "Qwen2, Qwen2.5, QwQ, DeepSeek-R1-Distill-Qwen",
    "qwen3": "Qwen3",
    "qwen3_moe": "Qwen3-30B-A3B, Qwen3-Coder-30B-A3B",
    "llama": "Llama 2 and 3, SmolLM2, DeepSeek-R1-Distill-Llama",
    "mistral": "Mistral 7B",
    "ministral3": "Ministral 3",
    "smollm3": "SmolLM3",
    "seed_oss": "Seed-OSS",
    "olmo3": "OLMo 3",
    "gemma3_text": "Gemma 3 of 270M and 1B",
    "gemma3": "Gemma 3 of 4B, 12B, 27B: the text decoder",
    "gemma4_text": "Gemma 4, text alone",
    "gemma4": "Gemma 4: the text decoder, without routed experts",
    "qwen3_next": "Qwen3-Next, Qwen3-Coder-Next",
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return ChatTokenizer(folder)


def accepted(call):
    """Return its result, or None if the model is refused."""
    try:
        return call()
    except (ConfigError, DataError):
        return None


def targets(folder):
    """Return which matrices of the decoder an adapter takes: all, or those of the attention and not the experts."""
    model = load_model(folder)
    experts = any(name.endswith("experts") for name, _ in model.named_modules())
    named = accepted(
        lambda: add_lora(model, AdapterConfig(rank=2, targets=("q_proj", "down_proj")), 0) or True
    )
    if named:
        return "all"
    assert experts
    add_lora(load_model(folder), AdapterConfig(rank=2, targets=("q_proj", "k_proj", "v_proj", "o_proj")), 0)
    return "attention"


def row(family, folder, tokenizer):
    model = load_model(folder)
    packs = packs_trees(model)
    engine = accepted(lambda: LocalEngine(model, tokenizer, num_slots=2, context_tokens=40))
    recomputes = any(hasattr(type(module), "plain") for module in model.modules())
    parts = load_unfilled(folder, "float32") is not None
    cells = [
        NAMES[family],
        "trees" if packs else "a row for each context",
        "yes" if engine is not None else "no",
        targets(folder),
        "its part" if parts else "all",
        "fewer" if recomputes else "all",
    ]
    return f"| `{family}` | {' | '.join(cells)} |"


HEAD = (
    "| `model_type` | models | a row of the learner | local engine | LoRA on | each rank reads | activations kept |\n"
    "| --- | --- | --- | --- | --- | --- | --- |"
)


def test_the_page_has_the_table(tmp_path, tokenizer):
    lines = []
    for family in FAMILIES:
        # A Mistral has a window unless it says none, and the page says so below the table.
        changes = {"sliding_window": None} if family == "mistral" else {}
        folder = write_family(tmp_path / family, family, **changes)
        lines.append(row(family, folder, tokenizer))
    expected = "\n".join([HEAD, *lines])
    assert expected in read_page("models.md"), f"docs/models.md must hold this table:\n{expected}"


def test_the_page_and_the_readme_count_the_families():
    numbers = ("ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen")
    word = numbers[len(FAMILIES) - 10]
    assert f"{word.capitalize()} families" in read_page("models.md")
    assert f"{word.capitalize()} model families" in read_page("../README.md")


def test_windows_are_for_the_learner_and_not_for_the_local_engine(tmp_path, tokenizer):
    assert "A sliding window" in read_page("models.md")
    model = load_model(write_family(tmp_path / "mistral", "mistral"))
    assert packs_trees(model)
    with pytest.raises(ConfigError, match=r"does not compute the layers of this mistral.*docs/models\.md"):
        LocalEngine(model, tokenizer, num_slots=2, context_tokens=40)


@pytest.mark.parametrize("family", ["qwen3_moe", "qwen3_next"])
def test_an_adapter_of_experts_is_refused_by_name(family, tmp_path):
    model = load_model(write_family(tmp_path / family, family))
    with pytest.raises(ConfigError, match="routed experts, which are not linear layers"):
        add_lora(model, AdapterConfig(rank=2, targets=("q_proj", "gate_proj", "up_proj", "down_proj")), 0)


@pytest.mark.parametrize(
    "family", [name for name in FAMILIES if name not in WRAPPERS and name != "qwen3_next"]
)
def test_the_plan_of_a_gpu_computes_the_same(family, tmp_path, monkeypatch):
    model = load_model(write_family(tmp_path / family, family))
    (packed,) = pack([sequence_tree([5, 9, 33, 60, 81, 12, 7, 7, 40]), sequence_tree([5, 9, 33, 17])], 1000)
    settings = PassSettings(1.0, chunk_tokens=8, with_entropy=False)
    on_a_cpu = forward_row(model, packed, settings)[0]
    monkeypatch.setattr(
        "ramify.learner.forward._plan",
        lambda segments, device, *_: FlexTreeAttention(segments, device, compiled=False),
    )
    assert torch.allclose(forward_row(model, packed, settings)[0], on_a_cpu, atol=2e-5)
