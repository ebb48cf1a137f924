"""Rewritten contexts: ask the rewriters, check their answers, render them as tokens; from characters of a turn to its tokens."""

import asyncio
import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ramify.core.errors import ConfigError, DataError, RamifyError
from ramify.core.messages import ToolSpec
from ramify.core.protocols import ContextRewriter, Event
from ramify.core.records import ContinueFrom, FreshContext
from ramify.core.tree import Context, Cut, Node, Segment, Source, Trajectory, TreeKey
from ramify.files.user_code import check_signature, load_function, one_line
from ramify.rollout.calls import Failure, detached
from ramify.rollout.configs import RewriterConfig
from ramify.rollout.settings import AgentParts
from ramify.runtime.daemon_threads import DaemonThreads

Decode = Callable[[Sequence[int]], str]

_THREADS = 32
_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
"""The text of a character whose last bytes are missing."""


@dataclass(frozen=True, slots=True)
class FunctionRewriter:
    """Implements `core.protocols.ContextRewriter` with a function.

    One that is not `async` runs in a thread, which is abandoned when the trajectory ends before it answers.

    Raises:
        ConfigError: `function` is no function, or has no parameter for the trajectory, or for one of `args`.
    """

    function: Callable[..., Any]
    name: str
    budget: int = 1
    args: Mapping[str, Any] = field(default_factory=dict)
    _threads: DaemonThreads = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_threads", DaemonThreads(f"rewriter {self.name}", _THREADS))
        check_signature(self.function, f"rewriter {self.name}", self.name, ("trajectory",), self.args)

    async def rewrite(
        self,
        trajectory: Trajectory,
        tools: Sequence[ToolSpec],  # noqa: ARG002 - the function gets the trajectory alone
    ) -> ContinueFrom | FreshContext | None:
        """Return what the function answers."""
        if inspect.iscoroutinefunction(self.function):
            answer = await self.function(trajectory, **self.args)
        else:
            answer = await self._threads.result(
                self._threads.submit(partial(self.function, trajectory, **self.args))
            )
        if answer is not None and not isinstance(answer, ContinueFrom | FreshContext):
            raise TypeError(f"expected ContinueFrom, FreshContext or None, got {type(answer).__name__}")
        return answer


def load_rewriter(config: RewriterConfig) -> tuple[FunctionRewriter, str]:
    """Load a function of a Python file as a rewriter; returns it with the SHA-256 of the file.

    Raises:
        ConfigError: The file cannot be run or has no such function, or the function cannot take its arguments.
    """
    loaded = load_function(config.path, config.function)
    name = config.name or config.function
    try:
        return FunctionRewriter(loaded.function, name, config.budget, config.args), loaded.sha256
    except ConfigError as error:
        raise ConfigError(f"{config.path}: {error}") from None


@dataclass(frozen=True, slots=True)
class RewrittenContext:
    """A context to go on from.

    Attributes:
        by: Name of the rewriter.
        answer: Its answer.
        context: Whose tokens stand before the node that is added.
        before: These tokens.
        token_ids: Tokens of the node.
        shared: Number of tokens at the end of `before` and `token_ids` that already belong to the policy's next turn.
    """

    by: str
    answer: ContinueFrom | FreshContext
    context: Context
    before: tuple[int, ...]
    token_ids: tuple[int, ...]
    shared: int = 0

    @property
    def size(self) -> int:
        """Length of the context."""
        return len(self.before) + len(self.token_ids)


async def rewrite_context(
    parts: AgentParts, key: TreeKey, trajectory: Trajectory, tools: Sequence[ToolSpec], most: int
) -> RewrittenContext | None:
    """Return the context of the first rewriter that asks for a valid one; None: the context stays as it is.

    A rewriter that fails, or asks for an invalid context, is an event (`rewriter/NAME`), and the next one is asked.

    Args:
        parts: The agent.
        key: The tree's key.
        trajectory: The path; its last node is the result that was observed, or has the reason to stop.
        tools: The tools in force.
        most: Most tokens that may be added.
    """
    loop = asyncio.get_running_loop()
    for rewriter in parts.rewriters:
        if sum(node.rewriter == rewriter.name for node in trajectory.nodes) >= rewriter.budget:
            continue
        began = loop.time()
        context = await _context_from(parts, rewriter, trajectory, tools, most)
        if context is None:
            continue
        match context if isinstance(context, str) else context.answer:
            case str(reason):
                fields: dict[str, object] = {"asked": "nothing usable", "reason": reason}
            case ContinueFrom(cut):
                fields = {"asked": "go on", "node": cut.node, "tokens": cut.tokens}
            case FreshContext():
                fields = {"asked": "afresh"}
        kind, tree = f"rewriter/{rewriter.name}", (key.step, key.slot)
        parts.events.emit(Event(kind, tree, trajectory.leaf.id, loop.time() - began, fields, began))
        if isinstance(context, RewrittenContext):
            return context
    return None


