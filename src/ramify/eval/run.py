"""Runs evaluations: `evaluate` of a sampler, in memory; `evaluate_plan` of a recipe, with a folder that can be resumed."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from ramify.chat.token_texts import copy_tokenizer
from ramify.core.errors import DataError, ServiceDownError
from ramify.core.messages import Problem
from ramify.core.records import ScoredTree
from ramify.core.tree import Tree, TreeKey
from ramify.eval.evaluation import (
    Evaluation,
    make_evaluation,
    not_compared,
    summarise,
    summarise_services,
    summarise_times,
)
from ramify.eval.page import evaluation_page
from ramify.eval.results import (
    AttemptRecord,
    answered_by,
    attempt_lines,
    read_manifest,
    read_records,
    read_times,
    record_attempt,
    results_lines,
    tree_lines,
)
from ramify.eval.statistics import Interval
from ramify.files.durable import RECIPE, replace_file, write_record
from ramify.obs.console import Phase, RunConsole
from ramify.obs.metrics import TimingLog
from ramify.obs.page import write_page
from ramify.obs.token_counts import PriceConfig
from ramify.obs.trace import TracedTree, parse_tree, tree_record
from ramify.obs.trace_index import index_path, write_index
from ramify.rollout.plan import TreeRequest
from ramify.runs.keyed_lines import Key
from ramify.runs.manifest import RecipeRecord, note_session, refuse_other, write_manifest
from ramify.runs.page import REPORT
from ramify.runs.run_folder import EVALUATION
from ramify.runs.status import begin_session
from ramify.runtime.call_clock import EventLoopLag
from ramify.sampler.recorded import done_in, grow_in_groups, in_groups
from ramify.sampler.sampler import Sampler, Scoring, sampling
from ramify.sampler.task import Task

DECIDES: Mapping[Literal["score", "judge"], str] = {"score": "correct", "judge": "judge"}
"""The part of a reward that says whether an attempt is right, by `right_by`."""


@dataclass(frozen=True, slots=True)
class EvalPlan:
    """Everything that an evaluation with a folder needs.

    Attributes:
        folder: Folder of the results.
        recipe: The recipe, to be written into the folder.
        manifest: Fingerprints of everything that the scores depend on.
        task: Problems, tools and reward.
        open_sampler: Makes the agent; its argument receives notes of the engine about its service.
        attempts: Independent attempts at each problem.
        k: Values of k for which scores are reported.
        right_by: What decides whether an attempt is correct: the reward's own score, or the judge's verdict.
        seed: Seed of the run.
        price: Price of a million tokens; None: leave out the cost.
        group_size: Number of attempts that a deterministic engine must make together; None: each can be made alone.
        null_scores: Scores the null agents (`eval.null_agents`); None: leave them out.
    """

    folder: Path
    recipe: RecipeRecord
    manifest: Mapping[str, Any]
    task: Task
    open_sampler: Callable[[Callable[[str], None]], Sampler]
    attempts: int
    k: tuple[int, ...]
    right_by: Literal["score", "judge"]
    seed: int
    price: PriceConfig | None = None
    group_size: int | None = None
    null_scores: Callable[[Phase], Awaitable[Mapping[str, Interval]]] | None = None


def evaluate_plan(plan: EvalPlan, console: RunConsole, *, resume: bool = False) -> Evaluation:
    """Make the attempts of a plan and write the results into its folder; `resume` continues an evaluation there.

    Raises:
        UserError: The folder is of another evaluation, or damaged; every problem failed; the judge gave no verdict.
        RunInterruptedError: Ctrl-C or SIGTERM; finished attempts are saved.
    """
    session = _Session.begin_or_resume(plan, console, resume)
    lag, null = session.make_attempts()
    if lag.is_noticeable:
        console.note(f"the event loop was blocked for up to {lag.longest:.2f} s at a time (times.json)")
    problems = [problem.id for problem in plan.task.problems]
    # From the file and not from memory: it also has the attempts of earlier sessions.
    evaluation = make_evaluation(read_records(plan.folder), problems, plan.attempts, plan.seed)
    session.note_missing_verdicts(evaluation)
    counts = not_compared(evaluation.attempts)
    if any(counts.values()):
        console.note(
            f"answers that count as wrong: {counts['unread']} could not be read as mathematics, the comparison of "
            f"{counts['timeout']} ran out of CPU time"
        )
    session.write(evaluation, lag, null)
    return evaluation


@dataclass(frozen=True, slots=True)
class _Session:
    """One session of an evaluation: makes the attempts that earlier sessions have not finished."""

    plan: EvalPlan
    console: RunConsole
    groups: tuple[tuple[TreeRequest, ...], ...]
    """All attempts, in groups; the attempts of a group run concurrently."""
    done: frozenset[Key]
    unjudged: frozenset[Key]
    """The attempts of `done` without a verdict of the judge."""
    engine_notes: list[str] = field(default_factory=list)
    """Notes of the engine about its service."""

    @property
    def folder(self) -> Path:
        """Return the folder of the results."""
        return self.plan.folder

    @property
    def task(self) -> Task:
        """Problems, tools and reward."""
        return self.plan.task

    @classmethod
    def begin_or_resume(cls, plan: EvalPlan, console: RunConsole, resume: bool) -> "_Session":
        """Write recipe, tokenizer and manifest into the folder, and read the attempts of earlier sessions there."""
        folder, task = plan.folder, plan.task
        groups = tuple(in_groups(planned_attempts(task.problems, plan.attempts), plan.group_size))
        records: tuple[AttemptRecord, ...] = ()
        unjudged: frozenset[Key] = frozenset()
        if not EVALUATION.has_begun(folder):
            for lines in attempt_lines(folder):
                # A kill may have left the tree of an attempt whose result it did not write.
                lines.path.unlink(missing_ok=True)
            if resume:
                console.note(f"nothing to resume in {folder}: starting from the first attempt")
        else:
            records = _resume_attempts(plan, groups, console)
            unjudged = frozenset(
                (record.problem, record.attempt)
                for record in records
                if task.reward.judge is not None and "judge" not in record.parts
            )
            to_judge = (
                f", {len(unjudged)} of them without a verdict: they are judged again" if unjudged else ""
            )
            total = sum(map(len, groups))
            console.note(f"going on in {folder}: {len(records)} of {total} attempts are done{to_judge}")
        done = frozenset((record.problem, record.attempt) for record in records)
        replace_file(folder / RECIPE, plan.recipe.text.encode())
        copy_tokenizer(task.renderer.tokenizer, folder)
        if not done:
            write_manifest(folder, plan.manifest)
        begin_session(folder, sum(map(len, groups)))
        return cls(plan, console, groups, done, unjudged)

    def make_attempts(self) -> tuple[EventLoopLag, Mapping[str, Interval]]:
        """Make all attempts that are not done; returns the time that the event loop was blocked, and the null agents' scores.

        Raises:
            RunInterruptedError: Ctrl-C or SIGTERM.
        """
        groups = [
            missing
            for group in self.groups
            if (missing := [request for request in group if attempt_key(request) not in self.done])
        ]

        # With nothing left to sample, no engine is started: the task is enough to judge and to score null agents.
        def open_sampler() -> Sampler | Task:
            return self.plan.open_sampler(self._note_of_engine) if groups else self.task

        after = f"the attempts that have ended are in {self.folder}, go on with --resume"
        with sampling(self.task, open_sampler, after) as session:
            sampler = session.sampler if isinstance(session.sampler, Sampler) else None
            session.stop.run(self._make_groups(sampler, groups))
            null = session.stop.run(self._null_scores())
            return session.loop.delays.take(), null

    async def _null_scores(self) -> Mapping[str, Interval]:
        if self.plan.null_scores is None:
            return {}
        with self.console.phase("agents that know nothing", 3 * len(self.task.problems)) as phase:
            return await self.plan.null_scores(phase)

    async def _make_groups(self, sampler: Sampler | None, groups: Sequence[Sequence[TreeRequest]]) -> None:
        if self.unjudged:
            await self._judge_again()
        if sampler is not None:
            with self.console.phase("evaluation", sum(map(len, groups))) as phase:
                whole = self.plan.group_size is not None
                await grow_in_groups(sampler, groups, self._recorder(sampler, phase), phase, whole=whole)
            for note in sampler.timing.failure_notes():
                self.console.note(note)
            # With attempts of earlier sessions there is a result even if all of this session failed.
            if not self.done:
                sampler.scoring.require_success()
        if self.task.reward.judge is not None:
            self.console.note(self.task.reward.judge.counts.line())

    def _recorder(self, sampler: Sampler, phase: Phase) -> Callable[[ScoredTree, float], Awaitable[None]]:
        """Return a function that records an attempt as soon as it is scored."""
        trees, times, results = attempt_lines(self.folder)
        recording = asyncio.Lock()

        def write(scored: ScoredTree, seconds: float, events: Sequence[Mapping[str, Any]]) -> None:
            record = self._record(scored)
            trees.append(tree_record(TracedTree(scored.tree, scored.rewards)))
            times.append(
                {
                    "problem": record.problem,
                    "attempt": record.attempt,
                    "seconds": seconds,
                    "events": events,
                }
            )
            # Last: an attempt with a line in the results is done.
            results.append(record.to_json())
            phase.advance(1)

        async def save(scored: ScoredTree, seconds: float) -> None:
            key = scored.tree.key
            events = sampler.timing.take((key.step, key.slot))
            # In a thread, because the event loop must not wait for the disk; one at a time, so that lines do not mix.
            async with recording:
                await asyncio.to_thread(write, scored, seconds, events)

        return save

    async def _judge_again(self) -> None:
        """Score the attempts without a verdict again, from their saved trees."""
        trees = tree_lines(self.folder)
        read = {key: parse_tree(trees.path, *line).tree for key, line in trees.texts(self.unjudged).items()}
        scoring = Scoring(self.task.reward.fn, TimingLog())
        judged: dict[Key, ScoredTree] = {}
        try:
            with self.console.phase("judging again", len(read)) as phase:

                async def score(key: Key, tree: Tree) -> None:
                    judged[key] = await scoring.score(tree)
                    phase.advance(1)

                await asyncio.gather(*(score(key, tree) for key, tree in read.items()))
        finally:
            # Verdicts that came before the judge failed, or before a stop, were paid for. The results decide what is done, so they
            # change last.
            trees.update({key: tree_record(TracedTree(s.tree, s.rewards)) for key, s in judged.items()})
            results_lines(self.folder).update({key: self._record(s).to_json() for key, s in judged.items()})

    def _record(self, scored: ScoredTree) -> AttemptRecord:
        decides = DECIDES[self.plan.right_by]
        (reward,) = scored.rewards
        return record_attempt(scored.tree, reward, decides)

    def _note_of_engine(self, note: str) -> None:
        self.console.note(note)
        self.engine_notes.append(note)

    def note_missing_verdicts(self, evaluation: Evaluation) -> None:
        """Warn about attempts without a verdict, if the verdicts decide.

        Raises:
            ServiceDownError: No attempt has a verdict, so there is no result.
        """
        attempts = evaluation.attempts
        missing = sum("judge" not in attempt.parts for attempt in attempts)
        if self.plan.right_by != "judge" or not missing:
            return
        if missing == len(attempts):
            assert self.task.reward.judge is not None
            raise ServiceDownError(
                f"the judge gave no verdict on any of {missing} attempts, so there is no result; the last failure: "
                f"{self.task.reward.judge.counts.last_failure or 'none'}. Fix the judge and use --resume."
            )
        self.console.note(
            f"warning: {missing} of {len(attempts)} attempts have no verdict and count as wrong; --resume has them judged again"
        )

    def write(self, evaluation: Evaluation, lag: EventLoopLag, null: Mapping[str, Interval]) -> None:
        """Sort the results by problem, and write the table, the page and, last, summary.json.

        Each file appears whole or not at all, so a folder with a summary is a finished evaluation.
        """
        manifest = read_manifest(self.folder)
        figures = summarise(
            evaluation,
            self.plan.k,
            self.plan.price,
            judged=self.task.reward.judge is not None,
            helper=None if self.task.repairs is None else self.task.repairs.usage,
            null=null,
            notes=(*self.task.notes, *self.engine_notes),
        )
        measured = read_times(self.folder)
        summary = {"model": answered_by(manifest["scores"]), **figures, **summarise_services(measured)}
        keys = [(attempt.problem, attempt.attempt) for attempt in evaluation.attempts]
        for lines in attempt_lines(self.folder):
            lines.sort(keys)
        write_index(tree_lines(self.folder).path)
        times = summarise_times(measured, lag)
        if self.task.reward.judge is not None:
            times["judge"] = self.task.reward.judge.counts.as_json()
        write_record(self.folder / "times.json", times)
        page = evaluation_page(self.folder, evaluation, summary, times, manifest)
        write_page(self.folder / REPORT, page)
        write_record(self.folder / "summary.json", summary)


def _resume_attempts(
    plan: EvalPlan, groups: Sequence[Sequence[TreeRequest]], console: RunConsole
) -> tuple[AttemptRecord, ...]:
    """Drop the lines of unfinished attempts from the files; returns the attempts of earlier sessions that are done.

    A line that a crash cut off is unfinished. In a deterministic evaluation so are all attempts of a group in which one
    is missing.

    Raises:
        ConfigError: The attempts were made with other settings.
        DataError: A file is damaged (not only at its end), or has an attempt twice or one that is not of this
            evaluation.
    """
    folder = plan.folder
    before = read_manifest(folder)
    refuse_other(folder, "an evaluation", before["scores"], plan.manifest["scores"])
    records = {(record.problem, record.attempt): record for record in read_records(folder)}
    keys = [[attempt_key(attempt) for attempt in group] for group in groups]
    for problem, number in sorted(records.keys() - set(chain.from_iterable(keys))):
        raise DataError(
            f"{results_lines(folder).path}: attempt {number} at problem {problem!r} is not of this evaluation. Delete "
            "its line"
        )
    whole = plan.group_size is not None
    done = frozenset(chain.from_iterable(done_in(group, records.keys(), whole=whole) for group in keys))
    # It is written again at the end; until then it would not fit the lines.
    index_path(tree_lines(folder).path).unlink(missing_ok=True)
    for lines in attempt_lines(folder):
        lines.keep(done)
    if len(done) < len(records):
        console.note(
            f"{len(records) - len(done)} finished attempts are in groups with unfinished ones; run.deterministic repeats such "
            "groups as a whole"
        )
    if untraced := len(done - tree_lines(folder).keys()):
        console.note(f"warning: {tree_lines(folder).path} lacks {untraced} attempts that are done")
    if done:
        note_session(folder, before, plan.manifest["made_with"][-1], console.note)
    return tuple(record for key, record in records.items() if key in done)


def planned_attempts(problems: Sequence[Problem], attempts: int) -> tuple[TreeRequest, ...]:
    """Return all attempts; those at one problem are adjacent, so that the engine can reuse the prompt's cache."""
    return tuple(
        TreeRequest(problem, TreeKey(step=number, slot=slot))
        for slot, problem in enumerate(problems)
        for number in range(attempts)
    )


