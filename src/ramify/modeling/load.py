"""Load and save model folders in the Hugging Face layout: whole models and LoRA adapters.

A packed tree computes a shared token once, which is exact only if its hidden state is the same on every trajectory. So
decoders whose layers attend to all tokens before, or to a window of them, are loaded with ramify's attention and take packed
trees; which experts a token goes to depends on the token alone. Models with linear attention keep transformers' attention and
need a row for each context of a trajectory (`packs_trees`). Of a model that also reads pictures the text decoder is loaded.
"""

import json
import logging
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.utils.logging import disable_progress_bar, get_verbosity, set_verbosity

from ramify.core.errors import DataError, RamifyError
from ramify.modeling.attention import ATTENTION_NAME
from ramify.modeling.lora import adapter_tensors, has_adapters, load_adapter, save_adapter
from ramify.modeling.model_config import (
    WRAPPERS,
    check_architecture,
    is_adapter_folder,
    read_object_file,
    text_config,
    whole_folder,
)
from ramify.modeling.recompute import recompute_activations
from ramify.modeling.text_decoder import WholeModel, whole_model
from ramify.modeling.weight_files import StoredTensor, of_decoder, stored_tensors
from ramify.modeling.weight_values import ValueFlags, check_values, joined

_SHARD = "5GB"
"""Largest file of weights; a model on a GPU is copied to the CPU one file at a time."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

_ROTARY_BUFFER = re.compile(r"rotary_emb\.inv_freq$")
"""A buffer in old files; models compute it from their configuration."""


def packs_trees(model: PreTrainedModel) -> bool:
    """Return True if `model` takes attention plans, so that a row may contain trees; else a row is one trajectory."""
    name: str = model.config._attn_implementation
    return name == ATTENTION_NAME


def load_model(path: str | Path, dtype: str = "float32", device: str = "cpu") -> PreTrainedModel:
    """Load a causal language model in training mode; for an adapter's folder, its frozen base with the adapter.

    Names, types and shapes of all tensors are checked before any weight is read, and values afterwards.

    Raises:
        DataError: The folder, its configuration or its weights are missing; dtype or architecture is not supported;
            weights are missing, unknown or of another shape; a weight has NaN or infinities, or a matrix is all zeros;
            an adapter's base model is missing or another one.
    """
    folder = Path(path)
    model = _load_whole(whole_folder(folder), dtype)
    if is_adapter_folder(folder):
        load_adapter(model, folder)
    placed: PreTrainedModel = model.train().to(torch.device(device))
    return placed


def copy_rest_from(model: PreTrainedModel, path: Path) -> None:
    """Have `save_model` copy what lies beside a text decoder from the files of `path`, another folder of the same model."""
    if (whole := whole_model(model)) is not None:
        holder: Any = model
        holder.taken_from = replace(whole, stored=stored_tensors(whole_folder(path)))


def load_unfilled(path: Path, dtype: str) -> tuple[PreTrainedModel, Mapping[str, StoredTensor]] | None:
    """Return a whole model in training mode whose parameters are on the meta device, and the tensors of its files.

    So a process that needs a part of each weight reads no more. None: the files do not hold just these parameters under
    just these names (adapters, saved buffers, a tied head that is stored twice, experts one by one, a decoder within a larger
    model), and `load_model` has to read them.

    Raises:
        DataError: As for `load_model`, but for values.
    """
    if is_adapter_folder(path):
        return None
    record, packs, stored, whole = _checked(path, dtype)
    if whole is not None:
        return None
    # A number that stands for a whole weight takes no memory, and transformers computes the buffers.
    numbers = {
        name: torch.zeros((), dtype=DTYPES[dtype]).expand(tensor.shape)
        for name, tensor in stored.items()
        if not is_rotary_buffer(name)
    }
    with quiet_transformers():
        model = _read_weights(path, record, stored, dtype, ATTENTION_NAME if packs else "sdpa", numbers)
    if {name: tuple(p.shape) for name, p in model.named_parameters()} != {
        name: stored[name].shape for name in numbers
    }:
        return None
    model.config._name_or_path = str(path)
    unfilled: dict[int, torch.nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            empty = torch.nn.Parameter(torch.empty_like(parameter, device="meta").contiguous())
            setattr(module, name, unfilled.setdefault(id(parameter), empty))
    recompute_activations(model)
    return model.train(), stored


def parameter_shapes(path: Path) -> tuple[dict[str, tuple[int, ...]], PretrainedConfig]:
    """Return the shapes of a whole model's parameters, a tied one once, and its configuration, from `config.json` alone.

    Raises:
        DataError: It is missing, or of an unsupported architecture.
    """
    config_file = whole_folder(path) / "config.json"
    return shapes_of(read_object_file(config_file), f"{config_file}")


def shapes_of(record: dict[str, Any], name: str) -> tuple[dict[str, tuple[int, ...]], PretrainedConfig]:
    """Return the same for the values of a `config.json`; `name` is the prefix of messages.

    Raises:
        DataError: The architecture is not supported.
    """
    check_architecture(record, name)
    record = text_config(record, name)
    try:
        config: Any = CONFIG_MAPPING[record["model_type"]].from_dict(record)
        kind: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
        with quiet_transformers(), torch.device("meta"):
            model = kind(config)
    # A reader of foreign files: what transformers raises about them is of any kind.
    except Exception as error:  # noqa: BLE001
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise DataError(f"{name}: no model can be made of it ({reason})") from None
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}, config


def check_weights(path: Path) -> None:
    """Check the names, types and shapes of a model's weights; of an adapter those of its base. No weight is read.

    Raises:
        DataError: As for `load_model`, with the same message.
    """
    folder = whole_folder(path)
    path = folder / "config.json"
    whole = read_object_file(path)
    check_architecture(whole, f"{path}")
    record, stored = text_config(whole, f"{path}"), of_decoder(whole, stored_tensors(folder))
    _check_layers(record, stored, path)
    with quiet_transformers(), _naming(folder):
        _configured(folder, record, stored)


def _checked(
    folder: Path, dtype: str
) -> tuple[dict[str, Any], bool, Mapping[str, StoredTensor], WholeModel | None]:
    """Return a decoder's configuration, whether it takes packed trees, its tensors, and the whole model that it is a part of."""
    path = folder / "config.json"
    whole = read_object_file(path)
    packs = check_architecture(whole, f"{path}")
    record = text_config(whole, f"{path}")
    if dtype not in DTYPES:
        raise DataError(f"model dtype {dtype!r} is unknown, expected one of {sorted(DTYPES)}")
    tensors = stored_tensors(folder)
    stored = of_decoder(whole, tensors)
    _check_layers(record, stored, path)
    return record, packs, stored, WholeModel(whole, tensors) if whole["model_type"] in WRAPPERS else None


