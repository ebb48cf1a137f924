"""The values of a page (view schema 1): a run, the index of a trace, a tree. All are plain JSON without keys of services."""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ramify.core.errors import ConfigError, DataError
from ramify.files.durable import is_locked
from ramify.obs.trace import TracedTree
from ramify.obs.trace_index import TreeSummary, read_tree
from ramify.runs.manifest import MANIFEST
from ramify.runs.recorded_trees import tree_actions
from ramify.view.credits import RunCredits
from ramify.view.facts import RunFacts, flips_of
from ramify.view.folders import RunPlace, TraceSource, find_runs, sources_of
from ramify.view.safe import clean, redacted_table, safe, safe_table
from ramify.view.summaries import SummaryCache, TokenTexts, schema_note, search_trace
from ramify.view.times import TreeKey, seconds_by_tree, times_of
from ramify.view.tree_values import TreeFacts, Verdict, right_attempts, tree_values, verdict_of

SCHEMA = 1
MAX_CURVES = 20
"""Runs of a folder whose curves are in the page."""
MAX_HITS = 500
"""Trees that a search returns."""
COLUMNS = (
    *("row", "problem", "question", "answer", "kind", "mean", "spread", "right", "n", "stops", "flags", "written", "prompt"),
    *("results", "shared", "calls", "failed_calls", "branches", "depth", "seconds", "step"),
)  # fmt: skip
"""Values of an index row, in their order."""
_RUN_FILES = ("metrics.jsonl", "evals.jsonl", "summary.json", "trees", "evals")
_VERDICTS = frozenset({"right", "wrong", "mixed"})


class NotThereError(LookupError):
    """A page asks for a source, a tree or an algorithm that the run does not have."""


