"""Trees that are recorded as they come, so that a run which was interrupted goes on to the same file."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from ramify.core.records import ScoredTree
from ramify.obs.console import Phase, RunConsole
from ramify.obs.trace import TracedTree, tree_record
from ramify.obs.trace_index import index_path, write_index
from ramify.rollout.plan import TreeRequest
from ramify.runs.keyed_lines import Key, KeyedLines, key_of
from ramify.runtime.agent_loop import StopOnSignal
from ramify.sampler.sampler import Sampler

GROUP = 1024
"""Trees that are planned at a time, where none must be grown together with others."""


def in_groups(planned: Iterable[TreeRequest], size: int | None) -> Iterator[tuple[TreeRequest, ...]]:
    """Yield the trees in groups that are grown one after another; None: all of them in one."""
    left = iter(planned)
    while group := tuple(islice(left, size)):
        yield group


def done_in(group: Iterable[Key], recorded: Set[Key], *, whole: bool) -> frozenset[Key]:
    """Return the keys of a group that are done; of a group that is grown as a whole, all or none."""
    keys = frozenset(group)
    return frozenset() if whole and not keys <= recorded else keys & recorded


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
        # The same weights again: what the engine kept of the group before would change the shape of its computations.
        if whole:
            await sampler.agent.engine.load_weights(0)
        await sampler.grow_each(group, keep, lambda waits: phase.advance(0, waiting=waits))


@dataclass(frozen=True, slots=True)
class TreeRecorder:
    """Grows trees into files, one line each.

    Attributes:
        console: Shows the progress.
        stop: Ends it on a signal; what was recorded stays.
        whole: Number of sequences that are written together, so that the last bits of their logprobs are the same in any
            session; None: each tree can be grown alone.
    """

    console: RunConsole
    stop: StopOnSignal
    whole: int | None

    def grow(
        self, title: str, path: Path, sampler: Sampler, planned: Iterable[TreeRequest], most: int
    ) -> None:
        """Grow what a file lacks, and put it in the order of `planned`, which has at most `most` trees.

        A problem's trees differ in `TreeKey.attempt`.

        Raises:
            DataError: Nothing was there, and no problem worked.
            RunInterruptedError: Ctrl-C or SIGTERM.
        """
        lines = _lines_of(path)
        old_notes = sampler.timing.failure_notes()
        path.parent.mkdir(parents=True, exist_ok=True)
        recorded = lines.keys()
        index_path(path).unlink(missing_ok=True)
        # Also drops a last line that was cut off.
        lines.keep(recorded)
        order: list[Key] = []
        recording = asyncio.Lock()
        whole = self.whole is not None
        with self.console.phase(title, most) as phase:

            async def keep(scored: ScoredTree, seconds: float) -> None:
                del seconds
                sampler.timing.take((scored.tree.key.step, scored.tree.key.slot))
                record = tree_record(TracedTree(scored.tree, scored.rewards))
                async with recording:
                    await asyncio.to_thread(lines.append, record)
                phase.advance(1)

            for group in in_groups(planned, self._size(sampler)):
                keys = [_key(tree) for tree in group]
                done = done_in(keys, recorded, whole=whole)
                if dropped := (recorded & set(keys)) - done:
                    lines.keep(lines.keys() - dropped)
                order += keys
                phase.advance(len(done))
                if left := [tree for tree in group if _key(tree) not in done]:
                    self.stop.run(grow_in_groups(sampler, [left], keep, phase, whole=whole))
        lines.sort(order)
        if path.exists():
            write_index(path)
        for note in sampler.timing.failure_notes():
            if note not in old_notes:
                self.console.note(note)
        if not recorded:
            sampler.scoring.require_success()

    def _size(self, sampler: Sampler) -> int:
        return GROUP if self.whole is None else max(1, self.whole // sampler.agent.limits.n)


def _key(planned: TreeRequest) -> Key:
    return planned.problem.id, planned.key.attempt


def recorded_keys(path: Path) -> frozenset[Key]:
    """Return the keys of the trees in a file that `TreeRecorder` writes; none if it is not there.

    Raises:
        DataError: It cannot be read.
    """
    return _lines_of(path).keys()


def _lines_of(path: Path) -> KeyedLines:
    return KeyedLines(path, lambda record: key_of(record["problem"]["id"], record["key"]["attempt"]))
