"""Demonstrations: the completions of a data set, checked, measured, and as trees with one leaf."""

from collections.abc import Collection, Sequence
from itertools import groupby

from ramify.chat.arguments import argument_fault
from ramify.chat.conversation import (
    UNBALANCED,
    UNFIT_ARGUMENTS,
    AssistantTurn,
    CompletionLines,
    Line,
    Parts,
    split_at_spans,
)
from ramify.chat.renderer import ExampleRenderer
from ramify.core.errors import RowError
from ramify.core.messages import Calls, Final, Message, Problem, ToolSpec
from ramify.core.tree import Node, Source, StopReason, Tree, TreeKey, make_tree, node_id

_ESCAPED = "<\ufe64\uff1c"
"""Characters that neutralising a result may turn into `&lt;`, three bytes more; some tokenizers read look-alikes as `<`."""


def split(renderer: ExampleRenderer, lines: CompletionLines, tools: Sequence[ToolSpec]) -> Parts:
    """Return the turns and the results in the dialect's text, without encoding anything.

    A result that is a message of its own stays a part, whatever it holds, unless it is nothing but results in the dialect's tags;
    results inside a turn's text are recognised by their tags.

    Raises:
        RowError: The dialect cannot write a call, or a result in a text holds an answer.
    """
    return renderer.in_opened_thoughts(_parts(renderer, lines, tools))


def _parts(renderer: ExampleRenderer, lines: CompletionLines, tools: Sequence[ToolSpec]) -> Parts:
    """Return the turns and the results, each turn with its whole thought."""
    parts: list[tuple[Source, str]] = []
    for line in lines:
        if isinstance(line, AssistantTurn):
            parts += renderer.split(renderer.demonstrated(line, tools))
        elif isinstance(line, Message):
            parts.append((Source.PROMPT, line.text))
        else:
            parts += _result_parts(renderer, line.text)
    return tuple(parts)


def _result_parts(renderer: ExampleRenderer, text: str) -> Parts:
    """Return the results in a text that is nothing but results in tags; else the text as one result."""
    pieces = split_at_spans(text, *renderer.result_tags)
    is_wrapped = len(pieces) > 1 and not "".join(pieces[::2]).strip()
    return renderer.split(text) if is_wrapped else ((Source.TOOL, text),)


def context_turns(
    renderer: ExampleRenderer, lines: CompletionLines, tools: Sequence[ToolSpec]
) -> frozenset[int]:
    """Return the positions of the turns among the parts of `split` that are not trained on."""
    positions: list[int] = []
    size = 0
    if all(line.trained for line in lines if isinstance(line, AssistantTurn)):
        return frozenset()
    for line in lines:
        parts = _parts(renderer, (line,), tools)
        if isinstance(line, AssistantTurn) and not line.trained:
            positions += (size + index for index, part in enumerate(parts) if part[0] is Source.POLICY)
        size += len(parts)
    return frozenset(positions)


def as_messages(
    renderer: ExampleRenderer, lines: CompletionLines, tools: Sequence[ToolSpec]
) -> tuple[Message, ...]:
    """Return the lines of earlier exchanges as messages for the chat template, calls and results in the dialect's text.

    Raises:
        RowError: The dialect cannot write a call.
    """
    messages: list[Message] = []
    for is_user, group in groupby(lines, lambda line: isinstance(line, Message)):
        exchange = tuple(group)
        if is_user:
            messages += (line for line in exchange if isinstance(line, Message))
        elif renderer.ends_each_turn:
            messages += (message for line in exchange for message in _turn_messages(renderer, line, tools))
        else:
            (first, *others) = exchange
            if isinstance(first, AssistantTurn) and not first.calls and not others:
                text = first.whole_text
            else:
                text = renderer.written(_parts(renderer, exchange, tools), tools)
            messages.append(Message.of("assistant", text))
    return tuple(messages)


def _turn_messages(renderer: ExampleRenderer, line: Line, tools: Sequence[ToolSpec]) -> list[Message]:
    if isinstance(line, AssistantTurn):
        return [Message.of("assistant", renderer.earlier_text(line, tools))]
    return [Message.of("tool", text) for _, text in _parts(renderer, (line,), tools)]


