"""A decoder within a model that reads pictures: both conventions of names, and a source that is gone."""

import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from family_models import write_family
from ramify.core.errors import DataError
from ramify.modeling.load import load_model, save_model

NEWER = {
    "language_model.model.": "model.language_model.",
    "vision_tower.": "model.vision_tower.",
    "multi_modal_projector.": "model.multi_modal_projector.",
}


@pytest.fixture
def folder(tmp_path):
    return write_family(tmp_path / "model", "gemma3")


def renamed(folder):
    """The file with the names of the other convention."""
    tensors = load_file(folder / "model.safetensors")
    for older, newer in NEWER.items():
        tensors = {
            newer + name.removeprefix(older) if name.startswith(older) else name: tensor.clone()
            for name, tensor in tensors.items()
        }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return tensors


def test_a_file_keeps_the_names_that_its_source_has(folder, tmp_path):
    first = load_model(folder)
    names = renamed(folder).keys()
    model = load_model(folder)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), model.parameters(), strict=True))
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(2)
    save_model(model, tmp_path / "saved")
    saved = load_file(tmp_path / "saved" / "model.safetensors")
    assert saved.keys() == names
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert torch.equal(again.get_input_embeddings().weight, model.get_input_embeddings().weight)


def test_a_source_that_is_gone_is_named(folder, tmp_path):
    model = load_model(folder)
    shutil.rmtree(folder)
    with pytest.raises(
        DataError, match=r"model\.safetensors: .* cannot be read any more .*\. Put the model back"
    ):
        save_model(model, tmp_path / "saved")


def test_weights_of_another_decoder_are_named_as_its_own(folder):
    tensors = load_file(folder / "model.safetensors")
    del tensors["language_model.model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(DataError, match=r"model\.layers\.1\.mlp\.up_proj\.weight is missing"):
        load_model(folder)
