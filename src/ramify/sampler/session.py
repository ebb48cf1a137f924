"""The frame around everything that grows trees: an event loop, signals, and a sampler that is closed whatever happens."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from ramify.core.closing import Closable
from ramify.core.errors import RunInterruptedError
from ramify.runtime.agent_loop import AgentLoop, StopOnSignal, agent_loop

Opened = TypeVar("Opened", bound=Closable)


@dataclass(frozen=True, slots=True)
class SamplingSession(Generic[Opened]):
    """An event loop that serves an open sampler, and the signals that stop what runs in it."""

    loop: AgentLoop
    stop: StopOnSignal
    sampler: Opened


@contextmanager
def sampling(
    task: Closable, open_sampler: Callable[[], Opened], if_stopped: str = ""
) -> Iterator[SamplingSession[Opened]]:
    """Open a sampler, serve it while the block runs, and close it.

    Args:
        task: What the sampler grows trees for; it is closed with the sampler, or alone where the sampler cannot be opened.
        open_sampler: Makes the sampler, which closes its task.
        if_stopped: State in which a stopped run is left, for the message; with none, that of the block.

    Raises:
        RunInterruptedError: Ctrl-C or SIGTERM.
    """
    opened = task
    with agent_loop() as loop, StopOnSignal(loop) as stop:
        try:
            sampler = open_sampler()
            opened = sampler
            loop.freeze_objects()
            yield SamplingSession(loop, stop, sampler)
        except RunInterruptedError as stopped:
            if not if_stopped:
                raise
            raise RunInterruptedError(stopped.number, if_stopped) from None
        finally:
            loop.run(opened.close())
