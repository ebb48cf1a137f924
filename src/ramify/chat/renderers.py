"""The renderer of each dialect."""

from typing import TypeAlias

from ramify.chat.hermes import HermesRenderer
from ramify.chat.tag_renderer import TagRenderer
from ramify.chat.tokenizer import ChatTokenizer
from ramify.core.messages import Dialect

DialectRenderer: TypeAlias = HermesRenderer | TagRenderer
"""A whole dialect: prompts, turns, examples and endpoints."""


def renderer_for(dialect: Dialect, tokenizer: ChatTokenizer) -> DialectRenderer:
    """Return the renderer of every run: SFT, DPO, RL and evaluation.

    Raises:
        DataError: The chat template does not have the dialect.
    """
    return HermesRenderer(tokenizer) if dialect == "hermes" else TagRenderer(tokenizer)
