"""A judge for answers that are there: those of a finished evaluation, or of a file of results as ARPO's and others' evaluations write it.

Verdicts are saved one by one, so that a judging that was stopped goes on where it was:

RUN/judge/ or FILE.judged/   manifest.json  verdicts.jsonl; of a file at the end summary.json
"""

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ramify.core.closing import Closable, close_all
from ramify.core.errors import ConfigError, DataError, ServiceDownError
from ramify.core.json_types import FieldError, optional, part, truth
from ramify.eval.compare import Side, read_side
from ramify.eval.evaluation import summarise
from ramify.eval.page import evaluation_page
from ramify.eval.result_rows import ResultRow, is_gold, read_result_rows
from ramify.eval.results import AttemptRecord, results_lines, tree_lines
from ramify.eval.statistics import judge_agreement
from ramify.files.durable import locked_folder, make_folder, read_record, write_record
from ramify.obs.console import Phase, RunConsole
from ramify.obs.page import write_page
from ramify.obs.trace_fields import read_problem
from ramify.rewards.answer_scores import accepted_answers
from ramify.rewards.judge import Judge, question_of
from ramify.rewards.responses import RowAverages, text_scores
from ramify.runs.keyed_lines import Key, KeyedLines, key_of
from ramify.runs.manifest import file_sha256, text_sha256
from ramify.runs.page import REPORT
from ramify.runtime.agent_loop import StopOnSignal
from ramify.sampler.sampler import sampling

_MANIFEST, _SUMMARY = "manifest.json", "summary.json"
_read_object = part()


@dataclass(frozen=True, slots=True)
class Candidate:
    """An answer to judge."""

    key: Key
    question: str
    golds: tuple[str, ...]
    answer: str


@dataclass(frozen=True, slots=True)
class OpenJudge:
    """A judge and what it is made of."""

    judge: Judge
    resources: tuple[Closable, ...]

    async def close(self) -> None:
        """Close its model and its cache."""
        await close_all(self.resources)


@dataclass(frozen=True, slots=True)
class Judging:
    """The verdicts of one judge on one source.

    Attributes:
        folder: Where they are.
        judge: The judge.
        stop: Runs the requests, until a signal arrives.
        console: Shows the progress.
    """

    folder: Path
    judge: Judge
    stop: StopOnSignal
    console: RunConsole

    @property
    def lines(self) -> KeyedLines:
        """Return the file of the verdicts."""
        return KeyedLines(
            self.folder / "verdicts.jsonl", lambda record: key_of(record["problem"], record["attempt"])
        )

    @contextmanager
    def claim(self, source: Mapping[str, Any]) -> Iterator[None]:
        """Make the folder that of this judge and this source while the block runs.

        Raises:
            ConfigError: It has verdicts of another judge or another source, or another process uses it.
        """
        manifest = {"judge": dict(self.judge.identity), "source": dict(source)}
        make_folder("--out", self.folder)
        with locked_folder("--out", self.folder):
            path = self.folder / _MANIFEST
            if path.exists():
                before = read_record(path, _read_object)
                if different := [key for key, value in manifest.items() if before.get(key) != value]:
                    raise ConfigError(
                        f"{self.folder}: holds verdicts with another {' and another '.join(different)}. Remove the folder to "
                        "judge again"
                    )
            else:
                write_record(path, manifest)
            yield

    def verdicts(self) -> dict[Key, bool]:
        """Return the verdicts so far.

        Raises:
            DataError: A line cannot be read; names it.
        """
        verdicts = {}
        for row, (key, record) in enumerate(self.lines.each(), start=1):
            try:
                correct = _READ_VERDICT(record)["correct"]
            except FieldError as error:
                raise DataError(f"{self.lines.path} row {row}: not a verdict: {error}") from None
            if correct is not None:
                verdicts[key] = correct
        return verdicts

    def judge_all(self, candidates: Iterable[Candidate], total: int) -> dict[Key, bool]:
        """Judge the candidates that have no verdict; returns all verdicts.

        Raises:
            ServiceDownError: The service refuses the key, there were too many failures in a row, or there is no verdict at all.
            RunInterruptedError: Ctrl-C or SIGTERM; the verdicts so far are saved.
        """
        done = self.verdicts()
        self.lines.keep(done.keys())
        if done and len(done) == total:
            self.console.note(
                f"{self.folder} has the verdicts on all {total} answers: there is nothing to judge"
            )
            return done
        if done:
            self.console.note(f"going on in {self.folder}: {len(done)} of {total} answers have a verdict")
        with self.console.phase("judging", total, len(done)) as phase:
            self.stop.run(self._work(iter(candidates), done.keys(), phase))
        self.console.note(self.judge.counts.line())
        verdicts = self.verdicts()
        if total and not verdicts:
            raise ServiceDownError(
                f"the judge gave no verdict on any of {total} answers, so there is no result; the last failure: "
                f"{self.judge.counts.last_failure or 'none'}. Fix the judge and repeat the command"
            )
        if missing := total - len(verdicts):
            self.console.note(
                f"warning: {missing} of {total} answers have no verdict; the same command judges them again"
            )
        return verdicts

    async def _work(self, candidates: Iterator[Candidate], done: Set[Key], phase: Phase) -> None:
        """Judge as many at a time as the judge takes, and read no further ahead."""

        async def work() -> None:
            for candidate in candidates:
                if candidate.key in done:
                    continue
                judgement = await self.judge(candidate.question, candidate.golds, candidate.answer)
                problem, attempt = candidate.key
                self.lines.append({"problem": problem, "attempt": attempt, **asdict(judgement)})
                phase.advance(1)

        workers = [asyncio.ensure_future(work()) for _ in range(self.judge.in_flight)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)


