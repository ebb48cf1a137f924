"""The renderer of each dialect."""

from ramify.chat.hermes import HermesRenderer
from ramify.chat.renderer import ChatRenderer
from ramify.chat.tag_renderer import TagRenderer
from ramify.chat.tokenizer import ChatTokenizer
from ramify.core.messages import Dialect


def renderer_for(dialect: Dialect, tokenizer: ChatTokenizer) -> ChatRenderer:
    """Return the renderer of every run: SFT, DPO, RL and evaluation.

    Raises:
        DataError: The chat template does not have the dialect.
    """
    return HermesRenderer(tokenizer) if dialect == "hermes" else TagRenderer(tokenizer)
