"""The audit of another trainer's run: its conversations, resampled at a chat endpoint."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from ramify.assemble.reward import build_own_parts, build_reward
from ramify.assemble.services import http_client
from ramify.assemble.tools import build_tools
from ramify.config.load import load_tables
from ramify.config.schema_parts import (
    EnvironmentSection,
    RewardSection,
    SandboxSection,
    Section,
    ToolsSection,
)
from ramify.core.closing import Closable, close_all
from ramify.core.errors import ConfigError, MachineError, ServiceDownError
from ramify.net.configs import HttpConfig
from ramify.net.secrets import read_key
from ramify.net.servers import Servers
from ramify.obs.console import RunConsole
from ramify.runtime.agent_loop import StopOnSignal, agent_loop
from ramify.sampler.task import Toolbox
from ramify.study.audit import Audit, AuditSettings
from ramify.study.conversations import ForeignRun, read_conversations
from ramify.study.endpoint import Endpoint, advice_on
from ramify.study.endpoint_forks import EndpointForks
from ramify.study.forks import states_of, trace_path
from ramify.study.replayed_world import LiveWorld, ReplayedWorld, World
from ramify.study.sources import Sources
from ramify.study.turn_judge import TurnJudge
from ramify.tools.class_environment import load_environment
from ramify.tools.configs import OwnEnvironmentConfig

_HTTP = HttpConfig(timeout_seconds=120.0)
_MOST_REASONS = 5
"""Reasons of trajectories without a reward that are shown."""
_SEARCHED = frozenset({"collection", "ambiguous"})
"""Columns that the search tool reads."""


class _Task(Section):
    """The tables of a recipe that conversations go on with."""

    tools: ToolsSection = ToolsSection()
    environment: EnvironmentSection | None = None
    sandbox: SandboxSection = SandboxSection()
    reward: RewardSection


def audit_conversations(
    settings: AuditSettings,
    out: Path,
    console: RunConsole,
    check: Callable[[Section], None],
    judge: TurnJudge | None,
) -> Audit:
    """Resample decisions of files of conversations as far as `out` lacks them; returns their effects.

    Args:
        settings: The command.
        out: The audit's folder.
        console: Shows the progress.
        check: Refuses the tables of the recipe if a file that they name has changed since the audit began.
        judge: Also gives its opinion of each decision.

    Raises:
        UserError: A file, the recipe or the machine is wrong, or nothing can be resampled.
        RunInterruptedError: Ctrl-C or SIGTERM; the same settings go on.
    """
    if not (settings.recipe and settings.url and settings.model):
        raise ConfigError(
            "conversations go on at an endpoint, and a recipe scores them. Give --url, --model and --recipe"
        )
    task = load_tables(_Task, Path(settings.recipe), settings.overrides)
    check(task)
    runs = _read_runs(settings.sources, task, console)
    sources = Sources(settings.sources, tuple(run.trees for run in runs), tuple(run.lines for run in runs))
    decisions = sources.draw(settings.decisions, settings.seed)
    states = [states_of(each for each in decisions if each.trace == trace) for trace in range(len(runs))]
    ends = [sources.ends(decisions, trace) for trace in range(len(runs))]
    key = read_key(settings.key_variable) if settings.key_variable else None
    reward = build_reward(task.reward)
    toolbox = _toolbox(task, console)
    # A judge that does not work ends the command here, before the sampling, which takes longer.
    others = {} if judge is None else judge.scores(sources, decisions, console, {})
    client = http_client("endpoint", _HTTP, key)
    endpoint = Endpoint(
        client, Servers(settings.url), settings.model, key, settings.max_tokens, settings.temperature
    )
    forks = [
        EndpointForks(
            run, _world(run, toolbox, task), endpoint, reward.fn, out / f"samples-{trace + 1}.jsonl"
        )
        for trace, run in enumerate(runs)
    ]
    with agent_loop() as loop, StopOnSignal(loop) as stop:
        try:
            for fork, of_file, recorded in zip(forks, states, ends, strict=True):
                with console.phase("audit", len(of_file) * settings.samples + len(recorded)) as phase:
                    stop.run(fork.score_ends(recorded, phase))
                    if failure := fork.end_failure:
                        # Before any request is paid for; the same command tries the mended function.
                        fork.remove()
                        raise ConfigError(
                            f"{settings.recipe}: no recorded end could be scored: {failure}. Correct the file of that function or class."
                        )
                    stop.run(fork.grow(of_file, settings.samples, phase))
            stop.check()
        except ServiceDownError:
            _free(forks)
            raise
        finally:
            loop.run(close_all(_open(client, reward, toolbox)))
    _require_success(settings, forks)
    _show_reasons(forks, console)
    for trace, (fork, of_file) in enumerate(zip(forks, states, strict=True)):
        if of_file:
            fork.write_trees(of_file, trace_path(out, trace))
    sides = [fork.sides(of_file) for fork, of_file in zip(forks, states, strict=True)]
    rescored, rescoring = sources.rescored(
        [fork.end_rewards(recorded) for fork, recorded in zip(forks, ends, strict=True)]
    )
    console.note(f"{rescoring}")
    return Audit(rescored.effects(decisions, sides, others), rescoring, _limits(forks, console))


def _limits(forks: Sequence[EndpointForks], console: RunConsole) -> tuple[str, ...]:
    """Show and return what limits the samples."""
    failed = sum(fork.num_failed for fork in forks)
    if not failed:
        return ()
    limit = f"Trajectories that failed requests ended: {failed}. Repeat the command: it samples these again."
    console.note(f"warning: {limit}")
    return (limit,)


def _show_reasons(forks: Sequence[EndpointForks], console: RunConsole) -> None:
    """Show why trajectories have no reward; a reason may quote what the model wrote, so that there are many."""
    reasons = Counter[str]()
    for fork in forks:
        reasons.update(fork.reasons())
    for reason, number in reasons.most_common(_MOST_REASONS):
        console.note(f"trajectories without a reward: {number}, {reason}")
    if more := reasons.total() - sum(number for _, number in reasons.most_common(_MOST_REASONS)):
        console.note(
            f"trajectories without a reward: {more}, for {len(reasons) - _MOST_REASONS} other reasons, which the samples-N.jsonl say"
        )


def _require_success(settings: AuditSettings, forks: Sequence[EndpointForks]) -> None:
    failures = [fork.failure for fork in forks if fork.path.exists()]
    if failures and all(failures):
        _free(forks)
        raise MachineError(
            f"--url {settings.url}: {failures[0]}. No other request worked. {advice_on(failures[0])}"
        )


def _free(forks: Sequence[EndpointForks]) -> None:
    """Free the folder for another --url, --model or --key-variable, unless the endpoint wrote a trajectory."""
    if not any(fork.has_samples for fork in forks):
        for fork in forks:
            fork.remove()


def _toolbox(task: _Task, console: RunConsole) -> Toolbox | None:
    """Return the recipe's tools or environment; None if it has none, so that recorded results stand in for them."""
    if task.environment is None and task.tools == ToolsSection():
        console.note(
            "the recipe has no tools and no environment: calls get the results that were recorded for them"
        )
        return None
    return build_tools(task.tools, task.sandbox, task.environment, console.note)


