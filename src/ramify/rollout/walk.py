"""Where a trajectory stands between two nodes of the policy."""

from dataclasses import dataclass, replace

from ramify.core.tree import BranchDecision, Entropy, NodePath
from ramify.rollout.grants import BranchKey
from ramify.rollout.sessions import Sessions


@dataclass(frozen=True, slots=True)
class Walk:
    """A trajectory just before its next policy node.

    Attributes:
        key: Its place in the order of grants; None for a top-up, which never branches.
        path: Of the policy node that comes next.
        context: Tokens of the current context so far.
        spent: Tokens after the prompt.
        calls: Tool calls made.
        depth: Tool results on the path.
        decided: Of these, how many the branching rule has decided on.
        turns: Entropies of the first k tokens of the turns so far.
        own_from: How many of `turns` were inherited.
        history: Decisions on its path.
        sessions: Its tools' states; None before they are opened.
        deadline: When it is cut, on the event loop's clock; None: never.
        shared: Tokens at the end of `context` that belong to the turn that comes next: its branches share them.
        shared_text: These tokens as text, without the beginning of a character that they break off in.
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
        """After a turn has begun: its entropy, and what was decided on the result before it."""
        walk = self if entropy is None else replace(self, turns=(*self.turns, entropy))
        if decision is None:
            return walk
        return replace(walk, history=(*walk.history, decision), decided=walk.depth)

    def added(self, path: NodePath, token_ids: tuple[int, ...]) -> "Walk":
        """With tokens added to the context; the next policy node is the first child of `path`."""
        return replace(
            self,
            path=(*path, 0),
            context=self.context + token_ids,
            spent=self.spent + len(token_ids),
            shared=0,
            shared_text="",
        )