class RunView:
    """Runs as values for a page. Traces are read a tree at a time, so that they may be larger than the memory.

    Threads may share it. A run may grow while it is looked at.
    """

    def __init__(self, roots: Sequence[Path], *, redact: bool = False) -> None:
        """Look at one folder, or at two to compare them; with `redact` without the texts of the data.

        Raises:
            ConfigError: A folder holds no run.
        """
        self._roots, self._redact = tuple(roots), redact
        self.unreadable: list[str] = []
        self._summaries, self._texts = SummaryCache(), TokenTexts()
        self._facts: dict[Path, RunFacts] = {}
        self._credits: dict[Path, RunCredits] = {}
        self._find_runs()

    def _find_runs(self) -> None:
        self.runs = find_runs(self._roots)
        sources = sources_of(self.runs, self._roots)
        reasons = {source.id: schema_note(source.path) for source in sources}
        self.left_out = _grouped([(source.path, reasons[source.id]) for source in sources])
        # By the id that the page was sent and asks for: cleaned, as all texts of a page.
        self.sources: Mapping[str, TraceSource] = {
            clean(source.id): source for source in sources if not reasons[source.id]
        }

    def state(self) -> Iterator[Path | bool]:
        """Yield what the value `run` depends on: files, and whether a process works in a run's folder."""
        yield from self._roots
        for run in self.runs:
            yield is_locked(run.folder)
            yield run.folder.parent
            yield from (run.folder / name for name in _RUN_FILES)
        for source in self.sources.values():
            yield source.path

    def files(self) -> Iterator[Path]:
        """Yield the files of the runs that a page is made from, also those that are left out of it."""
        for run in self.runs:
            yield run.recipe
            yield from (run.folder / name for name in (MANIFEST, "results.jsonl", *_RUN_FILES))
        for source in sources_of(self.runs, self._roots):
            yield from (source.path, source.times)

    def index_files(self, source_id: str) -> tuple[Path, ...]:
        """Return the files that the value `index` of a source depends on.

        Raises:
            NotThereError: There is no such source.
        """
        source = self._source(source_id)
        return source.path, source.times, source.path.with_name("results.jsonl")

    def num_trees(self, source_id: str) -> int:
        """Return the number of trees of a source that can be read."""
        return len(self._summaries.read(self._source(source_id).path).trees)

    def run(self) -> dict[str, Any]:
        """Return the run: what it is, its traces, its curves."""
        self._find_runs()
        runs, sources = self.runs, self.sources
        live = {run.folder: is_locked(run.folder) for run in runs}
        notes = [*self.left_out]
        series = self._series(runs, notes)
        for source in sources.values():
            known = self._summaries.known(source.path)
            # The last line of a run at work is being written.
            if known is not None and known.note and (known.is_broken or not live[source.owner.folder]):
                notes.append(known.note)
        if self._redact and notes:
            # They may quote the data.
            notes = [f"{len(notes)} traces or logs, or parts of them."]
        title = " and ".join(root.resolve().name for root in self._roots)
        kind = self._kind(runs)
        value = {
            "schema": SCHEMA,
            "kind": kind,
            "name": title,
            "title": f"{title}: {kind}",
            "about": [*self._about(runs), *(("Left out", note) for note in notes)],
            "live": any(live.values()),
            "sources": [
                {"id": key, "run": each.run, "step": each.step, "trees": self._summaries.count(each.path)}
                for key, each in sources.items()
            ],
            "runs": [{"name": run.name, "dir": "" if self._redact else f"{run.folder}"} for run in runs],
            "series": series,
            "algorithms": self._algorithms(runs),
            "columns": list(COLUMNS),
        }
        return safe_table(value)

    def _about(self, runs: Sequence[RunPlace]) -> list[tuple[str, str]]:
        facts = [self._facts_of(run) for run in runs]
        if len(runs) == 1:
            # A note may quote a prompt.
            hidden = ("Folder", "Note") if self._redact else ()
            return [pair for pair in facts[0].about() if pair[0] not in hidden]
        compared = flips_of(runs) if len(self._roots) > 1 else ()
        return [*((each.run.name, each.in_one_line()) for each in facts), *compared]

    def _series(self, runs: Sequence[RunPlace], notes: list[str]) -> dict[str, Any]:
        if len(runs) > MAX_CURVES:
            notes.append(f"The curves of {len(runs) - MAX_CURVES} of {len(runs)} runs.")
        curves = [(run.name, self._facts_of(run).series(notes.append)) for run in runs[:MAX_CURVES]]
        curves = [(name, own) for name, own in curves if own]
        return {
            f"{name}: {metric}" if len(curves) > 1 else metric: points
            for name, own in curves
            for metric, points in own.items()
        }

    def _algorithms(self, runs: Sequence[RunPlace]) -> list[str]:
        """Return the names of the algorithms of the first run that has an own one; the others have the same names."""
        credits = map(self._credits_of, runs)
        return next((list(each.algorithms) for each in credits if each.own is not None), [])

    def _kind(self, runs: Sequence[RunPlace]) -> str:
        kinds = [run.kind for run in runs]
        if len(self._roots) > 1:
            return "comparison"
        return "train" if "train" in kinds else kinds[0]

    def index(self, source_id: str) -> dict[str, Any]:
        """Return the rows of a trace's index, in the order of its trees.

        Raises:
            NotThereError: There is no such source.
        """
        source = self._source(source_id)
        rows = [list(row.values()) for row in self._rows(source, seconds_by_tree(source))]
        return safe_table({"source": source_id, "rows": rows})

    def _rows(self, source: TraceSource, seconds: Mapping[TreeKey, float]) -> Iterator[dict[str, Any]]:
        right = right_attempts(source.path.parent) if source.by_attempt else {}
        for summary in self._summaries.read(source.path).trees:
            attempt = (summary.problem, summary.step)
            row = _row(summary, right.get(attempt))
            if self._redact:
                row |= {"question": "", "answer": [], "kind": ""}
            row["seconds"] = seconds.get(attempt if source.by_attempt else (summary.step, summary.slot))
            # A step counts from 1, and a tree's key from 0.
            yield row if source.by_attempt else row | {"step": source.step}

    def tree(self, source_id: str, row: int, *, with_credits: bool = False) -> dict[str, Any]:
        """Return a tree with the credit of the run's own algorithm; with `with_credits` also that of the others.

        Raises:
            NotThereError: There is no such tree.
            DataError: It cannot be read.
        """
        source, traced = self._traced(source_id, row)
        run, credits = source.owner, self._credits_of(source.owner)
        facts = self._facts_of(run)
        key = (traced.tree.problem.id, traced.tree.key.step)
        verdict = verdict_of(run.folder, key) if source.by_attempt else Verdict(None, "")
        recorded = TreeFacts(
            times_of(source, traced),
            self._texts.of(facts.tokenizer, traced.tree),
            facts.rule,
            verdict,
            facts.price,
        )
        value = {"source": source_id, "row": row, **tree_values(traced, recorded), "credit": None}
        if credits.own is not None:
            with suppress(ConfigError, DataError):
                value["credit"] = {
                    "algorithm": credits.own.name,
                    "nodes": credits.of_tree(source, row, traced, credits.own.name),
                }
        if with_credits:
            value["credits"] = {
                name: nodes
                for name in credits.algorithms
                if (nodes := self._credit_or_none(source, row, traced, name)) is not None
            }
        value["commands"] = [] if self._redact else _commands(run, source, row)
        return self._safe_tree(value)

    def readable_trees(
        self, source_id: str, advance: Callable[[], None], *, with_credits: bool = False
    ) -> Iterator[dict[str, Any]]:
        """Yield the trees of a source, and add to `unreadable` why others cannot be read; `advance` is called after each.

        Raises:
            NotThereError: There is no such source.
        """
        for row in range(self.num_trees(source_id)):
            try:
                yield self.tree(source_id, row, with_credits=with_credits)
            except DataError as error:
                self.unreadable.append(f"{error}")
            advance()

    def _credit_or_none(
        self, source: TraceSource, row: int, traced: TracedTree, name: str
    ) -> dict[str, Any] | None:
        try:
            return self._credits_of(source.owner).of_tree(source, row, traced, name)
        except (ConfigError, DataError):
            return None

    def credit(self, source_id: str, row: int, algorithm: str) -> dict[str, Any]:
        """Return the credit of a tree under an algorithm.

        Raises:
            NotThereError: There is no such tree.
            UserError: There is no such algorithm, or the trace does not hold what it needs.
        """
        source, traced = self._traced(source_id, row)
        nodes = self._credits_of(source.owner).of_tree(source, row, traced, algorithm)
        return safe_table({"algorithm": algorithm, "nodes": nodes})

    def search(self, text: str) -> list[list[Any]]:
        """Return source, row and place of trees that hold a text, at most `MAX_HITS`."""
        hits: list[list[Any]] = []
        # What a redacted page does not show cannot be searched for either.
        for key, source in {} if self._redact or not text.strip() else self.sources.items():
            for row, where in search_trace(source.path, text, self.num_trees(key)):
                hits.append([key, row, where])
                if len(hits) == MAX_HITS:
                    return hits
        return hits

    def problem(self, problem_id: str) -> list[list[Any]]:
        """Return source, row, mean, right and number of trajectories of all trees of a problem."""
        return [
            [key, *(safe(row[name]) for name in ("row", "mean", "right", "n"))]
            for key, source in self.sources.items()
            for row in self._rows(source, {})
            if clean(row["problem"]) == problem_id
        ]

    def _traced(self, source_id: str, row: int) -> tuple[TraceSource, TracedTree]:
        source = self._source(source_id)
        trees = self._summaries.read(source.path).trees
        if not 0 <= row < len(trees):
            raise NotThereError(f"{source_id}: there is no tree {row}. It has {len(trees)}.")
        return source, read_tree(source.path, trees[row])

    def _source(self, source_id: str) -> TraceSource:
        if source_id not in self.sources:
            self._find_runs()
        if source_id not in self.sources:
            raise NotThereError("There is no such source. Reload the page.")
        return self.sources[source_id]

    def _facts_of(self, run: RunPlace) -> RunFacts:
        facts = self._facts.get(run.folder)
        # Before its first line of metrics a run that trains looks like a rollout.
        if (
            facts is None
            or facts.run != run
            or (run.kind in ("evaluation", "synthesis") and not facts.summary)
        ):
            facts = self._facts[run.folder] = RunFacts.read(run)
        return facts

    def _credits_of(self, run: RunPlace) -> RunCredits:
        return self._credits.setdefault(run.folder, RunCredits(run))

    def _safe_tree(self, value: Mapping[str, Any]) -> dict[str, Any]:
        plain = safe_table(value)
        return redacted_table(plain) if self._redact else plain


