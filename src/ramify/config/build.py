"""Builds the objects of a checked recipe; only the `config.build*` modules name concrete classes.

Imports are inside the functions, so that checking a recipe loads none of the libraries that running it needs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from ramify.algos.branch_aepo import BalancedBrancher, BalancedConfig
from ramify.algos.branch_arpo import BernoulliBrancher, BernoulliConfig, ThresholdBrancher, ThresholdConfig
from ramify.algos.branch_rules import FlatBrancher, FlatConfig, RandomBrancher, RandomConfig
from ramify.algos.branch_seed_compat import (
    ReleasedAepoBrancher,
    ReleasedAepoConfig,
    ReleasedArpoBrancher,
    ReleasedArpoConfig,
    ReleasedStatistic,
)
from ramify.algos.configs import (
    CispoConfig,
    ClipConfig,
    GppoConfig,
    GroupConfig,
    GspoConfig,
    NodeValueConfig,
    ReinforcePlusPlusConfig,
    StopGradientClipConfig,
    TreeGrpoConfig,
    TurnLevelConfig,
)
from ramify.config.build_repair import RepairKit, build_repairs
from ramify.config.build_tools import Toolbox
from ramify.config.other_runs import read_rate
from ramify.config.schema_algorithm import AlgorithmSection, LossSection
from ramify.config.schema_eval import EvalEngineSection, OpenAIEngineSection
from ramify.config.schema_parts import (
    Dialect,
    LimitsSection,
    LocalEngineSection,
    OptimizerSection,
    RunSection,
    ScriptedEngineSection,
)
from ramify.config.schema_rollout import RolloutSection
from ramify.config.schema_train import TrainRecipe
from ramify.config.schema_vllm import VllmEngineSection
from ramify.core.closing import LiveCount
from ramify.core.messages import ToolSpec
from ramify.core.protocols import Brancher, ContextRewriter, Engine, Estimator, EventSink, RewardFn

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ramify.algos.losses import Objective, PolicyLoss, TokenLoss
    from ramify.chat.renderer import ChatRenderer
    from ramify.chat.tokenizer import ChatTokenizer
    from ramify.learner.annotate import Wanted
    from ramify.learner.learning import Learning
    from ramify.learner.optimizer import OptimizerSettings, Schedule
    from ramify.learner.update import Learner
    from ramify.rollout.settings import AgentParts, BranchAt, RolloutLimits

MISMATCH_TOLERANCE = 1e-4
"""Largest mean |ln(policy / behavior)|, nats per token, at which an engine's logprobs may be the old ones (float32)."""
MISMATCH_KL = 0.015
"""Largest KL(engine || learner), nats per token, that an importance correction may have to mend."""


def build_renderer(dialect: Dialect, tokenizer: "ChatTokenizer", tools: Sequence[ToolSpec]) -> "ChatRenderer":
    """The renderer of every run: SFT, DPO, RL and evaluation.

    Args:
        dialect: The recipe's `model.dialect`.
        tokenizer: The model's tokenizer.
        tools: `Toolbox.specs`, or `ShownTools.specs` where nothing is called.

    Raises:
        ConfigError: A tool's name cannot be used in the dialect.
        DataError: The chat template does not have the dialect.
    """
    if dialect == "hermes":
        from ramify.chat.hermes import HermesRenderer

        return HermesRenderer(tokenizer, tools)
    from ramify.chat.tag_renderer import TagRenderer

    return TagRenderer(tokenizer, tools)


def build_agent(
    *,
    engine: EvalEngineSection,
    run: RunSection,
    toolbox: Toolbox,
    renderer: "ChatRenderer",
    model: "Callable[[], PreTrainedModel]",
    context_tokens: int,
    brancher: Brancher,
    limits: "RolloutLimits",
    events: EventSink,
    branch_at: "BranchAt" = "before_probe",
    rewriters: tuple[ContextRewriter, ...] = (),
    repairs: RepairKit | None = None,
    all_entropies: bool = False,
    hands_over: bool = False,
    note: Callable[[str], None] = lambda _: None,
    renderers: "Mapping[str, ChatRenderer]" = MappingProxyType({}),
) -> "AgentParts":
    """The agent of training, evaluation and data synthesis; `model` is called for the local engine only.

    `rewriters` are the user's own, asked after the repair tools. `note` receives what an engine finds out about its service. With `hands_over` the engine gets its weights from a
    publisher. `renderers` are those of several environments, by name.

    Raises:
        ConfigError: `all_entropies` is set, and the engine has no exact entropies.
    """
    from ramify.rollout.settings import AgentParts

    live = LiveCount()
    if isinstance(engine, VllmEngineSection):
        from ramify.config.build_vllm import build_vllm

        built: Engine = build_vllm(
            engine, renderer.tokenizer, context_tokens, run.dir, note, hands_over=hands_over
        )
    else:
        built = _engine(engine, renderer, model, context_tokens, live if run.deterministic else None, note)
    environment = toolbox.environment
    if repairs is not None:
        environment, ours = build_repairs(repairs, environment, built, renderer, limits, run.seed)
        rewriters = (*ours, *rewriters)
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
        environments={name: (toolbox.environments[name], own) for name, own in renderers.items()},
    )


