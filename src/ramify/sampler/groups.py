"""Trees in groups, so that a run that was interrupted goes on to the same files."""

from collections.abc import Awaitable, Callable, Iterable, Sequence, Set

from ramify.core.records import ScoredTree
from ramify.obs.console import Phase
from ramify.rollout.plan import TreeRequest
from ramify.runs.keyed_lines import Key
from ramify.sampler.sampler import Sampler


def in_groups(planned: Sequence[TreeRequest], size: int | None) -> tuple[tuple[TreeRequest, ...], ...]:
    """The trees in groups that are grown one after another."""
    each = size or max(1, len(planned))
    return tuple(tuple(planned[start : start + each]) for start in range(0, len(planned), each))


def done_of(groups: Sequence[Sequence[TreeRequest]], found: Set[Key], size: int | None) -> frozenset[Key]:
    """The keys among `found` that count as done: of groups that are grown as a whole, those of whole ones."""
    kept = [group for group in groups if size is None or all(line_key(one) in found for one in group)]
    return frozenset(line_key(one) for group in kept for one in group if line_key(one) in found)


async def grow_in_groups(
    sampler: Sampler,
    groups: Iterable[Sequence[TreeRequest]],
    keep: Callable[[ScoredTree, float], Awaitable[None]],
    phase: Phase,
    *,
    whole: bool,
) -> None:
    """Grow and score one group after the other; `keep` gets each tree, and the seconds that it took, when it is scored.

    Args:
        sampler: The agent and its reward.
        groups: The trees.
        keep: Records a tree.
        phase: Shows what the rollout is waiting for; whoever records advances it.
        whole: Groups are grown as a whole, so what is left of the last one must not change the numerics.
    """
    for group in groups:
        if whole:
            await sampler.agent.engine.load_weights(0)
        await sampler.grow_each(group, keep, lambda waits: phase.advance(0, waiting=waits))


def line_key(planned: TreeRequest) -> Key:
    """The key of a tree's lines."""
    return planned.problem.id, planned.key.step
