"""An evaluation run: makes the attempts of a recipe, saves each when it ends, and writes the summary and the page."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ramify.algos.branch_rules import FlatBrancher
from ramify.assemble.agent import build_agent, build_limits
from ramify.assemble.model import build_model
from ramify.assemble.problems import Shown, build_eval_problems
from ramify.assemble.reward import build_reward
from ramify.config.load import resolved
from ramify.config.schema_eval import EvalRecipe
from ramify.core.errors import ConfigError, DataError, Interrupted, ServiceDownError
from ramify.core.messages import Problem
from ramify.core.protocols import Event
from ramify.core.records import ScoredTree
from ramify.core.tree import Tree, TreeKey
from ramify.eval.attempts import AttemptRecord, record_attempt
from ramify.eval.evaluation import (
    Evaluation,
    Price,
    make_evaluation,
    not_compared,
    summarise,
    summarise_times,
    to_csv,
)
from ramify.eval.manifest import answered_by, make_manifest, read_manifest, refuse_other
from ramify.eval.page import write_page
from ramify.eval.results import (
    EVALUATION,
    check_eval_folder,
    read_records,
    read_times,
    results_lines,
    times_lines,
    tree_lines,
)
from ramify.files.durable import RECIPE, replace_file
from ramify.obs.console import Phase, RunConsole
from ramify.obs.metrics import TimingLog
from ramify.obs.trace import TracedTree, parse_tree, tree_record
from ramify.rewards.configs import ScoreName
from ramify.rollout.plan import Planned
from ramify.runs.keyed_lines import Key
from ramify.runs.manifest import MANIFEST, note_session, write_manifest
from ramify.runtime.agent_loop import StopOnSignal, agent_loop
from ramify.runtime.call_clock import HeldUp
from ramify.sampler.groups import done_of, group_size, grow_in_groups, in_groups, line_key
from ramify.sampler.sampler import Sampler, Task, open_task
from ramify.sampler.scoring import Scoring
from ramify.sampler.task_files import ProblemReader


def run_eval(recipe: EvalRecipe, console: RunConsole, *, resume: bool = False) -> Evaluation:
    """Evaluate and write the results into `run.dir`; `resume` continues an evaluation in that folder.

    Raises:
        UserError: The recipe, the data, the machine or the folder is wrong.
        Interrupted: Ctrl-C or SIGTERM; finished attempts are saved.
    """
    if recipe.engine.computes_here:
        # Torch takes seconds to import, and only a local model needs it.
        from ramify.modeling.numerics import set_numerics

        set_numerics(recipe.run.threads, recipe.run.deterministic)
    folder = recipe.run.dir
    with EVALUATION.claim(folder, lambda: check_eval_folder(folder, resume)):
        run = _Run.opened(recipe, console, resume)
        held_up = run.attempt_all()
        if held_up.is_noticeable:
            console.note(
                f"the event loop was blocked for up to {held_up.longest:.2f} s at a time (times.json)"
            )
        evaluation = make_evaluation(
            read_records(folder), [p.id for p in run.task.problems], recipe.sampling.attempts, recipe.run.seed
        )
        run.note_missing_verdicts(evaluation)
        counts = not_compared(evaluation.attempts)
        if any(counts.values()):
            console.note(
                f"answers that count as wrong: {counts['unread']} could not be read as mathematics, the comparison of "
                f"{counts['timeout']} ran out of CPU time"
            )
        run.write(evaluation, held_up)
    return evaluation


REPORTED: tuple[ScoreName, ...] = ("em", "f1", "lenient", "acc", "math_equal")
"""Scores that every evaluation reports, whichever of them decides."""


@dataclass(frozen=True, slots=True)
class _Run:
    recipe: EvalRecipe
    console: RunConsole
    folder: Path
    task: Task
    groups: tuple[tuple[Planned, ...], ...]
    """All attempts, in groups; the attempts of a group run concurrently."""
    done: frozenset[Key]
    unjudged: frozenset[Key]
    """The attempts of `done` without a verdict of the judge."""
    engine_notes: list[str] = field(default_factory=list)
    """Notes of the engine about its service."""

    @classmethod
    def opened(cls, recipe: EvalRecipe, console: RunConsole, resume: bool) -> "_Run":
        """Build everything but the engine, and read the attempts of earlier sessions."""
        folder, data = recipe.run.dir, recipe.data
        computes = recipe.engine.computes_here
        if computes:
            from ramify.runs.checkpoint import check_model_folder

            check_model_folder(recipe.model.folder)
        task = open_task(
            recipe,
            build_reward(recipe.reward, REPORTED),
            data.max_prompt_tokens + recipe.sampling.max_tokens,
            evaluation_problems(recipe),
            console,
            computes=computes,
        )
        manifest = make_manifest(recipe, task)
        groups = in_groups(_attempts(recipe, task.problems), _group_size(recipe))
        records: tuple[AttemptRecord, ...] = ()
        unjudged: frozenset[Key] = frozenset()
        if not EVALUATION.has_begun(folder):
            for lines in (results_lines(folder), times_lines(folder), tree_lines(folder)):
                # A kill may have left the tree of an attempt whose result it did not write.
                lines.path.unlink(missing_ok=True)
            if resume:
                console.note(f"nothing to resume in {folder}: starting from the first attempt")
        elif not (folder / MANIFEST).exists():
            raise ConfigError(
                f"run.dir: {folder} holds results without a {MANIFEST}, so nobody knows what they were made with; name a new "
                "folder, or bring the manifest back"
            )
        else:
            records = _take_up(recipe, manifest, groups, console)
            unjudged = frozenset(
                (record.problem, record.attempt)
                for record in records
                if task.reward.judge is not None and "judge" not in record.parts
            )
            again = f", {len(unjudged)} of them without a verdict: they are judged again" if unjudged else ""
            total = sum(map(len, groups))
            console.note(f"going on in {folder}: {len(records)} of {total} attempts are done{again}")
        done = frozenset((record.problem, record.attempt) for record in records)
        replace_file(folder / RECIPE, resolved(recipe).encode())
        if not done:
            write_manifest(folder, manifest)
        return cls(recipe, console, folder, task, groups, done, unjudged)

    def attempt_all(self) -> HeldUp:
        """Make all attempts that are not done; returns how long the event loop was blocked meanwhile.

        Raises:
            Interrupted: Ctrl-C or SIGTERM.
        """
        groups = [
            left
            for group in self.groups
            if (left := [one for one in group if line_key(one) not in self.done])
        ]
        with agent_loop() as loop, StopOnSignal(loop) as stop:
            sampler: Sampler | None = None
            try:
                sampler = self._sampler() if groups else None
                loop.settle()
                stop.run(self._attempt(sampler, groups))
                return loop.delays.take()
            except Interrupted as stopped:
                after = f"the attempts that have ended are in {self.folder}, go on with --resume"
                raise Interrupted(stopped.number, after) from None
            finally:
                loop.run((sampler or self.task).close())

    async def _attempt(self, sampler: Sampler | None, groups: Sequence[Sequence[Planned]]) -> None:
        if self.unjudged:
            await self._judge_again()
        if sampler is not None:
            with self.console.phase("evaluation", sum(map(len, groups))) as phase:
                whole = _group_size(self.recipe) is not None
                await grow_in_groups(sampler, groups, self._recorder(sampler, phase), phase, whole=whole)
            for note in sampler.timing.failure_notes():
                self.console.note(note)
            if not self.done:
                sampler.scoring.require_success()
        if self.task.reward.judge is not None:
            self.console.note(self.task.reward.judge.counts.line())

    def _recorder(self, sampler: Sampler, phase: Phase) -> Callable[[ScoredTree, float], Awaitable[None]]:
        """What records an attempt as soon as it is scored."""
        results, times, trees = (make(self.folder) for make in (results_lines, times_lines, tree_lines))
        recording = asyncio.Lock()

        def write(scored: ScoredTree, seconds: float, events: Sequence[Event]) -> None:
            record = self._record(scored)
            told = [
                {
                    "kind": event.kind,
                    "node": event.node,
                    "seconds": event.seconds,
                    "fields": dict(event.fields),
                }
                for event in events
            ]
            # An attempt is done once its line is in the results, so that line comes last.
            trees.append(tree_record(TracedTree(scored.tree, scored.rewards)))
            times.append(
                {"problem": record.problem, "attempt": record.attempt, "seconds": seconds, "events": told}
            )
            results.append(record.to_json())
            phase.advance(1)

        async def keep(scored: ScoredTree, seconds: float) -> None:
            key = scored.tree.key
            events = sampler.timing.take((key.step, key.slot))
            async with recording:
                await asyncio.to_thread(write, scored, seconds, events)

        return keep

    async def _judge_again(self) -> None:
        """Score the attempts without a verdict again, from their saved trees."""
        trees = tree_lines(self.folder)
        read = {key: parse_tree(trees.path, *found).tree for key, found in trees.texts(self.unjudged).items()}
        scoring = Scoring(self.task.reward.fn, TimingLog())
        with self.console.phase("judging again", len(read)) as phase:

            async def score(key: Key, tree: Tree) -> tuple[Key, ScoredTree]:
                scored = await scoring.score(tree)
                phase.advance(1)
                return key, scored

            judged = dict(await asyncio.gather(*(score(key, tree) for key, tree in read.items())))
        # The results decide what is done, so they change last.
        trees.update({key: tree_record(TracedTree(s.tree, s.rewards)) for key, s in judged.items()})
        results_lines(self.folder).update({key: self._record(s).to_json() for key, s in judged.items()})

    def _record(self, scored: ScoredTree) -> AttemptRecord:
        decides = {"score": "correct", "judge": "judge"}[self.recipe.sampling.right_by]
        (reward,) = scored.rewards
        return record_attempt(scored.tree, reward, decides)

    def _sampler(self) -> Sampler:
        sampling, timing = self.recipe.sampling, TimingLog()
        agent = build_agent(
            engine=self.recipe.engine,
            run=self.recipe.run,
            toolbox=self.task.toolbox,
            renderer=self.task.renderer,
            model=lambda: build_model(self.recipe.model, self.task.context_tokens),
            context_tokens=self.task.context_tokens,
            brancher=FlatBrancher(probe_tokens=0),
            limits=build_limits(sampling, 1, sampling.top_p),
            events=timing,
            rewriters=self.task.rewriters,
            repairs=self.task.repairs,
            note=self._note_of_engine,
        )
        return Sampler(self.task, agent, timing, Scoring(self.task.reward.fn, timing))

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
        if self.recipe.sampling.right_by != "judge" or not missing:
            return
        if missing == len(attempts):
            assert self.task.reward.judge is not None
            raise ServiceDownError(
                f"the judge gave no verdict on any of {missing} attempts, so there is no result; the last time: "
                f"{self.task.reward.judge.counts.last_failure or 'it was not asked'}; fix it and go on with --resume"
            )
        self.console.note(
            f"warning: {missing} of {len(attempts)} attempts have no verdict and count as wrong; --resume has them judged again"
        )

    def write(self, evaluation: Evaluation, held_up: HeldUp) -> None:
        """Sort the results by problem, and write the table, the page and, last, summary.json.

        Each file appears whole or not at all, so a folder with a summary is a finished evaluation.
        """
        price = self.recipe.price
        manifest = read_manifest(self.folder)
        figures = summarise(
            evaluation,
            self.recipe.sampling.k,
            None if price is None else Price(price.input, price.output),
            judged=self.task.reward.judge is not None,
            helper=None if self.task.repairs is None else self.task.repairs.usage,
            notes=(*self.task.notes, *self.engine_notes),
        )
        summary = {"model": answered_by(manifest["scores"]), **figures}
        keys = [(attempt.problem, attempt.attempt) for attempt in evaluation.attempts]
        for lines in (results_lines(self.folder), times_lines(self.folder), tree_lines(self.folder)):
            lines.sort(keys)
        times = summarise_times(read_times(self.folder), held_up)
        if self.task.reward.judge is not None:
            times["judge"] = self.task.reward.judge.counts.as_json()
        replace_file(self.folder / "times.json", (json.dumps(times, indent=2) + "\n").encode())
        replace_file(self.folder / "results.csv", to_csv(evaluation).encode("utf-8", "replace"))
        write_page(self.folder / "report.html", evaluation, summary, times, manifest)
        replace_file(self.folder / "summary.json", (json.dumps(summary, indent=2) + "\n").encode())


def evaluation_problems(recipe: EvalRecipe) -> ProblemReader:
    """Return the reader of an evaluation's problems."""

    def read(shown: Mapping[str, Shown]) -> tuple[Sequence[Problem], Sequence[str]]:
        return build_eval_problems(recipe.data, shown[""].renderer, shown[""].tools, recipe.model)

    return read