def _engine(
    section: LocalEngineSection | ScriptedEngineSection | OpenAIEngineSection,
    renderer: "ChatRenderer",
    model: "Callable[[], PreTrainedModel]",
    context_tokens: int,
    live: LiveCount | None,
    note: Callable[[str], None],
) -> Engine:
    if isinstance(section, LocalEngineSection):
        from ramify.engines.local import LocalEngine

        return LocalEngine(
            model(), renderer.tokenizer, num_slots=section.slots, context_tokens=context_tokens, live=live
        )
    if isinstance(section, OpenAIEngineSection):
        return _openai(section, renderer, context_tokens, note)
    from ramify.engines.scripted import ScriptedEngine, load_script

    script = load_script(section.script, renderer.result_end)
    return ScriptedEngine(renderer.tokenizer, script, context_tokens, script.exact_entropy)


def engine_without_tools(
    section: EvalEngineSection,
    engine: Engine,
    renderer: "ChatRenderer",
    context_tokens: int,
    note: Callable[[str], None],
) -> Engine:
    """The engine for an agent whose `renderer` shows no tools: a chat endpoint is told of none, any other is as it was.

    Whoever calls this closes it, as well as `engine`.
    """
    if isinstance(section, OpenAIEngineSection) and section.api == "chat":
        return _openai(section, renderer, context_tokens, note)
    return engine


def _openai(
    section: OpenAIEngineSection, renderer: "ChatRenderer", context_tokens: int, note: Callable[[str], None]
) -> Engine:
    from ramify.config.build_services import http_client
    from ramify.engines.openai import OpenAIEngine
    from ramify.engines.openai_chat import OpenAIChatEngine
    from ramify.net.secrets import read_key

    key = None if section.key_variable is None else read_key(section.key_variable)
    made = OpenAIChatEngine if section.api == "chat" else OpenAIEngine
    return made(
        http_client("engine", section.http, key),
        renderer,
        base_url=section.url,
        model=section.model,
        context_tokens=context_tokens,
        slots=section.slots,
        key=key,
        note=note,
    )


def build_brancher(section: RolloutSection, vocab_size: int) -> Brancher:
    """The branching rule; `vocab_size` is for the `seed_compat_*` rules, which divide by its logarithm.

    Raises:
        ConfigError: `rate_from` is not the folder of a run.
        DataError: The metrics of that run hold no rate.
    """
    # m is absent only for rules that compute the number of roots themselves.
    m = section.m or section.n
    match section.branching:
        case FlatConfig() as config:
            return FlatBrancher(**config.values())
        case ThresholdConfig() as config:
            return ThresholdBrancher(m=m, **config.values())
        case BernoulliConfig() as config:
            return BernoulliBrancher(m=m, **config.values())
        case RandomConfig(rate_from=run) as config:
            if run is not None:
                config = replace(config, rate=read_rate(run), rate_from=None)
            return RandomBrancher(m=m, **config.values())
        case BalancedConfig() as config:
            return BalancedBrancher(**config.values())
        case ReleasedArpoConfig() as config:
            return ReleasedArpoBrancher(m=m, config=config, statistic=ReleasedStatistic(config, vocab_size))
        case ReleasedAepoConfig() as config:
            statistic = ReleasedStatistic(config, vocab_size)
            return ReleasedAepoBrancher(m=section.m, config=config, statistic=statistic)


def build_limits(section: LimitsSection, n: int, top_p: float = 1.0) -> "RolloutLimits":
    """The limits of a tree with n leaves; only an evaluation samples with `top_p` below 1."""
    from ramify.rollout.settings import RolloutLimits

    shared = {name: getattr(section, name) for name in LimitsSection.model_fields}
    return RolloutLimits(n=n, top_p=top_p, **shared)


def build_optimizer(section: OptimizerSection) -> "tuple[OptimizerSettings, Schedule]":
    """The optimizer's settings and its learning-rate schedule."""
    from ramify.learner.optimizer import AdamWSettings, MuonSettings, Schedule

    schedule = Schedule(section.warmup_steps, section.decay_from, section.final_rate, section.decay)
    if section.name == "adamw":
        return AdamWSettings(section.rate, section.betas, section.weight_decay), schedule
    return (
        MuonSettings(
            matrix_lr=section.rate,
            vector_lr=section.vector_rate or section.rate,
            embedding_lr=section.embedding_rate or section.rate,
            betas=section.betas,
            weight_decay=section.weight_decay,
        ),
        schedule,
    )


