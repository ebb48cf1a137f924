"""Stops modules from registering hooks that run in every forked child. Standard library only; imported first.

`random` would reseed itself, and `threading` would look for threads that are gone. A zygote has no threads, and all
its children should start alike. At level 0 a snippet can fork as well; its children do need the hooks.
"""

import os
from collections.abc import Callable
from typing import Any

_register: Callable[..., None] = os.register_at_fork
_postponed: list[dict[str, Any]] = []


def _postpone(**hooks: Callable[[], object]) -> None:
    _postponed.append(hooks)


os.register_at_fork = _postpone  # type: ignore[assignment]


def stop_postponing(register: bool) -> None:
    """Stop postponing hooks; register or drop the postponed ones."""
    os.register_at_fork = _register
    if register:
        for hooks in _postponed:
            _register(**hooks)