async def _context_from(
    parts: AgentParts,
    rewriter: ContextRewriter,
    trajectory: Trajectory,
    tools: Sequence[ToolSpec],
    most: int,
) -> RewrittenContext | str | None:
    """Return the context that a rewriter asks for, why it is invalid, or None if it asks for nothing."""
    try:
        answer = await detached(f"rewriter {rewriter.name!r}", _answer(rewriter, trajectory, tools))
        if answer is None:
            return None
        if isinstance(answer, Failure):
            return one_line(answer.raised) if answer.raised is not None else answer.reason
        if isinstance(answer, FreshContext):
            problem = replace(trajectory.problem, messages=answer.messages)
            prompt = parts.renderer.render_prompt(problem, tools)
            context = RewrittenContext(rewriter.name, answer, "fresh", (), prompt)
        else:
            context = _continue_from(parts, rewriter.name, answer, trajectory, tools)
    except (InvalidContextError, DataError) as error:
        return str(error)
    except RamifyError:
        raise
    # A rewriter may be user-defined: its failure must not end the trajectory.
    except Exception as error:  # noqa: BLE001
        return f"{type(error).__name__}: {error}"[:500]
    if not context.size:
        return "a context without tokens"
    room = min(most, parts.engine.info().context_tokens - 1 - len(context.before))
    if len(context.token_ids) > room:
        return f"{len(context.token_ids)} tokens are too many, there is room for {room}"
    return context


async def _answer(
    rewriter: ContextRewriter, trajectory: Trajectory, tools: Sequence[ToolSpec]
) -> ContinueFrom | FreshContext | Failure | None:
    try:
        return await rewriter.rewrite(trajectory, tools)
    except (RamifyError, asyncio.CancelledError):
        raise
    # Also SystemExit, which would end the event loop if it left the task.
    except BaseException as error:  # noqa: BLE001
        return Failure(error)


class InvalidContextError(Exception):
    """A rewriter asks for a context that does not exist."""


def _continue_from(
    parts: AgentParts, name: str, answer: ContinueFrom, trajectory: Trajectory, tools: Sequence[ToolSpec]
) -> RewrittenContext:
    # A number of numpy's cannot be written into a trace.
    cut = Cut(str(answer.cut.node), operator.index(answer.cut.tokens))
    contexts = {node.id: context for node, context in zip(trajectory.nodes, trajectory.contexts, strict=True)}
    nodes = {node.id: node for node in trajectory.nodes}
    last = trajectory.leaf
    # The observation is not in the tree yet: what the rewriter asks for comes in its place.
    if last.source is Source.TOOL:
        del nodes[last.id]
        last = trajectory.nodes[-2]
    if cut.node not in nodes:
        raise InvalidContextError(f"node {cut.node!r} is not on the path")
    node = nodes[cut.node]
    if not 1 <= cut.tokens <= len(node.token_ids):
        raise InvalidContextError(f"{cut.tokens} tokens of node {node.id!r}, which has {len(node.token_ids)}")
    before = contexts[node.id].before(cut)
    turn = open_turn(before)
    turn_ids = tuple(token for part, size in turn for token in part.token_ids[:size])
    if parts.renderer.decode(turn_ids).endswith(_INCOMPLETE):
        raise InvalidContextError(f"after {cut.tokens} tokens of node {node.id!r} a character is cut")
    added = parts.renderer.insert(answer.text, tools)
    whole = before.token_ids + added
    again = any(contexts[node.id].token_ids == whole for node in nodes.values() if node.rewriter)
    if parts.limits.temperature == 0 and (again or not answer.text):
        raise InvalidContextError(
            "at temperature 0 the same tokens would be sampled again. Add a different text"
        )
    shared = len(turn_ids) + len(added) if _is_in_turn(before.parts) else 0
    # After the whole last turn: the text stands where its result would.
    is_next = node.id == last.id and cut.tokens == len(node.token_ids)
    return RewrittenContext(name, answer, "parent" if is_next else cut, before.token_ids, added, shared)


def open_turn(context: Segment) -> tuple[tuple[Node, int], ...]:
    """Return the parts at the end of a context that belong to a turn of the policy which has not ended.

    A text that a rewriter put into a turn, or to where one begins, belongs to it.
    """
    parts = context.parts
    start = len(parts)
    while start and (_is_open(parts[start - 1]) or _is_text_in_turn(parts[:start])):
        start -= 1
    return parts[start:]


def _is_in_turn(parts: Sequence[tuple[Node, int]]) -> bool:
    """Return True if the next token after these parts of a context belongs to a policy turn."""
    node, size = parts[-1]
    if node.source is Source.POLICY:
        return _is_open(parts[-1])
    return size == len(node.token_ids) or _is_text_in_turn(parts)


def _is_text_in_turn(parts: Sequence[tuple[Node, int]]) -> bool:
    """Return True if the last part is a text that a rewriter put into a turn."""
    node, _ = parts[-1]
    return node.source is Source.TOOL and isinstance(node.context, Cut) and _is_in_turn(parts[:-1])


def _is_open(part: tuple[Node, int]) -> bool:
    node, size = part
    return node.source is Source.POLICY and (size < len(node.token_ids) or node.turn is None)


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


def tokens_before(decode: Decode, ids: Sequence[int], chars: int) -> int:
    """Return the number of leading tokens whose text has at most `chars` characters."""
    low, high = 0, len(ids)
    while low < high:
        middle = (low + high + 1) // 2
        if len(decode(ids[:middle])) <= chars:
            low = middle
        else:
            high = middle - 1
    return low


def _tokens_within(decode: Decode, ids: Sequence[int], wanted: str) -> int:
    """Return the number of leading tokens whose text is the beginning of `wanted`."""
    low = tokens_before(decode, ids, len(wanted))
    # A token that ends inside a character reads as a replacement character, which no kept text may end with.
    while low and not (wanted.startswith(text := decode(ids[:low])) and not text.endswith(_INCOMPLETE)):
        low -= 1
    return low
