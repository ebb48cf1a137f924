"""Base classes of branching rules and of their settings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ramify.core.config import Config, Tokens, Trajectories
from ramify.core.errors import ConfigError, DataError
from ramify.core.protocols import Json
from ramify.core.tree import Trajectory


def require_at_least_one(**counts: int) -> None:
    """Check that all counts are at least 1.

    Raises:
        ConfigError: One is not; names the first.
    """
    for name, count in counts.items():
        if count < 1:
            raise ConfigError(f"branching: {name} = {count}, expected at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleConfig(Config):
    """Settings of a branching rule; weights are per nat of the mean entropy over `probe_tokens` tokens (k)."""

    branches: ClassVar[bool] = True
    looks_at_entropy: ClassVar[bool] = True
    """Whether entropies can change a decision."""

    name: str = ""
    probe_tokens: Tokens = 20

    @property
    def needs_m(self) -> bool:
        """Whether the recipe must set m, the number of trajectories that start from the prompt."""
        return True

    @property
    def never(self) -> bool:
        """Whether the probability of a branch is 0."""
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchingConfig(RuleConfig):
    """Settings of a rule that asks for `children` branches (Z) at a positive decision, beside the parent's own path."""

    children: Trajectories = 1


class Memoryless:
    """A rule that decides from the candidate and its history alone."""

    __slots__ = ()

    def state(self) -> Mapping[str, Json]:
        """Empty: the rule has no state."""
        return {}

    def restore(self, state: Mapping[str, Json]) -> None:
        """Accept an empty state.

        Raises:
            DataError: The state is not empty, so it is that of another rule.
        """
        if state:
            raise DataError(f"branching: expected no state, got {sorted(state)}: it belongs to another rule")


class FixedRoots(Memoryless):
    """A rule whose trees start with m trajectories; `children` is Z, the branches that a positive decision asks for."""

    __slots__ = ()
    m: int
    children: int

    @property
    def num_monitor(self) -> int:
        """0: the number of roots is known at once."""
        return 0

    @property
    def max_children(self) -> int:
        """Z, the same at every candidate."""
        return self.children

    @property
    def keeps_slot_order(self) -> bool:
        """False: the roots are served in random order."""
        return False

    def first_roots(self, n: int) -> int:
        """All m.

        Raises:
            ConfigError: n is below 1, or m above n.
        """
        return self.num_roots(n, ())

    def num_roots(self, n: int, monitor: Sequence[Trajectory]) -> int:
        """The fixed m.

        Raises:
            ConfigError: n is below 1, or m above n.
        """
        del monitor
        require_at_least_one(n=n)
        if self.m > n:
            raise ConfigError(f"branching: m = {self.m} roots, expected at most n = {n}")
        return self.m
