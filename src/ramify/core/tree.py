"""The tree of one problem's rollout: nodes of tokens, and trajectories as views of its paths.

Each token is stored once, on the node that added it. A trajectory is a path from the prompt to a leaf. Its token
ids are those of its nodes, concatenated, so nothing is stored twice and no two copies can disagree.

    prompt ""  --+-- policy "0" -- tool "0.0" --+-- policy "0.0.0"   (the parent's own continuation)
                 |                              +-- policy "0.0.1"   (a branch)
                 +-- policy "1" ...                                  (another root)
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from types import MappingProxyType
from typing import Literal, TypeAlias

from ramify.core.messages import (
    Calls,
    Final,
    MalformedTurn,
    Message,
    ParsedTurn,
    Problem,
    ToolCall,
    ToolResult,
)

NodePath: TypeAlias = tuple[int, ...]


class Source(StrEnum):
    """Who wrote a node's tokens."""

    PROMPT = "prompt"
    POLICY = "policy"
    TOOL = "tool"


class StopReason(StrEnum):
    """Why a trajectory ended. Terminated is not truncated."""

    ANSWERED = "answered"
    """The policy gave a final answer."""
    MALFORMED = "malformed"
    """The policy ended its turn with neither a call nor an answer."""
    TOKENS = "tokens"
    """Cut: the token budget of the trajectory or the context was used up."""
    CALLS = "calls"
    """Cut: the policy made one tool call, or spoke to the environment one time, more than the limit."""
    DEADLINE = "deadline"
    """Cut: the time of the trajectory or of the step was used up."""
    ENDED = "ended"
    """The environment ended it."""
    FAILED = "failed"
    """Cut: the environment failed or took too long, or the content of the problem could not be used."""

    @property
    def truncated(self) -> bool:
        """True if a limit or a failure cut the trajectory, and the policy did not end it."""
        return self in (StopReason.TOKENS, StopReason.CALLS, StopReason.DEADLINE, StopReason.FAILED)

    @property
    def counts(self) -> bool:
        """True if the end says something about the policy: no service failed, and no clock ran out."""
        return self not in (StopReason.DEADLINE, StopReason.FAILED)


@dataclass(frozen=True, slots=True)
class Entropy:
    """A mean entropy in nats per token over `count` tokens, as a bracket; lower == upper when exact."""

    lower: float
    upper: float
    count: int = 1

    @classmethod
    def mean(cls, tokens: "tuple[Entropy, ...]") -> "Entropy | None":
        """Return the average over tokens; None when there are none."""
        if not tokens:
            return None
        total = len(tokens)
        return cls(sum(e.lower for e in tokens) / total, sum(e.upper for e in tokens) / total, total)


@dataclass(frozen=True, slots=True)
class Cut:
    """The context before a node: that of an ancestor, up to and with the first `tokens` of the ancestor's own tokens."""

    node: str
    tokens: int


Context: TypeAlias = Literal["parent", "fresh"] | Cut
"""Whose tokens stand before a node: its parent's and what stands before those; nobody's; or an ancestor's that is cut."""