def build_estimator(section: AlgorithmSection) -> Estimator:
    """The advantage estimator, wrapped in what changes its rewards (KL) and advantages (entropy)."""
    from ramify.algos.aepo import EntropyAwareAdvantage
    from ramify.algos.grpo import GroupRelative
    from ramify.algos.kl import KlInReward
    from ramify.algos.node_value import NodeValue
    from ramify.algos.reinforce_pp import ReinforcePlusPlus
    from ramify.algos.tree_grpo import TreeGrpo
    from ramify.algos.turn_level import TurnLevel

    kl = section.kl.coefficient if section.kl is not None and section.kl.place == "reward" else 0.0
    estimator: Estimator
    match section.estimator:
        case GroupConfig() as config:
            estimator = GroupRelative(section.shared, **config.values())
        case TreeGrpoConfig() as config:
            estimator = TreeGrpo(section.shared, **config.values())
        case NodeValueConfig() as config:
            estimator = NodeValue(section.shared, **config.values())
        case TurnLevelConfig() as config:
            estimator = TurnLevel(section.shared, **config.values())
        case ReinforcePlusPlusConfig() as config:
            # It applies the KL penalty per token, so that each token is charged only for itself and later tokens.
            estimator = ReinforcePlusPlus(section.shared, **config.values(), kl_coefficient=kl)
    if kl and not isinstance(section.estimator, ReinforcePlusPlusConfig):
        estimator = KlInReward(estimator, kl)
    if section.entropy_advantage is not None:
        entropy = section.entropy_advantage
        estimator = EntropyAwareAdvantage(estimator, section.shared, entropy.weight, entropy.source)
    return estimator


def build_shaping(section: AlgorithmSection, reward: RewardFn, max_tokens: int) -> RewardFn:
    """The reward for training: `reward`, minus the algorithm's penalty for trajectories near `max_tokens`."""
    from ramify.rewards.trajectory_rewards import OverlongReward

    if section.overlong_margin is None:
        return reward
    return OverlongReward(reward, max_tokens, section.overlong_margin)


def build_objective(section: AlgorithmSection) -> "Objective":
    """What the learner minimises."""
    from ramify.algos.credit import Weighting
    from ramify.algos.kl import EntropyBonus, KlPenalty
    from ramify.algos.losses import Objective

    penalties: list[TokenLoss] = []
    kl = section.kl
    if kl is not None and kl.place == "loss":
        assert kl.estimator != "k1"
        penalties.append(KlPenalty(kl.estimator, kl.coefficient))
    if section.entropy_bonus is not None:
        penalties.append(EntropyBonus(section.entropy_bonus))
    weighting = Weighting(section.shared, section.advantage, section.aggregation, section.fixed_length)
    return Objective(_surrogate(section.loss), tuple(penalties), weighting)


def _surrogate(section: LossSection) -> "PolicyLoss":
    from ramify.algos.aepo import StopGradientClip
    from ramify.algos.cispo import CispoSurrogate
    from ramify.algos.gppo import GppoSurrogate
    from ramify.algos.grpo import ClippedSurrogate
    from ramify.algos.gspo import GspoSurrogate

    kinds: dict[type, type[PolicyLoss]] = {
        ClipConfig: ClippedSurrogate,
        StopGradientClipConfig: StopGradientClip,
        GppoConfig: GppoSurrogate,
        CispoConfig: CispoSurrogate,
        GspoConfig: GspoSurrogate,
    }
    return kinds[type(section)](**section.values())


def wanted_annotations(section: AlgorithmSection) -> "Wanted":
    """What the annotation pass must compute; nothing if the engine provides all that the algorithm needs."""
    from ramify.learner.annotate import Wanted

    entropy = section.entropy_advantage
    return Wanted(
        old=section.old,
        entropies=entropy is not None and entropy.source == "annotate",
        ref_logprobs=section.kl is not None,
    )


def _default_kl(recipe: TrainRecipe) -> float | None:
    """A script is no policy, so its turns may be as unlikely as they are."""
    scripted = isinstance(recipe.engine, ScriptedEngineSection)
    return None if scripted or recipe.algorithm.old == "behavior" else MISMATCH_KL


def build_learning(recipe: TrainRecipe, learner: "Learner", minibatches: int) -> "Learning":
    """The algorithm of a recipe, applied to a learner."""
    from ramify.learner.learning import Learning

    algorithm = recipe.algorithm
    return Learning(
        learner=learner,
        estimator=build_estimator(algorithm),
        correction=algorithm.correction,
        masks_truncated=algorithm.truncated == "mask",
        wanted=wanted_annotations(algorithm),
        problems_per_minibatch=recipe.learner.problems_per_minibatch,
        minibatches=minibatches,
        temperature=recipe.rollout.temperature,
        max_mismatch=(algorithm.max_mismatch or MISMATCH_TOLERANCE) if algorithm.old == "behavior" else None,
        max_kl=algorithm.max_mismatch_kl or _default_kl(recipe),
    )