def _load_whole(folder: Path, dtype: str) -> PreTrainedModel:
    record, packs, stored, whole = _checked(folder, dtype)
    tensors = None if whole is None else whole.decoder_tensors()
    with quiet_transformers():
        model = _read_weights(folder, record, stored, dtype, ATTENTION_NAME if packs else "sdpa", tensors)
    if whole is not None:
        holder: Any = model
        holder.taken_from = whole
        holder.name_or_path = model.config._name_or_path = str(folder)
    check_values(
        {name: ValueFlags.of(parameter) for name, parameter in model.named_parameters()}, stored, folder
    )
    recompute_activations(model)
    return model


def require_fit(
    record: dict[str, Any], path: Path, shapes: Mapping[str, tuple[int, ...]]
) -> PretrainedConfig:
    """Check names and shapes of a model's weights against its configuration, without the weights.

    Args:
        record: Content of the model's `config.json`.
        path: Its file, the prefix of messages.
        shapes: Shapes of the weights by name; those of `is_rotary_buffer` may be left out.

    Returns:
        The configuration.

    Raises:
        DataError: The model is of an unsupported architecture; weights are missing, unknown or of another shape.
    """
    check_architecture(record, f"{path}")
    shapes, record = of_decoder(record, shapes), text_config(record, f"{path}")
    _check_layers(record, shapes, path)
    try:
        with quiet_transformers():
            config: Any = CONFIG_MAPPING[record["model_type"]].from_dict(record)
            report = _fit(config, shapes)
    # Foreign files: transformers may raise anything about them.
    except Exception as error:  # noqa: BLE001
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise DataError(f"{path}: no model can be made of it ({reason})") from None
    if problems := _misfits(report, {}):
        raise DataError(f"{path}: the weights are of another model: {joined(problems)}")
    fitting: PretrainedConfig = config
    return fitting


