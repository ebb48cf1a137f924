"""Builds the repair tools of a checked recipe: the helper that they ask, the debugger, the rewriters."""

from typing import TYPE_CHECKING

from ramify.assemble.services import build_cache, chat_model
from ramify.core.protocols import ContextRewriter, Engine, Environment
from ramify.rollout.configs import OwnHelperConfig
from ramify.sampler.configs import RepairConfig
from ramify.sampler.task import RepairKit

if TYPE_CHECKING:
    from ramify.chat.renderer import ChatRenderer
    from ramify.rollout.configs import RolloutLimits


def open_repairs(section: RepairConfig) -> RepairKit:
    """Open the helper and the cassette.

    Raises:
        ConfigError: The user's own helper cannot be used.
        DataError, MachineError: The cassette cannot be read or written; a key is missing.
    """
    cache = None if section.cache is None else build_cache(section.cache)
    config = section.helper
    if config is None:
        return RepairKit(section, None, cache)
    if isinstance(config, OwnHelperConfig):
        from ramify.engines.chat_models import OwnChat
        from ramify.files.user_code import load_function

        loaded = load_function(config.path, config.function)
        file = f"{config.path.name} {loaded.sha256[:16]}"
        model = OwnChat(loaded.function, config.function, config.args, file)
        return RepairKit(section, model, cache, loaded.sha256)
    offline = section.cache is not None and section.cache.mode == "replay_or_fail"
    return RepairKit(section, chat_model("repair.helper", config, offline, whole=True), cache)


def build_repairs(
    kit: RepairKit,
    environment: Environment,
    engine: Engine,
    renderer: "ChatRenderer",
    limits: "RolloutLimits",
    seed: int,
) -> tuple[Environment, tuple[ContextRewriter, ...]]:
    """The environment with the debugger in it, and the repair tools that are rewriters, in the order in which they are asked.

    Args:
        kit: What they use.
        environment: What the agent acts in.
        engine: The agent's, which answers where no helper is named.
        renderer: The agent's.
        limits: The agent's.
        seed: Of the run.
    """
    from ramify.engines.chat_models import PolicyChat
    from ramify.rollout.debugger import DebuggedEnvironment
    from ramify.rollout.repair import Backtracer, Helper, Refiner

    section = kit.config
    if section.helper is None:
        kit.model = PolicyChat(engine, renderer, seed)
    assert kit.model is not None
    helper = Helper(
        model=kit.model,
        cache=kit.cache,
        max_tokens=section.max_tokens,
        temperature=section.temperature,
        seconds=None if section.helper is None else section.timeout_seconds,
        seed=seed,
    )
    rewriters: list[ContextRewriter] = []
    if section.backtracer is not None:
        rewriters.append(Backtracer(renderer, limits.temperature, section.backtracer.calls))
    if section.refiner is not None:
        rewriters.append(Refiner(renderer, helper, section.refiner.at_tokens, section.refiner.calls))
    if section.debugger is not None:
        environment = DebuggedEnvironment(environment, helper, section.debugger.calls)
    return environment, tuple(rewriters)
