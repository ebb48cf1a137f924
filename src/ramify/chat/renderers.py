"""The renderer of each dialect."""

from collections.abc import Sequence

from ramify.chat.hermes import HermesRenderer
from ramify.chat.renderer import ChatRenderer
from ramify.chat.tag_renderer import TagRenderer
from ramify.chat.tokenizer import ChatTokenizer
from ramify.core.messages import Dialect, ToolSpec


def renderer_for(dialect: Dialect, tokenizer: ChatTokenizer, tools: Sequence[ToolSpec]) -> ChatRenderer:
    """Return the renderer of every run: SFT, DPO, RL and evaluation.

    Raises:
        ConfigError: A tool's name cannot be used in the dialect.
        DataError: The chat template does not have the dialect.
    """
    return HermesRenderer(tokenizer, tools) if dialect == "hermes" else TagRenderer(tokenizer, tools)