def _grouped(reasons: Sequence[tuple[Path, str]]) -> tuple[str, ...]:
    """Return a sentence for each reason to leave a trace out; all traces of an old run have one reason."""
    paths: dict[str, list[Path]] = {}
    for path, reason in reasons:
        if reason:
            paths.setdefault(reason, []).append(path)
    return tuple(
        f"{first}{f' and {len(others)} more' if others else ''}: {reason}"
        for reason, (first, *others) in paths.items()
    )


def _row(summary: TreeSummary, is_right: bool | None) -> dict[str, Any]:
    row = {name: getattr(summary, name, None) for name in COLUMNS}
    row |= {"row": summary.row - 1, "n": summary.trajectories}
    if is_right is not None:
        flags = (*(flag for flag in summary.flags if flag not in _VERDICTS), "right" if is_right else "wrong")
        row |= {"right": int(is_right), "flags": sorted(flags)}
    return row


def _commands(run: RunPlace, source: TraceSource, row: int) -> list[dict[str, str]]:
    """Return the commands for a tree, in which the page puts ids for {node}, {leaf} and {other}."""
    actions = [(action.name, action.template) for action in tree_actions(source.path, row)]
    where = f"&step={source.step}&tree={row}/{{node}}"
    show = ("open here", f"ramify view {shlex.quote(f'{run.folder}')}  # and add to the address: {where}")
    return [{"name": name, "template": template} for name, template in (*actions, show)]
