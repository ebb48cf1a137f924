"""Demonstrations: the completions of a data set, checked, measured, and as trees with one leaf."""

from collections.abc import Sequence
from itertools import groupby

from ramify.chat.conversation import UNBALANCED, AssistantTurn, CompletionLines, Parts
from ramify.chat.renderer import ExampleRenderer
from ramify.core.errors import RowError
from ramify.core.messages import Final, Problem, ToolSpec
from ramify.core.tree import Node, Source, StopReason, Tree, TreeKey, make_tree, node_id

_ESCAPED = "<\ufe64\uff1c"
"""Characters that neutralising a result may turn into `&lt;`, three bytes more; some tokenizers read look-alikes as `<`."""


def split(renderer: ExampleRenderer, lines: CompletionLines, tools: Sequence[ToolSpec]) -> Parts:
    """Return the turns and the results in the dialect's text, without encoding anything.

    A result that is a message of its own stays a part, whatever it holds; results inside a turn's text are recognised by their tags.

    Raises:
        RowError: The dialect cannot write a call, or a result in a text holds an answer.
    """
    parts: list[tuple[Source, str]] = []
    for line in lines:
        if isinstance(line, AssistantTurn):
            parts += renderer.split(renderer.demonstrated(line, tools))
        else:
            parts.append((Source.TOOL, line.text))
    return tuple(parts)


def check(
    renderer: ExampleRenderer, parts: Parts, tools: Sequence[ToolSpec], *, may_end_in_call: bool = False
) -> None:
    """Require that a rollout could have these parts.

    Args:
        renderer: The renderer.
        parts: The parts.
        tools: The tools that the prompt shows.
        may_end_in_call: Allow a call without a result in the last turn, because an environment ends the trajectory there.

    Raises:
        RowError: No rollout could.
    """
    if not any(source is Source.POLICY for source, _ in parts):
        raise RowError("nothing is left to train on")
    if parts[0][0] is Source.TOOL:
        raise RowError("a result follows no call", "it begins with one")
    if parts[-1][0] is Source.TOOL:
        raise RowError("it does not end with a turn of the assistant")
    for text in (text for source, text in parts if source is Source.POLICY):
        if call := renderer.other_calls.search(text):
            raise RowError("it calls a tool as another dialect does; see model.dialect", call[0])
        if any(tag in text for tag in renderer.result_tags):
            raise RowError(UNBALANCED, f"a result tag has no partner in {_start(text)}")
        if any(end in text for end in renderer.ends):
            raise RowError(
                "an end of turn stands inside (a further turn of the user is not supported)", _start(text)
            )
    renderer.check_parts(parts, tools, may_end_in_call=may_end_in_call)


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
        if source is Source.TOOL:
            most += renderer.frame_tokens() + renderer.tokenizer.most_tokens(text)
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
    renderer: ExampleRenderer, problem: Problem, parts: Parts, key: TreeKey, tools: Sequence[ToolSpec]
) -> Tree:
    """Return a demonstration as a tree with one leaf: the assistant's turns are trained on, the tool results are not.

    Args:
        renderer: The renderer.
        problem: The problem that it solves.
        parts: The turns and the results; see `check`.
        key: The tree's key: where in the run the demonstration is used.
        tools: The tools that the prompt shows.

    Raises:
        DataError: The chat template refuses the problem's messages.
    """
    prompt = renderer.render_prompt(problem, tools)
    nodes = [Node("", (), None, Source.PROMPT, prompt, renderer.decode(prompt))]
    steps = [(source, [text for _, text in group]) for source, group in groupby(parts, lambda part: part[0])]
    for number, (source, texts) in enumerate(steps, 1):
        nodes.append(_node(renderer, nodes[-1], source, texts, tools, last=number == len(steps)))
    return make_tree(problem, key, nodes)


def _node(
    renderer: ExampleRenderer,
    parent: Node,
    source: Source,
    texts: Sequence[str],
    tools: Sequence[ToolSpec],
    *,
    last: bool,
) -> Node:
    path = (*parent.path, 0)
    ids = renderer.tokens(source, texts, tools)
    if source is Source.TOOL:
        # The node gets no `results`, because no tool ran.
        return Node(node_id(path), path, parent.id, source, ids, renderer.decode(ids))
    if last or renderer.ends_each_turn:
        ids += (renderer.tokenizer.eos_id,)
    text = renderer.decode(ids)
    turn = renderer.parse(text, tools)
    stop = StopReason.ANSWERED if isinstance(turn, Final) else StopReason.MALFORMED
    return Node(
        node_id(path),
        path,
        parent.id,
        source,
        ids,
        text,
        behavior_logprobs=(0.0,) * len(ids),
        turn=turn,
        stop=stop if last else None,
    )


def _start(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:60] + "...")
