"""Runs of other trainers as recorded trees: `traces.jsonl` of verifiers 0.4, and JSON lines with messages and a reward.

Conversations that begin with the same messages are trajectories of one problem, unless their task differs in what it does not show.
"""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ramify.chat.conversation import AssistantTurn, Line
from ramify.core.errors import DataError, RowError
from ramify.core.json_types import FieldError, Reader, T, each, mapping, number, optional, part, whole
from ramify.core.messages import Message, Problem
from ramify.core.records import Reward
from ramify.core.tree import Node, Source, TreeKey, make_tree
from ramify.data.row_columns import described
from ramify.data.row_messages import read_lines
from ramify.data.row_tools import read_tools
from ramify.eval.result_rows import require_text
from ramify.files.durable import parse_line
from ramify.obs.trace import TracedTree, lines_of
from ramify.study.conversation_nodes import conversation_nodes

_REWARDS = ("reward", "score")
_FORMS = ("traces", "nodes", "messages", "completion")
"""Fields of which a record of a conversation has one."""
_MESSAGE_FIELDS = (
    "role",
    "content",
    "name",
    "tool_calls",
    "tool_call_id",
    "reasoning_content",
    "reasoning",
    "thinking",
)
_UNREAD_WORDS = ("function_call", "refusal", "audio")
"""Fields in which a turn says something that is not read; without them it would be another turn."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A finished conversation.

    Attributes:
        prompt: The messages before the first turn.
        lines: Turns, results and later messages of the user.
        reward: Its reward.
        answer: The accepted answers, if they are known.
        info: Further columns.
        tools: JSON text of the tools that it was offered; "" if none.
        hidden: Those of the columns that make it another problem than one with the same prompt.
    """

    prompt: tuple[Message, ...]
    lines: tuple[Line, ...]
    reward: float
    answer: tuple[str, ...]
    info: Mapping[str, Any]
    tools: str
    hidden: Mapping[str, Any]

    @property
    def problem(self) -> str:
        """A checksum of the prompt, the answers, the tools and the hidden columns, which names the problem."""
        prompt = [[message.role, message.text] for message in self.prompt]
        hidden = [dict(self.hidden)] if self.hidden else []
        text = json.dumps([prompt, list(self.answer), self.tools, *hidden], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class ForeignRun:
    """Conversations as trees.

    Attributes:
        trees: One for each problem, in the order of their first conversations.
        tools: JSON text of the tools of each; "" if none.
        lines: For each the lines of its conversations, from 1.
        left_out: Number of conversations that cannot be used, by reason.
        differing: Columns in which conversations of one problem differ.
    """

    trees: tuple[TracedTree, ...]
    tools: tuple[str, ...]
    lines: tuple[tuple[int, ...], ...]
    left_out: Mapping[str, int] = field(default_factory=dict)
    differing: tuple[str, ...] = ()


def is_foreign(path: Path) -> bool:
    """Return True if a file of JSON lines holds conversations, and no trees of ours.

    Raises:
        DataError: It cannot be read, or its first line is neither.
    """
    require_text(path)
    lines = ((row, line) for row, line in enumerate(lines_of(path), start=1) if line.strip())
    row, first = next(lines, (0, b""))
    if not row:
        raise DataError(f"{path}: the file is empty. Name a file of trees or of conversations.")
    record = _record(path, row, first)
    # Conversations may have a column of that name too, such as that of a data base.
    is_tree = "schema" in record and not any(key in record for key in _FORMS if key != "nodes")
    if not is_tree and not any(key in record for key in _FORMS):
        raise DataError(
            f"{path} row {row}: expected a tree of ramify, or a conversation as messages, as prompt and completion, or of verifiers; "
            f"the row has {described(record)}. Rename its columns, or name another file."
        )
    return not is_tree


def _record(path: Path, row: int, line: bytes) -> dict[str, Any]:
    try:
        return parse_line(path, row, line)
    except DataError as error:
        raise DataError(f"{error}. Correct or remove the row; each is one line.") from None


def read_conversations(path: Path, columns: Collection[str] = ()) -> ForeignRun:
    """Read a file of conversations.

    Args:
        path: The file.
        columns: Those whose values make another problem of the same prompt. Of verifiers' traces all of the task's data do.

    Raises:
        DataError: The file or a line cannot be read, or no conversation can be used.
    """
    groups: dict[str, list[Conversation]] = {}
    lines: dict[str, list[int]] = {}
    left_out: Counter[str] = Counter()
    for row, line in enumerate(lines_of(path), start=1):
        if not line.strip():
            continue
        for record in _traces(_record(path, row, line)):
            try:
                conversation = _conversation(part()(record), columns)
                groups.setdefault(conversation.problem, []).append(conversation)
                lines.setdefault(conversation.problem, []).append(row)
            except RowError as error:
                left_out[error.reason] += 1
            except FieldError as error:
                raise DataError(f"{path} row {row}: not a conversation: {error}. Correct the row.") from None
    if not groups:
        reasons = ", ".join(f"{count} x {reason}" for reason, count in left_out.items())
        raise DataError(
            f"{path}: no conversation with a turn and a reward. {reasons or 'The file is empty.'}"
        )
    trees = tuple(_tree(slot, group) for slot, group in enumerate(groups.values()))
    tools = tuple(group[0].tools for group in groups.values())
    return ForeignRun(
        trees, tools, tuple(map(tuple, lines.values())), dict(left_out), _differing(groups.values())
    )


def _differing(groups: Iterable[Sequence[Conversation]]) -> tuple[str, ...]:
    return tuple(
        sorted(
            {
                key
                for group in groups
                for each in group[1:]
                for key in each.info.keys() | group[0].info.keys()
                if each.info.get(key) != group[0].info.get(key)
            }
        )
    )


def _traces(record: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the conversations of a line: an episode of verifiers has several."""
    traces = record.get("traces")
    if isinstance(traces, list):
        yield from traces
    else:
        yield record


def _conversation(record: Mapping[str, Any], columns: Collection[str]) -> Conversation:
    if "nodes" in record:
        return _of_verifiers(record)
    messages, by_model = _of_columns(record)
    key = next((key for key in _REWARDS if record.get(key) is not None), "")
    reward = _field(record, key, optional(number), None)
    others = {
        name: value
        for name, value in record.items()
        if name not in ("messages", "completion", "prompt", "tools", "answer", *_REWARDS)
    }
    hidden = {name: others[name] for name in columns if name in others}
    return _read(messages, by_model, reward, record.get("answer"), others, record.get("tools"), hidden)


def _of_columns(record: Mapping[str, Any]) -> tuple[list[Mapping[str, Any]], list[bool]]:
    """Return the messages of a record, and for each True if the model wrote it: turns in a column of prompts are examples."""
    prompt = _messages(record, "prompt", "user")
    completion = _messages(record, "completion", "assistant")
    messages = _messages(record, "messages")
    if not messages and record.get("completion") == "":
        # The model wrote nothing, which is a turn too.
        completion = [{"role": "assistant", "content": ""}]
    if messages and completion:
        raise RowError("it has both messages and a completion")
    if messages and messages[0].get("role") != "assistant":
        # They begin with the prompt; where that is written in another way, their first turn ends it.
        shared = len(prompt) if _texts(messages[: len(prompt)]) == _texts(prompt) else 0
        prompt, messages = messages[:shared], messages[shared:]
    behind = [*completion, *messages]
    by_model = [*(False for _ in prompt), *(message.get("role") == "assistant" for message in behind)]
    return [*prompt, *behind], by_model


def _texts(messages: Sequence[Mapping[str, Any]]) -> list[tuple[object, object]]:
    return [(message.get("role"), message.get("content")) for message in messages]


def _messages(record: Mapping[str, Any], key: str, role: str = "") -> list[Mapping[str, Any]]:
    """Return the messages of a column; where `role` is set, a text is one message of it."""
    value = record.get(key) or []
    if role and isinstance(value, str):
        return [{"role": role, "content": value}]
    if not isinstance(value, list) or not all(isinstance(each, Mapping) for each in value):
        raise FieldError("expected a list of messages, each an object with a role").at(key)
    return value


def _of_verifiers(record: Mapping[str, Any]) -> Conversation:
    """Read a trace of verifiers: the path to its last message; side branches, as of a context that was cut, are not followed."""
    nodes = _field(record, "nodes", each(part(message=part())), [])
    if not nodes:
        raise RowError("it has no messages")
    path: list[dict[str, Any]] = []
    index: int | None = len(nodes) - 1
    while index is not None:
        if not 0 <= whole(index) < len(nodes):
            raise FieldError(f"expected the place of a message, got {index}").at("parent")
        path.append(nodes[index])
        index = nodes[index].get("parent")
        if len(path) > len(nodes):
            raise RowError("its messages make a circle")
    path.reverse()
    if record.get("ok") is False:
        # Its last turn is not where the policy ended it, and some of its rewards may be missing.
        raise RowError("its rollout failed")
    rewards = _field(record, "rewards", mapping(optional(part(score=number))), {})
    scores = [reward for reward in rewards.values() if reward is not None]
    if len(scores) < len(rewards) or not scores:
        raise RowError("it has no reward")
    total = sum(score["score"] * _field(score, "weight", number, 1.0) for score in scores)
    # A product can be infinite where its factors are not.
    reward = _field({"rewards": total}, "rewards", number, None)
    if _field(record, "agent", part(), {}).get("trainable") is False:
        raise RowError("its agent is not trained")
    row = _field(_field(record, "task", part(), {}), "data", part(), {})
    data = {key: value for key, value in row.items() if key not in ("prompt", "system_prompt")}
    messages = [node["message"] for node in path]
    by_model = [bool(node.get("sampled")) for node in path]
    tools = record.get("tools") or path[0].get("tools")
    return _read(messages, by_model, reward, data.pop("answer", None), data, tools, data)


def _field(record: Mapping[str, Any], key: str, read: Reader[T], absent: object) -> T:
    """Return a field; what is missing or null is read as `absent`."""
    try:
        return read(absent if record.get(key) is None else record[key])
    except FieldError as error:
        raise error.at(key) from None


def _read(
    messages: Sequence[Any],
    by_model: Sequence[bool],
    reward: float | None,
    answer: object,
    info: Mapping[str, Any],
    tools: object,
    hidden: Mapping[str, Any],
) -> Conversation:
    """Return a conversation; `by_model` says of each message if the model wrote it."""
    if reward is None:
        raise RowError("it has no reward (reward or score)")
    if True not in by_model:
        raise RowError("it has no turn of the model")
    listed = read_tools(tools)
    first = by_model.index(True)
    plain = [_message(message) for message in messages]
    prompt = _prompt_messages(read_lines(plain[:first], "messages", listed) if first else [])
    if any(
        message.get("role") == "assistant" and not own
        for message, own in zip(plain[first:], by_model[first:], strict=True)
    ):
        raise RowError("a turn that the model did not write follows one that it wrote")
    lines = read_lines(plain[first:], "messages", listed, wrapped=False, malformed=True)
    # Refuses a conversation that makes no path.
    conversation_nodes(lines, (0,))
    golds = answer if isinstance(answer, list) else [] if answer in (None, "") else [answer]
    return Conversation(
        prompt,
        tuple(lines),
        reward,
        tuple(gold if isinstance(gold, str) else json.dumps(gold, ensure_ascii=False) for gold in golds),
        _finite(info),
        listed,
        _finite(hidden),
    )


def _finite(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Return a value with null in place of NaN and infinities, which pandas writes for what is missing and JSON does not know."""
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _prompt_messages(lines: Sequence[Line]) -> tuple[Message, ...]:
    """Return what stands before the model's first turn; turns in it, such as examples, are messages that it reads."""
    messages = []
    for line in lines:
        if isinstance(line, AssistantTurn) and not line.calls:
            messages.append(Message.of("assistant", line.text))
        elif isinstance(line, Message):
            messages.append(line)
        else:
            raise RowError("its prompt holds a call")
    if not messages:
        raise RowError("it has no prompt")
    if messages[-1].role == "assistant":
        raise RowError("its prompt ends with a turn of the assistant")
    return tuple(messages)


def _message(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are read. A turn of thoughts alone, or a result of nothing, has no content or null, which is no mistake."""
    if unread := next((key for key in _UNREAD_WORDS if record.get(key)), None):
        raise RowError(f"a message has {unread}, which is not read")
    fields = {key: value for key, value in record.items() if key in _MESSAGE_FIELDS and value is not None}
    return {"content": "", **fields} if fields.get("role") in ("assistant", "tool") else fields


def _tree(slot: int, group: Sequence[Conversation]) -> TracedTree:
    first = group[0]
    # An environment may look the task up by the id of its row.
    own = first.hidden.get("id")
    name = first.problem if own in (None, "") else f"{own}"
    problem = Problem(name, first.prompt, first.answer, first.info)
    text = "\n".join(message.text for message in first.prompt)
    nodes = [Node("", (), None, Source.PROMPT, (), text)]
    for index, conversation in enumerate(group):
        nodes += conversation_nodes(conversation.lines, (index,))
    rewards = tuple(Reward(each.reward, {}) for each in group)
    return TracedTree(make_tree(problem, TreeKey(0, slot), nodes), rewards)
