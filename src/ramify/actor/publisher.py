"""How the learner's weights reach the engine: the only part of a run that sees both."""

from dataclasses import dataclass

from ramify.core.protocols import Engine


@dataclass(frozen=True, slots=True)
class SharedPublisher:
    """One process: the engine reads the learner's own tensors, so only what it computed from older ones is dropped."""

    engine: Engine

    async def publish(self, version: int) -> None:
        """Have the engine use the weights as they are now, under this version number.

        Raises:
            EngineError: Sequences are being written.
        """
        await self.engine.load_weights("shared", version)
