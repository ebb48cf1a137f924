"""Self-critic pairs of Tool-Star (arXiv 2505.16410, section 3.4): right and wrong answers of one recorded tree.

The critic is the rule reward, which judges the policy's own samples. A pair is two leaves of a tree: the chosen one is
right, the rejected one is not. Both keep the ids that were sampled, so no text is encoded again. Trees of a service hold its texts,
encoded; pairs of these are marked, and are for DPO only, which needs no probabilities of the sampler.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from ramify.core.errors import DataError
from ramify.core.records import ScoredTree
from ramify.core.tree import Node, Source, Trajectory, Tree, TreeKey
from ramify.data.examples import is_prefix_pair
from ramify.files.durable import dump_line, replace_pieces
from ramify.runs.recorded_trees import require_tokenizer, trajectory_at
from ramify.synth.rows import is_right

ALL_RIGHT, NEVER_RIGHT, TOO_LONG, PAIRED = "all right", "never right", "too long", "with pairs"
ALIKE = "one side begins the other"
APART = "right in one tree and wrong in another"

Pair: TypeAlias = tuple[int, int]
"""Indices of trajectories of a tree: the chosen and the rejected one."""


@dataclass(frozen=True, slots=True)
class PairRule:
    """Limits of pairs: at most `per_question`, of sides with at most `max_tokens` tokens and their prompt."""

    per_question: int
    max_tokens: int

    def choose(self, scored: ScoredTree) -> tuple[str, tuple[Pair, ...]]:
        """Return the outcome of the tree, and its pairs, the best first.

        The pair with the largest difference of rewards comes first; among equal ones, the one whose sides made as many calls. No
        leaf is in two pairs.
        """
        trajectories, rewards = scored.tree.trajectories, scored.rewards
        usable = [
            index
            for index, trajectory in enumerate(trajectories)
            if rewards[index].counts and _is_side(trajectory)
        ]
        right = [index for index in usable if is_right(rewards[index])]
        wrong = [index for index in usable if not is_right(rewards[index])]
        if not wrong or not right:
            return (NEVER_RIGHT if not right else ALL_RIGHT), ()
        sides = {index: trajectories[index].segments[-1].token_ids for index in usable}
        fit = [pair for pair in product(right, wrong) if max(len(sides[i]) for i in pair) <= self.max_tokens]
        both = [pair for pair in fit if not is_prefix_pair(*(sides[i] for i in pair))]
        both.sort(key=lambda pair: (_rank(scored, pair), pair))
        chosen: list[Pair] = []
        used: set[int] = set()
        for pair in both:
            if len(chosen) < self.per_question and not used & set(pair):
                chosen.append(pair)
                used |= set(pair)
        if chosen:
            return PAIRED, tuple(chosen)
        return (ALIKE if fit else TOO_LONG), ()


@dataclass(frozen=True, slots=True)
class NamedPair:
    """Two leaves of a tree, by their ids, whatever their rewards are."""

    chosen: str
    rejected: str
    per_question: ClassVar[int] = 1

    def choose(self, scored: ScoredTree) -> tuple[str, tuple[Pair, ...]]:
        """Return the pair.

        Raises:
            DataError: There is no such leaf, a side does not go on from the prompt or has no tokens of its own, or one begins
                the other.
        """
        pair = trajectory_at(scored.tree, self.chosen), trajectory_at(scored.tree, self.rejected)
        sides = [scored.tree.trajectories[index] for index in pair]
        for side in sides:
            if not _is_side(side):
                raise DataError(
                    f"leaf {side.leaf.id!r}: no side of a pair. It must end in tokens of the policy, in a context that begins "
                    "with the prompt"
                )
        if is_prefix_pair(*(side.segments[-1].token_ids for side in sides)):
            raise DataError(f"leaves {self.chosen!r} and {self.rejected!r}: {ALIKE}. Choose other leaves")
        return PAIRED, (pair,)


def _is_side(trajectory: Trajectory) -> bool:
    return bool(trajectory.leaf.token_ids) and trajectory.segments[-1].nodes[0].source is Source.PROMPT


def _rank(scored: ScoredTree, pair: Pair) -> tuple[float, int]:
    """Return the sort key of a pair: better pairs first."""
    good, bad = (scored.rewards[index].value for index in pair)
    calls, others = (len(scored.tree.trajectories[index].exchanges) for index in pair)
    return bad - good, abs(calls - others)


@dataclass(frozen=True, slots=True)
class ChosenPairs:
    """The pairs of all trees.

    Attributes:
        of_trees: The pairs of a tree, by its file and its key.
        questions: Number of questions by outcome.
        num_encoded: Number of pairs whose tokens were encoded from the text of a service.
    """

    of_trees: Mapping[tuple[str, TreeKey], Sequence[Pair]]
    questions: Mapping[str, int]
    num_encoded: int

    @property
    def count(self) -> int:
        """Number of pairs."""
        return sum(map(len, self.of_trees.values()))

    def line(self) -> str:
        """Return one line for people."""
        counts = ", ".join(f"{name} {count}" for name, count in sorted(self.questions.items()))
        return f"{self.count} pairs from {sum(self.questions.values())} questions ({counts or 'none'})"


def choose_pairs(
    trees: Iterable[tuple[str, ScoredTree]],
    rule: PairRule | NamedPair,
    decode: Callable[[Sequence[int]], str],
) -> ChosenPairs:
    """Choose the best pairs of each question over all of its trees; among equal ones those of the first tree.

    The trees of a question have its id. No tree stays in memory, only the indices of pairs.

    Args:
        trees: Trees with the name of the file that they are recorded in.
        rule: The limits of pairs, or the leaves of the only one.
        decode: Gives the text of tokens.

    Raises:
        DataError: A tree's tokens are those of another tokenizer.
    """
    encoded: set[tuple[str, TreeKey]] = set()
    outcomes: defaultdict[str, set[str]] = defaultdict(set)
    best: defaultdict[str, list[tuple[tuple[float, int], int, Pair, tuple[str, TreeKey]]]] = defaultdict(list)
    for number, (file, scored) in enumerate(trees):
        question = scored.tree.problem.id
        require_tokenizer(f"{file}: problem {question!r}", scored.tree.nodes[0], decode)
        outcome, pairs = rule.choose(scored)
        outcomes[question].add(outcome)
        if not _is_exact(scored.tree):
            encoded.add((file, scored.tree.key))
        if pairs:
            ranked = [(_rank(scored, pair), number, pair, (file, scored.tree.key)) for pair in pairs]
            best[question] = sorted([*best[question], *ranked])[: rule.per_question]
    of_trees: defaultdict[tuple[str, TreeKey], list[Pair]] = defaultdict(list)
    for choices in best.values():
        for _, _, pair, tree in choices:
            of_trees[tree].append(pair)
    num_encoded = sum(len(pairs) for tree, pairs in of_trees.items() if tree in encoded)
    return ChosenPairs(of_trees, Counter(map(_question_outcome, outcomes.values())), num_encoded)


def _is_exact(tree: Tree) -> bool:
    return all(node.exact_ids for node in tree.nodes)


def _question_outcome(outcomes: Set[str]) -> str:
    """Return the outcome of a question from those of its trees."""
    for outcome in (PAIRED, TOO_LONG, ALIKE):
        if outcome in outcomes:
            return outcome
    return APART if len(outcomes) > 1 else min(outcomes)


def pair_rows(
    trees: Iterable[tuple[str, ScoredTree]], chosen: ChosenPairs, decode: Callable[[Sequence[int]], str]
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file of pairs, in the order of the trees, which must be those of `choose_pairs`."""
    num_rows: Counter[str] = Counter()
    for file, scored in trees:
        tree, prompt = scored.tree, scored.tree.nodes[0]
        for pair in chosen.of_trees.get((file, tree.key), ()):
            sides = [tree.trajectories[index] for index in pair]
            parts = [
                [
                    (_source(tree, node), node.token_ids[:size])
                    for node, size in side.segments[-1].parts[1:]
                    if size
                ]
                for side in sides
            ]
            num_rows[tree.problem.id] += 1
            number = num_rows[tree.problem.id]
            yield {
                # Not "#1": copies of a problem by data.weights have such ids.
                "id": f"{tree.problem.id}#pair-{number}" if number > 1 else tree.problem.id,
                "prompt": [
                    {"role": message.role, "content": message.text} for message in tree.problem.messages
                ],
                "prompt_text": prompt.text,
                **{
                    name: decode([token for _, ids in part for token in ids])
                    for name, part in zip(("chosen", "rejected"), parts, strict=True)
                },
                "recorded": {
                    "file": file,
                    "step": tree.key.step,
                    "slot": tree.key.slot,
                    "attempt": tree.key.attempt,
                    "chosen": sides[0].leaf.id,
                    "rejected": sides[1].leaf.id,
                },
                "rewards": [scored.rewards[index].value for index in pair],
                "calls": [len(trajectory.exchanges) for trajectory in sides],
                **({} if _is_exact(tree) else {"exact_ids": False}),
                "ids": {
                    "prompt": list(prompt.token_ids),
                    **{
                        name: [[str(source), list(ids)] for source, ids in part]
                        for name, part in zip(("chosen", "rejected"), parts, strict=True)
                    },
                },
            }


def _source(tree: Tree, node: Node) -> Source:
    """Return whose tokens those of a node are in a pair: what lies above the tree's start is context, as in RL."""
    return Source.TOOL if node.id in tree.inherited_ids else node.source


def write_pairs(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write a file of pairs, whole or not at all."""
    replace_pieces(path, (f"{dump_line(row)}\n".encode() for row in rows))