def is_rotary_buffer(name: str) -> bool:
    """Return True if models compute this tensor of old files from their configuration."""
    return _ROTARY_BUFFER.search(name) is not None


def _fit(config: Any, shapes: Mapping[str, tuple[int, ...]]) -> Mapping[str, Any]:  # noqa: ANN401 - of transformers
    """Load tensors without numbers into the model's class; returns its report of names and shapes that do not fit."""
    empty = {
        name: torch.empty(shape, device="meta")
        for name, shape in shapes.items()
        if not is_rotary_buffer(name)
    }
    kind: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    _, info = kind.from_pretrained(
        None,
        config=config,
        state_dict=empty,
        device_map={"": "meta"},
        ignore_mismatched_sizes=True,
        output_loading_info=True,
    )
    report: Mapping[str, Any] = info
    return report


def _read_weights(
    folder: Path,
    record: dict[str, Any],
    stored: Mapping[str, StoredTensor],
    dtype: str,
    attention: str,
    tensors: Mapping[str, torch.Tensor] | None = None,
) -> PreTrainedModel:
    """Let transformers build the model from its folder, or from `tensors`; what it raises becomes a DataError in one line."""
    with _naming(folder):
        config = _configured(folder, record, stored)
        kind: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
        how = {"config": config, "dtype": DTYPES[dtype], "output_loading_info": True, "state_dict": tensors}
        model, _ = kind.from_pretrained(
            folder if tensors is None else None,
            attn_implementation=attention,
            local_files_only=True,
            use_safetensors=True,
            **how,
        )
    loaded: PreTrainedModel = model
    return loaded


def _configured(folder: Path, record: dict[str, Any], stored: Mapping[str, StoredTensor]) -> Any:  # noqa: ANN401 - of transformers
    """Return the model's configuration, which its weights fit."""
    config: Any = CONFIG_MAPPING[record["model_type"]].from_dict(record)
    report = _fit(config, {name: tensor.shape for name, tensor in stored.items()})
    if problems := _misfits(report, stored):
        raise DataError(f"{folder}: {joined(problems)} (config.json: model_type = {record['model_type']!r})")
    return config