def attempt_key(planned: TreeRequest) -> Key:
    """Return the key of an attempt's lines."""
    return planned.problem.id, planned.key.step


async def evaluate(
    sampler: Sampler,
    problems: Sequence[Problem],
    attempts: int,
    phase: Phase,
    *,
    decides: str = "correct",
    group_size: int | None = None,
) -> tuple[Evaluation, tuple[ScoredTree, ...]]:
    """Make `attempts` at each problem; returns the scores, and the trees in the order of `planned_attempts`.

    Args:
        sampler: Grows trees of one trajectory; its weights and its engine stay as they are.
        problems: The problems.
        attempts: Independent attempts at each.
        phase: Shows the progress, and what the rollout is waiting for.
        decides: Part of the reward that decides whether an attempt is correct.
        group_size: Number of attempts that a deterministic engine must make together; None: each can be made alone.

    Raises:
        DataError: Every problem failed.
        EngineError: The engine broke its contract.
    """
    trees: dict[TreeKey, ScoredTree] = {}
    records: list[AttemptRecord] = []

    async def collect(scored: ScoredTree, seconds: float) -> None:
        del seconds
        (reward,) = scored.rewards
        trees[scored.tree.key] = scored
        records.append(record_attempt(scored.tree, reward, decides))
        phase.advance(1)

    planned = planned_attempts(problems, attempts)
    groups = in_groups(planned, group_size)
    await grow_in_groups(sampler, groups, collect, phase, whole=group_size is not None)
    ids = [problem.id for problem in problems]
    evaluation = make_evaluation(records, ids, attempts, sampler.agent.run_seed)
    return evaluation, tuple(trees[each.key] for each in planned)
