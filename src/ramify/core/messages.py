"""Problems, messages, tool calls and tool results: what a user writes and what a tool answers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, TypeAlias

from ramify.core.tool_schema import plain_schema

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]


Dialect: TypeAlias = Literal["tags", "hermes", "llama3", "qwen3_xml", "harmony"]
"""Forms of calls and answers: the papers' tags, JSON calls as Qwen and Hermes models write them, JSON calls of Llama 3, calls in
XML of Qwen3.5 and Qwen3-Coder, or the channels of gpt-oss."""


@dataclass(frozen=True, slots=True)
class TextPart:
    """A piece of text in a message; other kinds of part (images) would be siblings of this class."""

    text: str


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message."""

    role: Role
    content: tuple[TextPart, ...]

    @classmethod
    def of(cls, role: Role, text: str) -> "Message":
        """Make a message of one text part."""
        return cls(role, (TextPart(text),))

    @property
    def text(self) -> str:
        """All text parts, joined."""
        return "".join(part.text for part in self.content)


@dataclass(frozen=True, slots=True)
class Problem:
    """A task for the agent: messages to start from and the accepted answers.

    `info` carries the free columns of the data row (kind, level, collection, ...); rewards and tools read it.
    """

    id: str
    messages: tuple[Message, ...]
    answer: tuple[str, ...]
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """What the model and the agent loop need to know about a tool.

    `parameters` is a JSON schema, which may come from anywhere: `plain_schema` makes it safe to read. `forks` says whether a session can be forked; an agent never branches if one of
    its tools cannot. `timeout_seconds` is the deadline of one call. A call without an answer after
    `hedge_seconds` is issued a second time, and the first answer counts; set it only if a call may run twice.
    `in_prompt`: the renderer describes the tool to the policy; otherwise the problem's own messages do, as in the papers.
    """

    name: str
    description: str
    parameters: Mapping[str, Any] = field(hash=False)
    forks: bool
    timeout_seconds: float
    hedge_seconds: float | None = None
    in_prompt: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "parameters", plain_schema(self.parameters))


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the policy wrote. `malformed` says why the arguments could not be read; None if they could."""

    id: str
    name: str
    arguments: Mapping[str, Any]
    malformed: str | None = None


class ToolStatus(StrEnum):
    """How a tool call ended. Every status is an observation for the policy; none ends the trajectory."""

    OK = "ok"
    """The tool did its work."""
    EMPTY = "empty"
    """The tool did its work and had nothing to return."""
    ERROR = "error"
    """The tool or the code that it ran failed."""
    TIMEOUT = "timeout"
    """The deadline of the call fired."""
    MALFORMED = "malformed"
    """The call could not be read; the tool was not run."""
    UNKNOWN_TOOL = "unknown_tool"
    """No tool of that name is configured."""
    OVER_LIMIT = "over_limit"
    """The trajectory had made all the calls that it may make to this tool, or this very one; the tool was not run."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The answer to one call.

    Attributes:
        call_id: Id of the call.
        status: How it ended.
        text: What the policy reads.
        info: Deterministic facts only (sandbox level, passage ids); no times.
        reward: What the environment pays for the call.
        ends: The environment ends the trajectory with this answer; the policy does not read it any more.
        ambiguous: The world knows that more than one way to go on from this answer looks right; the policy does not learn
            this, and the branching rule `oracle` branches here.
    """

    call_id: str
    status: ToolStatus
    text: str
    info: Mapping[str, Any] = field(default_factory=dict)
    reward: float = 0.0
    ends: bool = False
    ambiguous: bool = False


@dataclass(frozen=True, slots=True)
class Calls:
    """A turn that ends in tool calls."""

    calls: tuple[ToolCall, ...]


@dataclass(frozen=True, slots=True)
class Final:
    """A turn that ends the trajectory with an answer; `answer` is its text, without markup."""

    answer: str


@dataclass(frozen=True, slots=True)
class MalformedTurn:
    """A turn that is neither a call nor an answer; `reason` says why.

    `answer` is the text of an answer that the turn marks all the same; "" if it marks none.
    """

    reason: str
    answer: str = ""


@dataclass(frozen=True, slots=True)
class Say:
    """A turn in plain words that is neither a call nor an answer; only an environment that steps has a reply to it."""

    text: str


@dataclass(frozen=True, slots=True)
class TurnOutline:
    """Where things stand in the text of a turn, in characters.

    Attributes:
        thoughts: Start and end of the text of each thought before the call or the answer, without its tags; of a thought
            that is not closed, up to the end.
        words: Where the first call, or the answer, begins; the length of the text if it holds neither.
        words_end: Where the last words before that end: the end of the last thought's text if only its closing tag stands in
            between, else `words`.
    """

    thoughts: tuple[tuple[int, int], ...]
    words: int
    words_end: int


ParsedTurn: TypeAlias = Calls | Final | Say | MalformedTurn


@dataclass(frozen=True, slots=True)
class Observation:
    """What an environment replies to a turn that is no call.

    Attributes:
        messages: What the user says next; none: the turn means what it means without an environment.
        reward: What the environment pays for the turn.
        ends: The environment ends the trajectory; the policy does not read the messages any more.
    """

    messages: tuple[Message, ...] = ()
    reward: float = 0.0
    ends: bool = False