@dataclass(frozen=True, slots=True)
class Node:
    """The tokens that one party added at one point of the tree.

    A turn of the policy is one node, or two if branches share its first tokens. If a deadline cut a trajectory,
    its leaf is a policy node without tokens.

    Attributes:
        id: `path` as text, "0.0.1"; "" is the prompt.
        path: Child indices from the prompt node.
        parent: Id of the parent; None for the prompt.
        source: Who wrote the tokens.
        token_ids: This node's own tokens only. [N]
        behavior_logprobs: Policy nodes: log-probability of each token under the distribution that it was
            sampled from, nats. [N]; empty on other nodes.
        entropy: Policy nodes: mean entropy of the first k tokens, if the rollout requested it.
        text: The tokens as text, for people and rewards; never encoded again.
        turn: The policy node that ends a turn: what the dialect read in the whole turn. None on other nodes.
        results: Tool nodes: the answers, in the order of the parent's calls. A leaf at which the environment ended: the
            answers to its own calls, which no policy read.
        messages: What the environment said to the policy's turn, in the same places as results.
        reward: Policy nodes: what the environment paid for the turn that ends here, and at a leaf for the whole.
        policy_version: Policy nodes: version of the weights that wrote the tokens.
        stop: Set on leaves only.
        context: Whose tokens stand before this node's. `parent` only says where the node comes from.
        rewriter: Tool nodes: the rewriter, or the hint, that chose this context and its tokens; "" if they are what usually
            follows the turn.
        token_entropies: Policy nodes: exact entropy of the distribution that each token was sampled from, nats, if the engine
            computes it. [N]; empty otherwise and on other nodes.
        exact_ids: Whether these are the sampled tokens; false if the engine returned only text.
        call_from: Policy nodes whose turn ends in calls: index of the token in which the first call begins, counted from the
            node's first token; below 0 if it lies in the tokens before the node that belong to the same turn.
    """

    id: str
    path: NodePath
    parent: str | None
    source: Source
    token_ids: tuple[int, ...]
    text: str
    behavior_logprobs: tuple[float, ...] = ()
    entropy: Entropy | None = None
    turn: ParsedTurn | None = None
    results: tuple[ToolResult, ...] = ()
    messages: tuple[Message, ...] = ()
    reward: float = 0.0
    policy_version: int | None = None
    stop: StopReason | None = None
    context: Context = "parent"
    rewriter: str = ""
    token_entropies: tuple[float, ...] = ()
    exact_ids: bool = True
    call_from: int | None = None

    def __post_init__(self) -> None:
        written = len(self.token_ids) if self.source is Source.POLICY else 0
        if len(self.behavior_logprobs) != written:
            raise ValueError(
                f"node {self.id!r}: {len(self.behavior_logprobs)} logprobs for {written} written tokens"
            )
        if len(self.token_entropies) not in (0, written):
            raise ValueError(
                f"node {self.id!r}: {len(self.token_entropies)} entropies for {written} written tokens"
            )

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The calls of the turn that ends here; they were executed if a tool node with their results follows."""
        return self.turn.calls if isinstance(self.turn, Calls) else ()


def node_id(path: NodePath) -> str:
    """Return the id of the node at `path`."""
    return ".".join(map(str, path))


@dataclass(frozen=True, slots=True)
class Segment:
    """One context of a trajectory: what an engine sees as one sequence.

    `parts` are nodes in the order of their tokens, and how many of its first tokens each one has in this context.
    """

    parts: tuple[tuple[Node, int], ...]

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes, of which some may be cut."""
        return tuple(node for node, _ in self.parts)

    @property
    def token_ids(self) -> tuple[int, ...]:
        """All tokens of the context. [T]"""
        return tuple(token for node, size in self.parts for token in node.token_ids[:size])

    @property
    def written(self) -> tuple[bool, ...]:
        """The loss mask: True for each token that the policy sampled. [T]"""
        return tuple(node.source is Source.POLICY for node, size in self.parts for _ in range(size))

    def before(self, cut: Cut) -> "Segment":
        """Return the context that ends at `cut`, one of this segment's nodes."""
        at = next(index for index, (node, _) in enumerate(self.parts) if node.id == cut.node)
        return Segment((*self.parts[:at], (self.parts[at][0], cut.tokens)))


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A path from the prompt to a leaf."""

    problem: Problem
    nodes: tuple[Node, ...]

    @property
    def leaf(self) -> Node:
        """The last node."""
        return self.nodes[-1]

    @property
    def stop(self) -> StopReason:
        """Why it ended."""
        if self.leaf.stop is None:
            raise ValueError(f"node {self.leaf.id!r} is no leaf")
        return self.leaf.stop

    @property
    def contexts(self) -> tuple[Segment, ...]:
        """For each node of the path the context that ends with it."""
        ending: dict[str, Segment] = {}
        above = Segment(())
        for node in self.nodes:
            if isinstance(node.context, Cut):
                above = ending[node.context.node].before(node.context)
            elif node.context == "fresh":
                above = Segment(())
            above = ending[node.id] = Segment((*above.parts, (node, len(node.token_ids))))
        return tuple(ending.values())

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The contexts of the path, in order. Where one goes on from an earlier one, they overlap."""
        contexts = self.contexts
        last = [i - 1 for i, node in enumerate(self.nodes) if i and node.context != "parent"]
        return tuple(contexts[i] for i in (*last, len(contexts) - 1))

    @property
    def policy_nodes(self) -> tuple[Node, ...]:
        """The nodes that the policy wrote, in order."""
        return tuple(node for node in self.nodes if node.source is Source.POLICY)

    @property
    def final_answer(self) -> str:
        """The text of the answer that the last turn marks, well formed or not; "" if there is none."""
        return self.leaf.turn.answer if isinstance(self.leaf.turn, Final | MalformedTurn) else ""

    @property
    def num_written(self) -> int:
        """Tokens that the policy wrote."""
        return sum(len(node.token_ids) for node in self.policy_nodes)

    @property
    def exchanges(self) -> tuple[tuple[ToolCall, ToolResult], ...]:
        """Executed calls with their results, in order."""
        pairs: list[tuple[ToolCall, ToolResult]] = []
        for before, node in zip(self.nodes, self.nodes[1:], strict=False):
            if node.results and node.source is Source.TOOL:
                pairs.extend(zip(before.calls, node.results, strict=True))
        if self.leaf.results and self.leaf.source is Source.POLICY:
            pairs.extend(zip(self.leaf.calls, self.leaf.results, strict=True))
        return tuple(pairs)

    @property
    def paid(self) -> float:
        """Total reward from the environment."""
        return sum(node.reward for node in self.nodes)


