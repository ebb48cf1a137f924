"""Base classes of most branching rules: rules without state, and rules whose number of roots the recipe sets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedRoots(Memoryless):
    """A rule whose trees start with m trajectories.

    Attributes:
        m: Trajectories that start from the prompt.
        children: Branches that a positive decision asks for (Z), beside the parent's own continuation.
        probe_tokens: Tokens that the entropy is averaged over (k).

    Raises:
        ConfigError: A count is below 1.
    """

    m: int
    children: int
    probe_tokens: int

    def __post_init__(self) -> None:
        require_at_least_one(m=self.m, children=self.children, probe_tokens=self.probe_tokens)

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
