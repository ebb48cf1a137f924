"""`ramify merge`: checkpoints as plain model folders, and a check that two folders hold the same model."""

import argparse
import json
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ramify.commands.parser import add_quiet, at_least_one, open_console

if TYPE_CHECKING:
    from ramify.modeling.plain_folder import Weights
    from ramify.obs.console import RunConsole

_DTYPES = ("bfloat16", "float32", "float16")
_TOKENS = 256
RECORD = "conversion.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    commands = parser.add_subparsers(dest="work", required=True, metavar="COMMAND")
    verl = commands.add_parser("verl", help="a checkpoint of verl's FSDP backend")
    verl.add_argument(
        "checkpoint",
        type=Path,
        metavar="CKPT",
        help="global_step_N, its actor folder, or the save folder (its newest step)",
    )
    _add_output(verl)
    verl.add_argument(
        "--config",
        type=Path,
        metavar="DIR",
        help="folder of the model that was trained; default: configuration and tokenizer of the checkpoint",
    )
    verl.add_argument("--lora", action="store_true", help="merge the adapter of a LoRA run into the weights")
    lora = commands.add_parser("lora", help="a LoRA adapter and its base as one model")
    lora.add_argument(
        "adapter", type=Path, metavar="ADAPTER", help="a peft folder, such as a LoRA run's checkpoint"
    )
    _add_output(lora)
    verify = commands.add_parser("verify", help="compare the logprobs that two folders give to fixed tokens")
    verify.add_argument("first", type=Path, metavar="A", help="a folder of a model or an adapter")
    verify.add_argument("second", type=Path, metavar="B", help="another one")
    verify.add_argument(
        "--tokens",
        type=at_least_one,
        default=_TOKENS,
        metavar="N",
        help=f"number of tokens (default: {_TOKENS})",
    )


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="a new folder")
    parser.add_argument(
        "--dtype", choices=_DTYPES, help="type of the weights in the folder; default: that of config.json"
    )
    add_quiet(parser)


def run(options: argparse.Namespace) -> None:
    """Run the command; a folder appears when it is whole.

    Raises:
        UserError: The checkpoint, the adapter or a folder is wrong, or the output folder is taken.
        RamifyError: The two folders to compare hold different models.
    """
    {"verl": _merge_verl, "lora": _merge_lora, "verify": _verify}[options.work](options)


@dataclass(frozen=True, slots=True)
class _Conversion:
    """What is written.

    Attributes:
        weights: The tensors.
        names: Which of them, in order.
        config: Content of `config.json`.
        settings: Folders to copy the tokenizer from, the first that has it.
        made_from: Files whose checksums are recorded.
        about: What else is recorded.
    """

    weights: "Weights"
    names: Sequence[str]
    config: Mapping[str, Any]
    settings: Sequence[Path]
    made_from: Sequence[Path]
    about: dict[str, Any]


def _merge_verl(options: argparse.Namespace) -> None:
    from ramify.commands.output_files import new_output_folder
    from ramify.modeling.model_config import read_object_file
    from ramify.modeling.verl_files import find_checkpoint, settings_folders

    checkpoint = find_checkpoint(options.checkpoint)
    settings = settings_folders(checkpoint, options.config)
    config = settings[0] / "config.json"
    record = read_object_file(config)
    dtype = options.dtype or _dtype_of(config, record)
    console = open_console(options)
    with new_output_folder("--out", options.out) as folder:
        console.note(f"reading {checkpoint.folder}: {len(checkpoint.shards)} ranks")
        from ramify.modeling.verl_pickles import require_intact
        from ramify.modeling.verl_shards import verl_weights

        with console.phase("files", len(checkpoint.shards)) as phase:
            for shard in checkpoint.shards:
                require_intact(shard)
                phase.advance()
        weights, names = verl_weights(checkpoint, config, lora=options.lora)
        about = {
            "from": "verl",
            "step": checkpoint.step,
            "world_size": len(checkpoint.shards),
            "lora": options.lora,
        }
        _write(
            folder, _Conversion(weights, names, record, settings, checkpoint.shards, about), dtype, console
        )
    console.note(f"model: {options.out}")


