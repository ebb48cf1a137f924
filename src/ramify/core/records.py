"""Records that pass between stages: requests, completions, rewards, credit and packed rows.

Axis letters: P problems, G trajectories of a tree, J trajectories of trees packed together, N tokens of a node, T
tokens of a trajectory, R tokens of a packed row, W written tokens of a packed row, V vocabulary. Logprobs and entropies are nats.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ramify.core.messages import Message, ToolSpec
from ramify.core.tree import Cut, Entropy, NodePath, Source, Trajectory, Tree

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]


class Finish(StrEnum):
    """Why an engine stopped generating."""

    STOP = "stop"
    """A stop string was completed; the token that completes it is kept whole."""
    EOS = "eos"
    """The end-of-turn token was sampled."""
    LENGTH = "length"
    """`max_new_tokens` were written."""


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """How much a chat model was used, as its service counts; a service that does not count tokens adds 0.

    Attributes:
        answers: Number of answers, whatever they contain.
        prompt_tokens: Tokens that the model read.
        completion_tokens: Tokens that the model wrote.
        retries: Requests that were sent again because the one before failed.
    """

    answers: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    retries: int = 0


@dataclass(frozen=True, slots=True)
class TokenFilters:
    """Changes of the distribution that tokens are drawn from, besides the temperature. Training has none of them.

    They act in the order of transformers: penalty, temperature, top_k, top_p, min_p. vLLM applies min_p before top_k and
    top_p, which differs only where top_p and min_p both act. Greedy decoding is changed by the penalty alone.

    Attributes:
        top_p: Draw only from the most likely tokens that together have this probability (Holtzman et al. 2020,
            section 3.1).
        top_k: Draw only from this many of the most likely tokens, and from any that is as likely as the last of them;
            0: from all (Fan et al. 2018, section 5.4).
        min_p: Draw only from tokens with at least this share of the most likely one's probability (Nguyen et al. 2024).
        repetition_penalty: Divide the logit of each token of the context by this, or multiply it if it is negative
            (Keskar et al. 2019, section 4.1, with the sign of transformers and vLLM).
    """

    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    @property
    def acts(self) -> bool:
        """True if any of them changes the distribution."""
        return self != NO_FILTERS


NO_FILTERS = TokenFilters()


@dataclass(frozen=True, slots=True)
class Request:
    """Ask an engine to continue `token_ids`.

    Attributes:
        token_ids: The whole context. [T]
        seed: Stream of the random draws; a token uses the number at its position in the context.
        max_new_tokens: At least 1.
        stops: Strings that end the turn, matched on decoded bytes of the new tokens.
        stop_context: Number of tokens at the end of `token_ids` that belong to the same turn (a probe that is being
            continued), so that a stop string may span the two requests.
        temperature: Temperature of the sampling distribution; 0 takes the most likely token (evaluation only).
        filters: Further changes of the sampling distribution (evaluation and synthesis only).
        entropy_first_k: Report the entropies of the first k new tokens.
        priority: Order of admission; smaller first.
        path: The path whose last context `token_ids` is, for engines that send messages instead of tokens; None: unknown.
        tools: The tools in force, for engines that show them to a service.
    """

    token_ids: tuple[int, ...]
    seed: int
    max_new_tokens: int
    stops: tuple[str, ...] = ()
    stop_context: int = 0
    temperature: float = 1.0
    filters: TokenFilters = NO_FILTERS
    entropy_first_k: int = 0
    priority: tuple[int, ...] = ()
    path: Trajectory | None = field(default=None, compare=False, repr=False)
    tools: tuple[ToolSpec, ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Completion:
    """What an engine generated.

    Attributes:
        token_ids: New tokens, at least one. [N]
        logprobs: Logprobs of these tokens under the distribution that they were sampled from, nats. [N]
        entropies: Entropies of the first `entropy_first_k` tokens (fewer if the completion is shorter), nats.
        finish: Why the engine stopped.
        version_runs: (policy version, number of tokens) in order; the counts add up to N.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    entropies: tuple[Entropy, ...]
    finish: Finish
    version_runs: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class ContinueFrom:
    """Continue from `cut`, a position on the path, after adding `text` (it may be empty).

    In mid-turn the text joins the turn; behind the prompt or a result it begins one.
    """

    cut: Cut
    text: str = ""


