"""Whose the memory of GPUs is that the learner and the engine's servers share.

    servers start -> asleep -> dry step -> (awake -> rollout -> asleep -> update) -> ...

A server measures the free memory when it starts, and takes its share of the GPU whenever it wakes. Before either, every rank
gives back what its allocator keeps of earlier work, and no rank computes until the servers sleep again. A server that
crashes comes back in a phase of the servers only: while the learner has the memory, nothing keeps them.
"""

import asyncio
from dataclasses import dataclass

from ramify.core.protocols import Engine
from ramify.learner.parallel import Ranks


@dataclass(frozen=True, slots=True)
class MemoryPhases:
    """The switch between the phases of the servers and of the learner, on all ranks; it does nothing where they share no GPU.

    Attributes:
        engine: The engine.
        ranks: The learner's ranks.
    """

    engine: Engine
    ranks: Ranks

    async def begin(self) -> None:
        """Have the servers start, measure the memory, and sleep, before anything is computed.

        Raises:
            RamifyError: A server does not come up.
        """
        if self.engine.info().shares_gpus:
            await self.to_servers()
            await self.to_learner()

    async def to_servers(self) -> None:
        """Give back what the ranks do not use; from here to `to_learner` servers may start and wake, and no rank computes."""
        if self.engine.info().shares_gpus:
            await asyncio.to_thread(self.ranks.all, "release_memory")

    async def to_learner(self) -> None:
        """Have the servers sleep; from here to `to_servers` ranks may compute, and no server starts or wakes."""
        await self.engine.sleep()
