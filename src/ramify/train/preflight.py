"""Before the first step: do the untrained model's rewards differ, and does it use the form and the tools it is asked for?"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from ramify.core.errors import ConfigError
from ramify.core.outcomes import counted_trees
from ramify.core.records import Reward, ScoredTree
from ramify.data.order import DataCursor, ProblemOrder
from ramify.files.durable import write_record
from ramify.obs.console import RunConsole
from ramify.obs.trace import TracedTree
from ramify.obs.trace_index import write_indexed
from ramify.rollout.plan import step_requests
from ramify.runs.run_folder import RunFolder
from ramify.sampler.sampler import Sampler, SamplingSession
from ramify.train.configs import PreflightConfig

ATTEMPT = 1_000_000
"""Larger than any attempt of a step, so that the preflight shares no random draw with training."""


@dataclass(frozen=True, slots=True)
class PreflightReport:
    """What a few trees of the untrained policy show.

    Attributes:
        problems, trajectories: How many count (`Reward.counts`); all else is about these.
        not_counted: Number of trajectories that do not.
        reward_mean, reward_std: Over all trajectories, each counted once.
        reward_min, reward_max: The smallest and the largest reward.
        groups_that_differ: Problems whose trajectories have more than one reward.
        correct: Mean of the reward's part `correct`; None if it has no such part.
        format: Mean of its part `format`, the share of well-formed trajectories; None if it has no such part.
        call_rate: Share of trajectories that called a tool.
        truncated: Share of trajectories that a limit cut.
    """

    problems: int
    trajectories: int
    not_counted: int
    reward_mean: float
    reward_std: float
    reward_min: float
    reward_max: float
    groups_that_differ: int
    correct: float | None
    format: float | None
    call_rate: float
    truncated: float

    @property
    def never_differ(self) -> bool:
        """Return True if no rewards differ: within groups, or overall if a group is one trajectory."""
        if self.trajectories == self.problems:
            return self.reward_min == self.reward_max
        return not self.groups_that_differ

    @property
    def in_words(self) -> str:
        """One line."""
        shares = {"correct": self.correct, "well formed": self.format}
        shown = [f"{name} {share:.2f}" for name, share in shares.items() if share is not None]
        others = [f"{self.not_counted} more that do not count"] if self.not_counted else []
        return (
            f"{self.problems} problems, {self.trajectories} trajectories: reward {self.reward_mean:.3g} (std "
            f"{self.reward_std:.3g}, {self.reward_min:.3g} to {self.reward_max:.3g}), rewards differ in "
            f"{self.groups_that_differ} of {self.problems} groups, "
            + ", ".join(
                [
                    *shown,
                    f"with a tool call {self.call_rate:.2f}",
                    f"cut by a limit {self.truncated:.2f}",
                    *others,
                ]
            )
        )


def run_preflight(
    session: SamplingSession[Sampler],
    order: ProblemOrder,
    config: PreflightConfig,
    folder: RunFolder,
    console: RunConsole,
) -> PreflightReport:
    """Grow the trees, report the result, and write `preflight/` into the run's folder.

    Raises:
        ConfigError: No trajectory counts, or all rewards are equal, and the recipe does not allow that.
        DataError: No problem worked.
        RunInterruptedError: A stop was asked for.
    """
    sampler = session.sampler
    problems = sampler.task.problems
    indices, _ = order.take(DataCursor(), min(config.problems, len(problems)))
    planned = step_requests([problems[index] for index in indices], 0, attempt=ATTEMPT)
    remembered = sampler.agent.brancher.state()
    with console.phase("preflight", len(indices)) as phase:
        batch = session.stop.run(sampler.grow(planned, phase))
        phase.advance(len(indices), waiting="")
    sampler.scoring.require_success()
    # A rule that learns from candidates must start training as if there had been no preflight.
    sampler.agent.brancher.restore(remembered)
    where = folder.preflight
    write_indexed(where / "trees.jsonl", [TracedTree(s.tree, s.rewards) for s in batch])
    sampler.timing.flush(where / "timing.jsonl", session.loop.delays.take())
    if not counted_trees(batch):
        raise ConfigError(
            "preflight: no trajectory counts, since the environment failed, time ran out, or the judge gave no verdict. See "
            f"{where} for the reasons, then fix them or remove [preflight]."
        )
    report = make_report(batch)
    console.note(f"preflight: {report.in_words}")
    write_record(where / "report.json", asdict(report))
    if report.never_differ and not config.allow_zero_variance:
        raise ConfigError(
            f"preflight: the rewards never differ, so there is nothing to learn from ({report.in_words}). Teach the model the "
            "form first (ramify sft), choose easier problems or another reward, or set preflight.allow_zero_variance = true; "
            f"the trees are in {where}"
        )
    return report


def make_report(batch: Sequence[ScoredTree]) -> PreflightReport:
    """Summarise the trees of a few problems, of which a trajectory counts."""
    counts = counted_trees(batch)
    rewards = [reward for scored in counts for reward in scored.rewards]
    values = np.array([reward.value for reward in rewards])
    trajectories = [trajectory for scored in counts for trajectory in scored.tree.trajectories]
    return PreflightReport(
        len(counts),
        len(rewards),
        sum(len(scored.rewards) for scored in batch) - len(rewards),
        float(values.mean()),
        float(values.std()),
        float(values.min()),
        float(values.max()),
        sum(len({reward.value for reward in scored.rewards}) > 1 for scored in counts),
        _part(rewards, "correct"),
        _part(rewards, "format"),
        sum(bool(trajectory.exchanges) for trajectory in trajectories) / len(trajectories),
        sum(trajectory.stop.truncated for trajectory in trajectories) / len(trajectories),
    )


def _part(rewards: Sequence[Reward], name: str) -> float | None:
    values = [reward.parts[name] for reward in rewards if name in reward.parts]
    return float(np.mean(values)) if values else None
