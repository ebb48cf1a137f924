"""Turns of a conversation, and the replies to them, as nodes of a tree.

Their token ids are not recorded, so each turn is a single placeholder token, with the turn's text and calls.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from ramify.chat.arguments import read_object
from ramify.chat.conversation import AssistantTurn, Line
from ramify.core.errors import RowError
from ramify.core.messages import Calls, Final, Message, Say, ToolCall, ToolResult
from ramify.core.tree import Node, NodePath, Source, StopReason, node_id
from ramify.rollout.calls import not_run

_MOST_SHOWN = 400
"""Characters of a broken call's text that are shown."""


def conversation_nodes(lines: Sequence[Line], start: NodePath) -> list[Node]:
    """Return the nodes of a path that begins with a turn at `start`.

    The results of the last turn's calls are its own; of what else follows it nothing is kept. If only the first of its calls
    have results, the trajectory ended there, and the others were not run.

    Raises:
        RowError: A turn has another number of results than of calls, or follows a turn directly.
    """
    if not lines or not isinstance(lines[0], AssistantTurn):
        raise RowError("it has no turn of the model")
    turns: list[tuple[AssistantTurn, list[ToolResult], list[Message]]] = []
    for line in lines:
        if isinstance(line, AssistantTurn):
            turns.append((line, [], []))
        elif isinstance(line, ToolResult):
            turns[-1][1].append(line)
        else:
            turns[-1][2].append(line)
    nodes: list[Node] = []
    for number_of, (turn, results, messages) in enumerate(turns):
        path = (*start, *(0, 0) * number_of)
        is_last = number_of == len(turns) - 1
        replied = results or messages
        if not is_last and not replied:
            raise RowError("a turn follows another directly")
        _require_own_results(turn, results, is_last=is_last)
        node = turn_node(turn, path, is_last=is_last)
        # Calls and results may come without ids, which an endpoint asks for.
        named = tuple(
            replace(result, call_id=call.id) for call, result in zip(node.calls, results, strict=False)
        )
        if not is_last:
            nodes += [node, reply_node((*path, 0), named, messages)]
        elif named:
            nodes.append(replace(node, results=(*named, *map(not_run, node.calls[len(named) :]))))
        else:
            nodes.append(node)
    return nodes


def _require_own_results(turn: AssistantTurn, results: Sequence[ToolResult], *, is_last: bool) -> None:
    """Raise RowError unless the results are those of the turn's calls, or at the end of its first ones."""
    wrong = len(results) > len(turn.calls) if is_last else len(results) != len(turn.calls)
    # Results that name their calls are in the order of these.
    pairs = zip(turn.calls, results, strict=False)
    if wrong or any(call.id and result.call_id not in ("", call.id) for call, result in pairs):
        raise RowError("a turn has another number of results than of calls")


def turn_node(turn: AssistantTurn, path: NodePath, *, is_last: bool) -> Node:
    """Return a turn as a node; the last one ends its trajectory, with an answer unless it calls tools."""
    calls = tuple(
        _call(each.id or f"call_{i}", each.name, each.arguments) for i, each in enumerate(turn.calls)
    )
    words = Final(turn.text) if is_last else Say(turn.text)
    stop = (StopReason.CALLS if calls else StopReason.ANSWERED) if is_last else None
    parsed = Calls(calls) if calls else words
    identifier = node_id(path)
    return Node(
        identifier,
        path,
        node_id(path[:-1]),
        Source.POLICY,
        (0,),
        turn.whole_text,
        (0.0,),
        turn=parsed,
        stop=stop,
        exact_ids=False,
    )


def reply_node(path: NodePath, results: Sequence[ToolResult], messages: Sequence[Message] = ()) -> Node:
    """Return results, or what the user said, as a node."""
    text = "\n".join([*(each.text for each in results), *(each.text for each in messages)])
    return Node(
        node_id(path),
        path,
        node_id(path[:-1]),
        Source.TOOL,
        (),
        text,
        results=tuple(results),
        messages=tuple(messages),
    )


def _call(identifier: str, name: str, arguments: str) -> ToolCall:
    try:
        return ToolCall(identifier, name, read_object(arguments if arguments.strip() else "{}"))
    except (ValueError, RecursionError) as error:
        # With the text, by which recorded results are known: of a long one the rest counts too.
        reason = f"{error}: {arguments}"
        if len(reason) > _MOST_SHOWN:
            digest = hashlib.sha256(arguments.encode("utf-8", "surrogatepass")).hexdigest()[:12]
            reason = f"{reason[:_MOST_SHOWN]} ... ({digest})"
        return ToolCall(identifier, name, {}, malformed=reason)
