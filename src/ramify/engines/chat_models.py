"""Chat models that are at hand: the policy itself, and a function of the user's own."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ramify.core.draws import stream
from ramify.core.errors import ConfigError, RamifyError
from ramify.core.messages import Message, Problem
from ramify.core.protocols import Engine, Renderer
from ramify.core.records import Finish, Request, TokenUsage
from ramify.core.tree import Node, Source, Trajectory
from ramify.daemon_threads import DaemonThreads
from ramify.engines.openai import after_thinking
from ramify.net.failures import FailureKind, RequestFailedError
from ramify.user_files import one_line

_THREADS = 32


class PolicyChat:
    """Implements `core.protocols.ChatModel` with the engine that writes the trajectories.

    The draws of an answer are a hash of the request, so equal requests get equal answers, whenever they come.
    """

    def __init__(self, engine: Engine, renderer: Renderer, seed: int) -> None:
        """`renderer` shows no tools; whoever creates the engine closes it."""
        self._engine, self._renderer, self._seed = engine, renderer, seed
        self.usage = TokenUsage()

    @property
    def name(self) -> str:
        """The policy, with the version of its weights."""
        return f"policy {self._engine.info().policy_version}"

    async def complete(self, messages: Sequence[Message], *, max_tokens: int, temperature: float) -> str:
        """The answer's text, without the reasoning before it.

        Raises:
            RequestFailedError: The request does not fit the engine's context.
            EngineError: The engine failed.
        """
        problem = Problem("helper", tuple(messages), ())
        ids = self._renderer.start(problem)
        room = self._engine.info().context_tokens - len(ids)
        if room < 1:
            raise RequestFailedError(
                FailureKind.TOO_LARGE, f"the policy's context has no room for a request of {len(ids)} tokens"
            )
        prompt = Node("", (), None, Source.PROMPT, ids, self._renderer.decode(ids))
        done = await self._engine.generate(
            Request(
                token_ids=ids,
                seed=stream(self._seed, "helper", ids),
                max_new_tokens=min(max_tokens, room),
                temperature=temperature,
                path=Trajectory(problem, (prompt,)),
            )
        )
        self.usage = TokenUsage(
            self.usage.answers + 1,
            self.usage.prompt_tokens + len(ids),
            self.usage.completion_tokens + len(done.token_ids),
        )
        written = done.token_ids[:-1] if done.finish is Finish.EOS else done.token_ids
        return after_thinking(self._renderer.decode(written))

    async def close(self) -> None:
        """Nothing: the engine is somebody else's."""


@dataclass(slots=True)
class OwnChat:
    """Implements `core.protocols.ChatModel` with a function of the user's own: `helper(messages, **args) -> str`.

    It gets a list of {"role", "content"}. One that is not `async` runs in a thread.

    Raises:
        ConfigError: `function` is no function, or cannot take its arguments.
    """

    function: Callable[..., Any]
    name: str
    args: Mapping[str, Any] = field(default_factory=dict)
    usage: TokenUsage = field(default_factory=TokenUsage, init=False)
    _threads: DaemonThreads = field(init=False)

    def __post_init__(self) -> None:
        self._threads = DaemonThreads(f"helper {self.name}", _THREADS)
        if inspect.isclass(self.function):
            raise ConfigError(f"helper {self.name}: expected a function, found a class")
        try:
            inspect.signature(self.function).bind(None, **self.args)
        except TypeError as error:
            raise ConfigError(
                f"helper {self.name}: expected {self.name}(messages, **args): {error}"
            ) from None

    async def complete(self, messages: Sequence[Message], *, max_tokens: int, temperature: float) -> str:
        """What the function answers.

        Raises:
            RequestFailedError: It failed, or answered with something else than text.
        """
        del max_tokens, temperature
        asked = [{"role": message.role, "content": message.text} for message in messages]
        try:
            if inspect.iscoroutinefunction(self.function):
                answer = await self.function(asked, **self.args)
            else:
                answer = await self._threads.result(
                    self._threads.submit(partial(self.function, asked, **self.args))
                )
        except RamifyError:
            raise
        # Anybody's code: what it raises is a request that failed.
        except Exception as error:  # noqa: BLE001
            raise RequestFailedError(FailureKind.MALFORMED, f"{self.name}: {one_line(error)}") from None
        if not isinstance(answer, str):
            raise RequestFailedError(
                FailureKind.MALFORMED, f"{self.name}: expected text, got {type(answer).__name__}"
            )
        self.usage = TokenUsage(self.usage.answers + 1)
        return answer

    async def close(self) -> None:
        """Nothing."""
