"""One turn of the policy, and the tool calls at its end."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace

from ramify.core.draws import stream
from ramify.core.errors import EngineError
from ramify.core.messages import ToolCall, ToolResult, ToolStatus
from ramify.core.protocols import Event, ToolSession
from ramify.core.records import Completion, Finish, Request
from ramify.core.tree import Entropy, NodePath, TreeKey
from ramify.rollout.settings import AgentParts

QUEUE_SECONDS = 10.0
"""What a call may wait inside the tool (for a free process) before its own deadline starts to run."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A whole turn: chunks (a probe and its continuation) joined."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    entropy: Entropy | None
    finish: Finish
    policy_version: int


def turn_seed(run_seed: int, key: TreeKey, problem_id: str, path: NodePath) -> int:
    """The stream of the draws of the turn at `path`: no two turns of a run share one."""
    return stream(run_seed, key.step, key.slot, key.attempt, problem_id, path)


async def write_turn(
    parts: AgentParts,
    key: TreeKey,
    problem_id: str,
    path: NodePath,
    context: tuple[int, ...],
    budget: int,
    on_probe: Callable[[Entropy], Awaitable[None]] | None,
) -> Turn:
    """Let the policy write one turn after `context`.

    Args:
        parts: The agent.
        key: Of the tree.
        problem_id: Of the tree.
        path: Of the policy node; names the stream of its draws.
        context: Tokens so far.
        budget: Most tokens of the turn, at least 1.
        on_probe: Called with the entropy of the first k tokens as soon as they are written; the turn goes on
            from them. None: the entropy is still recorded, the turn is one request.

    Raises:
        EngineError: The weights changed within the turn, which this loop does not ask for.
    """
    window = parts.brancher.probe_tokens
    request = Request(
        token_ids=context,
        seed=turn_seed(parts.run_seed, key, problem_id, path),
        max_new_tokens=min(window, budget) if on_probe else budget,
        stops=parts.renderer.stops,
        temperature=parts.limits.temperature,
        entropy_first_k=window,
        priority=(key.slot, *path),
    )
    done = await parts.engine.generate(request)
    entropy = Entropy.mean(done.entropies)
    if window and entropy is None:
        raise EngineError(f"engine {parts.engine.info().name!r} reported no entropy for a probe of {window}")
    if on_probe and entropy is not None:
        await on_probe(entropy)
    if done.finish is Finish.LENGTH and len(done.token_ids) < budget:
        done = await _go_on(parts, request, done, budget)
    return Turn(done.token_ids, done.logprobs, entropy, done.finish, _one_version(done))


async def _go_on(parts: AgentParts, request: Request, probe: Completion, budget: int) -> Completion:
    rest = await parts.engine.generate(
        replace(
            request,
            token_ids=request.token_ids + probe.token_ids,
            max_new_tokens=budget - len(probe.token_ids),
            stop_context=len(probe.token_ids),
            entropy_first_k=0,
        )
    )
    return Completion(
        probe.token_ids + rest.token_ids,
        probe.logprobs + rest.logprobs,
        probe.entropies,
        rest.finish,
        probe.version_runs + rest.version_runs,
    )


def _one_version(completion: Completion) -> int:
    versions = {version for version, _ in completion.version_runs}
    if len(versions) != 1:
        raise EngineError(f"one turn was written by policy versions {sorted(versions)}")
    return versions.pop()


async def run_calls(
    parts: AgentParts,
    key: TreeKey,
    node: str,
    calls: tuple[ToolCall, ...],
    sessions: Mapping[str, ToolSession],
) -> tuple[ToolResult, ...]:
    """Run the calls of one turn in order. Whatever happens to one is a typed result.

    `node` is the id of the policy node that called.
    """
    return tuple([await _run_call(parts, key, node, call, sessions) for call in calls])


async def _run_call(
    parts: AgentParts, key: TreeKey, node: str, call: ToolCall, sessions: Mapping[str, ToolSession]
) -> ToolResult:
    if call.name not in sessions:
        return ToolResult(call.id, ToolStatus.UNKNOWN_TOOL, f"There is no tool named {call.name}.")
    if call.malformed is not None:
        return ToolResult(
            call.id, ToolStatus.MALFORMED, f"The call to {call.name} was not run: {call.malformed}."
        )
    loop = asyncio.get_running_loop()
    started = loop.time()
    deadline = parts.tools[call.name].spec.timeout_seconds
    try:
        async with asyncio.timeout(deadline + QUEUE_SECONDS):
            result = await sessions[call.name].call(call)
    except TimeoutError:
        text = f"The call to {call.name} was stopped after {deadline:g} seconds."
        result = ToolResult(call.id, ToolStatus.TIMEOUT, text)
    parts.events.emit(
        Event(
            f"tool/{call.name}", (key.step, key.slot), node, loop.time() - started, {"status": result.status}
        )
    )
    return result
