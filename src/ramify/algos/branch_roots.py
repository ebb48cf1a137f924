"""What most branching rules share: they remember nothing, and the recipe gives the number of their roots."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ramify.core.errors import ConfigError, DataError
from ramify.core.protocols import Json
from ramify.core.tree import Trajectory


def require_at_least_one(**counts: int) -> None:
    """Refuse counts below one.

    Raises:
        ConfigError: Names the first of them.
    """
    for name, count in counts.items():
        if count < 1:
            raise ConfigError(f"branching: {name} = {count}, expected at least 1")


class Memoryless:
    """A rule that decides from the candidate and its history alone."""

    __slots__ = ()

    def state(self) -> Mapping[str, Json]:
        """Nothing."""
        return {}

    def restore(self, state: Mapping[str, Json]) -> None:
        """There is nothing to remember.

        Raises:
            DataError: It is the state of another rule.
        """
        if state:
            raise DataError(f"branching: a state with {sorted(state)}, expected none: it is of another rule")


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedRoots(Memoryless):
    """A rule whose trees start with m trajectories.

    Attributes:
        m: Trajectories that start from the prompt.
        children: Branches that a positive decision asks for (Z), beside the parent's own continuation.
        probe_tokens: k, tokens that the entropy is averaged over.

    Raises:
        ConfigError: One of them is below 1.
    """

    m: int
    children: int
    probe_tokens: int

    def __post_init__(self) -> None:
        require_at_least_one(m=self.m, children=self.children, probe_tokens=self.probe_tokens)

    @property
    def num_monitor(self) -> int:
        """The number of roots is known at once."""
        return 0

    @property
    def max_children(self) -> int:
        """Z."""
        return self.children

    @property
    def keeps_slot_order(self) -> bool:
        """The order of the roots is drawn."""
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
