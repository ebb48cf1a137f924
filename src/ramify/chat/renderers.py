"""The renderer of each dialect."""

from collections.abc import Callable, Mapping
from typing import TypeAlias

from ramify.chat.harmony import HarmonyRenderer
from ramify.chat.hermes import HermesRenderer
from ramify.chat.llama3 import Llama3Renderer
from ramify.chat.qwen3_xml import Qwen3XmlRenderer
from ramify.chat.tag_renderer import TagRenderer
from ramify.chat.tokenizer import ChatTokenizer
from ramify.core.messages import Dialect

DialectRenderer: TypeAlias = HermesRenderer | TagRenderer
"""A whole dialect: prompts, turns, examples and endpoints."""

_RENDERERS: Mapping[Dialect, Callable[[ChatTokenizer], DialectRenderer]] = {
    "tags": TagRenderer,
    "hermes": HermesRenderer,
    "llama3": Llama3Renderer,
    "qwen3_xml": Qwen3XmlRenderer,
    "harmony": HarmonyRenderer,
}


def renderer_for(dialect: Dialect, tokenizer: ChatTokenizer) -> DialectRenderer:
    """Return the renderer of every run: SFT, DPO, RL and evaluation.

    Raises:
        DataError: The chat template does not have the dialect.
    """
    return _RENDERERS[dialect](tokenizer)