@dataclass(frozen=True, slots=True)
class TreeKey:
    """Where in the run a tree was grown; it gives the tree random streams of its own."""

    step: int
    slot: int
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class BranchDecision:
    """What a branching rule decided about one tool result on one trajectory.

    Attributes:
        node: Id of the node at which the children start: the tool result, or the tokens after it that they share.
        depth: Tool results on the path, this one included.
        entropy_delta: Entropy after the result minus the trajectory's baseline, nats per token.
        probability: Chance that the rule gave to branching (0 or 1 for a threshold).
        planned: Children that the rule wanted.
        taken: Children that the budget granted.
        entropy_acted: Whether the decision would be different at an entropy delta of zero.
        undecided: Whether the entropy brackets leave the decision open.
        budget_left: Branch budget of the tree that candidates earlier in the order of grants left.
        draw: The random number in [0, 1) that the rule could compare with the probability.
    """

    node: str
    depth: int
    entropy_delta: float
    probability: float
    planned: int
    taken: int
    entropy_acted: bool
    undecided: bool = False
    budget_left: int = 0
    draw: float = 0.0

    @property
    def had_budget(self) -> bool:
        """True if the budget had room for a child."""
        return self.budget_left > 0


@dataclass(frozen=True)
class Tree:
    """All trajectories of one problem. `nodes` are in depth-first order of their paths; leaves are the group.

    `start` is the node where the roots begin: the prompt, or, if the tree goes on from a node of an earlier tree, that node.
    What lies above was recorded there and is not trained on.
    """

    problem: Problem
    key: TreeKey
    nodes: tuple[Node, ...]
    decisions: tuple[BranchDecision, ...] = ()
    start: str = ""

    @cached_property
    def roots(self) -> tuple[Node, ...]:
        """The first nodes of this tree's own: the children of its start."""
        return self.children[self.start]

    @cached_property
    def inherited_ids(self) -> frozenset[str]:
        """Ids of the policy nodes that lie above the roots."""
        above = self.path_to(self.by_id[self.start])
        return frozenset(node.id for node in above if node.source is Source.POLICY)

    @cached_property
    def by_id(self) -> Mapping[str, Node]:
        """Nodes by id."""
        return MappingProxyType({node.id: node for node in self.nodes})

    @cached_property
    def children(self) -> Mapping[str, tuple[Node, ...]]:
        """Children of each node, by its id."""
        below: dict[str, list[Node]] = {node.id: [] for node in self.nodes}
        for node in self.nodes:
            if node.parent is not None:
                below[node.parent].append(node)
        return MappingProxyType({key: tuple(value) for key, value in below.items()})

    @cached_property
    def trajectories(self) -> tuple[Trajectory, ...]:
        """One for each leaf, in depth-first order."""
        return tuple(
            Trajectory(self.problem, self.path_to(node)) for node in self.nodes if not self.children[node.id]
        )

    @cached_property
    def has_failed(self) -> bool:
        """True if every trajectory failed, so that the tree says nothing about the policy."""
        return all(trajectory.stop is StopReason.FAILED for trajectory in self.trajectories)

    def path_to(self, node: Node) -> tuple[Node, ...]:
        """Return the nodes from the prompt to `node`."""
        path = [node]
        while path[-1].parent is not None:
            path.append(self.by_id[path[-1].parent])
        return tuple(reversed(path))


