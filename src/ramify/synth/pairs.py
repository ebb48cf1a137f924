"""Self-critic pairs of Tool-Star (arXiv 2505.16410, section 3.4): right and wrong answers of one recorded tree.

The critic is the rule reward, and the policy's own samples are what it judges. A pair is two leaves of a tree: the chosen one is
right, the rejected one is not. Both keep the ids that were sampled, so no text is encoded again.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from ramify.core.errors import DataError
from ramify.core.records import Reward, ScoredTree
from ramify.core.tree import Segment, Source, StopReason, Trajectory
from ramify.obs.files import dump_line, replace_pieces
from ramify.synth.rows import is_right

_NOT_ITS_OWN = (StopReason.DEADLINE, StopReason.FAILED)
"""Ends that say nothing about the policy."""

ALL_RIGHT, NEVER_RIGHT, TOO_LONG, PAIRED = "all right", "never right", "too long", "with pairs"


@dataclass(slots=True)
class PairCounts:
    """Questions by what came of them, and the number of pairs."""

    pairs: int = 0
    questions: Counter[str] = field(default_factory=Counter)

    def line(self) -> str:
        """For people."""
        told = ", ".join(f"{name} {count}" for name, count in sorted(self.questions.items()))
        return f"{self.pairs} pairs from {self.questions.total()} questions ({told or 'none'})"


@dataclass(frozen=True, slots=True)
class PairRule:
    """Which pairs are made: at most `per_question` of a tree, of sides with at most `max_tokens` tokens and their prompt."""

    per_question: int
    max_tokens: int

    def choose(self, scored: ScoredTree) -> tuple[str, tuple[tuple[int, int], ...]]:
        """What became of the question, and the pairs as indices of its trajectories: (chosen, rejected).

        The pair with the largest difference of rewards comes first; among equal ones, the one whose sides made as many calls. No
        leaf is in two pairs.
        """
        trajectories, rewards = scored.tree.trajectories, scored.rewards
        usable = [
            index
            for index, trajectory in enumerate(trajectories)
            if trajectory.stop not in _NOT_ITS_OWN
            and trajectory.leaf.token_ids
            and trajectory.segments[-1].nodes[0].source is Source.PROMPT
        ]
        right = [index for index in usable if is_right(rewards[index])]
        wrong = [index for index in usable if not is_right(rewards[index])]
        if not wrong or not right:
            return (NEVER_RIGHT if not right else ALL_RIGHT), ()
        fits = {
            index for index in usable if len(trajectories[index].segments[-1].token_ids) <= self.max_tokens
        }
        both = [
            (good, bad)
            for good, bad in product(right, wrong)
            if good in fits
            and bad in fits
            and trajectories[good].segments[-1].token_ids != trajectories[bad].segments[-1].token_ids
        ]
        both.sort(key=lambda pair: (-_gap(rewards, pair), _calls_apart(trajectories, pair), pair))
        chosen: list[tuple[int, int]] = []
        used: set[int] = set()
        for good, bad in both:
            if len(chosen) < self.per_question and not {good, bad} & used:
                chosen.append((good, bad))
                used |= {good, bad}
        return (PAIRED if chosen else TOO_LONG), tuple(chosen)


def _gap(rewards: Sequence[Reward], pair: tuple[int, int]) -> float:
    return rewards[pair[0]].value - rewards[pair[1]].value


def _calls_apart(trajectories: Sequence[Trajectory], pair: tuple[int, int]) -> int:
    return abs(len(trajectories[pair[0]].exchanges) - len(trajectories[pair[1]].exchanges))


def pair_rows(
    trees: Iterable[tuple[str, ScoredTree]],
    rule: PairRule,
    decode: Callable[[Sequence[int]], str],
    counts: PairCounts,
) -> Iterator[dict[str, Any]]:
    """The rows of a file of pairs; fills `counts`.

    Args:
        trees: Trees with the name of the file that they are recorded in.
        rule: Which pairs are made.
        decode: Gives the text of tokens.
        counts: What became of the questions.

    Raises:
        DataError: A tree's tokens are those of another tokenizer, or are no sampled ones.
    """
    seen: Counter[str] = Counter()
    for file, scored in trees:
        tree = scored.tree
        place = f"{file}: problem {tree.problem.id!r}"
        if not all(node.exact_ids for node in tree.nodes):
            raise DataError(
                f"{place}: its tokens were not sampled, a service gave text; take trees of a local engine or vLLM"
            )
        prompt = tree.nodes[0]
        if decode(prompt.token_ids) != prompt.text:
            raise DataError(f"{place}: its tokens are those of another model's tokenizer")
        outcome, pairs = rule.choose(scored)
        counts.questions[outcome] += 1
        counts.pairs += len(pairs)
        for good, bad in pairs:
            sides = [tree.trajectories[index] for index in (good, bad)]
            parts = [_parts(trajectory.segments[-1]) for trajectory in sides]
            number = seen[tree.problem.id]
            seen[tree.problem.id] += 1
            yield {
                "id": f"{tree.problem.id}#{number}" if number else tree.problem.id,
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
                "rewards": [scored.rewards[index].value for index in (good, bad)],
                "calls": [len(trajectory.exchanges) for trajectory in sides],
                "ids": {
                    "prompt": list(prompt.token_ids),
                    **{
                        name: [[str(source), list(ids)] for source, ids in part]
                        for name, part in zip(("chosen", "rejected"), parts, strict=True)
                    },
                },
            }


def _parts(segment: Segment) -> list[tuple[Source, tuple[int, ...]]]:
    """What follows the prompt in a context, in order; parts without tokens are left out."""
    return [(node.source, node.token_ids[:size]) for node, size in segment.parts[1:] if size]


def write_pairs(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write a file of pairs, whole or not at all."""
    replace_pieces(path, (f"{dump_line(row)}\n".encode() for row in rows))
