"""The state of a trajectory between two policy nodes."""

from dataclasses import dataclass, replace

from ramify.core.tree import BranchDecision, Entropy, NodePath
from ramify.rollout.grants import BranchKey
from ramify.rollout.sessions import Sessions


@dataclass(frozen=True, slots=True)
class Walk:
    """A trajectory just before its next policy node.

    Attributes:
        key: Its place in the order of grants; None for a top-up, which never branches.
        path: Path of the next policy node.
        context: Tokens of the current context so far.
        spent: Number of tokens after the prompt.
        calls: Number of tool calls made.
        depth: Number of tool results on the path.
        decided: How many of these the branching rule has decided on.
        turns: Entropies of the first k tokens of the turns so far.
        own_from: How many of `turns` were inherited.
        history: Branching decisions on the path.
        sessions: Its tool sessions; None before they are opened.
        deadline: When it is cut, on the event loop's clock; None: never.
        shared: Number of tokens at the end of `context` that belong to the next turn, whose branches share them.
        shared_text: The text of these tokens, without an incomplete character at the end.
    """

    key: BranchKey | None
    path: NodePath
    context: tuple[int, ...]
    spent: int = 0
    calls: int = 0
    depth: int = 0
    decided: int = 0
    turns: tuple[Entropy, ...] = ()
    own_from: int = 0
    history: tuple[BranchDecision, ...] = ()
    sessions: Sessions | None = None
    deadline: float | None = None
    shared: int = 0
    shared_text: str = ""

    def heard(self, entropy: Entropy | None, decision: BranchDecision | None) -> "Walk":
        """The walk after a turn has begun: adds its entropy, and the decision on the result before it."""
        walk = self if entropy is None else replace(self, turns=(*self.turns, entropy))
        if decision is None:
            return walk
        return replace(walk, history=(*walk.history, decision), decided=walk.depth)

    def added(self, path: NodePath, token_ids: tuple[int, ...]) -> "Walk":
        """The walk with tokens added to its context; the next policy node is the first child of `path`."""
        return replace(
            self,
            path=(*path, 0),
            context=self.context + token_ids,
            spent=self.spent + len(token_ids),
            shared=0,
            shared_text="",
        )
