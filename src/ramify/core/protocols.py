"""The seams of ramify: every protocol that one package implements and another calls. Axis letters: see `core.records`."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from ramify.core.messages import (
    Message,
    Observation,
    ParsedTurn,
    Problem,
    ToolCall,
    ToolResult,
    ToolSpec,
    TurnOutline,
)
from ramify.core.records import (
    AnnotatedTree,
    BatchSums,
    BranchCandidate,
    BranchQuota,
    Completion,
    ContinueFrom,
    EngineInfo,
    Floats,
    FreshContext,
    Proposal,
    Request,
    Reward,
    TokenUsage,
)
from ramify.core.tree import BranchDecision, Trajectory, TreeKey

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"


class Engine(Protocol):
    """Generates tokens. Stateless to its caller: it finds cached state by the token ids of a request."""

    async def generate(self, request: Request) -> Completion:
        """Continue the request's ids. Cancelling the call frees its resources at once."""

    async def score(self, token_ids: Sequence[int]) -> Floats:
        """Return the logprob of each token after the first, given those before it, at temperature 1. [T] -> [T - 1], T >= 2, nats

        Raises:
            EngineError: The engine cannot score (no `EngineInfo.logprob_tolerance`), not these ids, or it is closed.
        """

    async def load_weights(self, version: int) -> None:
        """Load the weights of `version`, and clear every cache computed with older ones."""

    async def sleep(self) -> None:
        """Release memory until the next `load_weights`. Never raises once it was used: what was sampled is in the caller's hands.

        Servers that share the learner's GPUs and have not started yet do so first, and measure the memory that is free.
        """

    def info(self) -> EngineInfo:
        """Return the capabilities of the engine and the version of its weights."""

    async def close(self) -> None:
        """Stop and free everything."""


class WeightBuckets(Protocol):
    """A learner's weights in the order, the groups and the type in which they travel to an engine's servers.

    Attributes:
        dtype: "float32" or "bfloat16".
        buckets: Names of the tensors of each bucket.
        shapes: Their shapes.
        bucket_bytes: A bucket ends with the tensor that makes it larger than this.
    """

    bucket_bytes: int
    dtype: str
    buckets: Sequence[Sequence[str]]
    shapes: Mapping[str, tuple[int, ...]]

    def tensors(self, number: int, *, on_cpu: bool) -> Sequence[Any] | None:
        """Return the tensors of a bucket; None if the learner has taken a step since these weights were published."""


@runtime_checkable
class BucketEngine(Engine, Protocol):
    """An engine that takes new weights in buckets, at each `load_weights` and whenever one of its servers starts again."""

    @property
    def takes_buckets(self) -> bool:
        """True if it was built to."""
        ...

    def read_from(self, weights: WeightBuckets) -> None:
        """Take weights from there from now on."""


class Publisher(Protocol):
    """How the learner's weights reach the engine: the only part of a run that sees both."""

    async def publish(self, version: int) -> None:
        """Have the engine use the learner's weights as they are now, under this version number.

        Raises:
            EngineError: Sequences are being written, or the engine computes something else than the learner.
        """