def make_tree(
    problem: Problem,
    key: TreeKey,
    nodes: list[Node],
    decisions: list[BranchDecision] | None = None,
    start: str = "",
) -> Tree:
    """Sort nodes depth-first and check the shape.

    Raises:
        ValueError: Duplicate ids, an id or parent that does not match the path, a missing parent, no prompt
            node, a leaf without a stop reason or an inner node with one, a context that goes on from elsewhere than an
            ancestor, a start that is not there or beside which something lies.
    """
    tree = Tree(
        problem,
        key,
        tuple(sorted(nodes, key=lambda node: node.path)),
        tuple(sorted(decisions or [], key=lambda d: tree_path(d.node))),
        start,
    )
    if len(tree.by_id) != len(nodes):
        raise ValueError(f"problem {problem.id!r}: two nodes share an id")
    if "" not in tree.by_id:
        raise ValueError(f"problem {problem.id!r}: no prompt node")
    first = tree_path(start)
    if start not in tree.by_id or any(n.path[: len(first)] != first[: len(n.path)] for n in tree.nodes):
        raise ValueError(f"problem {problem.id!r}: not all nodes lie above or below the start {start!r}")
    for node in tree.nodes:
        parent = node_id(node.path[:-1]) if node.path else None
        if (node.id, node.parent) != (node_id(node.path), parent):
            raise ValueError(f"node {node.id!r} below {node.parent!r}: its path is {node.path}")
        if (node.parent is None) != (node.source is Source.PROMPT):
            raise ValueError(f"node {node.id!r}: only the prompt has no parent")
        if node.parent is not None and node.parent not in tree.by_id:
            raise ValueError(f"node {node.id!r}: parent {node.parent!r} is not in the tree")
    for node in tree.nodes:
        _check_context(tree, node)
        if bool(tree.children[node.id]) == (node.stop is not None):
            raise ValueError(f"node {node.id!r}: a stop reason belongs on leaves and only there")
    return tree


def _check_context(tree: Tree, node: Node) -> None:
    cut = node.context
    if node.parent is None and cut != "parent":
        raise ValueError("the prompt: nothing stands before it")
    if not isinstance(cut, Cut):
        return
    above = tree.by_id.get(cut.node)
    if above is None or above.path != node.path[: len(above.path)] or above is node:
        raise ValueError(f"node {node.id!r}: its context goes on from {cut.node!r}, which is not above it")
    if above.id == node.parent and cut.tokens == len(above.token_ids):
        raise ValueError(f'node {node.id!r}: its context is that of its parent, write "parent"')
    if not 1 <= cut.tokens <= len(above.token_ids):
        raise ValueError(
            f"node {node.id!r}: its context goes on after {cut.tokens} tokens of {above.id!r}, which has "
            f"{len(above.token_ids)}"
        )


def tree_path(identifier: str) -> NodePath:
    """Return the path that a node id spells."""
    return tuple(map(int, identifier.split("."))) if identifier else ()
