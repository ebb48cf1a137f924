"""The text decoder within a model that also reads pictures (Gemma 3 from 4B up, Gemma 4): names of its weights, and saving.

The decoder is trained alone, under the names of its own class. A folder is written as the whole model: under the names that its
source has, of which there are two conventions, with everything beside the decoder copied unchanged. So transformers and vLLM
open what was trained as what they opened before.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from ramify.core.errors import DataError
from ramify.modeling.plain_folder import write_in_parts
from ramify.modeling.tensor_files import TYPES, TensorHead
from ramify.modeling.weight_files import OLDER, WITHIN, StoredTensor, decoder_name

OTHER_PARTS = r".*(vision_tower|multi_modal_projector|audio_tower|embed_vision|embed_audio)\..*"
"""Modules beside the decoder, some of which have names that an adapter targets."""


@dataclass(frozen=True, slots=True)
class WholeModel:
    """The model that a decoder was taken from.

    Attributes:
        config: Content of its `config.json`.
        stored: Its tensors by their names in its files.
    """

    config: Mapping[str, Any]
    stored: Mapping[str, StoredTensor] = field(repr=False)

    def stored_name(self, name: str) -> str:
        """Return the name in the files for a name of the decoder's, which a tied head has too."""
        is_older = any(stored.startswith(f"{OLDER}model.") for stored in self.stored)
        if name.startswith("lm_head."):
            return f"{OLDER}{name}" if is_older else name
        return f"{OLDER}{name}" if is_older else WITHIN + name.removeprefix("model.")

    def decoder_tensors(self) -> dict[str, torch.Tensor]:
        """Read the decoder's weights, by its own names."""
        own = {stored: decoder_name(stored) for stored in self.stored}
        return {name: self._read(stored) for stored, name in own.items() if name is not None}

    def save(self, folder: Path, dtype: torch.dtype, tensors: Mapping[str, torch.Tensor] | None) -> None:
        """Write the whole model with `tensors` of the decoder, by its own names; None: `config.json` alone.

        Raises:
            DataError: The files that the model was loaded from are gone.
            OSError: The files cannot be written.
        """
        folder.mkdir(parents=True, exist_ok=True)
        keys = [key for key in ("dtype", "torch_dtype") if key in self.config] or ["dtype"]
        config = {**self.config, **dict.fromkeys(keys, str(dtype).removeprefix("torch."))}
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        if tensors is None:
            return
        own = {stored: tensors.get(decoder_name(stored) or "") for stored in self.stored}
        heads = {
            name: TensorHead(TYPES[self.stored[name].kind], self.stored[name].shape)
            if tensor is None
            else TensorHead(tensor.dtype, tuple(tensor.shape))
            for name, tensor in own.items()
        }

        def tensor_of(name: str) -> torch.Tensor:
            tensor = own[name]
            return self._read(name) if tensor is None else tensor

        write_in_parts(folder, heads, tensor_of)

    def _read(self, name: str) -> torch.Tensor:
        try:
            with safe_open(self.stored[name].file, framework="pt") as file:
                tensor: torch.Tensor = file.get_tensor(name)
        except OSError as error:
            raise DataError(
                f"{self.stored[name].file}: {name} cannot be read any more ({error.strerror or error}). Put the model back "
                "that the run began with"
            ) from error
        return tensor


def whole_model(model: torch.nn.Module) -> WholeModel | None:
    """Return the model that a decoder was taken from; None for one that is a model by itself."""
    whole: WholeModel | None = getattr(model, "taken_from", None)
    return whole