def _attempts(recipe: EvalRecipe, problems: Sequence[Problem]) -> tuple[Planned, ...]:
    """All attempts; those at one problem are adjacent, so that the engine can reuse the prompt's cache."""
    return tuple(
        Planned(problem, TreeKey(step=number, slot=slot))
        for slot, problem in enumerate(problems)
        for number in range(recipe.sampling.attempts)
    )


def _group_size(recipe: EvalRecipe) -> int | None:
    return group_size(recipe.run, recipe.engine, leaves=1)


def _take_up(
    recipe: EvalRecipe, manifest: Mapping[str, Any], groups: Sequence[Sequence[Planned]], console: RunConsole
) -> tuple[AttemptRecord, ...]:
    """The attempts of earlier sessions that count as done; drops all other lines from the files.

    Dropped are lines that a crash cut off and lines of unfinished attempts; in a deterministic evaluation also all
    lines of a group in which an attempt is missing.

    Raises:
        ConfigError: The attempts were made with other settings.
        DataError: A file is damaged (not only at its end), or has an attempt twice or one that is not of this
            evaluation.
    """
    folder = recipe.run.dir
    before = read_manifest(folder)
    refuse_other(folder, before, manifest)
    records = {(record.problem, record.attempt): record for record in read_records(folder)}
    known = frozenset(line_key(one) for group in groups for one in group)
    for problem, number in sorted(records.keys() - known):
        raise DataError(
            f"{results_lines(folder).path}: attempt {number} at problem {problem!r} is not of this evaluation; delete "
            "its line"
        )
    done = done_of(groups, records.keys(), _group_size(recipe))
    for lines in (results_lines(folder), times_lines(folder), tree_lines(folder)):
        lines.keep(done)
    if len(done) < len(records):
        console.note(
            f"{len(records) - len(done)} finished attempts belong to groups with unfinished ones; run.deterministic "
            "makes such groups again as a whole"
        )
    if traced := len(done - tree_lines(folder).keys()):
        console.note(f"warning: {tree_lines(folder).path} lacks {traced} attempts that are done")
    if done:
        note_session(folder, before, manifest["made_with"][-1], console.note)
    return tuple(record for key, record in records.items() if key in done)
