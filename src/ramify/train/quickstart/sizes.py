"""How large a quick start is."""

from dataclasses import dataclass

from ramify.data.world import WorldSettings


@dataclass(frozen=True, slots=True)
class QuickstartSize:
    """Sizes of a quick start; step counts follow from them and from the recipes' batch sizes.

    Attributes:
        world: Difficulty of the world and problems of each split.
        num_demonstrations: For the cold start.
    """

    world: WorldSettings
    num_demonstrations: int


FULL = QuickstartSize(
    world=WorldSettings(num_train=900, num_dev=100, num_test=500, num_seen=250), num_demonstrations=36_000
)
SMOKE = QuickstartSize(
    world=WorldSettings(num_train=30, num_dev=10, num_test=20, num_seen=20, num_demo_editions=10),
    num_demonstrations=480,
)
