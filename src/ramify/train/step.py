"""The parts of an RL run, and the second half of its step: update (if the collapse detector allows it), new state, record."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ramify.core.errors import TrainingError
from ramify.core.outcomes import counted_trees
from ramify.core.protocols import Publisher
from ramify.core.records import ScoredTree, TrainingTree
from ramify.data.order import ProblemOrder
from ramify.learner.guard import Action, Guard, Violation
from ramify.learner.learning import Learning
from ramify.learner.report import UpdateReport
from ramify.obs.branch_metrics import branch_notes, entropy_warnings
from ramify.obs.console import Phase, RunConsole
from ramify.obs.metrics import MetricsRow, finite, read_metrics
from ramify.obs.trace import TracedTree
from ramify.runs.checkpoint_files import checkpoint_folder
from ramify.runs.recorder import Recorder
from ramify.runs.run_folder import RunFolder
from ramify.runs.state import LoopState, Saver
from ramify.runtime.call_clock import EventLoopLag
from ramify.sampler.batch import Batch
from ramify.sampler.configs import DynamicSamplingConfig
from ramify.sampler.memory_phases import MemoryPhases
from ramify.sampler.sampler import Sampler
from ramify.train.configs import PreflightConfig
from ramify.train.loop import TrainingEvaluation


@dataclass(frozen=True, slots=True)
class RlRun:
    """All parts of a run: sampler, publisher and learner, which know nothing of each other, and what keeps its state.

    Attributes:
        console: Shows the progress.
        folder: Where the run is recorded.
        recorder: Records the steps, and has loggers follow them.
        sampler: Grows and scores trees.
        order: The order of its problems.
        publisher: Hands the learner's weights to the sampler's engine.
        phases: Says whose the memory of GPUs is that the engine's servers share with the learner.
        learning: The algorithm and the learner.
        saver: Writes checkpoints.
        guard: The collapse detector, if there is one.
        total_steps: Steps of the whole run.
        problems_per_step: Problems that a step learns from.
        row_tokens: Unique tokens of the largest row that an update computes.
        dynamic_sampling: Which of them are refused, if any are.
        preflight: What is tried before the first step.
        evaluation: What is evaluated during training, if anything is.
        is_new: The run starts from a model, not from a checkpoint of its own.
    """

    console: RunConsole
    folder: RunFolder
    recorder: Recorder
    sampler: Sampler
    order: ProblemOrder
    publisher: Publisher
    phases: MemoryPhases
    learning: Learning
    saver: Saver
    guard: Guard | None
    total_steps: int
    problems_per_step: int
    row_tokens: int
    dynamic_sampling: DynamicSamplingConfig | None
    preflight: PreflightConfig
    evaluation: TrainingEvaluation | None
    is_new: bool


NOTHING_COUNTS = (
    "no trajectory counted, since the environment failed, time ran out, or the judge gave no verdict"
)


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """The trees that a step trained on, its optimizer steps, and the threshold that it violated, if any."""

    trees: tuple[TrainingTree, ...] = ()
    reports: tuple[UpdateReport, ...] = ()
    violation: Violation | None = None


def update_guard_state(
    state: LoopState, batch: Batch, rollout_metrics: Mapping[str, float]
) -> tuple[LoopState, Mapping[str, float]]:
    """Return the state with the batch counted by its guard, and the metrics with the fall in correct answers."""
    if state.guard is None:
        return state, rollout_metrics
    guard = state.guard.after_batch(
        rollout_metrics.get("reward/part/correct"), len(counted_trees(batch.trees))
    )
    fall = {} if guard.fall is None else {"reward/fall": guard.fall}
    return replace(state, guard=guard), {**rollout_metrics, **fall}


def learn(run: RlRun, state: LoopState, batch: Batch, rollout_metrics: Mapping[str, float]) -> StepOutcome:
    """Compute the advantages of a batch and update on it, as far as the guard allows.

    Args:
        run: The run.
        state: Before the step; its guard knows which thresholds the run was within before.
        batch: The trees of the step.
        rollout_metrics: Metrics of these trees.
    """
    accepted = batch.accepted
    passed = state.guard.passed if state.guard else None
    violation = run.guard.look(rollout_metrics, passed) if run.guard else None
    if not accepted and all(scored.tree.has_failed for scored in batch.trees):
        run.console.note(
            f"step {state.step + 1}: all {len(batch.trees)} problems failed; nothing was learned"
        )
        return StepOutcome(violation=violation)
    if not accepted:
        run.console.note(
            f"step {state.step + 1}: none of {len(batch.trees)} problems had both right and wrong answers in "
            f"{batch.attempts} attempts; nothing was learned"
        )
        return StepOutcome(violation=violation)
    # Also of a batch that the guard refuses: the trace then shows the advantages that it would have had.
    trees = run.learning.credit(accepted)
    if not trees:
        run.console.note(f"step {state.step + 1}: {NOTHING_COUNTS}; nothing was learned")
    if violation is not None:
        return StepOutcome(trees, violation=violation)

    # Asked after each mini-batch: a collapse in the first one costs one optimizer step, not all of them.
    def refused(reports: Sequence[UpdateReport]) -> bool:
        return run.guard is not None and run.guard.look(update_metrics(reports)) is not None

    reports = tuple(run.learning.update(trees, refused))
    return StepOutcome(trees, reports, run.guard.look(update_metrics(reports)) if run.guard else None)


def after_step(
    run: RlRun, state: LoopState, batch: Batch, rollout_metrics: Mapping[str, float], outcome: StepOutcome
) -> tuple[LoopState, Action]:
    """Return the state after the step, and the guard's decision."""
    run.learning.end_step(state.step + 1)
    # The rewards of training rank checkpoints only where no evaluation does.
    state = replace(
        state.after_step(batch.cursor, None if run.evaluation else rollout_metrics.get("reward/mean")),
        branching=batch.branching,
    )
    if run.guard is None or state.guard is None:
        return state, Action.GO_ON
    remembered = run.guard.passed(state.guard, rollout_metrics)
    guard, action = run.guard.count(remembered, outcome.violation)
    return replace(state, guard=guard), action