def _merge_lora(options: argparse.Namespace) -> None:
    from ramify.commands.output_files import new_output_folder
    from ramify.core.errors import DataError
    from ramify.modeling.model_config import (
        ADAPTER_SETTINGS,
        ADAPTER_WEIGHTS,
        is_adapter_folder,
        read_object_file,
        whole_folder,
    )

    adapter = options.adapter
    base = whole_folder(adapter)
    if not is_adapter_folder(adapter):
        other = "a whole model" if (adapter / "config.json").is_file() else f"{ADAPTER_SETTINGS} is missing"
        below = sorted(file.parent.name for file in adapter.glob(f"*/{ADAPTER_SETTINGS}"))
        hint = f"; {below[0]} below it is one" if below else ""
        raise DataError(f"{adapter}: {other}, expected the folder of an adapter ({ADAPTER_SETTINGS}){hint}")
    config = base / "config.json"
    dtype = options.dtype or _dtype_of(config, read_object_file(config))
    console = open_console(options)
    with new_output_folder("--out", options.out) as folder:
        console.note(f"reading {adapter} and its base {base}")
        from ramify.modeling.load import require_fit
        from ramify.modeling.lora_merge import adapted_folder

        merged = adapted_folder(adapter)
        require_fit(merged.config, config, merged.weights.shapes)
        if merged.untied:
            console.note(
                "the adapter changes a tied embedding: the model has a head of its own (tie_word_embeddings = false)"
            )
        made_from = (adapter / ADAPTER_WEIGHTS, *sorted(base.glob("*.safetensors")))
        # The adapter's own tokenizer is the one that it was trained with.
        conversion = _Conversion(
            merged.weights,
            list(merged.weights.shapes),
            merged.config,
            (adapter, base),
            made_from,
            {"from": "lora"},
        )
        _write(folder, conversion, dtype, console)
    console.note(f"model: {options.out}")


def _verify(options: argparse.Namespace) -> None:
    from ramify.core.errors import RamifyError
    from ramify.modeling.logprob_check import compare_logprobs, differing_shapes

    console = open_console(options)
    if differing := differing_shapes(options.first, options.second):
        raise RamifyError(
            f"{options.first} and {options.second} hold different models: {'; '.join(differing)}"
        )
    with console.phase("tokens", 2 * options.tokens) as phase:
        comparison = compare_logprobs(options.first, options.second, options.tokens, phase.advance)
    console.result(
        f"logprobs of {comparison.tokens} tokens differ by {comparison.largest:.2g} nats at most, {comparison.mean:.2g} on average; "
        f"tolerance for {comparison.kind}: {comparison.tolerance:g}"
    )
    if not comparison.largest <= comparison.tolerance:
        raise RamifyError(
            f"{options.first} and {options.second} hold different models: logprobs differ by up to {comparison.largest:.2g} nats, "
            f"expected at most {comparison.tolerance:g}"
        )


def _dtype_of(path: Path, config: dict[str, Any]) -> str:
    from ramify.core.errors import DataError

    named = config.get("dtype", config.get("torch_dtype"))
    if named not in _DTYPES:
        raise DataError(f"{path}: dtype = {named!r:.80}; give --dtype with one of {', '.join(_DTYPES)}")
    return str(named)


def _write(folder: Path, conversion: _Conversion, dtype: str, console: "RunConsole") -> None:
    """Write everything into `folder`, after a check of the room on its disk."""
    from ramify.core.errors import MachineError
    from ramify.files.durable import naming
    from ramify.modeling.load import DTYPES
    from ramify.modeling.plain_folder import GENERATION, generation_defaults, write_settings, write_weights
    from ramify.runs.manifest import file_sha256, made_with

    kind = DTYPES[dtype]
    shapes = (conversion.weights.shapes[name] for name in conversion.names)
    needed = sum(kind.itemsize * math.prod(shape) for shape in shapes)
    if needed > (free := shutil.disk_usage(folder).free):
        raise MachineError(
            f"--out: the model takes {needed / 1e9:.2f} GB, the disk has {free / 1e9:.2f} GB left; name a folder on another"
        )
    with console.phase("tensors", len(conversion.names)) as phase:
        write_weights(folder, conversion.weights, conversion.names, kind, phase.advance)
    copied = write_settings(folder, conversion.config, dtype, conversion.settings)
    if GENERATION not in copied:
        with naming(folder / GENERATION):
            (folder / GENERATION).write_bytes(generation_defaults(conversion.config, _end_of_turn(folder)))
    if not any(name.startswith("tokenizer") for name in copied):
        console.note("no tokenizer was found to copy; copy the files of the model that was trained")
    with console.phase("checksums", len(conversion.made_from)) as phase:
        sources = {}
        for file in conversion.made_from:
            sources[file.name] = file_sha256(file)
            phase.advance()
    record = {
        "schema": 1,
        **conversion.about,
        "dtype": dtype,
        "sources": sources,
        "made_with": made_with("cpu"),
    }
    with naming(folder / RECORD):
        (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="ascii")


def _end_of_turn(folder: Path) -> int | None:
    """Return the token that ends a turn; None without a tokenizer, or with one that ramify cannot read."""
    from ramify.chat.tokenizer import ChatTokenizer
    from ramify.core.errors import DataError

    try:
        return ChatTokenizer(folder).eos_id
    except DataError:
        return None
