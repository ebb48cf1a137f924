"""An evaluation run: from a recipe to attempts that are written as they end, and to the numbers that they amount to."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ramify.algos.branch_none import FlatBrancher
from ramify.config.build import (
    build_agent,
    build_limits,
    build_renderer,
)
from ramify.config.build_evaluation import build_eval_problems
from ramify.config.build_model import build_model, build_tokenizer
from ramify.config.build_reward import BuiltReward, build_reward
from ramify.config.build_tools import Toolbox, build_tools
from ramify.config.load import resolved
from ramify.config.schema_eval import EvalRecipe
from ramify.config.schema_reward import ScoreName
from ramify.core.closing import close_all
from ramify.core.errors import ConfigError, DataError, Interrupted, ServiceDownError
from ramify.core.messages import Problem
from ramify.core.protocols import Event
from ramify.core.records import Reward
from ramify.core.tree import Tree
from ramify.eval.attempts import Ended, Place, make_attempts
from ramify.eval.evaluation import Evaluation, make_evaluation
from ramify.eval.folder import MANIFEST, check_eval_folder
from ramify.eval.manifest import make_manifest, read_manifest, refuse_other, write_manifest
from ramify.eval.page import write_page
from ramify.eval.records import AttemptRecord, record_attempt
from ramify.eval.results import Key, read_records, results_lines, times_lines, tree_lines
from ramify.eval.summary import Price, not_compared, summarise, summarise_times, to_csv
from ramify.learner.checkpoint import check_model_folder
from ramify.modeling.numerics import set_numerics
from ramify.obs.console import RunConsole
from ramify.obs.files import locked_folder, make_folder, replace_file
from ramify.obs.trace import TracedTree, parse_tree, tree_record
from ramify.rewards.tree_rewards import score_tree
from ramify.rollout.interrupts import StopOnSignal
from ramify.rollout.runner import agent_runner
from ramify.rollout.settings import AgentParts

if TYPE_CHECKING:
    from ramify.chat.renderer import TagRenderer


def run_eval(
    recipe: EvalRecipe, console: RunConsole, title: str = "evaluation", *, resume: bool = False
) -> Evaluation:
    """Evaluate and write the results into `run.dir`; `resume` goes on with what is there.

    Raises:
        UserError: The recipe, the data, the machine or the folder is wrong.
        Interrupted: Ctrl-C or SIGTERM; the attempts that had ended are saved.
    """
    set_numerics(recipe.run.threads, recipe.run.deterministic)
    folder = recipe.run.dir
    check_eval_folder(folder, resume)
    make_folder("run.dir", folder)
    with locked_folder("run.dir", folder):
        run = _Run.opened(recipe, console, resume)
        run.attempt_all(title)
        evaluation = make_evaluation(
            read_records(folder), [p.id for p in run.problems], recipe.sampling.attempts, recipe.run.seed
        )
        run.note_missing_verdicts(evaluation)
        counts = not_compared(evaluation.attempts)
        if any(counts.values()):
            console.note(
                f"{counts['unread']} answers could not be read as mathematics, the comparison of {counts['timeout']} "
                "ran out of CPU time; they count as wrong"
            )
        run.write(evaluation)
    return evaluation


REPORTED: tuple[ScoreName, ...] = ("em", "f1", "lenient", "acc", "math_equal")
"""Scores that every evaluation reports, whichever counts."""


class _AttemptEvents:
    """An `EventSink` that hands out the events of an attempt when it has ended."""

    def __init__(self) -> None:
        self._of: dict[tuple[int, int], list[Event]] = {}

    def emit(self, event: Event) -> None:
        """Keep one event."""
        self._of.setdefault(event.tree, []).append(event)

    def take(self, step: int, slot: int) -> list[dict[str, Any]]:
        """The events of an attempt, as JSON; they are forgotten."""
        return [
            {"kind": event.kind, "node": event.node, "seconds": event.seconds, "fields": dict(event.fields)}
            for event in self._of.pop((step, slot), [])
        ]


@dataclass(frozen=True, slots=True)
class _Run:
    recipe: EvalRecipe
    console: RunConsole
    folder: Path
    toolbox: Toolbox
    reward: BuiltReward
    renderer: "TagRenderer"
    problems: Sequence[Problem]
    done: frozenset[Key]
    notes: tuple[str, ...]
    """What is to be known about the problems: those that were dropped, too."""
    unjudged: frozenset[Key]
    """Those of `done` that got no verdict."""

    @classmethod
    def opened(cls, recipe: EvalRecipe, console: RunConsole, resume: bool) -> "_Run":
        """Everything but the engine, and what was done before."""
        folder = recipe.run.dir
        reward = build_reward(recipe.reward, REPORTED)
        toolbox = build_tools(recipe.tools, recipe.sandbox, console.note)
        if recipe.engine.name == "local":
            check_model_folder(recipe.model.path)
        renderer = build_renderer(build_tokenizer(recipe.model.path), toolbox.tools)
        problems, notes = build_eval_problems(recipe.data, renderer, toolbox.tools, recipe.model.path)
        for note in (*toolbox.notes, *reward.notes, *notes):
            console.note(note)
        prompts = [renderer.prompt_text(problem) for problem in problems]
        manifest = make_manifest(recipe, toolbox, problems, prompts, renderer.fingerprint, reward, notes)
        done: frozenset[Key] = frozenset()
        unjudged: frozenset[Key] = frozenset()
        if (folder / MANIFEST).exists():
            before = read_manifest(folder)
            refuse_other(folder, before, manifest)
            records = _take_up(folder, [p.id for p in problems], recipe.sampling.attempts)
            done = frozenset((record.problem, record.attempt) for record in records)
            if reward.judge is not None:
                without = [record for record in records if "judge" not in record.parts]
                unjudged = frozenset((record.problem, record.attempt) for record in without)
            total = len(problems) * recipe.sampling.attempts
            again = f", {len(unjudged)} of them without a verdict: they are judged again" if unjudged else ""
            console.note(f"going on in {folder}: {len(done)} of {total} attempts are done{again}")
            traced = len(done & tree_lines(folder).keys())
            if traced < len(done):
                console.note(
                    f"warning: {tree_lines(folder).path} lacks {len(done) - traced} attempts that are done"
                )
            if done and before["made_with"][-1] != manifest["made_with"][-1]:
                console.note(
                    "the code, a package or the device is not that of the attempts that are done; see manifest.json"
                )
                write_manifest(folder, {**before, "made_with": before["made_with"] + manifest["made_with"]})
        elif results_lines(folder).path.exists():
            raise ConfigError(
                f"run.dir: {folder} holds results without a {MANIFEST}, so nobody knows what they were made with; name a new "
                "folder, or bring the manifest back"
            )
        elif resume:
            console.note(f"nothing to resume in {folder}: starting from the first attempt")
        replace_file(folder / "recipe.json", resolved(recipe).encode())
        if not done:
            write_manifest(folder, manifest)
        return cls(recipe, console, folder, toolbox, reward, renderer, problems, done, notes, unjudged)

    def attempt_all(self, title: str) -> None:
        """Make every attempt that is not done.

        Raises:
            Interrupted: Ctrl-C or SIGTERM.
        """
        # An attempt after the other at each problem, so that an engine finds the prompt that it has just read.
        places = [
            Place(problem, slot, number)
            for slot, problem in enumerate(self.problems)
            for number in range(self.recipe.sampling.attempts)
            if (problem.id, number) not in self.done
        ]
        with agent_runner() as runner, StopOnSignal(runner) as stop:
            try:
                stop.run(self._attempt(places, title))
            except Interrupted as stopped:
                after = f"the attempts that have ended are in {self.folder}, go on with --resume"
                raise Interrupted(stopped.number, after) from None

    async def _attempt(self, places: Sequence[Place], title: str) -> None:
        events = _AttemptEvents()
        agent: AgentParts | None = None
        results, times, trees = (make(self.folder) for make in (results_lines, times_lines, tree_lines))

        def keep(ended: Ended) -> None:
            record = self._record(ended.tree, ended.reward)
            key = ended.tree.key
            # What is in the results is done, so its line comes last.
            trees.append(tree_record(TracedTree(ended.tree, (ended.reward,))))
            times.append(
                {
                    "problem": record.problem,
                    "attempt": record.attempt,
                    "seconds": ended.seconds,
                    "events": events.take(key.step, key.slot),
                }
            )
            results.append(record.to_json())
            phase.advance(1)

        def show_waits(waits: str) -> None:
            phase.advance(0, waiting=waits)

        try:
            if self.unjudged:
                await self._judge_again()
            if places:
                agent = self._agent(events)
                with self.console.phase(title, len(places)) as phase:
                    async with agent.waits.shown(show_waits):
                        await make_attempts(agent, self.reward.fn, places, keep)
            if self.reward.judge is not None:
                self.console.note(self.reward.judge.counts.line())
        finally:
            engines = () if agent is None else (agent.engine,)
            await close_all((*engines, self.toolbox, self.reward))

    async def _judge_again(self) -> None:
        """Score the attempts that got no verdict once more, as they were written down."""
        trees = tree_lines(self.folder)
        read = {key: parse_tree(trees.path, *found).tree for key, found in trees.texts(self.unjudged).items()}
        with self.console.phase("judging again", len(read)) as phase:

            async def score(tree: Tree) -> Reward:
                (given,) = await score_tree(self.reward.fn, tree)
                phase.advance(1)
                return given

            given = await asyncio.gather(*(score(tree) for tree in read.values()))
        pairs = dict(zip(read, zip(read.values(), given, strict=True), strict=True))
        # What is in the results counts, so its lines change last.
        trees.update({key: tree_record(TracedTree(tree, (reward,))) for key, (tree, reward) in pairs.items()})
        results_lines(self.folder).update(
            {key: self._record(tree, reward).to_json() for key, (tree, reward) in pairs.items()}
        )

    def _record(self, tree: Tree, reward: Reward) -> AttemptRecord:
        decides = {"score": "correct", "judge": "judge"}[self.recipe.sampling.right_by]
        return record_attempt(tree, reward, self.renderer, decides)

    def _agent(self, events: _AttemptEvents) -> AgentParts:
        data, sampling = self.recipe.data, self.recipe.sampling
        context = data.max_prompt_tokens + sampling.max_tokens
        return build_agent(
            engine=self.recipe.engine,
            run=self.recipe.run,
            toolbox=self.toolbox,
            renderer=self.renderer,
            model=lambda: build_model(self.recipe.model, context),
            context_tokens=context,
            brancher=FlatBrancher(probe_tokens=0),
            limits=build_limits(sampling, 1, sampling.top_p),
            events=events,
        )

    def note_missing_verdicts(self, evaluation: Evaluation) -> None:
        """Say what the judge did not decide.

        Raises:
            ServiceDownError: Its verdicts were to decide, and there is none: that is no result.
        """
        attempts = evaluation.attempts
        missing = sum("judge" not in attempt.parts for attempt in attempts)
        if self.recipe.sampling.right_by != "judge" or not missing:
            return
        if missing == len(attempts):
            assert self.reward.judge is not None
            raise ServiceDownError(
                f"the judge gave no verdict on any of {missing} attempts, so there is no result; the last time: "
                f"{self.reward.judge.counts.last_failure or 'it was not asked'}; mend it and go on with --resume"
            )
        self.console.note(
            f"warning: {missing} of {len(attempts)} attempts have no verdict and count as wrong; --resume has them judged again"
        )

    def write(self, evaluation: Evaluation) -> None:
        """Write the results in the order of the problems, the table, the page, and summary.json last.

        Each file appears whole or not at all, so a folder with a summary is a finished evaluation.
        """
        price = self.recipe.price
        summary = summarise(
            evaluation,
            self.recipe.sampling.k,
            None if price is None else Price(price.input, price.output),
            judged=self.reward.judge is not None,
            notes=self.notes,
        )
        keys = [(attempt.problem, attempt.attempt) for attempt in evaluation.attempts]
        for lines in (results_lines(self.folder), times_lines(self.folder), tree_lines(self.folder)):
            lines.sort(keys)
        times = summarise_times(list(times_lines(self.folder).read().values()))
        if self.reward.judge is not None:
            times["judge"] = self.reward.judge.counts.as_json()
        replace_file(self.folder / "times.json", (json.dumps(times, indent=2) + "\n").encode())
        replace_file(self.folder / "results.csv", to_csv(evaluation).encode("utf-8", "replace"))
        write_page(self.folder / "report.html", evaluation, summary, times, read_manifest(self.folder))
        replace_file(self.folder / "summary.json", (json.dumps(summary, indent=2) + "\n").encode())


def _take_up(folder: Path, problem_ids: Sequence[str], attempts: int) -> tuple[AttemptRecord, ...]:
    """The attempts that are done; lines that a crash cut off, or that belong to no finished attempt, are dropped.

    Raises:
        DataError: A file is damaged elsewhere than at its end, an attempt is in it twice, or one is none of these.
    """
    records = read_records(folder)
    done = frozenset((record.problem, record.attempt) for record in records)
    known = frozenset(problem_ids)
    for problem, number in sorted(done):
        if problem not in known or not 0 <= number < attempts:
            raise DataError(
                f"{results_lines(folder).path}: attempt {number} at problem {problem!r} is none of this evaluation; delete "
                "its line"
            )
    for lines in (results_lines(folder), times_lines(folder), tree_lines(folder)):
        lines.keep(done)
    return records
