"""The state of a trajectory, and one turn of the policy: requests to the engine, and checks of its answers."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from ramify.core.draws import stream
from ramify.core.errors import EngineError
from ramify.core.messages import Calls, ToolSpec
from ramify.core.protocols import EnvironmentSession, Event, Renderer
from ramify.core.records import Completion, Finish, Request
from ramify.core.tree import BranchDecision, Entropy, Node, NodePath, Trajectory, TreeKey, node_id
from ramify.rollout.calls import Failure, detached
from ramify.rollout.rewriting import tokens_before
from ramify.rollout.settings import AgentParts

BranchKey = tuple[int, ...]
"""A trajectory's place: (rank of its root, then (depth, index) for each branch that led to it)."""


@dataclass(frozen=True, slots=True)
class TrajectoryState:
    """A trajectory just before its next policy node.

    Attributes:
        key: Its place in the order of grants; None for a top-up, which never branches.
        path: Path of the next policy node.
        context: Tokens of the current context so far.
        spent: Number of tokens after the prompt.
        calls: Number of tool calls made.
        steps: Number of turns that the environment replied to.
        depth: Number of turns with tool results, or with a reply of the environment, on the path.
        decided: How many of these the branching rule has decided on.
        turns: Entropies of the first k tokens of the turns so far.
        own_from: How many of `turns` were inherited.
        history: Branching decisions on the path.
        ambiguous: The world marks a result of the last calls as ambiguous.
        session: Its environment; None before it is opened, or why there is none.
        deadline: When it is cut, on the event loop's clock; None: never.
        shared: Number of tokens at the end of `context` that belong to the next turn, whose branches share them.
        shared_text: The text of these tokens, without an incomplete character at the end.
    """

    key: BranchKey | None
    path: NodePath
    context: tuple[int, ...]
    spent: int = 0
    calls: int = 0
    steps: int = 0
    depth: int = 0
    decided: int = 0
    turns: tuple[Entropy, ...] = ()
    own_from: int = 0
    history: tuple[BranchDecision, ...] = ()
    ambiguous: bool = False
    session: EnvironmentSession | Failure | None = None
    deadline: float | None = None
    shared: int = 0
    shared_text: str = ""

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The tools in force now."""
        assert not isinstance(self.session, Failure | None)
        return tuple(self.session.tools.values())

    def after_turn(self, entropy: Entropy | None, decision: BranchDecision | None) -> "TrajectoryState":
        """Return the state after a turn has begun: adds its entropy, and the decision on the result before it."""
        state = self if entropy is None else replace(self, turns=(*self.turns, entropy))
        if decision is None:
            return state
        return replace(state, history=(*state.history, decision), decided=state.depth)

    def with_tokens(self, path: NodePath, token_ids: tuple[int, ...]) -> "TrajectoryState":
        """Return the state with tokens added to its context; the next policy node is the first child of `path`."""
        return replace(
            self,
            path=(*path, 0),
            context=self.context + token_ids,
            spent=self.spent + len(token_ids),
            shared=0,
            shared_text="",
        )


@dataclass(frozen=True, slots=True)
class Turn:
    """The tokens that the policy sampled in a turn, or in a part of it: a probe and its continuation, joined.

    `entropy` is the mean over the probe; `token_entropies` are those of all tokens if the engine computes them exactly, nats.
    `version_runs`: (policy version, number of tokens) in order.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    entropy: Entropy | None
    finish: Finish
    version_runs: tuple[tuple[int, int], ...]
    token_entropies: tuple[float, ...]

    @property
    def policy_version(self) -> int:
        """The version that wrote the first token."""
        return self.version_runs[0][0]

    @property
    def parts(self) -> "tuple[Turn, ...]":
        """One turn for each run of a policy version, in order; the entropy stays with the first."""
        turns, start = [], 0
        for version, size in self.version_runs:
            cut = slice(start, start + size)
            turns.append(
                Turn(
                    self.token_ids[cut],
                    self.logprobs[cut],
                    None if start else self.entropy,
                    self.finish,
                    ((version, size),),
                    self.token_entropies[cut],
                )
            )
            start += size
        return tuple(turns)


def turn_seed(run_seed: int, key: TreeKey, problem_id: str, path: NodePath) -> int:
    """Return the random stream of the node at `path`; no two nodes of a run share one."""
    return stream(run_seed, key.step, key.slot, key.attempt, problem_id, path)


def turn_request(
    parts: AgentParts,
    key: TreeKey,
    above: Trajectory,
    path: NodePath,
    context: tuple[int, ...],
    shared: int,
    budget: int,
    tools: tuple[ToolSpec, ...],
) -> Request:
    """Return the request for the turn at `path` after `context`.

    Args:
        parts: The agent.
        key: Key of the tree.
        above: The nodes above the policy node.
        path: Path of the policy node; names its random stream.
        context: Tokens so far.
        shared: Number of tokens at the end of `context` that already belong to this turn.
        budget: Most tokens to write, at least 1.
        tools: The tools in force.
    """
    return Request(
        token_ids=context,
        seed=turn_seed(parts.run_seed, key, above.problem.id, path),
        max_new_tokens=budget,
        stops=parts.renderer.stops(tools),
        stop_context=shared,
        temperature=parts.limits.temperature,
        filters=parts.limits.filters,
        entropy_first_k=0 if shared else parts.brancher.probe_tokens,
        priority=(key.slot, *path),
        path=above,
        tools=tools,
    )