def exchanges(parts: Parts) -> list[tuple[int, Parts]]:
    """Divide parts at the user's messages: the position of each exchange's first part, and its parts."""
    divided: list[tuple[int, Parts]] = []
    for is_user, group in groupby(enumerate(parts), lambda part: part[1][0] is Source.PROMPT):
        numbered = list(group)
        if not is_user:
            divided.append((numbered[0][0], tuple(part for _, part in numbered)))
    return divided


def check(
    renderer: ExampleRenderer,
    parts: Parts,
    tools: Sequence[ToolSpec],
    *,
    may_end_in_call: bool = False,
    context: Collection[int] = (),
    begun: str = "",
) -> None:
    """Require that a rollout could have these parts, which are the turns and results of one exchange.

    Args:
        renderer: The renderer.
        parts: The parts.
        tools: The tools that the prompt shows.
        may_end_in_call: Allow a call without a result in the last turn, because an environment ends the trajectory there.
        context: The positions of turns that are not imitated; their calls need not be such that a rollout would run them.
        begun: The text with which the prompt begins the first turn (`begun_turn`).

    Raises:
        RowError: No rollout could.
    """
    if not any(source is Source.POLICY for source, _ in parts):
        raise RowError("nothing is left to train on")
    if parts[0][0] is Source.TOOL:
        raise RowError("a result follows no call", "it begins with one")
    if parts[-1][0] is Source.TOOL:
        raise RowError("it does not end with a turn of the assistant")
    if begun and not renderer.thought_opening:
        parts = ((Source.POLICY, begun + parts[0][1]), *parts[1:])
    for text in (text for source, text in parts if source is Source.POLICY):
        _check_text(renderer, text, tools)
    renderer.check_parts(parts, tools, may_end_in_call=may_end_in_call)
    by_name = renderer.tools_of(tools).by_name
    for number, (source, text) in enumerate(parts):
        turn = renderer.parse(text + renderer.ends[0], tools) if source is Source.POLICY else None
        for call in turn.calls if isinstance(turn, Calls) and number not in context else ():
            if call.malformed is not None:
                raise RowError("a call cannot be read", f"{call.malformed} in {_start(text)}")
            spec = by_name.get(call.name)
            if spec is not None and (fault := argument_fault(spec.parameters, call.arguments)):
                raise RowError(UNFIT_ARGUMENTS, f"{call.name} {fault}")


def _check_text(renderer: ExampleRenderer, text: str, tools: Sequence[ToolSpec]) -> None:
    call = renderer.other_calls.search(text)
    if call is not None and call.start() < _words_end(renderer, text, tools):
        raise RowError("it calls a tool as another dialect does; see model.dialect", call[0])
    # The closing tag is left to the dialect: a string of a call may hold it.
    if renderer.result_tags[0] in text:
        raise RowError(UNBALANCED, f"a result tag has no partner in {_start(text)}")
    if any(end in text for end in renderer.ends):
        raise RowError("an end of turn stands inside; further turns are messages of their own", _start(text))


def _words_end(renderer: ExampleRenderer, text: str, tools: Sequence[ToolSpec]) -> int:
    """Return where the first call of a turn begins, or its end: the arguments of a call may hold anything."""
    turn = renderer.parse(text + renderer.ends[0], tools)
    if isinstance(turn, Calls) and all(call.malformed is None for call in turn.calls):
        return renderer.outline(text, tools).words
    return len(text)


def fewest_tokens(renderer: ExampleRenderer, problem: Problem, parts: Parts) -> int:
    """Return a lower bound on the tokens of a demonstration, prompt included, without encoding or rendering it."""
    texts = [message.text.strip() for message in problem.messages if message.role != "assistant"]
    texts += [text for _, text in parts]
    return sum(map(renderer.tokenizer.fewest_tokens, texts))


