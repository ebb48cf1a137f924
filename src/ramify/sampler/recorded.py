"""Trees that are recorded as they come, so that a run which was interrupted goes on to the same file."""

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from ramify.core.records import ScoredTree
from ramify.obs.console import RunConsole
from ramify.obs.trace import TracedTree, tree_record
from ramify.rollout.plan import TreeRequest
from ramify.runs.keyed_lines import Key, KeyedLines, key_of
from ramify.runtime.agent_loop import StopOnSignal
from ramify.sampler.groups import grow_in_groups
from ramify.sampler.sampler import Sampler

GROUP = 1024
"""Trees that are planned at a time, where none must be grown together with others."""


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
        lines, told = _tree_lines(path), sampler.timing.failure_notes()
        path.parent.mkdir(parents=True, exist_ok=True)
        found = lines.keys()
        # Also drops a last line that was cut off.
        lines.keep(found)
        keys: list[Key] = []
        recording = asyncio.Lock()
        with self.console.phase(title, most) as phase:

            async def keep(scored: ScoredTree, seconds: float) -> None:
                del seconds
                sampler.timing.take((scored.tree.key.step, scored.tree.key.slot))
                record = tree_record(TracedTree(scored.tree, scored.rewards))
                async with recording:
                    await asyncio.to_thread(lines.append, record)
                phase.advance(1)

            for group in _chunks(planned, self._size(sampler)):
                keys += [_key(one) for one in group]
                done = {_key(one) for one in group} & found
                if self.whole is not None and len(done) < len(group):
                    lines.keep(lines.keys() - done)
                    done = set()
                phase.advance(len(done))
                if left := [one for one in group if _key(one) not in done]:
                    self.stop.run(grow_in_groups(sampler, [left], keep, phase, whole=self.whole is not None))
        lines.sort(keys)
        for note in sampler.timing.failure_notes():
            if note not in told:
                self.console.note(note)
        if not found:
            sampler.scoring.require_success()

    def _size(self, sampler: Sampler) -> int:
        return GROUP if self.whole is None else max(1, self.whole // sampler.agent.limits.n)


def _tree_lines(path: Path) -> KeyedLines:
    return KeyedLines(path, lambda record: key_of(record["problem"]["id"], record["key"]["attempt"]))


def _key(planned: TreeRequest) -> Key:
    return planned.problem.id, planned.key.attempt


def _chunks(planned: Iterable[TreeRequest], size: int) -> Iterator[tuple[TreeRequest, ...]]:
    rest = iter(planned)
    while chunk := tuple(islice(rest, size)):
        yield chunk