async def write(parts: AgentParts, request: Request) -> Turn:
    """Have the engine answer `request`, and check the answer.

    Raises:
        EngineError: The engine broke its contract.
    """
    info, window = parts.engine.info(), request.entropy_first_k
    name = info.name
    if info.exact_entropy:
        request = replace(request, entropy_first_k=request.max_new_tokens)
    with parts.waits.on("engine"):
        done = await detached(f"engine {name!r}", parts.engine.generate(request))
    wrong = _broken(request, done, info.exact_ids)
    exact = info.exact_entropy and all(entropy.lower == entropy.upper for entropy in done.entropies)
    if not wrong and parts.all_entropies and not exact:
        wrong = (
            "entropies as brackets, and the advantages need those of all tokens exactly. Set "
            'algorithm.entropy_advantage.source to "annotate"'
        )
    if wrong:
        raise EngineError(f"engine {name!r} returned {wrong}")
    return Turn(
        done.token_ids,
        done.logprobs,
        Entropy.mean(done.entropies[:window]),
        done.finish,
        _joined(done.version_runs),
        tuple(entropy.lower for entropy in done.entropies) if exact else (),
    )


async def write_probed(
    parts: AgentParts, request: Request, on_probe: Callable[[Entropy], Awaitable[None]]
) -> Turn:
    """As `write`, but in two requests: `on_probe` gets the entropy of the first k tokens as soon as they are written."""
    budget, window = request.max_new_tokens, parts.brancher.probe_tokens
    probe = await write(parts, replace(request, max_new_tokens=min(window, budget)))
    assert probe.entropy is not None
    await on_probe(probe.entropy)
    size = len(probe.token_ids)
    if probe.finish is not Finish.LENGTH or size >= budget:
        return probe
    continuation = await write(
        parts,
        replace(
            request,
            token_ids=request.token_ids + probe.token_ids,
            max_new_tokens=budget - size,
            stop_context=request.stop_context + size,
            entropy_first_k=0,
        ),
    )
    return Turn(
        probe.token_ids + continuation.token_ids,
        probe.logprobs + continuation.logprobs,
        probe.entropy,
        continuation.finish,
        _joined(probe.version_runs + continuation.version_runs),
        probe.token_entropies + continuation.token_entropies if continuation.token_entropies else (),
    )


def report_turn(parts: AgentParts, key: TreeKey, path: NodePath, turn: Turn, began: float) -> None:
    """Emit the event of the tokens that were sampled for the node at `path`; `began` is on the event loop's clock."""
    seconds = asyncio.get_running_loop().time() - began
    fields = {"tokens": len(turn.token_ids)}
    parts.events.emit(Event("turn", (key.step, key.slot), node_id(path), seconds, fields, began))


def parsed_node(renderer: Renderer, state: TrajectoryState, node: Node) -> Node:
    """Return the node that ends a turn with the turn parsed; ids of calls are unique in the tree."""
    text = state.shared_text + node.text
    turn = renderer.parse(text, state.tools)
    if not isinstance(turn, Calls):
        return replace(node, turn=turn)
    calls = Calls(tuple(replace(call, id=f"{node.id}:{i}") for i, call in enumerate(turn.calls)))
    ids = state.context[len(state.context) - state.shared :] + node.token_ids
    begins = tokens_before(renderer.decode, ids, renderer.outline(text, state.tools).words)
    return replace(node, turn=calls, call_from=begins - state.shared)


def _joined(runs: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """Join neighbouring runs of the same version, and drop empty ones."""
    joined: list[tuple[int, int]] = []
    for version, size in runs:
        if joined and joined[-1][0] == version:
            joined[-1] = (version, joined[-1][1] + size)
        elif size:
            joined.append((version, size))
    return tuple(joined)


def _broken(request: Request, done: Completion, exact_ids: bool) -> str:
    """Return what is wrong with an answer to `request`; "" if nothing is."""
    count = len(done.token_ids)
    if not 1 <= count <= request.max_new_tokens:
        return f"{count} tokens for a request of 1 to {request.max_new_tokens}"
    if exact_ids and done.finish is Finish.LENGTH and count < request.max_new_tokens:
        return f"{count} of {request.max_new_tokens} tokens as finished by length"
    if len(done.logprobs) != count:
        return f"{len(done.logprobs)} logprobs for {count} tokens"
    if not all(map(math.isfinite, done.logprobs)):
        return (
            "a logprob that is not a finite number: the model's weights or activations have broken down. Start again "
            "from an earlier checkpoint as model.path, with a lower learner.optimizer.rate"
        )
    if sum(size for _, size in done.version_runs) != count:
        return f"policy versions of {sum(size for _, size in done.version_runs)} tokens for {count} tokens"
    if len(done.entropies) < min(count, request.entropy_first_k):
        return f"{len(done.entropies)} entropies where {min(count, request.entropy_first_k)} were asked for"
    if not all(0 <= e.lower <= e.upper < math.inf for e in done.entropies):
        return "an entropy that is not a finite number of nats, lower end first"
    return ""