_READ_VERDICT = part(correct=optional(truth))


@contextmanager
def open_judging(opened: OpenJudge, folder: Path, console: RunConsole) -> Iterator[Judging]:
    """Serve a judge while the block runs, and close it; `folder` is that of the verdicts.

    Raises:
        RunInterruptedError: Ctrl-C or SIGTERM.
    """
    after = f"the verdicts so far are in {folder}, the same command goes on"
    with sampling(opened, lambda: opened, after) as session:
        yield Judging(folder, opened.judge, session.stop, console)


def judge_run(folder: Path, judging: Judging) -> dict[str, Any]:
    """Judge the answers of a finished evaluation, and write the verdicts into its results, summary and page; returns the summary.

    The recorded trees stay as they are, and so does what was right before: the figures by verdict stand in the summary's `judge`.

    Raises:
        UserError: There is no finished evaluation, another judge judged it, or the judge is down.
        RunInterruptedError: Ctrl-C or SIGTERM.
    """
    with locked_folder("run", folder):
        side = read_side(folder)
        scores = side.manifest["scores"]
        identity = dict(judging.judge.identity)
        inside = scores.get("reward_identities", {}).get("judge")
        if inside is not None and inside != identity:
            raise ConfigError(
                f"{folder}: its recipe has another judge, {inside.get('model')}. Name that model to judge what it left out"
            )
        records = {(attempt.problem, attempt.attempt): attempt for attempt in side.evaluation.attempts}
        with judging.claim({"problems": scores["problems"], "answers": _digest(records)}):
            # With a judge of its own, only what that one left out.
            judged_here = judging.verdicts().keys()
            answers = {
                key: each.answer
                for key, each in records.items()
                if inside is None or "judge" not in each.parts or key in judged_here
            }
            verdicts = judging.judge_all(_of_run(folder, answers), len(answers)) if answers else {}
        return _write_run(side, verdicts, judging.judge)


def _digest(records: Mapping[Key, AttemptRecord]) -> str:
    answers = sorted((*key, record.answer) for key, record in records.items())
    return text_sha256(json.dumps(answers))


def _of_run(folder: Path, answers: Mapping[Key, str]) -> Iterator[Candidate]:
    """Yield the answers with the questions and golds of the recorded trees, line by line."""
    lines = tree_lines(folder)
    for row, (key, record) in enumerate(lines.each(), start=1):
        if key not in answers:
            continue
        try:
            problem = read_problem(record["problem"])
        except FieldError as error:
            raise DataError(f"{lines.path} row {row}: not a trace: {error}") from None
        yield Candidate(key, question_of(problem), problem.answer, answers[key])


