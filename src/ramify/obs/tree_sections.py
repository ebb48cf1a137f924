"""Parts of a page that are made from a step's trees: a drawn tree, its problems, and the trajectories that failed."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ramify.core.errors import DataError
from ramify.core.messages import MalformedTurn, ToolStatus
from ramify.core.tree import StopReason, Trajectory
from ramify.obs.page import FoldedText, Section, Table, in_a_line
from ramify.obs.trace import TracedTree
from ramify.obs.trace_index import TreeSummary, read_index, read_tree
from ramify.obs.tree_drawing import LEGEND, conversation, draw_tree, trajectory_texts

_MOST_PROBLEMS = 20
_MOST_FAILURES = 5
_QUESTION_CHARS = 120
_FAILED = (ToolStatus.ERROR, ToolStatus.TIMEOUT)
_FAILED_FLAGS = ("malformed", "truncated", "tool_failed")


@dataclass(frozen=True, slots=True)
class StepTrees:
    """A trace with the summaries of its trees; only the trees that a page shows are read."""

    path: Path
    summaries: tuple[TreeSummary, ...]

    @classmethod
    def read(cls, path: Path, note: Callable[[str], None]) -> "StepTrees":
        """Read the summaries; `note` gets a line if the trace is cut off or cannot be read."""
        try:
            return cls(path, read_index(path, note))
        except DataError as error:
            note(str(error))
            return cls(path, ())

    @property
    def name(self) -> str:
        """The step, for a heading."""
        return self.path.stem.lstrip("0") or "0"

    def trees(self) -> Iterator[TracedTree]:
        """Yield all trees.

        Raises:
            DataError: One cannot be read.
        """
        return (read_tree(self.path, summary) for summary in self.summaries)

    def tree_section(self, heading: str) -> Section:
        """Return the most telling tree: one with right and wrong leaves, of these one with most branches, and not a deep one.

        Raises:
            DataError: It cannot be read.
        """
        traced = read_tree(self.path, max(self.summaries, key=_interest))
        problem = traced.tree.problem
        accepted = f" Accepted: {' | '.join(problem.answer)}" if problem.answer else ""
        return Section(
            heading,
            f"{in_a_line(problem.messages[-1].text, _QUESTION_CHARS)}{accepted}",
            legend=LEGEND,
            drawing=draw_tree(traced),
            texts=trajectory_texts(traced),
        )

    def problems_table(self, title: str) -> Table:
        """Return a table of the problems with the smallest rewards."""
        ranked = [(each.mean, each) for each in self.summaries if each.mean is not None]
        ranked.sort(key=lambda pair: pair[0])
        rows = [
            (
                each.problem,
                in_a_line(each.question, _QUESTION_CHARS),
                f"{each.right} of {each.trajectories}",
                mean,
            )
            for mean, each in ranked[:_MOST_PROBLEMS]
        ]
        return Table(title, ("problem", "question", "reward above 0", "mean reward"), rows)

    def failure_texts(self) -> tuple[FoldedText, ...]:
        """Return trajectories that were malformed, cut or failed, or in which a call did, with what the policy read.

        Raises:
            DataError: A tree cannot be read.
        """
        failed = [each for each in self.summaries if not {*each.flags}.isdisjoint(_FAILED_FLAGS)]
        texts = (_failure_text(read_tree(self.path, each)) for each in failed[:_MOST_FAILURES])
        return tuple(text for text in texts if text is not None)


def _failure_text(traced: TracedTree) -> FoldedText | None:
    for trajectory in traced.tree.trajectories:
        if reason := _failure(trajectory):
            return FoldedText(f"{traced.tree.problem.id}: {reason}", conversation(trajectory.nodes))
    return None


def _failure(trajectory: Trajectory) -> str:
    turn = trajectory.leaf.turn
    if isinstance(turn, MalformedTurn):
        return f"malformed turn: {turn.reason}"
    if trajectory.stop not in (StopReason.ANSWERED, StopReason.ENDED):
        return f"ended by {trajectory.stop}"
    failed = [(call, result) for call, result in trajectory.exchanges if result.status in _FAILED]
    return f"call of {failed[0][0].name}: {failed[0][1].status}" if failed else ""


def _interest(summary: TreeSummary) -> tuple[bool, int, int]:
    return "mixed" in summary.flags, summary.branches, -summary.depth
