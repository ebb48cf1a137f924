"""Resampling of recorded states with a run's own recipe: trees that go on from a node, without branches, recorded as traces."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ramify.assemble.model import build_model
from ramify.assemble.task import build_sampler, build_task, group_size
from ramify.config.load import override_recipe, read_toml
from ramify.config.schema_train import TrainRecipe
from ramify.core.draws import stream
from ramify.core.errors import DataError
from ramify.modeling.numerics import set_numerics
from ramify.obs.console import RunConsole
from ramify.obs.trace import TracedTree, each_tree
from ramify.rollout.plan import TreeRequest, request_from
from ramify.rollout.rewriting import Decode
from ramify.runs.recorded_trees import require_tokenizer
from ramify.sampler.recorded import TreeRecorder, recorded_keys
from ramify.sampler.sampler import sampling
from ramify.study.decisions import Decision
from ramify.study.effects import Side

_TABLES = (
    "model",
    "data",
    "run",
    "rollout",
    "engine",
    "tools",
    "environment",
    "environments",
    "sandbox",
    "repair",
    "reward",
    "learner",
)
_OF_LENGTH = ("truncated", "overlong_margin")
"""Keys of the algorithm that the reward depends on."""
_NUMBERS = 10**9

State = tuple[int, str]
"""Row of a tree in its file, from 0, and id of a node in it."""


def fork_recipe(recipe: Path, overrides: Sequence[str], samples: int, folder: Path) -> TrainRecipe:
    """Return the recipe that grows `samples` trajectories from each state: that of the run, but nothing branches.

    Raises:
        ConfigError: It is none of `ramify train`, or `overrides` are wrong.
    """
    recorded = read_toml(recipe)
    if "rollout" not in recorded:
        raise DataError(
            f"{recipe}: no recipe of ramify train, which an audit grows trajectories with. Name one with --recipe"
        )
    table: dict[str, Any] = {name: recorded[name] for name in _TABLES if name in recorded}
    algorithm = recorded.get("algorithm")
    shape = algorithm if isinstance(algorithm, dict) else {}
    table["algorithm"] = {
        "estimator": {"name": "group"},
        "loss": {"name": "clip"},
        **{key: shape[key] for key in _OF_LENGTH if key in shape},
    }
    flat = (
        "rollout.m=",
        "rollout.dynamic_sampling=",
        "rollout.branch_at=",
        # The states of an audit are no step.
        "rollout.step_seconds=",
        'rollout.branching={name="none"}',
    )
    own = (*flat, f"rollout.n={samples}", f"run.dir={folder}")
    return override_recipe(TrainRecipe, table, (*overrides, *own), f"{recipe}")


@dataclass(frozen=True, slots=True)
class ForkPlan:
    """States of one file of trees to go on from.

    Attributes:
        trace: Place of the file among those of the audit.
        trees: The file's trees.
        states: The states, in the order in which they are grown.
        path: File that gets a tree for each.
    """

    trace: int
    trees: Sequence[TracedTree]
    states: Sequence[State]
    path: Path

    @property
    def requests(self) -> list[TreeRequest]:
        """The trees to grow, each with random streams of its own."""
        return [self._request(state) for state in self.states]

    def _request(self, state: State) -> TreeRequest:
        row, node = state
        request = request_from(self.trees[row].tree, node)
        return replace(request, key=replace(request.key, attempt=self._number(state)))

    def sides(self) -> dict[State, Side]:
        """Return what was grown from each state."""
        by_key = {
            (self.trees[row].tree.problem.id, self._number((row, node))): (row, node)
            for row, node in self.states
        }
        sides = {}
        for traced in each_tree(self.path):
            state = by_key.get((traced.tree.problem.id, traced.tree.key.attempt))
            if state is not None:
                rewards = tuple(reward.value for reward in traced.rewards if reward.counts)
                sides[state] = Side(state[1], rewards, len(traced.rewards) - len(rewards))
        return sides

    def _number(self, state: State) -> int:
        """Return the number of a state among the attempts at its problem, which no recorded attempt and no other file has."""
        return _NUMBERS + (stream("fork", *state) + self.trace) % _NUMBERS


def trace_path(folder: Path, trace: int) -> Path:
    """Return the file, in an audit's folder, of the trees that were grown from the states of a file of trees."""
    return folder / "trees" / f"{trace + 1:06d}.jsonl"


def states_of(decisions: Iterable[Decision]) -> list[State]:
    """Return the states before and after decisions, each once, in their order."""
    states: dict[State, None] = {}
    for decision in decisions:
        states[decision.row, decision.before] = None
        if decision.after is not None:
            states[decision.row, decision.after] = None
    return [*states]


def grow_forks(plans: Sequence[ForkPlan], recipe: TrainRecipe, console: RunConsole) -> None:
    """Grow what the files of plans lack.

    Raises:
        UserError: The recipe, the data or the machine is wrong, or no problem worked.
        RunInterruptedError: Ctrl-C or SIGTERM; what was grown stays.
    """
    requests = {plan.path: plan.requests for plan in plans}
    if all(_is_done(path, planned) for path, planned in requests.items()):
        return
    set_numerics(recipe.run.threads, recipe.run.deterministic)
    task = build_task(recipe, console)

    def open_sampler() -> Any:  # noqa: ANN401 - a Sampler
        return build_sampler(recipe, task, lambda: build_model(recipe.model, task.context_tokens), console)

    with sampling(task, open_sampler, "the same command goes on") as session:
        # Some states may give other results than were recorded, which the audit counts.
        session.sampler.scoring.stops_early = False
        recorder = TreeRecorder(console, session.stop, group_size(recipe.run, recipe.engine))
        for path, planned in requests.items():
            recorder.grow("audit", path, session.sampler, planned, len(planned))


def _is_done(path: Path, planned: Sequence[TreeRequest]) -> bool:
    return {(each.problem.id, each.key.attempt) for each in planned} <= recorded_keys(path)


def check_tokenizer(plans: Sequence[ForkPlan], decode: Decode) -> None:
    """Raise DataError unless `decode` gives the texts of the prompts that plans go on from."""
    for plan in plans:
        tree = plan.trees[plan.states[0][0]].tree
        require_tokenizer(f"problem {tree.problem.id!r}", tree.nodes[0], decode)