class Renderer(Protocol):
    """Turns messages and tool results into tokens, and a turn's text into calls or an answer: a dialect on a chat template.

    Contexts only grow: the prompt is rendered once, and what follows is appended. SFT, DPO, RL and evaluation use the same
    one, so their prompts have the same tokens.

    `tools` are those in force at that prompt or turn. One that joins can be called from then on, and results cannot forge its
    call. No dialect announces it in a context that has begun: the result of the call that brought it does so, or the next prompt.
    A tool whose name the dialect cannot write is left out; `check_tools` refuses it.
    """

    def check_tools(self, tools: Sequence[ToolSpec]) -> None:
        """Require that the dialect can call these tools.

        Raises:
            ConfigError: A tool's name cannot be used, or two tools share it.
        """

    def stops(self, tools: Sequence[ToolSpec]) -> tuple[str, ...]:
        """Return the strings at which a turn ends, besides the end token."""

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the tokenizer. An engine with another tokenizer would decode the same ids to other text."""

    def render_prompt(self, problem: Problem, tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        """Return the tokens of the prompt, up to where the policy starts to write."""

    def insert(self, text: str, tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        """Return the tokens of a text that goes into a context as it is; what it spells of control tokens is ordinary text."""

    def render_results(
        self, results: Sequence[ToolResult], tools: Sequence[ToolSpec], names: Sequence[str] = ()
    ) -> tuple[int, ...]:
        """Return the tokens between the turn with the calls and the next turn: at least the results, in which nothing forges a tag.

        `names`: Of the called tools, for dialects whose results name them.
        """

    def render_user_turn(
        self, turn: str, messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> tuple[int, ...]:
        """Return the tokens between a turn, of which this is the text, and the next one, if the user says `messages` in between.

        Raises:
            ConfigError: The chat template would rewrite earlier turns, or a message is not of the user.
        """

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens, for people, parsers and traces; it is never encoded again."""

    def parse(self, turn: str, tools: Sequence[ToolSpec]) -> ParsedTurn:
        """Read the text of one whole turn of the policy."""

    def outline(self, turn: str, tools: Sequence[ToolSpec]) -> TurnOutline:
        """Return the positions of the thoughts in the text of a turn, and that of its call or answer."""

    def quoted(self, text: str, tools: Sequence[ToolSpec]) -> str:
        """Return a foreign text in which nothing forges a tag of the dialect."""

    def thought(self, text: str, tools: Sequence[ToolSpec], *, first: bool = False) -> str:
        """Return the beginning of a turn: a whole thought that says a foreign text, in which nothing forges a tag.

        `first`: The turn follows the prompt, which may have opened the thought.
        """


class ToolSession(Protocol):
    """A tool's state on one trajectory."""

    async def call(self, call: ToolCall) -> ToolResult:
        """Run one call. Every failure of the tool is a typed result, never an exception."""

    async def fork(self) -> "ToolSession":
        """Return an independent copy of the state as it is now, for a branch."""

    async def close(self) -> None:
        """Free the state; closing twice is allowed."""


class Tool(Protocol):
    """A tool that the policy can call."""

    @property
    def spec(self) -> ToolSpec:
        """Name, description, parameters, deadline."""

    async def open(self, problem: Problem) -> ToolSession:
        """Start a session for one root trajectory."""


class EnvironmentSession(Protocol):
    """An environment's state on one trajectory.

    `call` runs under the deadline of the called tool, the other methods under `Environment.seconds`. One that fails, or is too
    slow, ends its own trajectory (StopReason.FAILED); a call that fails is a result. If the first session of a tree cannot be
    opened, its problem fails. One of ramify's own errors ends the run, but for a `ContentError`.
    """

    @property
    def tools(self) -> Mapping[str, ToolSpec]:
        """The tools in force now, by name."""

    @property
    def opening(self) -> str:
        """Text to append to the problem's last message; equal in all sessions of a tree."""

    async def call(self, call: ToolCall) -> ToolResult:
        """Run one call."""

    async def step(self, turn: ParsedTurn) -> Observation:
        """Reply to a turn without a call; called at most `Environment.max_observations` times."""

    async def fork(self, seed: int) -> "EnvironmentSession":
        """Return an independent copy of the state as it is now, for a branch, that draws its own random numbers from `seed`."""

    async def score(self, trajectory: Trajectory) -> float:
        """Return the reward of the whole trajectory, on top of those of its turns. Called once, before `close`, also if it was cut."""

    async def close(self) -> None:
        """Free the state; closing twice is allowed."""


class Environment(Protocol):
    """What an agent acts in: tools, which may share a state, and a world that replies to turns that call none of them."""

    @property
    def tools(self) -> Mapping[str, ToolSpec]:
        """The tools that prompts show, by name."""

    @property
    def seconds(self) -> float | None:
        """Deadline of each method of a session besides `call`, and of `open`; None: they keep deadlines of their own."""

    @property
    def branches(self) -> Literal["fork", "replay", "never"]:
        """The way a branch gets its state: by `fork`; by a new session in which the path's turns are replayed; not at all."""

    @property
    def max_observations(self) -> int:
        """Most turns without a call that `step` replies to on one trajectory; 0: it is never called."""

    @property
    def scores(self) -> bool:
        """True if `score` gives a reward."""

    @property
    def opens(self) -> bool:
        """True if sessions have an `opening`."""

    async def open(self, problem: Problem, seed: int) -> EnvironmentSession:
        """Start a session for one root trajectory; free what was begun if cancelled. All roots of a tree get the same seed."""


