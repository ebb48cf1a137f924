"""Places inside a turn of the policy: from characters of its text to tokens of its nodes."""

from collections.abc import Callable, Sequence

from ramify.core.records import ContinueFrom
from ramify.core.tree import Cut, Segment
from ramify.rollout.rewriting import open_turn

Decode = Callable[[Sequence[int]], str]
_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"


def last_turn(decode: Decode, context: Segment) -> tuple[str, int]:
    """Return the text of the turn with which a context ends, and the number of parts at its end that belong to it."""
    size = 1 + len(open_turn(Segment(context.parts[:-1])))
    return decode(
        [token for node, tokens in context.parts[-size:] for token in node.token_ids[:tokens]]
    ), size


def continue_after(decode: Decode, context: Segment, size: int, chars: int, text: str = "") -> ContinueFrom:
    """Go on after the first `chars` characters of a turn, with a text behind them.

    The kept tokens are those that were sampled. A token that reaches beyond the place is not kept; the characters that are
    missing then begin the added text.

    Args:
        decode: Gives the text of tokens.
        context: The context that ends with the turn.
        size: Number of parts at its end that belong to the turn; something stands before them.
        chars: Characters of the turn's text to keep; 0: the turn is written anew.
        text: What comes behind them.
    """
    above, turn = context.parts[: len(context.parts) - size], context.parts[len(context.parts) - size :]
    ids = [token for node, tokens in turn for token in node.token_ids[:tokens]]
    wanted = decode(ids)[:chars]
    left = _tokens_within(decode, ids, wanted)
    missing = wanted[len(decode(ids[:left])) :]
    cut = Cut(above[-1][0].id, above[-1][1])
    for node, tokens in turn:
        if left <= 0:
            break
        cut = Cut(node.id, min(left, tokens))
        left -= tokens
    return ContinueFrom(cut, missing + text)


def _tokens_within(decode: Decode, ids: Sequence[int], wanted: str) -> int:
    """Return the number of leading tokens whose text is the beginning of `wanted`."""
    low, high = 0, len(ids)
    while low < high:
        middle = (low + high + 1) // 2
        if len(decode(ids[:middle])) <= len(wanted):
            low = middle
        else:
            high = middle - 1
    # A token that ends inside a character reads as a replacement character, which no kept text may end with.
    while low and not (wanted.startswith(text := decode(ids[:low])) and not text.endswith(_INCOMPLETE)):
        low -= 1
    return low