def _read_runs(sources: Sequence[str], task: _Task, console: RunConsole) -> list[ForeignRun]:
    """Read the files. Columns that the reward, the search tool or the environment names make another problem of a prompt."""
    parts = [part for _, part, _ in build_own_parts(task.reward)]
    columns = _SEARCHED.union(*(part.columns for part in parts))
    takes_any = any(part.reads_any for part in parts)
    if isinstance(task.environment, OwnEnvironmentConfig):
        environment, _ = load_environment(task.environment)
        columns |= environment.reset_parameters
        takes_any = takes_any or environment.resets_with_any
    runs = [read_conversations(Path(source), columns) for source in sources]
    for source, run in zip(sources, runs, strict=True):
        for reason, number in run.left_out.items():
            console.note(f"{source}: {number} conversations left out: {reason}")
        if run.differing and takes_any:
            console.note(
                f"warning: {source}: conversations of one problem differ in {', '.join(run.differing)}, and all get the first "
                "one's: the recipe's reward or environment takes any column. Have it name those that it needs, or remove these."
            )
    return runs


def _world(run: ForeignRun, toolbox: Toolbox | None, task: _Task) -> World:
    if toolbox is None:
        return ReplayedWorld(run)
    trees = [traced.tree for traced in run.trees]
    return LiveWorld(toolbox.environment, trees, can_end=task.environment is not None)


def _open(*parts: Closable | None) -> Sequence[Closable]:
    return [part for part in parts if part is not None]
