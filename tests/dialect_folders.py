"""Tokenizer folders and chat templates of each dialect."""

from collections.abc import Callable, Mapping
from pathlib import Path

import harmony_folders
import hermes_folders
import llama3_folders
import model_folders

TEMPLATES: Mapping[str, str] = {
    "tags": model_folders.TEMPLATE,
    "hermes": hermes_folders.template(hermes_folders.QWEN3),
    "qwen3_xml": hermes_folders.xml_template(),
    "llama3": llama3_folders.TEMPLATE,
    "harmony": harmony_folders.TEMPLATE,
}
_ENDS = {"llama3": "<|eot_id|>", "harmony": "<|return|>"}


def dialect_template(dialect: str, end: str) -> str:
    """A chat template that has the dialect, with `end` as the end of an answer."""
    return TEMPLATES[dialect].replace(_ENDS.get(dialect, "<|im_end|>"), end)


def _write_tags(folder: Path) -> Path:
    model_folders.write_tokenizer(folder)
    return folder


WRITERS: Mapping[str, Callable[[Path], Path]] = {
    "tags": _write_tags,
    "hermes": lambda folder: hermes_folders.write_hermes_tokenizer(folder, hermes_folders.QWEN3),
    "qwen3_xml": hermes_folders.write_xml_tokenizer,
    "llama3": llama3_folders.write_llama3_tokenizer,
    "harmony": harmony_folders.write_harmony_tokenizer,
}