@dataclass(frozen=True, slots=True)
class FreshContext:
    """Continue from a fresh context that holds these messages."""

    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine can do: vocabulary, context in tokens, concurrent sequences, exact entropies, weight version.

    `tokenizer` is the fingerprint of the tokenizer whose ids it uses (`chat.tokenizer`). Without `exact_ids` its tokens
    are an encoding of the returned text. They need not be the sampled ones, and the logprobs mean nothing.
    `logprob_tolerance` is the most that a token's logprob may differ from that of another exact pass over the same
    weights, nats; None: the engine cannot `score`. `weights_folder`: it reads new weights from there (`version_folder`).
    `shares_gpus`: its servers and the learner take turns on the same GPUs; they are asleep while the learner computes.
    """

    name: str
    vocab_size: int
    context_tokens: int
    num_slots: int
    exact_entropy: bool
    policy_version: int
    tokenizer: str
    exact_ids: bool = True
    logprob_tolerance: float | None = None
    weights_folder: Path | None = None
    shares_gpus: bool = False


def version_folder(folder: Path, version: int) -> Path:
    """Return the folder of a version's weights inside an engine's `weights_folder`."""
    return folder / f"version-{version:06d}"


@dataclass(frozen=True, slots=True)
class Proposal:
    """A branching rule's answer for one candidate (see `BranchDecision`)."""

    children: int
    probability: float
    entropy_acted: bool


@dataclass(frozen=True, slots=True)
class BranchQuota:
    """The number of branches that a tree must get, if it has as many tool results.

    Attributes:
        branches: The branches.
        results: Tool results at depth 1, 2, ... that are expected to have a chance of a branch; none below the last one.
    """

    branches: int
    results: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BranchCandidate:
    """A tool result after which the tree could branch.

    Attributes:
        path: Path of the node at which branches would start.
        depth: Tool results on the path, this one included.
        slot: The problem's place in the batch.
        turns: Mean entropy over the first k tokens of each turn on the path, from the root's to that of the turn
            after this result.
        own_from: Index in `turns` of the first turn that this trajectory did not inherit (0: a root).
        draw: A random number in [0, 1) for this candidate alone.
        step: Step of the run.
        ambiguous: The world marks a result as ambiguous (`ToolResult.ambiguous`).
    """

    path: NodePath
    depth: int
    slot: int
    turns: tuple[Entropy, ...]
    own_from: int
    draw: float
    step: int = 0
    ambiguous: bool = False

    @property
    def entropy_delta(self) -> float:
        """Entropy after the result minus that of the root, using the lower ends of both brackets, nats per token."""
        return self.turns[-1].lower - self.turns[0].lower

    @property
    def extremes(self) -> "tuple[BranchCandidate, BranchCandidate] | None":
        """The candidate at the least and at the greatest entropy delta that the brackets allow; None if all are exact."""
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
    """The score of a trajectory: `value` trains, `parts` are reported, `events` belong to node ids.

    Without `counts` the outcome says nothing about the policy: nothing learns from the trajectory or reports it as the
    policy's. `score_tree` sets it from the end of the trajectory, a reward function if it has no verdict.
    """

    value: float
    parts: Mapping[str, float]
    events: Mapping[str, float] = field(default_factory=dict)
    counts: bool = True


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
class NodeAnnotations:
    """What is known about the tokens of a policy node besides the tree. [N] each

    Attributes:
        old_logprobs: The denominator of the policy ratio, nats: the engine's logprobs, or the learner's under the weights
            before the first update on this rollout. Only the code that makes the annotations decides which.
        ref_logprobs: Logprobs under the reference model, nats; None: not asked for.
        entropies: Entropies of the policy, nats; None: not asked for.
    """

    old_logprobs: Floats
    ref_logprobs: Floats | None = None
    entropies: Floats | None = None


Annotations: TypeAlias = Mapping[str, NodeAnnotations]
"""Of each policy node of a tree, by node id; empty for an estimator that needs none."""

NO_ANNOTATIONS: Annotations = MappingProxyType({})


def behavior_annotations(tree: Tree) -> Annotations:
    """Return annotations with the engine's logprobs as the old ones, and nothing else."""
    policy = (node for node in tree.nodes if node.source is Source.POLICY)
    return {node.id: NodeAnnotations(np.array(node.behavior_logprobs)) for node in policy}


