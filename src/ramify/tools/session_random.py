"""The global generators of `random` and `numpy.random`, of which each session of an environment has its own.

Classes for TRL draw from the global generators. Seeding these around a method would need a lock, which a method that hangs
never releases, and another trajectory's method could still draw in between. So the module functions ask which session
runs: in a method of a session they draw from its own generators, and anywhere else from the global ones, as before.
"""

import functools
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class SessionRandom:
    """The generators of one session."""

    python: random.Random
    numpy: np.random.RandomState

    @classmethod
    def of(cls, seed: int) -> "SessionRandom":
        """Return generators that begin at `seed`."""
        return cls(random.Random(seed), np.random.RandomState(seed % 2**32))

    @contextmanager
    def active(self) -> Iterator[None]:
        """Let the module functions draw from these generators, in this context and in threads that inherit it."""
        token = _ACTIVE.set(self)
        try:
            yield
        finally:
            _ACTIVE.reset(token)


_ACTIVE: ContextVar[SessionRandom | None] = ContextVar("session random", default=None)
_INSTALLING = threading.Lock()
_ALIASES = {"ranf": "random_sample", "sample": "random_sample"}
"""Functions of `numpy.random` under other names than the methods."""


def install() -> None:
    """Let the functions of both modules ask for the active session; the second call does nothing.

    Functions that a module imported by name before this call still draw from the global generators.
    """
    with _INSTALLING:
        if getattr(random.random, "asks_session", False):
            return
        for name in dir(random.Random):
            if name in random.__all__:
                _replace(random, name, lambda own: own.python, name)
        for name in np.random.__all__:
            method = _ALIASES.get(name, name)
            if hasattr(np.random.RandomState, method):
                _replace(np.random, name, lambda own: own.numpy, method)


def _replace(module: ModuleType, name: str, generator: Callable[[SessionRandom], Any], method: str) -> None:
    """Replace a function of a module by one that draws from the active session, if there is one."""
    original = getattr(module, name)

    @functools.wraps(original)
    def draw(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - whatever the original takes and returns
        session = _ACTIVE.get()
        function = original if session is None else getattr(generator(session), method)
        return function(*args, **kwargs)

    draw.asks_session = True  # type: ignore[attr-defined]
    setattr(module, name, draw)
