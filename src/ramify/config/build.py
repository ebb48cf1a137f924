"""Builds the objects of a checked recipe; only the `config.build*` modules name concrete classes.

Imports are inside the functions, so that checking a recipe loads none of the libraries that running it needs.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ramify.config.build_tools import Toolbox
from ramify.config.other_runs import read_rate
from ramify.config.schema_eval import EvalEngineSection, OpenAIEngineSection
from ramify.config.schema_parts import (
    Dialect,
    LimitsSection,
    LocalEngineSection,
    OptimizerSection,
    RunSection,
)
from ramify.config.schema_rollout import (
    BalancedBranching,
    BernoulliBranching,
    NoBranching,
    RandomBranching,
    RolloutSection,
    SeedCompatAepoBranching,
    SeedCompatArpoBranching,
    ThresholdBranching,
)
from ramify.core.errors import DataError
from ramify.core.messages import Problem, ToolSpec
from ramify.core.protocols import Brancher, Engine, EventSink
from ramify.core.quiescence import LiveCount

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ramify.chat.renderer import ChatRenderer
    from ramify.chat.tokenizer import ChatTokenizer
    from ramify.learner.optimizer import OptimizerSettings, Schedule
    from ramify.rollout.settings import AgentParts, BranchAt, RolloutLimits


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
    from ramify.chat.renderer import TagRenderer

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
    all_entropies: bool = False,
    note: Callable[[str], None] = lambda _: None,
) -> "AgentParts":
    """The agent of training, evaluation and data synthesis; `model` is called for the local engine only.

    `note` receives what an engine finds out about its service.

    Raises:
        ConfigError: `all_entropies` is set, and the engine has no exact entropies.
    """
    from ramify.rollout.settings import AgentParts

    live = LiveCount()
    built = _engine(engine, renderer, model, context_tokens, live if run.deterministic else None, note)
    return AgentParts(
        engine=built,
        renderer=renderer,
        tools=toolbox.tools,
        brancher=brancher,
        limits=limits,
        events=events,
        run_seed=run.seed,
        branch_at=branch_at,
        # With a limit, which tree gets a free slot would depend on how fast tools are.
        slots=None if run.deterministic else built.info().num_slots,
        live=live,
        all_entropies=all_entropies,
    )


def _engine(
    section: EvalEngineSection,
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


def _openai(
    section: OpenAIEngineSection, renderer: "ChatRenderer", context_tokens: int, note: Callable[[str], None]
) -> Engine:
    from ramify.config.build_services import http_client
    from ramify.engines.openai_engine import OpenAIEngine
    from ramify.net.secrets import read_key

    key = None if section.key_variable is None else read_key(section.key_variable)
    return OpenAIEngine(
        http_client("engine", section.http, *([key] if key else [])),
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
    from ramify.algos.branch_aepo import BalancedBrancher
    from ramify.algos.branch_arpo import BernoulliBrancher, ThresholdBrancher
    from ramify.algos.branch_none import FlatBrancher
    from ramify.algos.branch_random import RandomBrancher

    # m is absent only for rules that compute the number of roots themselves.
    m = section.m or section.n
    match section.branching:
        case NoBranching(probe_tokens=k):
            return FlatBrancher(k)
        case ThresholdBranching(min_rise=rise, probe_tokens=k, children=z):
            return ThresholdBrancher(m=m, min_rise=rise, children=z, probe_tokens=k)
        case BernoulliBranching(alpha=alpha, beta=beta, probe_tokens=k, children=z):
            return BernoulliBrancher(m=m, alpha=alpha, beta=beta, children=z, probe_tokens=k)
        case RandomBranching(rate=rate, rate_from=run, probe_tokens=k, children=z):
            found = read_rate(run) if run is not None else rate
            assert found is not None
            return RandomBrancher(m=m, rate=found, children=z, probe_tokens=k)
        case BalancedBranching() as rule:
            return BalancedBrancher(
                alpha=rule.alpha,
                gamma=rule.gamma,
                slope=rule.slope,
                tau=rule.tau,
                budget_beta=rule.budget_beta,
                children=rule.children,
                probe_tokens=rule.probe_tokens,
            )
        case SeedCompatArpoBranching() | SeedCompatAepoBranching() as rule:
            return _seed_compat(rule, section.m, vocab_size)


def _seed_compat(
    rule: SeedCompatArpoBranching | SeedCompatAepoBranching, m: int | None, vocab_size: int
) -> Brancher:
    from ramify.algos.branch_seed_compat import ReleasedAepoBrancher, ReleasedArpoBrancher, ReleasedStatistic

    statistic = ReleasedStatistic(
        vocab_size=vocab_size,
        stale_segment=rule.stale_segment,
        summed_over_tokens=rule.summed_over_tokens,
        child_baseline_after_branch=rule.child_baseline_after_branch,
        baseline_never_reset=rule.baseline_never_reset,
    )
    if isinstance(rule, SeedCompatAepoBranching):
        return ReleasedAepoBrancher(
            m=m,
            statistic=statistic,
            branch_probability=rule.branch_probability,
            entropy_weight=rule.entropy_weight,
            slot_order=rule.slot_order,
            budget_beta=rule.budget_beta,
            root_segment_in_average=rule.root_segment_in_average,
            penalty_per_prompt=rule.penalty_per_prompt,
            probe_tokens=rule.probe_tokens,
        )
    assert m is not None
    return ReleasedArpoBrancher(
        m=m,
        statistic=statistic,
        branch_probability=rule.branch_probability,
        entropy_weight=rule.entropy_weight,
        slot_order=rule.slot_order,
        children=1,
        probe_tokens=rule.probe_tokens,
    )


def build_limits(section: LimitsSection, n: int, top_p: float = 1.0) -> "RolloutLimits":
    """The limits of a tree with n leaves; only an evaluation samples with `top_p` below 1."""
    from ramify.rollout.settings import RolloutLimits

    return RolloutLimits(
        n=n,
        max_tokens=section.max_tokens,
        max_calls=section.max_calls,
        temperature=section.temperature,
        top_p=top_p,
        max_result_chars=section.max_result_chars,
        trajectory_seconds=section.trajectory_seconds,
        step_seconds=section.step_seconds,
    )


def build_optimizer(section: OptimizerSection) -> "tuple[OptimizerSettings, Schedule]":
    """The optimizer's settings and its learning-rate schedule."""
    from ramify.learner.optimizer import AdamWSettings, MuonSettings, Schedule

    schedule = Schedule(section.warmup_steps, section.decay_from, section.final_rate)
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


