"""Token counts of an attempt, and the count of a service that charges by the token."""

from collections.abc import Collection
from dataclasses import dataclass

from ramify.core.config import Config, Weight
from ramify.core.tree import Source, Trajectory


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Token counts of an attempt.

    Attributes:
        prompt: Tokens of the rendered problem.
        written: Tokens that the policy wrote.
        results: Tokens of tool results.
        sent: Context tokens, summed over all turns: the input of a service that charges by the token.
    """

    prompt: int
    written: int
    results: int
    sent: int


def count_tokens(trajectory: Trajectory, earlier: Collection[str] = ()) -> TokenCounts:
    """Return the token counts of one attempt, without the policy's nodes `earlier` (`Tree.given`), which an earlier one wrote."""
    sizes = dict.fromkeys(Source, 0)
    sent = 0
    turn_open = False
    for node, context in zip(trajectory.nodes, trajectory.contexts, strict=True):
        if node.id in earlier:
            continue
        is_policy = node.source is Source.POLICY
        if is_policy and not (turn_open and node.context == "parent"):
            sent += sum(size for _, size in context.parts[:-1])
        turn_open = is_policy
        sizes[node.source] += len(node.token_ids)
    return TokenCounts(sizes[Source.PROMPT], sizes[Source.POLICY], sizes[Source.TOOL], sent)


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceConfig(Config):
    """Price of a million tokens, in any currency.

    `input`: tokens sent, which is the context of every turn; `output`: tokens that the model writes.
    """

    input: Weight
    output: Weight
