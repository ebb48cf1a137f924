"""The audit of runs of ours: decisions of their traces, resampled with the run's own recipe and weights."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ramify.assemble.rescoring import Penalty, rescore_trees
from ramify.chat.tokenizer import ChatTokenizer
from ramify.config.schema_train import TrainRecipe
from ramify.core.errors import ConfigError
from ramify.core.records import Reward
from ramify.obs.console import RunConsole
from ramify.obs.trace import read_trees
from ramify.rewards.trajectory_rewards import length_penalty
from ramify.rollout.rewriting import Decode
from ramify.runs.manifest import file_sha256
from ramify.runs.recorded_trees import recipe_of, weights_of
from ramify.study.audit import Audit, AuditSettings
from ramify.study.decisions import Decision
from ramify.study.effects import Side
from ramify.study.forks import (
    ForkPlan,
    State,
    check_tokenizer,
    fork_recipe,
    grow_forks,
    states_of,
    trace_path,
)
from ramify.study.sources import Rescoring, Sources
from ramify.study.turn_judge import TurnJudge

_OF_PENALTY = ("algorithm.overlong_margin", "rollout.max_tokens")
"""Keys that the penalty for length depends on."""


@dataclass(frozen=True, slots=True)
class _Growth:
    """The recipe and the weights that go on from the states of some files."""

    recipe: Path
    weights: Path | None


def audit_traces(
    settings: AuditSettings,
    out: Path,
    console: RunConsole,
    check: Callable[[TrainRecipe], None],
    judge: TurnJudge | None,
) -> Audit:
    """Resample decisions of files of trees as far as `out` lacks them; returns their effects.

    Args:
        settings: The command.
        out: The audit's folder.
        console: Shows the progress.
        check: Refuses a recipe whose files cannot be used, or have changed since the audit began.
        judge: Also gives its opinion of each decision.

    Raises:
        UserError: A file, the recipe or the machine is wrong, or nothing can be resampled.
        RunInterruptedError: Ctrl-C or SIGTERM; the same settings go on.
    """
    paths = [Path(source) for source in settings.sources]
    sources = Sources(settings.sources, tuple(read_trees(path) for path in paths))
    decisions = sources.draw(settings.decisions, settings.seed)
    plans = _plans(sources, decisions, out)
    recipes: list[tuple[TrainRecipe, list[int]]] = []
    decoders: dict[int, Decode] = {}
    limits: list[str] = []
    for growth, files in _growths(settings, paths).items():
        overrides = list(settings.overrides)
        if growth.weights is not None:
            overrides.insert(0, f"model.path={growth.weights}")
        # Of files without a decision too: more decisions may be drawn from them later.
        recipe = fork_recipe(growth.recipe, overrides, settings.samples, out)
        planned = [trace for trace in files if trace in plans]
        if not planned:
            continue
        check(recipe)
        settings.bind_files(out, {f"{growth.recipe}": file_sha256(growth.recipe)[:16]})
        # The weights that were saved last may have been removed, and others are then the last.
        settings.bind_files(
            out, {f"the model of {paths[trace]}": f"{recipe.model.path}" for trace in planned}
        )
        tokenizer = ChatTokenizer(recipe.model.folder)
        check_tokenizer([plans[trace] for trace in planned], tokenizer.decode)
        decoders |= dict.fromkeys(planned, tokenizer.decode)
        recipes.append((recipe, planned))
        if not settings.recipe:
            limits += [limit for trace in planned for limit in _other_weights(paths[trace], growth.weights)]
    for limit in limits:
        # Before the sampling too, which takes longer.
        console.note(f"warning: {limit}")
    grown_by = {trace: recipe for recipe, files in recipes for trace in files}
    rescored, rescoring = _rescored(settings, sources, decisions, grown_by)
    if rescoring is not None:
        console.note(f"{rescoring}")
    # A judge that does not work ends the command here, before the sampling, which takes longer.
    others = {} if judge is None else judge.scores(sources, decisions, console, decoders)
    for recipe, files in recipes:
        grow_forks([plans[trace] for trace in files], recipe, console)
    sides: list[Mapping[State, Side]] = [
        plans[trace].sides() if trace in plans else {} for trace in range(len(paths))
    ]
    return Audit(rescored.effects(decisions, sides, others), rescoring, tuple(limits))


def _rescored(
    settings: AuditSettings,
    sources: Sources,
    decisions: Sequence[Decision],
    grown_by: Mapping[int, TrainRecipe],
) -> tuple[Sources, Rescoring | None]:
    """Score recorded ends with the reward that trajectories get, where it need not be the one that was recorded."""
    keys = {each: each.partition("=")[0].strip() for each in settings.overrides}
    changes = [each for each, key in keys.items() if key.startswith("reward")]
    is_reshaped = any(key in _OF_PENALTY for key in keys.values())
    if not settings.recipe and not changes and not is_reshaped:
        return sources, None
    rewards: list[dict[State, Reward]] = []
    for trace, (name, trees) in enumerate(zip(sources.names, sources.trees, strict=True)):
        rows = list(dict.fromkeys(each.row for each in decisions if each.trace == trace))
        ends = set(sources.ends(decisions, trace))
        recipe = Path(settings.recipe) if settings.recipe else _named(recipe_of(Path(name)), name)
        penalty = _penalty(grown_by[trace]) if rows else None
        again = (
            [] if penalty is None else rescore_trees(recipe, changes, [trees[row] for row in rows], penalty)
        )
        scored = {
            (row, trajectory.leaf.id): reward
            for row, traced in zip(rows, again, strict=True)
            for trajectory, reward in zip(traced.tree.trajectories, traced.rewards, strict=True)
        }
        rewards.append({end: reward for end, reward in scored.items() if end in ends})
    return sources.rescored(rewards)


def _penalty(recipe: TrainRecipe) -> Penalty:
    """Return the penalty for length that trajectories get."""
    margin, most = recipe.algorithm.overlong_margin, recipe.rollout.max_tokens
    return lambda trajectory: 0.0 if margin is None else length_penalty(trajectory, most, margin)


def _named(recipe: Path | None, trace: str) -> Path:
    if recipe is None:
        raise ConfigError(
            f"{trace}: it lies in no run, whose recipe would say what goes on. Name one with --recipe"
        )
    return recipe


def _plans(sources: Sources, decisions: Sequence[Decision], out: Path) -> dict[int, ForkPlan]:
    plans = {}
    for trace, trees in enumerate(sources.trees):
        if states := states_of(each for each in decisions if each.trace == trace):
            plans[trace] = ForkPlan(trace, trees, states, trace_path(out, trace))
    return plans


def _growths(settings: AuditSettings, paths: Sequence[Path]) -> dict[_Growth, list[int]]:
    """Return the files, by the recipe and weights that go on from their states."""
    growths: dict[_Growth, list[int]] = {}
    for trace, path in enumerate(paths):
        if settings.recipe:
            growth = _Growth(Path(settings.recipe), None)
        else:
            _refuse_other_settings(path)
            growth = _Growth(_named(recipe_of(path), f"{path}"), weights_of(path))
        growths.setdefault(growth, []).append(trace)
    return growths


def _refuse_other_settings(trace: Path) -> None:
    """Raise ConfigError if a file's trees were grown otherwise than the recipe of its folder says."""
    folder = trace.parent
    if folder.name == "evals":
        raise ConfigError(
            f"{trace}: trees of an evaluation were grown with the settings of [eval], which an audit has none of. Name a recipe "
            "with them in [rollout] by --recipe."
        )
    if trace.stem == "trees" and (folder / "rl").is_dir():
        raise ConfigError(
            f"{trace}: trees of a self-critic's cycle were grown with the weights that its RL ended with. Give --recipe "
            f"{folder}/rl/recipe.toml and -s model.path={folder}/rl/checkpoints/step-N."
        )


def _other_weights(trace: Path, weights: Path | None) -> list[str]:
    """Return a sentence if the weights that wrote a step's trees were not saved."""
    if not trace.stem.isdigit():
        return []
    updates = int(trace.stem) - 1
    saved = 0 if weights is None else int(weights.name.removeprefix("step-"))
    if saved >= updates:
        return []
    name = "the recipe's model" if weights is None else f"{weights}"
    return [
        f"{trace}: the weights that grew its trees, those after step {updates}, were not saved, so trajectories go on with {name}. "
        "Audit trees whose weights are there, such as those of --step 1, or save more of them (run.save_every, run.keep_last)."
    ]
