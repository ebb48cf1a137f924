"""Untrusted text in a request to a chat model, quoted so that it cannot break out."""

import json

from ramify.core.messages import Message
from ramify.core.protocols import Json


def data_message(data: Json, mark: str) -> Message:
    """Return a user message that consists of `data` as JSON between two lines with `mark`.

    A text cannot end its own JSON string, and cannot know a mark that was drawn for this request.
    """
    written = json.dumps(data, ensure_ascii=False, indent=1)
    # Servers parse special tokens and tags in a message's text; the JSON escapes mean the same without being parsed.
    written = written.replace("<", "\\u003c").replace(">", "\\u003e")
    # A lone surrogate cannot be encoded as UTF-8.
    written = written.encode("utf-8", "replace").decode("utf-8")
    return Message.of("user", f"{mark}\n{written}\n{mark}")