def _write_run(side: Side, verdicts: Mapping[Key, bool], judge: Judge) -> dict[str, Any]:
    """Write the verdicts into results, table, page and, last, summary of a run."""
    folder, scores = side.folder, side.manifest["scores"]
    decides = scores["sampling"]["right_by"] == "judge"
    results = []
    for result in side.evaluation.results:
        attempts = []
        for attempt in result.attempts:
            verdict = verdicts.get((attempt.problem, attempt.attempt))
            if verdict is not None:
                attempt = replace(attempt, parts={**attempt.parts, "judge": float(verdict)})
                attempt = replace(attempt, correct=verdict) if decides else attempt
            attempts.append(attempt)
        results.append(replace(result, attempts=tuple(attempts)))
    evaluation = replace(side.evaluation, results=tuple(results))
    before = read_record(folder / _SUMMARY, _READ_SUMMARY)
    times = read_record(folder / "times.json", _read_object)
    figures = summarise(
        evaluation, [int(k) for k in before["pass_at"]], None, judged=True, notes=before["notes"]
    )
    figures["judge"]["model"] = judge.identity["model"]
    summary = {**before, **figures}
    times["judge"] = judge.counts.as_json()
    results_lines(folder).update({(a.problem, a.attempt): a.to_json() for a in evaluation.attempts})
    write_record(folder / "times.json", times)
    write_page(folder / REPORT, evaluation_page(folder, evaluation, summary, times, side.manifest))
    write_record(folder / _SUMMARY, summary)
    return summary


_READ_SUMMARY = part(pass_at=part(), notes=lambda value: value)


Task = Literal["math", "qa"]
Scores = Mapping[str, float | str | bool]


def judge_file(path: Path, task: Task, judging: Judging) -> dict[str, Any]:
    """Judge every row of a file, and write `summary.json` into the folder of the verdicts; returns its content.

    The file is read twice, row by row: the first time for the other scores, so that a broken row is refused before the judge gets
    a request.

    Args:
        path: The file.
        task: As for `ramify score`.
        judging: The judge and the folder of the verdicts.

    Raises:
        UserError: The file or a row cannot be read, the folder has other verdicts, or the judge is down.
        RunInterruptedError: Ctrl-C or SIGTERM; the verdicts so far are saved.
    """
    scored: list[Scores] = []
    identifiers: set[str] = set()
    repeated = without_gold = 0
    for row in read_result_rows(path):
        if not row.question.strip():
            raise DataError(f"{row.where}: expected a question, as question, input or Prompt")
        scores = text_scores(row.response, row.gold, task)
        scored.append({name: value for name, value in scores.items() if name != "prediction"})
        without_gold += not is_gold(row.gold)
        if row.id is not None:
            repeated += str(row.id) in identifiers
            identifiers.add(str(row.id))
    if repeated:
        judging.console.note(
            f"{path}: {repeated} rows have the id of an earlier row; each row is judged and counted by itself"
        )
    with judging.claim({"file": path.name, "sha256": file_sha256(path), "task": task}):
        verdicts = judging.judge_all(_candidates(path, task), len(scored))
        summary = _summary(scored, verdicts, task)
        summary |= {"no_gold": without_gold} if without_gold else {}
        summary["model"] = judging.judge.identity["model"]
        write_record(judging.folder / "summary.json", summary)
    return summary


def _candidates(path: Path, task: Task) -> Iterator[Candidate]:
    for number, row in enumerate(read_result_rows(path), start=1):
        golds = tuple(accepted_answers(row.gold, spelled_lists=task == "qa"))
        yield Candidate(_key(number), row.question, golds, _answer(row, task))


def _answer(row: ResultRow, task: Task) -> str:
    """Return the answer in the response, else the one that the file has; "" of a run that failed."""
    scores = text_scores(row.response, row.gold, task)
    if scores["is_valid_answer"]:
        return str(scores["prediction"])
    return "" if str(scores["prediction"]).strip() else row.prediction or ""


def _summary(scored: list[Scores], verdicts: Mapping[Key, bool], task: Task) -> dict[str, Any]:
    averages = RowAverages(task)
    parts: list[dict[str, float]] = []
    for number, scores in enumerate(scored, start=1):
        verdict = verdicts.get(_key(number))
        averages.add(scores, None if verdict is None else float(verdict))
        numbers = {name: float(value) for name, value in scores.items() if isinstance(value, int | float)}
        parts.append(numbers if verdict is None else {**numbers, "judge": float(verdict)})
    return {
        **averages.result(),
        "judge": {
            "judged": len(verdicts),
            "right": sum(verdicts.values()),
            "without_verdict": len(scored) - len(verdicts),
            "agreement": judge_agreement(parts),
        },
    }


def _key(number: int) -> Key:
    return f"row {number}", 0