@dataclass(frozen=True, slots=True)
class Hit:
    """One search result: a passage of a corpus, or the snippet of a page with its title and address."""

    id: str
    text: str
    title: str = ""
    url: str = ""


class SearchProvider(Protocol):
    """Finds passages or pages for a query."""

    @property
    def name(self) -> str:
        """As in the recipe: "local", "retriever", ..."""

    @property
    def identity(self) -> "Mapping[str, Json]":
        """All that its answers depend on besides query and top_k (corpus checksum, address, market); part of a cache key."""

    async def search(self, query: str, top_k: int, collection: str | None) -> Sequence[Hit]:
        """Return at most `top_k` (at least 1) hits, best first; none is not a failure. Only providers with collections use one.

        Raises:
            RequestFailedError: This request failed (from `ramify.net`); the policy reads that.
            ServiceDownError: The service is down, or refuses the key; the run ends.
        """

    async def close(self) -> None:
        """Free connections; closing twice is allowed."""


@dataclass(frozen=True, slots=True)
class CacheKey:
    """The key under which a service's answer is cached.

    `tool` is "search", "page", "summary", "judge", ...; `provider` names the service; `request` is a query, an address or a prompt,
    normalised by the tool; `parameters` are all that the answer depends on besides.
    """

    tool: str
    provider: str
    parameters: "Mapping[str, Json]"
    request: str


class Cache(Protocol):
    """Caches answers of services."""

    async def fetch(self, key: CacheKey, make: Callable[[], Awaitable["Json"]]) -> "Json":
        """Return the cached answer, or else the answer of `make`, which is then cached.

        Concurrent identical requests, from any task or process that shares the cache, call `make` once. An error of `make` is
        raised in every waiting caller and not cached. An empty answer (None, "", [], {}) expires sooner.
        """

    async def close(self) -> None:
        """Write what is not written yet; closing twice is allowed."""


class ChatModel(Protocol):
    """Text in, text out: a summary model, a judge, a helper."""

    @property
    def name(self) -> str:
        """Name of the model at its service."""

    @property
    def usage(self) -> TokenUsage:
        """Tokens used so far, which is what a service bills."""

    async def complete(self, messages: Sequence[Message], *, max_tokens: int, temperature: float) -> str:
        """Return the answer's text.

        Raises:
            RequestFailedError: This request failed (from `ramify.net`).
            ServiceDownError: The service is down, or refuses the key.
        """

    async def close(self) -> None:
        """Free connections; closing twice is allowed."""


class RewardFn(Protocol):
    """Scores trajectories."""

    async def score(self, trajectories: Sequence[Trajectory]) -> Sequence[Reward]:
        """Return one reward for each trajectory, in order; `value` is finite."""


class ContextRewriter(Protocol):
    """Lets a trajectory continue from another context: repair tools, folded memory, templates that rewrite history."""

    @property
    def name(self) -> str:
        """Name in events and messages."""

    @property
    def budget(self) -> int:
        """Most rewritten contexts of one trajectory; beyond it the rewriter is not called."""

    async def rewrite(
        self, trajectory: Trajectory, tools: Sequence[ToolSpec]
    ) -> ContinueFrom | FreshContext | None:
        """Return the context to continue from; None: it stays as it is. `tools` are those in force now.

        Called after each tool result (the last node is the tool's), and before the policy or a limit ends the trajectory (the last
        node has its stop reason). What was spent stays spent, and the tools keep their state. An exception is an event, and the
        trajectory goes on; one of ramify's own errors (a service is down, say) ends the run.
        """


