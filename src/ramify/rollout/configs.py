"""Settings of what a rollout can be given besides tools and a rule."""

from dataclasses import dataclass, field
from typing import Any

from ramify.core.config import Config, Name, PositiveInt, UserPath


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriterConfig(Config):
    """A function of the user's own, `rewrite(trajectory, **args) -> GoOn | Afresh | None`, as a rewriter.

    It is asked until it has rewritten `budget` contexts of a trajectory.
    """

    path: UserPath
    function: Name
    args: dict[str, Any] = field(default_factory=dict)
    name: Name | None = None
    budget: PositiveInt = 1
