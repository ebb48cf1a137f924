"""Chat models that are at hand: the policy itself, and a function of the user's own."""

import asyncio
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ramify.chat.renderer import ChatRenderer
from ramify.core.draws import stream
from ramify.core.errors import DataError, RamifyError
from ramify.core.messages import Message, Problem
from ramify.core.protocols import Engine
from ramify.core.records import Finish, Request, TokenUsage
from ramify.core.tree import Node, Source, Trajectory
from ramify.engines.openai import after_thinking
from ramify.files.user_code import check_signature, one_line
from ramify.net.failures import FailureKind, RequestFailedError
from ramify.runtime.call_clock import queued
from ramify.runtime.daemon_threads import DaemonThreads

_THREADS = 32


class PolicyChat:
    """Implements `core.protocols.ChatModel` with the engine that writes the trajectories.

    The draws of an answer are a hash of the request, so equal requests get equal answers, whenever they come. For a tool's
    deadline the time of an answer is time in a queue of ours, so nothing depends on how fast the engine is.
    """

    def __init__(self, engine: Engine, renderer: ChatRenderer, seed: int) -> None:
        """Whoever creates the engine closes it. Its tools are not shown."""
        self._engine, self._renderer, self._seed = engine, renderer, seed
        self._takes_system = _takes_system(renderer)
        self.usage = TokenUsage()

    @property
    def name(self) -> str:
        """The policy, with the version of its weights."""
        return f"policy {self._engine.info().policy_version}"

    async def complete(self, messages: Sequence[Message], *, max_tokens: int, temperature: float) -> str:
        """The answer's text, without the reasoning before it.

        Raises:
            RequestFailedError: The request does not fit the engine's context, or the answer was cut.
            EngineError: The engine failed.
        """
        prompt_messages = tuple(messages) if self._takes_system else _without_system(messages)
        problem = Problem("helper", prompt_messages, ())
        ids = self._renderer.render_prompt(problem, ())
        room = self._engine.info().context_tokens - len(ids)
        if room < 1:
            raise RequestFailedError(
                FailureKind.TOO_LARGE, f"the policy's context has no room for a request of {len(ids)} tokens"
            )
        prompt = Node("", (), None, Source.PROMPT, ids, self._renderer.decode(ids))
        request = Request(
            token_ids=ids,
            seed=stream(self._seed, "helper", ids),
            max_new_tokens=min(max_tokens, room),
            temperature=temperature,
            path=Trajectory(problem, (prompt,)),
        )
        with queued():
            done = await self._engine.generate(request)
        self.usage = TokenUsage(
            self.usage.answers + 1,
            self.usage.prompt_tokens + len(ids),
            self.usage.completion_tokens + len(done.token_ids),
        )
        if done.finish is Finish.LENGTH:
            raise RequestFailedError(FailureKind.CUT, f"{len(done.token_ids)} tokens did not suffice")
        written = done.token_ids[:-1] if done.finish is Finish.EOS else done.token_ids
        return after_thinking(self._renderer.decode(written))

    async def close(self) -> None:
        """Nothing: the engine is somebody else's."""


def _takes_system(renderer: ChatRenderer) -> bool:
    """Return True if the chat template shows a system message."""
    tried = (Message.of("system", "ramify_system"), Message.of("user", "?"))
    try:
        return "ramify_system" in renderer.prompt_text(Problem("helper", tried, ()), ())
    except DataError:
        return False


def _without_system(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return the messages with the text of a system message put at the beginning of the next one."""
    first, *others = messages
    if first.role != "system":
        return tuple(messages)
    return (Message.of(others[0].role, f"{first.text}\n\n{others[0].text}"), *others[1:])


@dataclass(slots=True)
class OwnChat:
    """Implements `core.protocols.ChatModel` with a function of the user's own: `helper(messages, **args) -> str`.

    It gets a list of {"role", "content"}. It runs in a thread, an `async` one in an event loop of its own there.

    Attributes:
        function: The function.
        called: What messages call it.
        args: Its further arguments.
        file: Name and checksum of its file.

    Raises:
        ConfigError: `function` is no function, or cannot take its arguments.
    """

    function: Callable[..., Any]
    called: str
    args: Mapping[str, Any]
    file: str
    usage: TokenUsage = field(default_factory=TokenUsage, init=False)
    _threads: DaemonThreads = field(init=False)

    def __post_init__(self) -> None:
        self._threads = DaemonThreads(f"helper {self.called}", _THREADS)
        check_signature(self.function, f"helper {self.called}", self.called, ("messages",), self.args)

    @property
    def name(self) -> str:
        """All that an answer depends on besides the messages: answers are recorded under it."""
        return f"{self.file} {self.called} {json.dumps(self.args, sort_keys=True, default=str)}"

    async def complete(self, messages: Sequence[Message], *, max_tokens: int, temperature: float) -> str:
        """Return the function's answer.

        Raises:
            RequestFailedError: The function failed, or its answer is not text.
        """
        del max_tokens, temperature
        entries = [{"role": message.role, "content": message.text} for message in messages]
        answer = await self._threads.result(self._threads.submit(partial(self._answer, entries)))
        if not isinstance(answer, str):
            raise RequestFailedError(
                FailureKind.MALFORMED, f"{self.called}: expected text, got {type(answer).__name__}"
            )
        self.usage = TokenUsage(self.usage.answers + 1)
        return answer

    def _answer(self, entries: list[dict[str, str]]) -> object:
        """Call the function; an `async` one gets an event loop of its own, in this thread."""
        try:
            answer = self.function(entries, **self.args)
            return asyncio.run(answer) if inspect.iscoroutine(answer) else answer
        except RamifyError:
            raise
        # Anybody's code: what it raises is a request that failed, also an exit or a cancellation, which are not ours here.
        except BaseException as error:  # noqa: BLE001
            raise RequestFailedError(FailureKind.MALFORMED, f"{self.called}: {one_line(error)}") from None

    async def close(self) -> None:
        """Nothing."""
