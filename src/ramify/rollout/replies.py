"""What follows a turn of the policy: tool results, the environment's reply, another context, or the end."""

from dataclasses import dataclass

from ramify.core.messages import Calls, Final, Message, ToolResult
from ramify.core.protocols import EnvironmentSession
from ramify.core.tree import Node, StopReason
from ramify.rollout.calls import Failure, run_calls
from ramify.rollout.content import content_errors
from ramify.rollout.rewriting import RewrittenContext
from ramify.rollout.sessions import World
from ramify.rollout.turn import TrajectoryState


@dataclass(frozen=True, slots=True)
class Reply:
    """What follows a turn: the end of the trajectory, or tokens that are added to the context."""

    stop: StopReason | None = None
    results: tuple[ToolResult, ...] = ()
    messages: tuple[Message, ...] = ()
    reward: float = 0.0
    token_ids: tuple[int, ...] = ()
    elsewhere: RewrittenContext | None = None


async def reply_to_turn(world: World, state: TrajectoryState, node: Node) -> Reply:
    """Return what follows the turn that ends with `node`: the results of its calls, the environment's reply, or the end."""
    assert not isinstance(state.session, Failure | None)
    if not isinstance(node.turn, Calls):
        return await _reply_without_calls(world, state, state.session, node)
    if state.calls + len(node.calls) > world.parts.limits.max_calls:
        return Reply(StopReason.CALLS)
    results = await run_calls(world.parts, world.key, node.id, node.calls, state.session)
    paid = sum(result.reward for result in results)
    if any(result.ends for result in results):
        return Reply(StopReason.ENDED, results, reward=paid)
    with content_errors("the results cannot be rendered"):
        ids = world.parts.renderer.render_results(results, state.tools)
    return Reply(None, results, reward=paid, token_ids=ids)


async def _reply_without_calls(
    world: World, state: TrajectoryState, session: EnvironmentSession, node: Node
) -> Reply:
    """Return what follows a turn without calls: the environment's reply, or the end."""
    assert node.turn is not None
    usual = StopReason.ANSWERED if isinstance(node.turn, Final) else StopReason.MALFORMED
    most = world.parts.environment.max_observations
    if not most:
        return Reply(usual)
    if state.steps >= most:
        return Reply(StopReason.CALLS)
    observation = await world.step(session, node, node.turn)
    if isinstance(observation, Failure):
        return Reply(StopReason.FAILED)
    if observation.ends or not observation.messages:
        ended = StopReason.ENDED if observation.ends and usual is StopReason.MALFORMED else usual
        return Reply(ended, messages=observation.messages, reward=observation.reward)
    with content_errors("the environment's reply cannot be rendered"):
        turn = state.shared_text + node.text
        ids = world.parts.renderer.render_user_turn(turn, observation.messages, state.tools)
    return Reply(None, messages=observation.messages, reward=observation.reward, token_ids=ids)
