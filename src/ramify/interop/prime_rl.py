"""Our advantages in prime-rl, as one of its algorithms.

prime-rl knows algorithms by the names in its own table, so `install` puts ours in the place of one of them, "grpo" for instance: in
the process of the orchestrator, before it builds its algorithms.

Credit lies on the nodes of a rollout, one number for each token that the policy sampled. A rollout whose `info["ramify"]` holds a
lineage, such as "0:40 0.0.1:12", shares nodes with others of its group; one without shares none.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from ramify.core.errors import DataError, MachineError
from ramify.interop.samples import Sample, SampleCredit, flat_lineage, parse_lineage

KEY = "ramify"
"""The key of a rollout's `info` that holds its lineage."""


class Message(Protocol):
    """A node of a rollout: `mask` marks the sampled tokens, `advantages` has a number for each of them."""

    mask: list[bool]
    advantages: list[float] | None


class Rollout(Protocol):
    """The part of prime-rl's rollouts, which are traces of verifiers, that is read here."""

    @property
    def nodes(self) -> Sequence[Message]:
        """The messages, in the order in which they were sampled."""

    @property
    def reward(self) -> float:
        """The reward of the whole rollout."""

    @property
    def info(self) -> dict[str, Any]:
        """Values of the environment."""

    @property
    def has_error(self) -> bool:
        """True if it failed, so that its reward says nothing."""

    @property
    def agent(self) -> Any:  # noqa: ANN401 - `trainable` says whether the policy played it
        """The agent that played it."""


def assign(credit: SampleCredit, rollouts: Sequence[Rollout]) -> None:
    """Write the advantages of a group's rollouts on their nodes.

    Raises:
        DataError: A lineage has not as many tokens as its rollout, or the lineages make no tree.
    """
    if not rollouts:
        return
    samples = [_sample(position, rollout) for position, rollout in enumerate(rollouts)]
    for rollout, values in zip(rollouts, credit.advantages([samples])[0], strict=True):
        sizes = [sum(node.mask) for node in rollout.nodes]
        for node, own in zip(rollout.nodes, np.split(values, np.cumsum(sizes)[:-1]), strict=True):
            node.advantages = own.tolist() or None


def _sample(position: int, rollout: Rollout) -> Sample:
    sizes = [size for node in rollout.nodes if (size := sum(node.mask))]
    text = rollout.info.get(KEY)
    if text is None:
        return Sample(flat_lineage(position, sizes), float(rollout.reward))
    lineage = parse_lineage(str(text))
    if sum(size for _, size in lineage) != sum(sizes):
        raise DataError(f"info.{KEY} {text!r:.80}: the rollout has {sum(sizes)} sampled tokens")
    return Sample(lineage, float(rollout.reward))


def _is_trained_on(rollout: Rollout) -> bool:
    is_clean = rollout.agent.trainable and not rollout.has_error
    return is_clean and any(any(node.mask) for node in rollout.nodes)


def algorithm_class(algorithm: Any = "arpo") -> type:  # noqa: ANN401 - a name, an object or a table
    """Return a subclass of prime-rl's `Algorithm` with the advantages of an algorithm of ours.

    Raises:
        ConfigError: The algorithm is wrong, or needs values that prime-rl does not pass.
        MachineError: prime-rl cannot be imported.
    """
    credit = SampleCredit.of(algorithm, has_batch=False)

    class RamifyAlgorithm(_package().Algorithm):  # type: ignore[misc]
        """Advantages of ramify; sampled tokens feed prime-rl's loss `rl`."""

        action_loss_type = "rl"

        async def score_group(self, group: Iterable[Any]) -> None:
            """Assign credit to the rollouts of a group that are trained on."""
            assign(credit, [trace for episode in group for trace in episode.traces if _is_trained_on(trace)])

    return RamifyAlgorithm


def install(algorithm: Any = "arpo", replaces: str = "grpo") -> None:  # noqa: ANN401
    """Let prime-rl build ours where a recipe names `algo.type = replaces`.

    Raises:
        ConfigError, MachineError: As `algorithm_class`.
    """
    _package().ALGORITHM_CLASSES[replaces] = algorithm_class(algorithm)


def _package() -> Any:  # noqa: ANN401 - prime-rl has no types here
    try:
        import prime_rl.orchestrator.algo as package
    except ImportError as error:
        raise MachineError(
            f"ramify.interop.prime_rl needs prime-rl: {error}. Run it where prime-rl is installed."
        ) from None
    return package