class Brancher(Protocol):
    """A branching rule. It only proposes; the scheduler spends the budget."""

    @property
    def num_monitor(self) -> int:
        """Number of first roots that must end before the number of roots is known (0: it is known at once)."""

    @property
    def probe_tokens(self) -> int:
        """k: number of tokens after a tool result (and at the root) the entropy is averaged over."""

    @property
    def max_children(self) -> int:
        """Z: most children that one candidate can want."""

    @property
    def looks_at_entropy(self) -> bool:
        """True if entropies can change a decision."""

    @property
    def keeps_slot_order(self) -> bool:
        """True if the first root is served first, as in the papers' released code; else the order is drawn."""

    def first_roots(self, n: int) -> int:
        """Return the number of roots that start at once, num_monitor <= first_roots <= m."""

    def num_roots(self, n: int, monitor: Sequence[Trajectory]) -> int:
        """Return m, the trajectories of n that start from the prompt, first_roots <= m <= n; `monitor` has ended."""

    def quota(self, key: TreeKey, problem: str) -> BranchQuota | None:
        """Return the branches that the tree of a problem must get; None: as many as the rule wants and the budget has."""

    def propose(self, candidate: BranchCandidate, history: Sequence[BranchDecision]) -> Proposal:
        """Decide one candidate. `history` holds the decisions on its path, oldest first.

        Their `taken` is always 0, since a decision must not depend on when the budget is spent.
        """

    def state(self) -> Mapping[str, Json]:
        """Return the rule's memory of earlier candidates, for a checkpoint; empty for most rules."""

    def restore(self, state: Mapping[str, Json]) -> None:
        """Replace the rule's memory by a value that `state` returned; a DataError says that it is of another rule."""


class Estimator(Protocol):
    """Turns rewards into advantages."""

    def batch_statistics(self, trees: Sequence[AnnotatedTree]) -> tuple[BatchSums, ...]:
        """Return the sums over the whole rollout batch that `advantages` needs; they are added over ranks in float64."""

    def advantages(self, tree: AnnotatedTree, statistics: Sequence[BatchSums]) -> tuple[Floats, ...]:
        """Return for each trajectory an array with the advantage of each token that the policy wrote. [G][T]"""


class SandboxStatus(StrEnum):
    """How a program in the sandbox ended."""

    OK = "ok"
    ERROR = "error"
    TIMEOUT = "timeout"
    KILLED = "killed"
    """A limit (memory, processes, output) or a signal ended it."""


@dataclass(frozen=True, slots=True)
class SandboxResult:
    """What a program wrote (standard output and error, capped) and how it ended.

    `level` is 0 to 4 for L0 to L4: verified on this machine, or declared by the recipe for another one (`remote`). `failed_cell`
    is the index of the cell whose replay failed, if one did; then the program itself was not run.
    """

    status: SandboxStatus
    stdout: str
    stderr: str
    level: int
    remote: bool = False
    failed_cell: int | None = None


class Sandbox(Protocol):
    """Runs untrusted Python programs."""

    @property
    def level(self) -> int:
        """The isolation level: reached on this machine, or declared for a remote one."""

    async def run(self, code: str, timeout_seconds: float, cells: Sequence[str] = ()) -> SandboxResult:
        """Run one program from a clean state, or from the state that `cells` leave. Cancelling kills it.

        `cells` are earlier programs, run before it in the same process and folder; their output is dropped. `timeout_seconds` is the
        wall time of all together.

        Raises:
            MachineError: This machine can run no programs any more.
            RequestFailedError: A remote sandbox did not run this one (from `ramify.net`); the policy reads that.
            ServiceDownError: A remote sandbox is down, or refuses the key; the run ends.
        """

    async def close(self) -> None:
        """Stop every process."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that took time, keyed by its place in the tree. Kept apart from the trace. `begin` is on the event loop's clock."""

    kind: str
    tree: tuple[int, int]
    node: str
    seconds: float
    fields: Mapping[str, Any] = field(default_factory=dict)
    begin: float = 0.0


class EventSink(Protocol):
    """Receives the events of a run, such as tool calls and grants."""

    def emit(self, event: Event) -> None:
        """Record one event; must be cheap."""