def record(
    run: RlRun,
    state: LoopState,
    batch: Batch,
    rollout_metrics: Mapping[str, float],
    outcome: StepOutcome,
    held_up: EventLoopLag,
    phase: Phase,
) -> None:
    """Write the trace, the timing and the metrics of the step that led to `state`, and show its progress."""
    trained = {tree.tree.key: tree for tree in outcome.trees}
    recomputed = run.learning.request.old == "recompute"
    traced = [_traced(scored, trained.get(scored.tree.key), recomputed=recomputed) for scored in batch.trees]
    services = run.sampler.timing.service_metrics()
    run.sampler.timing.flush(run.folder.timing(state.step), held_up)
    updated = update_metrics(outcome.reports)
    guarded = {}
    if run.guard is not None and state.guard is not None:
        guarded = {
            "guard/violated": float(outcome.violation is not None),
            "guard/in_a_row": float(state.guard.in_a_row),
            "guard/fallbacks": float(state.guard.fallbacks),
        }
    sampling = batch.metrics if run.dynamic_sampling is not None else {}
    run.recorder.step(state.step, {**rollout_metrics, **updated, **guarded, **sampling, **services}, traced)
    norm = updated["update/grad_norm"]
    shown: dict[str, float | str] = {"reward": rollout_metrics.get("reward/mean", "none")}
    # Once shown it stays: a value that comes and goes cannot be followed.
    if rollout_metrics["reward/not_counted"] or "not counted" in phase.shown:
        shown["not counted"] = f"{rollout_metrics['reward/not_counted']:.0%}"
    if norm is not None:
        shown["gradient"] = norm
    if held_up.is_noticeable:
        shown["event loop held up"] = f"{held_up.longest:.2f} s"
    phase.advance(1, waiting="", **shown)


def _traced(scored: ScoredTree, trained: TrainingTree | None, *, recomputed: bool) -> TracedTree:
    """Return a tree with what it was trained on; `recomputed`: its old logprobs are the learner's.

    A trajectory that does not count has advantage 0 and carries no loss.
    """
    if trained is None:
        return TracedTree(scored.tree, scored.rewards)
    # A trace has one advantage for each trajectory; `ramify credit` computes those of tokens from the rewards again.
    leaves = [trajectory.leaf.id for trajectory in trained.tree.trajectories]
    means = {
        leaf: float(a.mean()) if len(a) else 0.0 for leaf, a in zip(leaves, trained.advantages, strict=True)
    }
    loss_mask = [True] * len(leaves) if trained.loss_mask is None else trained.loss_mask.tolist()
    carries = dict(zip(leaves, loss_mask, strict=True))
    own = [trajectory.leaf.id for trajectory in scored.tree.trajectories]
    mask = tuple(carries.get(leaf, False) for leaf in own)
    old = {node: note.old_logprobs for node, note in trained.annotations.items()} if recomputed else {}
    return TracedTree(
        scored.tree,
        scored.rewards,
        tuple(means.get(leaf, 0.0) for leaf in own),
        None if all(mask) else mask,
        {node: tuple(map(float, values)) for node, values in old.items() if len(values)},
    )