def most_tokens(renderer: ExampleRenderer, problem: Problem, parts: Parts, tools: Sequence[ToolSpec]) -> int:
    """Return an upper bound on the tokens of a demonstration, prompt included, without encoding it.

    Raises:
        DataError: The chat template refuses the problem's messages.
    """
    most = renderer.tokenizer.most_tokens(renderer.prompt_text(problem, tools))
    for source, text in parts:
        if source is Source.PROMPT:
            most += len(renderer.later_message(text, tools))
        elif source is Source.TOOL:
            most += renderer.frame_tokens() + renderer.tokenizer.most_tokens(renderer.result_text(text))
            most += 3 * sum(map(text.count, _ESCAPED))
        else:
            most += renderer.tokenizer.most_tokens(text) + 1
    return most


def begin_alike(renderer: ExampleRenderer, parts: Parts, others: Parts, tools: Sequence[ToolSpec]) -> bool:
    """Return True if the tokens of one demonstration begin those of the other.

    Only parts whose texts differ are encoded, up to the first difference in tokens.
    """
    return all(
        part == other
        or (
            part[0] is other[0]
            and renderer.tokens(part[0], [part[1]], tools) == renderer.tokens(other[0], [other[1]], tools)
        )
        for part, other in zip(parts, others, strict=False)
    )


def demonstrate(
    renderer: ExampleRenderer,
    problem: Problem,
    parts: Parts,
    key: TreeKey,
    tools: Sequence[ToolSpec],
    context: Collection[int] = (),
) -> Tree:
    """Return a demonstration as a tree with one leaf: the assistant's turns are trained on, what stands between them is not.

    Args:
        renderer: The renderer.
        problem: The problem that it solves.
        parts: The turns and the results; see `check`. Messages of the user may stand between exchanges.
        key: The tree's key: where in the run the demonstration is used.
        tools: The tools that the prompt shows.
        context: The positions of turns that are not trained on.

    Raises:
        DataError: The chat template refuses the problem's messages, or would rewrite earlier turns.
    """
    prompt = renderer.render_prompt(problem, tools)
    nodes = [Node("", (), None, Source.PROMPT, prompt, renderer.decode(prompt))]
    steps = [
        (source, is_context, [text for _, (_, text) in group])
        for (source, is_context), group in groupby(
            enumerate(parts), lambda part: (part[1][0], part[0] in context)
        )
    ]
    sources = [source for source, _, _ in steps]
    for number, (source, is_context, texts) in enumerate(steps):
        following = sources[number + 1 :]
        ends = source is Source.POLICY and (following[:1] in ([], [Source.PROMPT]))
        nodes.append(
            _node(
                renderer,
                nodes[-1],
                source,
                texts,
                tools,
                ends=ends,
                last=not following,
                trained=not is_context,
                turn="".join(steps[number - 1][2]) if number else "",
            )
        )
    return make_tree(problem, key, nodes)


def _node(
    renderer: ExampleRenderer,
    parent: Node,
    source: Source,
    texts: Sequence[str],
    tools: Sequence[ToolSpec],
    *,
    ends: bool,
    last: bool,
    trained: bool,
    turn: str,
) -> Node:
    path = (*parent.path, 0)
    if source is Source.PROMPT:
        ids = renderer.later_message("\n\n".join(texts), tools)
    else:
        ids = renderer.tokens(source, texts, tools, turn)
    if source is Source.POLICY and (ends or renderer.ends_each_turn):
        ids += (renderer.end_id("".join(texts)),)
    stop = StopReason.ANSWERED if last else None
    if source is not Source.POLICY or not trained:
        # The node gets no `results`, because no tool ran.
        return Node(node_id(path), path, parent.id, Source.TOOL, ids, renderer.decode(ids), stop=stop)
    text = renderer.decode(ids)
    parsed = renderer.parse(text, tools)
    if last and not isinstance(parsed, Final):
        stop = StopReason.MALFORMED
    return Node(
        node_id(path),
        path,
        parent.id,
        source,
        ids,
        text,
        behavior_logprobs=(0.0,) * len(ids),
        turn=parsed,
        stop=stop,
    )


def _start(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:60] + "...")
