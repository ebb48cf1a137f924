"""Chat templates of each dialect."""

import hermes_folders
import llama3_folders
import model_folders


def dialect_template(dialect: str, end: str) -> str:
    """A chat template that has the dialect, with `end` as the end of a turn."""
    source, own_end = {
        "tags": (model_folders.TEMPLATE, "<|im_end|>"),
        "hermes": (hermes_folders.template(hermes_folders.QWEN25), "<|im_end|>"),
        "qwen3_xml": (hermes_folders.xml_template(), "<|im_end|>"),
        "llama3": (llama3_folders.TEMPLATE, "<|eot_id|>"),
    }[dialect]
    return source.replace(own_end, end)