@dataclass(frozen=True, slots=True)
class ScoredTree:
    """A tree with the rewards of its leaves.

    Attributes:
        tree: The tree.
        rewards: One for each trajectory, in the order of `tree.trajectories`. [G]

    Raises:
        ValueError: The numbers of leaves and rewards differ.
    """

    tree: Tree
    rewards: tuple[Reward, ...]

    def __post_init__(self) -> None:
        if len(self.rewards) != len(self.tree.trajectories):
            raise ValueError(
                f"problem {self.tree.problem.id!r}: {len(self.tree.trajectories)} leaves, {len(self.rewards)} rewards"
            )


@dataclass(frozen=True, slots=True)
class AnnotatedTree(ScoredTree):
    """A scored tree, and what is known about its written tokens besides: what an estimator reads.

    Raises:
        ValueError: The numbers of leaves and rewards differ, or a reward does not count (see `outcomes.counted`).
    """

    annotations: Annotations

    def __post_init__(self) -> None:
        ScoredTree.__post_init__(self)
        if not all(reward.counts for reward in self.rewards):
            raise ValueError(
                f"problem {self.tree.problem.id!r}: a reward that does not count teaches nothing"
            )


@dataclass(frozen=True, slots=True)
class BatchSums:
    """Sums over the weighted values x of a rollout batch; the sums of its parts add up to those of the whole.

    w: sum of the weights; ww: of their squares; wx, wxx: of weight times x and weight times x^2.
    """

    w: float
    ww: float
    wx: float
    wxx: float

    def __add__(self, other: "BatchSums") -> "BatchSums":
        """Return the sums of two parts of a batch together."""
        return BatchSums(self.w + other.w, self.ww + other.ww, self.wx + other.wx, self.wxx + other.wxx)


@dataclass(frozen=True, slots=True)
class TrainingTree:
    """A tree that an optimizer step learns from.

    Attributes:
        tree: The tree.
        annotations: Of its policy nodes.
        advantages: Of each written token of each trajectory. [G][T]
        rho: Importance weights of each written token of each trajectory; None: 1. [G][T]
        loss_mask: Trajectories that carry loss; the others stay in the denominator. None: all. [G]
    """

    tree: Tree
    annotations: Annotations
    advantages: tuple[Floats, ...]
    rho: tuple[Floats, ...] | None = None
    loss_mask: npt.NDArray[np.bool_] | None = None


@dataclass(frozen=True, slots=True)
class CreditedTree:
    """A tree ready to be packed: the credit of each policy node, by node id, and the annotations."""

    tree: Tree
    annotations: Annotations
    credit: Mapping[str, NodeCredit]


@dataclass(frozen=True, slots=True)
class PathCredit:
    """Trajectories of one or more trees, for a loss on whole trajectories. [J] each

    Attributes:
        advantages: Advantage of each trajectory.
        weights: Loss weights, importance-weight corrections included; 0 if the trajectory is left out of the loss.
        num_written: Number of tokens that the policy wrote.
        tree: Index of the tree among those packed together.
    """

    advantages: Floats
    weights: Floats
    num_written: Ints
    tree: Ints


@dataclass(frozen=True, slots=True)
class WrittenSpan:
    """Tokens of one policy node among the written tokens of a row.

    Attributes:
        tree: Index of the tree among those packed together.
        node: Id of the node.
        start, stop: Range in the row's `written`.
        paths: Indices of the trajectories through the node, among those of all trees packed together. [d]
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
        predictor: Row index of the token whose hidden state predicts each of these (for the first token of a
            branch, the last token of its parent). [W]
        spans: The policy nodes that the written tokens belong to; they cover `written` in order.
        s_plus, s_minus, weight, num_paths: See `NodeCredit`. [W]
        behavior_logprobs: Logprobs under the distribution that the tokens were sampled from. [W]
        old_logprobs: The denominator of the policy ratio; see `NodeAnnotations`. [W]
        ref_logprobs: Logprobs under the reference model; None if they were not asked for. [W]
        num_repeated: Number of tokens that are here only as context, because another row computes them too.
        token_budget: Number of tokens computed at a time; a longer row is computed in stages.
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
