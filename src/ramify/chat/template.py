"""A model's chat template, rendered in a separate process with limits on time and memory."""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from ramify.core.errors import ConfigError, DataError, MachineError
from ramify.runtime.limited_process import Ending, LimitedProcesses, Limits, UnansweredError

_LIMITS = Limits(
    cpu_seconds=2.0,  # an ordinary render takes less than a millisecond
    memory_bytes=1 << 30,
    answer_bytes=1 << 26,
)


class ChatTemplate:
    """A chat template with the special tokens that it may use."""

    def __init__(self, source: str, special: Mapping[str, str], origin: str) -> None:
        """Compile the template.

        Args:
            source: The template, in jinja2.
            special: Special tokens by name, such as `eos_token`.
            origin: The template's folder, with which error messages begin.

        Raises:
            DataError: The template cannot be parsed.
        """
        self.source = source
        self._special = dict(special)
        self._origin = origin
        self._ask(None, "cannot be read")

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """Return the text of a chat, up to where the assistant starts to write; `tools` as in OpenAI's API.

        Raises:
            DataError: The template refuses the messages, raises, or takes too long or too much memory.
        """
        variables = {
            "messages": list(messages),
            "add_generation_prompt": True,
            "tools": list(tools) or None,
            "documents": None,
        }
        return self._ask({**variables, **self._special}, "refuses the messages")

    def _ask(self, variables: Mapping[str, Any] | None, failure: str) -> str:
        try:
            answer = _process().ask({"source": self.source, "variables": variables})
        except UnansweredError as error:
            if error.ending is Ending.KILLED:
                raise MachineError(f"rendering a chat template: {error}") from None
            answer = {"refused": error}
        if "text" not in answer:
            raise DataError(f"{self._origin}: the chat template {failure}: {answer['refused']}")
        return str(answer["text"])


@cache
def _process() -> LimitedProcesses:
    """Return the process that all templates of this program share."""
    return LimitedProcesses("ramify.chat.template_process", _LIMITS)


_THOUGHT, _TURN, _USER = "<think>\nramify_thought\n</think>\n\n", "ramify_said", "ramify_heard"
_OPENING = re.compile(r"<think>\s*\Z")


def thought_opening(prompt: str) -> str:
    """Return the `<think>` at the end of a rendered prompt, with the blanks behind it; "" if the prompt opens no thought."""
    opening = _OPENING.search(prompt)
    return opening[0] if opening else ""


def read_user_frame(template: ChatTemplate, end: str, origin: str) -> tuple[str, str]:
    """Return a template's text before and after a user's message: from a turn's end token, and up to the next turn.

    Both are read from a rendering. Contexts only grow, so a template that rewrites earlier turns then (Qwen3 drops their
    thoughts) is refused.

    Args:
        template: The chat template.
        end: The text of the end token.
        origin: The template's folder, with which error messages begin.

    Raises:
        ConfigError: The template rewrites earlier turns, refuses such a chat, or ends turns with another token.
    """
    messages = [{"role": "user", "content": "q"}]
    try:
        prompt = template.render(messages)
        messages += [
            {"role": "assistant", "content": _THOUGHT + _TURN},
            {"role": "user", "content": _USER},
        ]
        text = template.render(messages)
    except DataError as error:
        raise ConfigError(f"{error} (a turn of the assistant, then one of the user)") from None
    earlier = prompt + _THOUGHT.removeprefix(thought_opening(prompt)) + _TURN + end
    before, message, after = text.removeprefix(earlier).partition(_USER)
    if not text.startswith(earlier) or not message:
        raise ConfigError(
            f"{origin}: the chat template rewrites earlier turns once the user speaks again. Use another template, or an "
            "environment in which the user does not speak"
        )
    return before, after