def build_problems(
    path: Path,
    renderer: "ChatRenderer",
    max_prompt_tokens: int,
    exclude: Sequence[str] = (),
) -> tuple[tuple[Problem, ...], tuple[str, ...]]:
    """Read problems and drop those whose prompt is too long; returns the problems and one-line notes.

    Args:
        path: The problem file.
        renderer: Renders the prompts and counts their tokens.
        max_prompt_tokens: Problems with longer prompts are dropped.
        exclude: Files, folders or data sets of the hub; problems with the same question as one in them are dropped.

    Raises:
        DataError: Something cannot be read, or no problem is left.
    """
    from ramify.data.overlap import duplicate_notes
    from ramify.data.problems import load_problems

    loaded = load_problems(path)
    problems = loaded.problems
    notes = [f"{path}: {note}" for note in (*loaded.notes, *duplicate_notes(problems))]
    if exclude:
        problems, dropped = _without(path, problems, exclude)
        notes.append(f"{path}: {dropped}")
    kept, too_long = fitting(path, problems, renderer, max_prompt_tokens)
    return kept, (*notes, *too_long)


def fitting(
    place: Path | str, problems: Sequence[Problem], renderer: "ChatRenderer", max_prompt_tokens: int
) -> tuple[tuple[Problem, ...], tuple[str, ...]]:
    """The problems whose prompt is short enough, and notes on those dropped; `place` names their source in messages.

    Raises:
        DataError: No prompt is short enough.
    """
    fits = renderer.fitting(problems, max_prompt_tokens)
    kept = tuple(problem for problem, short in zip(problems, fits, strict=True) if short)
    if not kept:
        least = min(renderer.tokenizer.fewest_tokens(renderer.prompt_text(problem)) for problem in problems)
        raise DataError(
            f"{place}: no problem is left, all prompts have more than data.max_prompt_tokens = {max_prompt_tokens} tokens "
            f"(the shortest has at least {max(least, max_prompt_tokens + 1)})"
        )
    notes = []
    if len(kept) < len(problems):
        notes.append(
            f"{place}: dropped {len(problems) - len(kept)} of {len(problems)} problems whose prompt has more than "
            f"{max_prompt_tokens} tokens"
        )
    notes += control_notes(place, [renderer.foreign_control(problem) for problem in kept])
    return kept, tuple(notes)


def control_notes(place: Path | str, found: Sequence[str | None]) -> tuple[str, ...]:
    """A note on the rows of a data set that spell a control token; `found` has one of them, or None, for each row."""
    spelt = [token for token in found if token is not None]
    if not spelt:
        return ()
    return (
        f"{place}: {len(spelt)} of {len(found)} rows spell a token that only the chat template may write, such as "
        f"{spelt[0]!r}; it is read as ordinary text",
    )


def _without(
    path: Path, problems: tuple[Problem, ...], exclude: Sequence[str]
) -> tuple[tuple[Problem, ...], str]:
    from ramify.data.overlap import read_questions, without_questions

    kept = without_questions(problems, read_questions(exclude))
    places = ", ".join(exclude)
    if not kept:
        raise DataError(f"{path}: no problem is left, data.exclude ({places}) asks all of them")
    return kept, f"dropped {len(problems) - len(kept)} of {len(problems)} problems that stand in {places}"
