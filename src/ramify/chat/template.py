"""A model's chat template, rendered in a separate process with limits on time and memory."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from ramify.chat.template_process import SECONDS
from ramify.core.errors import ConfigError, DataError, MachineError


class ChatTemplate:
    """A chat template with the special tokens that it may use."""

    def __init__(self, source: str, special: Mapping[str, str], place: str) -> None:
        """Compile it.

        Args:
            source: The template, in jinja2.
            special: Special tokens by name, such as `eos_token`.
            place: Prefix of error messages.

        Raises:
            DataError: The template cannot be parsed.
        """
        self.source = source
        self._special = dict(special)
        self._place = place
        self._ask(None, "cannot be read")

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """The text of a chat, up to where the assistant starts to write; `tools` as in OpenAI's API.

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
        answer = _process().exchange({"source": self.source, "variables": variables})
        if "text" not in answer:
            raise DataError(f"{self._place}: the chat template {failure}: {answer['refused']}")
        return str(answer["text"])


_THOUGHT, _SAID, _HEARD = "<think>\nramify_thought\n</think>\n\n", "ramify_said", "ramify_heard"


def read_user_frame(template: ChatTemplate, end: str, place: str) -> tuple[str, str]:
    """What a template writes around a message of the user that follows a turn: from after the end token, to the next turn.

    Found by rendering one. Contexts only grow, so a template that rewrites earlier turns then (Qwen3 drops their
    thoughts) is refused.

    Args:
        template: The chat template.
        end: The text of the end token.
        place: Prefix of error messages.

    Raises:
        ConfigError: The template rewrites earlier turns, refuses such a chat, or ends turns with another token.
    """
    messages = [{"role": "user", "content": "q"}]
    try:
        asked = template.render(messages)
        messages += [
            {"role": "assistant", "content": _THOUGHT + _SAID},
            {"role": "user", "content": _HEARD},
        ]
        text = template.render(messages)
    except DataError as error:
        raise ConfigError(f"{error} (a turn of the assistant, then one of the user)") from None
    before, heard, after = text.removeprefix(asked + _THOUGHT + _SAID + end).partition(_HEARD)
    if not text.startswith(asked + _THOUGHT + _SAID + end) or not heard:
        raise ConfigError(
            f"{place}: the chat template writes an earlier turn in another way once the user speaks again; contexts only "
            "grow here, so an environment in which the user speaks needs another template"
        )
    return before, after


@cache
def _process() -> "_Process":
    return _Process()


class _Process:
    """The process that all templates of this program share; started at first use, and again after it died."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: subprocess.Popen[str] | None = None
        self._owner = 0

    def exchange(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to one request; {"refused": reason} if the request made the process die.

        Raises:
            MachineError: The process cannot be started, or something keeps killing it.
        """
        line = json.dumps(request) + "\n"
        with self._lock:
            for _ in range(2):
                answer, status = self._once(line)
                if answer:
                    return dict(json.loads(answer))
                if status == -signal.SIGPROF:
                    return {"refused": f"it takes more than {SECONDS:.0f} s of processor time"}
                if status not in (-signal.SIGKILL, -signal.SIGTERM):
                    return {"refused": f"it ended the process that renders it (status {status})"}
        raise MachineError(
            "the process that renders chat templates was killed twice; is there enough memory?"
        )

    def _once(self, line: str) -> tuple[str, int | None]:
        """The line of the answer and None; or, if the process died, an empty line and its exit status."""
        running = self._start()
        assert running.stdin is not None
        assert running.stdout is not None
        answer = ""
        try:
            with contextlib.suppress(BrokenPipeError):
                running.stdin.write(line)
                running.stdin.flush()
            answer = running.stdout.readline()
        finally:
            # After an interrupted read (Ctrl-C, say), the rest of this answer would be taken for the next one.
            if not answer.endswith("\n"):
                self._running = None
                _end(running)
        return (answer, None) if answer.endswith("\n") else ("", running.returncode)

    def _start(self) -> "subprocess.Popen[str]":
        if self._running is not None and self._owner == os.getpid() and self._running.poll() is not None:
            _end(self._running)
            self._running = None
        if self._running is None or self._owner != os.getpid():
            try:
                self._running = subprocess.Popen(
                    [sys.executable, "-P", "-X", "utf8", "-m", "ramify.chat.template_process"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONHASHSEED": "0"},
                    text=True,
                    encoding="utf-8",
                    start_new_session=True,  # so that Ctrl-C does not reach it
                )
            except OSError as error:
                raise MachineError(
                    f"cannot start the process that renders chat templates: {error.strerror}"
                ) from None
            self._owner = os.getpid()
        return self._running


def _end(process: "subprocess.Popen[str]") -> None:
    """Reap a process that has died; kill one that has not."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=1.0)
    process.kill()
    with contextlib.suppress(BrokenPipeError):
        process.communicate()
