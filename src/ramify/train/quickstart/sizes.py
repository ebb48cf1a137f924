"""How large a quick start is."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ramify.data.world import WorldSettings


@dataclass(frozen=True, slots=True)
class QuickstartSize:
    """Sizes of a quick start; step counts follow from them and from the recipes' batch sizes.

    Attributes:
        world: Difficulty of the world and problems of each split.
        num_demonstrations: For the cold start.
        sft_warmup: Optimizer steps over which the cold start's rate rises.
        rl_warmup: The same of RL.
        preflight: Whether RL looks first at what the cold start gives; a smoke run learns nothing anyway.
        shares: Of the time that each phase takes, as measured, by its name on the console.
    """

    world: WorldSettings
    num_demonstrations: int
    sft_warmup: int
    rl_warmup: int
    preflight: bool
    shares: Mapping[str, float]

    @property
    def limits(self) -> Mapping[str, int]:
        """Tokens and calls that a question of the world's difficulty can need, with room to try again."""
        harder = self.world.difficulty > 1
        return {"max_tokens": 256, "max_calls": 10} if harder else {"max_tokens": 180, "max_calls": 7}

    def at(self, difficulty: int) -> "QuickstartSize":
        """The same size in a world of another difficulty."""
        return replace(self, world=replace(self.world, difficulty=difficulty))


FULL = QuickstartSize(
    world=WorldSettings(num_train=750, num_dev=100, num_test=500, num_seen=250),
    num_demonstrations=19_200,
    sft_warmup=50,
    rl_warmup=5,
    preflight=True,
    shares={"data": 0.03, "SFT": 0.50, "RL": 0.37, "evaluation": 0.10},
)
SMOKE = QuickstartSize(
    world=WorldSettings(num_train=30, num_dev=10, num_test=20, num_seen=20, num_demo_editions=10),
    num_demonstrations=480,
    sft_warmup=3,
    rl_warmup=1,
    preflight=False,
    shares={"data": 0.05, "SFT": 0.20, "RL": 0.25, "evaluation": 0.50},
)