@contextmanager
def _naming(folder: Path) -> Iterator[None]:
    """Turn what transformers raises about foreign files, which may be anything, into a DataError that names the folder."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise DataError(f"model folder {folder}: the model cannot be read ({reason})") from error


def _check_layers(config: dict[str, Any], stored: Iterable[str], path: Path) -> None:
    """Check the number of layers before the model is built, which takes long if a damaged number is large."""
    numbers = [int(match[1]) for name in stored if (match := re.search(r"\blayers\.(\d{1,6})\.", name))]
    layers = config.get("num_hidden_layers")
    if numbers and layers is not None and layers != max(numbers) + 1:
        raise DataError(f"{path}: num_hidden_layers = {layers}, the weights have {max(numbers) + 1} layers")


def _misfits(report: Mapping[str, Any], stored: Mapping[str, StoredTensor]) -> list[str]:
    """List the weights that are missing, unknown or of another shape according to transformers, as lines with file and name."""

    def in_file(name: str) -> str:
        return f"{stored[name].file.name}: {name}" if name in stored else name

    return [
        *(f"{name} is missing" for name in sorted(report["missing_keys"])),
        *(f"{in_file(name)} is none of this model" for name in sorted(report["unexpected_keys"])),
        *(
            f"{in_file(name)} is {list(shape)}, expected {list(expected)}"
            for name, shape, expected in sorted(report["mismatched_keys"])
        ),
    ]


@contextmanager
def writing_model(folder: Path) -> Iterator[None]:
    """While a model is written, tell what goes wrong in one line: safetensors and tokenizers have errors of their own.

    Raises:
        RamifyError: The model cannot be written.
    """
    try:
        yield
    except RamifyError:
        raise
    except Exception as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise RamifyError(f"{folder}: the model cannot be written there: {reason}") from error


def save_model(
    model: PreTrainedModel,
    folder: str | Path,
    *,
    weights: bool = True,
    tensors: Mapping[str, torch.Tensor] | None = None,
) -> None:
    """Write a plain Hugging Face folder, or for a model with an adapter a peft folder; both load without ramify.

    A text decoder is written within the model that it was taken from.

    `generation_config.json` is not written: transformers refuses to save many files that it reads, and without one it
    uses `config.json`.

    Args:
        model: The model to write.
        folder: The folder to write to.
        weights: False leaves out the tensors, to test cheaply whether saving works.
        tensors: What to write (`saved_state`), where that is not what the model holds now.
    """
    path = Path(folder)
    if has_adapters(model):
        save_adapter(model, path, weights=weights, tensors=tensors)
        return
    # In a thread beside a pass the model may hold gathered weights, of another type than those it trains.
    dtype = next((t.dtype for t in (tensors or {}).values() if t.is_floating_point()), model.dtype)
    if whole := whole_model(model):
        whole.save(path, dtype, (tensors or model.state_dict()) if weights else None)
        return
    written = None if weights and tensors is None else dict(tensors or {})
    generation = model.generation_config
    model.generation_config = GenerationConfig()  # type: ignore[no-untyped-call]
    try:
        model.save_pretrained(path, state_dict=written, max_shard_size=_SHARD)
    finally:
        model.generation_config = generation
    (path / "generation_config.json").unlink()
    config = path / "config.json"
    if (record := json.loads(config.read_bytes()))["dtype"] != (name := str(dtype).removeprefix("torch.")):
        config.write_text(json.dumps(record | {"dtype": name}, indent=2) + "\n", encoding="utf-8")
    # transformers makes the weights readable by their owner only, unlike all other files.
    mode = config.stat().st_mode
    for file in path.glob("*.safetensors"):
        file.chmod(mode)


def saved_parameters(model: PreTrainedModel) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Return the parameters that `save_model` writes, by name: all, or only those of an adapter."""
    adapter = {id(tensor) for tensor in adapter_tensors(model).values()}
    return ((n, p) for n, p in model.named_parameters() if not adapter or id(p) in adapter)


def saved_state(model: PreTrainedModel, whole: Callable[[str], torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors that `save_model` writes, by their names in the files; `whole` gives a parameter by its name.

    A tied parameter is the same tensor under each of its names.
    """
    parameters = {id(parameter): whole(name) for name, parameter in saved_parameters(model)}
    state = adapter_tensors(model) or model.state_dict(keep_vars=True)
    return {
        name: parameters[id(tensor)] if isinstance(tensor, torch.nn.Parameter) else tensor
        for name, tensor in state.items()
    }


disable_progress_bar()  # type: ignore[no-untyped-call]  # the command line draws its own


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep transformers from logging and Python from printing warnings while the block runs."""
    before = get_verbosity()
    set_verbosity(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        set_verbosity(before)
