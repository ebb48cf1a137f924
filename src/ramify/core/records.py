"""Records that pass between stages: requests, completions, rewards, credit and packed rows.

Axis letters: P problems, G trajectories of a tree, J trajectories of trees packed together, N tokens of a node, T
tokens of a trajectory, R tokens of a packed row, W written tokens of a packed row, V vocabulary. Logprobs and entropies are nats.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ramify.core.tree import Entropy, NodePath, Source, Tree

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]


class Finish(StrEnum):
    """Why an engine stopped writing."""

    STOP = "stop"
    """A stop string was completed; the token that did it is kept whole."""
    EOS = "eos"
    """The end-of-turn token was sampled."""
    LENGTH = "length"
    """`max_new_tokens` were written."""


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """What a chat model was used for, as its service counts; a service that does not count tokens adds none.

    Attributes:
        answers: Of the model, whatever was in them.
        prompt_tokens: That it read.
        completion_tokens: That it wrote.
    """

    answers: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """Ask an engine to go on from `token_ids`.

    Attributes:
        token_ids: The whole context. [T]
        seed: Stream of the draws; the number used for a token is its position in the context.
        max_new_tokens: At least 1.
        stops: Strings that end the turn, matched on decoded bytes of the new tokens.
        stop_context: Tokens at the end of `token_ids` that belong to the same turn (a probe that is being
            continued), so that a stop string may span the two requests.
        temperature: Of the sampling distribution; 0 takes the most likely token (evaluation only).
        top_p: Only the most likely tokens that hold this much probability together are drawn (evaluation only;
            Holtzman et al. 2020, section 3.1).
        entropy_first_k: Report the entropies of this many first tokens.
        priority: Order of admission; smaller first.
    """

    token_ids: tuple[int, ...]
    seed: int
    max_new_tokens: int
    stops: tuple[str, ...] = ()
    stop_context: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    entropy_first_k: int = 0
    priority: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Completion:
    """What an engine wrote.

    Attributes:
        token_ids: New tokens, at least one. [N]
        logprobs: Of the sampled tokens under the distribution sampled from. [N]
        entropies: Of the first `entropy_first_k` tokens (fewer when the completion is shorter).
        finish: Why it stopped.
        version_runs: (policy version, number of tokens) in order; the counts add up to N.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    entropies: tuple[Entropy, ...]
    finish: Finish
    version_runs: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine can do: vocabulary, context in tokens, sequences at once, exact entropies, version.

    `tokenizer` is the fingerprint of the tokenizer whose ids it speaks (`chat.tokenizer`). Without `exact_ids` the tokens of
    its answers are those of a text, which need not be the ones that were sampled, and its logprobs mean nothing.
    """

    name: str
    vocab_size: int
    context_tokens: int
    num_slots: int
    exact_entropy: bool
    policy_version: int
    tokenizer: str
    exact_ids: bool = True


@dataclass(frozen=True, slots=True)
class Proposal:
    """A branching rule's answer for one candidate (see `BranchDecision`)."""

    children: int
    probability: float
    entropy_acted: bool


@dataclass(frozen=True, slots=True)
class BranchCandidate:
    """A tool result after which the tree could branch.

    Attributes:
        path: Path of the node that branches would hang at.
        depth: Tool results on the path, this one included.
        slot: The problem's place in the batch.
        turns: Mean entropy over the first k tokens of each turn on the path; the first is the root's, the last
            that of the turn after this result.
        own_from: Index in `turns` of the first turn that this trajectory did not inherit (0: a root).
        draw: A number in [0, 1) that belongs to this candidate alone.
    """

    path: NodePath
    depth: int
    slot: int
    turns: tuple[Entropy, ...]
    own_from: int
    draw: float

    @property
    def rise(self) -> float:
        """Entropy after the result minus that of the root, at the lower end of both brackets, nats per token."""
        return self.turns[-1].lower - self.turns[0].lower

    @property
    def extremes(self) -> "tuple[BranchCandidate, BranchCandidate] | None":
        """The candidate at the least and at the greatest rise that the brackets allow; None when all are exact."""
        if all(turn.lower == turn.upper for turn in self.turns):
            return None
        least = (_at_upper(self.turns[0]), *map(_at_lower, self.turns[1:]))
        greatest = (_at_lower(self.turns[0]), *map(_at_upper, self.turns[1:]))
        return replace(self, turns=least), replace(self, turns=greatest)


