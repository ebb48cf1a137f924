"""Builds the agent of a checked recipe: engine, branching rule, repair tools.

Imports are inside the functions, so that checking a recipe loads none of the libraries that running it needs.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ramify.algos.branch_rules import RuleSetup
from ramify.assemble.services import build_cache, chat_model, http_client
from ramify.config.other_runs import read_paired_run, read_rate
from ramify.config.schema_eval import EvalEngineSection
from ramify.config.schema_rollout import RolloutSection
from ramify.core.closing import LiveCount
from ramify.core.protocols import Brancher, ContextRewriter, Engine, Environment, EventSink
from ramify.engines.configs import (
    LocalEngineConfig,
    OpenAIEngineConfig,
    ScriptedEngineConfig,
    VllmEngineConfig,
)
from ramify.rollout.configs import OwnHelperConfig, RolloutLimits
from ramify.runs.configs import RunConfig
from ramify.sampler.configs import RepairConfig
from ramify.sampler.task import RepairKit, Toolbox

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ramify.chat.renderer import ChatRenderer
    from ramify.chat.renderers import DialectRenderer
    from ramify.rollout.settings import AgentParts, BranchAt


def build_agent(
    *,
    engine: EvalEngineSection,
    run: RunConfig,
    toolbox: Toolbox,
    renderer: "DialectRenderer",
    model: "Callable[[], PreTrainedModel]",
    context_tokens: int,
    brancher: Brancher,
    limits: RolloutLimits,
    events: EventSink,
    branch_at: "BranchAt" = "before_probe",
    rewriters: tuple[ContextRewriter, ...] = (),
    repairs: RepairKit | None = None,
    all_entropies: bool = False,
    hands_over: bool = False,
    note: Callable[[str], None] = lambda _: None,
) -> "AgentParts":
    """Build the agent of training, evaluation and data synthesis; `model` is called for the local engine only.

    The user's `rewriters` take their turn after the repair tools. `note` receives what an engine learns about its service.
    With `hands_over` the engine gets its weights from a publisher.

    Raises:
        ConfigError: `all_entropies` is set, and the engine has no exact entropies.
    """
    from ramify.rollout.settings import AgentParts

    live = LiveCount()
    built = _engine(
        engine,
        renderer,
        model,
        context_tokens,
        run.dir,
        live if run.deterministic else None,
        note,
        hands_over=hands_over,
    )
    environment = toolbox.environment
    if repairs is not None:
        environment, repair_tools = build_repairs(repairs, environment, built, renderer, limits, run.seed)
        rewriters = (*repair_tools, *rewriters)
    return AgentParts(
        engine=built,
        renderer=renderer,
        environment=environment,
        brancher=brancher,
        limits=limits,
        events=events,
        run_seed=run.seed,
        branch_at=branch_at,
        rewriters=rewriters,
        # With a limit, which tree gets a free slot would depend on how fast tools are.
        slots=None if run.deterministic else built.info().num_slots,
        live=live,
        all_entropies=all_entropies,
        environments=toolbox.environments,
    )


def _engine(
    config: EvalEngineSection,
    renderer: "DialectRenderer",
    model: "Callable[[], PreTrainedModel]",
    context_tokens: int,
    run_folder: Path,
    live: LiveCount | None,
    note: Callable[[str], None],
    *,
    hands_over: bool,
) -> Engine:
    """Build an engine. No other place asks of which class an engine's Config is."""
    match config:
        case LocalEngineConfig():
            from ramify.engines.local import LocalEngine

            return LocalEngine(
                model(), renderer.tokenizer, num_slots=config.slots, context_tokens=context_tokens, live=live
            )
        case ScriptedEngineConfig():
            from ramify.engines.scripted import ScriptedEngine, load_script

            script = load_script(config.script, renderer.result_end)
            return ScriptedEngine(
                renderer.tokenizer, script, context_tokens, script.exact_entropy, shows_prompt=False
            )
        case OpenAIEngineConfig():
            return _openai(config, renderer, context_tokens, note)
        case VllmEngineConfig():
            from ramify.assemble.vllm import build_vllm

            return build_vllm(
                config, renderer.tokenizer, context_tokens, run_folder, note, hands_over=hands_over
            )


def _openai(
    section: OpenAIEngineConfig, renderer: "DialectRenderer", context_tokens: int, note: Callable[[str], None]
) -> Engine:
    from ramify.engines.openai import OpenAIEngine, bearer
    from ramify.engines.openai_chat import OpenAIChatEngine
    from ramify.engines.served_models import ServedModel
    from ramify.net.secrets import read_key

    key = None if section.key_variable is None else read_key(section.key_variable)
    engine_class = OpenAIChatEngine if section.api == "chat" else OpenAIEngine
    return engine_class(
        http_client("engine", section.http, key),
        renderer,
        base_url=section.url,
        model=section.model,
        context_tokens=context_tokens,
        slots=section.slots,
        key=key,
        note=note,
        served=ServedModel("engine.model", section.model, bearer(key)),
    )


def build_brancher(section: RolloutSection, vocab_size: int) -> Brancher:
    """Build the branching rule; `vocab_size` is for the `seed_compat_*` rules, which divide by its logarithm.

    Raises:
        ConfigError: `rate_from` or `of` is not the folder of a run.
        DataError: The metrics of that run hold no rate; its traces cannot be read.
    """
    # m is absent only for rules that compute the number of roots themselves.
    return section.branching.build(RuleSetup(section.m or section.n, vocab_size, read_rate, read_paired_run))


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
    limits: RolloutLimits,
    seed: int,
) -> tuple[Environment, tuple[ContextRewriter, ...]]:
    """Return the environment with the debugger in it, and the repair tools that are rewriters, in the order of their turns.

    Args:
        kit: What they use.
        environment: What the agent acts in.
        engine: The agent's, which answers where no helper is named.
        renderer: The agent's.
        limits: The agent's.
        seed: Of the run.
    """
    from ramify.engines.chat_models import PolicyChat
    from ramify.rollout.repair import Backtracer, DebuggedEnvironment, Helper, Refiner

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