def apply_guard_action(
    run: RlRun, state: LoopState, violation: Violation | None, action: Action
) -> LoopState:
    """Report a violation and take the guard's action; returns the state to continue from.

    Raises:
        TrainingError: The guard stops the run.
    """
    if violation is None or state.guard is None:
        return state
    step, guard = state.step, state.guard
    if action is Action.STOP:
        steps = "in 1 step" if guard.in_a_row == 1 else f"in {guard.in_a_row} steps in a row"
        if guard.last_good is None:
            raise TrainingError(
                f"step {step}: {violation} {steps}: the policy has collapsed; start again with a lower learner.optimizer.rate, "
                "or with a [guard] of the recipe's own (guard.enabled = false: none)"
            )
        good = checkpoint_folder(run.folder.root, guard.last_good)
        returns = f"{guard.fallbacks} return{'s' * (guard.fallbacks != 1)}"
        raise TrainingError(
            f"step {step}: {violation} {steps}, after {returns} to a good checkpoint; the last good one is {good}: start a "
            "new run from it with other settings"
        )
    run.console.note(f"step {step}: {violation}; the rest of its update was skipped")
    if action is not Action.FALL_BACK:
        return state
    assert guard.last_good is not None
    run.console.note(f"step {step}: back to {run.saver.fall_back(guard.last_good)}")
    return state.went_back(guard.last_good)


def update_metrics(reports: Sequence[UpdateReport]) -> dict[str, float | None]:
    """Return the metrics of one step's mini-batches; None where nothing was measured or the value is not finite."""
    # A mini-batch of dead groups measures nothing and changes no weight. So the first other one is still computed with
    # the weights that sampled: its mismatch is that between engine and learner.
    measured = [report for report in reports if report.outcome != "empty"]
    first = measured[0] if measured else None
    metrics = (first or reports[0]).metrics if reports else {}
    return {
        "update/loss": finite(first.loss) if first else None,
        "update/grad_norm": finite(first.grad_norm) if first else None,
        "update/lr_factor": reports[0].lr_factor if reports else None,
        "update/entropy": finite(first.entropy) if first else None,
        "update/steps": float(sum(report.outcome == "stepped" for report in reports)),
        "update/non_finite": float(sum(report.outcome == "non_finite" for report in reports)),
        "update/mismatch_mean": finite(first.mismatch_mean) if first else None,
        "update/mismatch_max": finite(first.mismatch_max) if first else None,
        "update/mismatch_p99": finite(first.mismatch_p99) if first else None,
        "update/mismatch_kl": finite(first.mismatch_kl) if first else None,
        "update/mismatch_ess": finite(first.mismatch_ess) if first else None,
        "update/tokens": float(sum(report.num_tokens for report in reports)),
        "update/repeated_tokens": float(sum(report.num_repeated for report in reports)),
        "update/unevenness": max((report.unevenness for report in reports), default=1.0),
        **{f"update/{name}": finite(value) for name, value in metrics.items()},
    }


def update_warnings(history: Sequence[MetricsRow]) -> tuple[str, ...]:
    """Return a line if no step of a run changed the weights: why, with the most frequent cause first."""
    if not history or any(row.get("update/steps") for row in history):
        return ()
    causes = Counter(map(_why_no_step, history)).most_common()
    steps = f"{len(history)} step{'s' * (len(history) > 1)}"
    shown = "; ".join(f"{cause} (in {count})" for cause, count in causes)
    return (f"No optimizer step was taken in {steps}; the weights are unchanged: {shown}",)


def _why_no_step(row: MetricsRow) -> str:
    if row.get("reward/not_counted") == 1:
        return NOTHING_COUNTS
    if row.get("update/non_finite"):
        return "loss or gradient was not finite, lower learner.optimizer.rate"
    if row.get("guard/violated"):
        return "the guard refused to train on it"
    if row.get("stop/failed") == 1:
        return "every trajectory failed"
    if row.get("sampling/empty"):
        return "dynamic sampling kept no problem, since none had both right and wrong answers"
    if row.get("group/zero_variance") == 1:
        return "rewards never differed within a group, so that all of them were dead"
    return "no token was left with an advantage: masked (truncated, correction) or exactly zero"


def closing_notes(run: RlRun) -> Iterator[str]:
    """Yield the notes on branching, entropy and updates over the whole run."""
    history = read_metrics(run.folder.root / "metrics.jsonl")
    looks = run.sampler.agent.brancher.looks_at_entropy
    yield from branch_notes(history, looks_at_entropy=looks)
    yield from entropy_warnings(history, looks_at_entropy=looks)
    yield from update_warnings(history)
    yield from run.sampler.timing.failure_notes()