def _at_lower(entropy: Entropy) -> Entropy:
    return replace(entropy, upper=entropy.lower)


def _at_upper(entropy: Entropy) -> Entropy:
    return replace(entropy, lower=entropy.upper)


@dataclass(frozen=True, slots=True)
class Reward:
    """The score of a trajectory: `value` trains, `parts` are reported, `events` belong to node ids."""

    value: float
    parts: Mapping[str, float]
    events: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodeCredit:
    """Four numbers for each token of a policy node; sums run over the trajectories j through the node. [N] each

    s_plus = sum_j w rho max(A, 0); s_minus = sum_j w rho min(A, 0); weight = sum_j w; num_paths = number of j.
    """

    s_plus: Floats
    s_minus: Floats
    weight: Floats
    num_paths: Floats


@dataclass(frozen=True, slots=True)
class NodeNotes:
    """What is known of the tokens of a policy node beside the tree. [N] each

    Attributes:
        old_logprobs: What ratios are taken to. Whether they are the engine's or the learner's, under the weights before
            the first update on this rollout, is decided where notes are made and nowhere else.
        ref_logprobs: Under the reference model; None: not asked for.
        entropies: Of the policy, nats; None: not asked for.
    """

    old_logprobs: Floats
    ref_logprobs: Floats | None = None
    entropies: Floats | None = None


Notes: TypeAlias = Mapping[str, NodeNotes]
"""Notes of each policy node of a tree, by node id; empty for an estimator that needs none."""

NO_NOTES: Notes = MappingProxyType({})


def behavior_notes(tree: Tree) -> Notes:
    """Notes whose old logprobs are those of the distribution that was sampled from, and nothing else."""
    policy = (node for node in tree.nodes if node.source is Source.POLICY)
    return {node.id: NodeNotes(np.array(node.behavior_logprobs)) for node in policy}


@dataclass(frozen=True, slots=True)
class PathCredit:
    """Trajectories of one or more trees, for a loss that looks at whole paths. [J] each

    Attributes:
        advantages: One for each trajectory.
        weights: Loss weights, corrections included; 0 where the trajectory is left out of the loss.
        num_written: Tokens that the policy wrote.
        tree: Number of the tree among those packed together.
    """

    advantages: Floats
    weights: Floats
    num_written: Ints
    tree: Ints


@dataclass(frozen=True, slots=True)
class WrittenSpan:
    """Tokens of one policy node among the written tokens of a row.

    Attributes:
        tree: Number of the tree among those packed together.
        node: Its id.
        start, stop: Range in the row's `written`.
        paths: Numbers, among the trajectories of all trees packed together, of those through the node. [d]
    """

    tree: int
    node: str
    start: int
    stop: int
    paths: Ints


@dataclass(frozen=True, slots=True)
class SegmentSpan:
    """A run of tokens in a packed row that attends to itself causally and to all of its ancestors.

    `parent` is an index into the row's segments (-1: none); `[start, stop)` are positions in the row.
    """

    parent: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class PackedRow:
    """Unique tokens of one or more trees in depth-first order, ready for one forward pass.

    Attributes:
        token_ids: [R]
        positions: Depth of each token in its context. [R]
        segments: Spans that cover the row.
        written: Row index of each token that a policy wrote. [W]
        predictor: Row index of the token whose hidden state predicts it (a parent's last one, for the first
            token of a branch). [W]
        spans: The policy nodes that the written tokens belong to; they cover `written` in order.
        s_plus, s_minus, weight, num_paths: See `NodeCredit`. [W]
        behavior_logprobs: Under the distribution sampled from. [W]
        old_logprobs: That the ratio is taken to; see `NodeNotes`. [W]
        ref_logprobs: Under the reference model; None where no pass was asked for. [W]
        num_repeated: Tokens that are here only as context, because another row computes them too.
        token_budget: Tokens that are computed at a time; a row with more is computed in stages.
    """

    token_ids: Ints
    positions: Ints
    segments: tuple[SegmentSpan, ...]
    written: Ints
    predictor: Ints
    spans: tuple[WrittenSpan, ...]
    s_plus: Floats
    s_minus: Floats
    weight: Floats
    num_paths: Floats
    behavior_logprobs: Floats
    old_logprobs: Floats
    ref_logprobs: Floats | None
    num_repeated: int
    token_budget: int
