"""The runs below a folder, each in one row: read from small files and from the ends of large ones."""

import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ramify.config.load import command_of
from ramify.core.errors import DataError
from ramify.core.json_text import parse_json
from ramify.core.json_types import count, mapping, number, part, text
from ramify.files.durable import LOCK, RECIPE, is_locked, read_record
from ramify.files.untrusted import read_small_file
from ramify.obs.metrics import read_metrics
from ramify.runs.manifest import MANIFEST
from ramify.runs.run_folder import EVALUATION, ROLLOUT, SCORE, SYNTHESIS, TRAINING, RunKind, marked_kind
from ramify.runs.status import STATUS, RunStatus, read_status

if TYPE_CHECKING:
    from ramify.obs.console import RunConsole

SCHEMA = 1
"""Version of the JSON objects of `ramify runs` and of commands with `--json`."""

RunState: TypeAlias = Literal[
    "running", "finished", "interrupted", "failed", "not begun", "unknown", "damaged"
]
_MOST_READ_OF_LOG = 1 << 18
_SUMMARY, _METRICS, _RESULTS = "summary.json", "metrics.jsonl", "results.jsonl"
_CHANGING = (_METRICS, _RESULTS, _SUMMARY, STATUS, MANIFEST, RECIPE)
_TRAINING_SCORES = ("reward/mean", "loss")
_READ_SUMMARY = part(pass_at=mapping(part(value=number)))
_READ_SCORES = part(
    problems=part(count=count), sampling=part(attempts=count), engine=part(name=text), model=part(path=text)
)


@dataclass(frozen=True, slots=True)
class RunScore:
    """A metric of a run, and its step; None for an evaluation."""

    name: str
    value: float
    step: int | None = None


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run.

    Attributes:
        dir: Its folder.
        kind: The command that made it; "" if its recipe does not tell.
        state: "unknown": a version without `status.json` made it, and its files do not tell whether it reached its end.
        step: Steps (training), cycles (selfcritic) or attempts (eval) that are done; None where nothing counts them.
        steps: Those of the whole run; None if they are not known.
        score: Of an evaluation the pass@k of its smallest k; of training its best evaluation, or without evaluations the mean
            reward or the loss of the last step.
        model: `model.path` of its recipe.
        updated: Time of its last change, in seconds since 1970.
        reason: Why it failed, was interrupted, or cannot be read; "" otherwise.
    """

    dir: str
    kind: str
    state: RunState
    step: int | None = None
    steps: int | None = None
    score: RunScore | None = None
    model: str = ""
    updated: float | None = None
    reason: str = ""


def record_run(console: "RunConsole", folder: Path, **more: Any) -> None:  # noqa: ANN401 - JSON
    """Write the JSON object of a command that ran: the row of its run, and `more`."""
    console.record({"schema": SCHEMA, **asdict(describe_run(folder)), **more})


def list_runs(root: Path) -> tuple[RunRow, ...]:
    """Return the runs in a folder and below it, the one that changed last at the end."""
    rows = (describe_run(folder) for folder in _run_folders(root))
    return tuple(sorted(rows, key=lambda row: (row.updated or 0.0, row.dir)))


def _run_folders(root: Path) -> Iterator[Path]:
    left, visited = [root], set[tuple[int, int]]()
    while left:
        folder = left.pop()
        try:
            identity = folder.stat()
            with os.scandir(folder) as entries:
                files, folders = set[str](), list[str]()
                for entry in entries:
                    (folders.append if _is_folder(entry) else files.add)(entry.name)
        except OSError:  # not ours to read, or gone meanwhile
            continue
        # Links to folders are followed, each folder once.
        if (key := (identity.st_dev, identity.st_ino)) in visited:
            continue
        visited.add(key)
        is_run = _is_run(folder, files, folders)
        if is_run:
            yield folder
        skipped = _OWN_FOLDERS if is_run else frozenset[str]()
        left += [folder / name for name in folders if not name.startswith(".") and name not in skipped]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself, or into a folder that is not ours to read
        return False


_COMMANDS = {ROLLOUT.name: "rollout", EVALUATION.name: "eval", SYNTHESIS.name: "synth"}
"""The commands that make runs of a kind, where there is only one."""
_OWN_FOLDERS = frozenset({*TRAINING.folders, "judge", "tensorboard", "mlflow", "wandb"})


def _is_run(folder: Path, files: set[str], folders: list[str]) -> bool:
    if LOCK in files and marked_kind(folder) is not None:
        return True
    return RECIPE in files and (MANIFEST in files or "trees" in folders)


def describe_run(folder: Path) -> RunRow:
    """Return the row of a run; one that cannot be read is a row with the reason."""
    kind, model, updated = "", "", _last_change(folder)
    try:
        recipe = read_recipe(folder)
        run_kind = _kind_of(folder, recipe)
        kind = _COMMANDS.get(run_kind.name) or command_of(recipe) or "train"
        section = recipe.get("model")
        model = str(section.get("path", "")) if isinstance(section, Mapping) else ""
        return _describe(
            folder, RunRow(str(folder), kind, "unknown", model=model, updated=updated), recipe, run_kind
        )
    except (DataError, OSError) as error:
        return RunRow(str(folder), kind, "damaged", model=model, updated=updated, reason=str(error))


def _describe(folder: Path, row: RunRow, recipe: Mapping[str, Any], kind: RunKind) -> RunRow:
    status = read_status(folder)
    running, begun = is_locked(folder), kind.has_begun(folder)
    if not begun and not running:
        return replace(row, state="not begun")
    if kind is EVALUATION:
        row, is_finished = _evaluation(folder, row)
    elif kind is TRAINING:
        row, is_finished = _training(folder, row, recipe, status)
    else:
        is_finished = (folder / _SUMMARY).is_file() if kind is SYNTHESIS else begun
        if kind is ROLLOUT:
            row = replace(row, step=int(begun), steps=1)
    if running:
        return replace(row, state="running")
    return _ended(row, status, is_finished)


def _ended(row: RunRow, status: RunStatus | None, is_finished: bool) -> RunRow:
    if status is not None and status.state in ("interrupted", "failed"):
        return replace(row, state=status.state, reason=status.reason)
    if is_finished:
        return replace(row, state="finished")
    if status is None and row.steps is None:
        return row
    killed = "killed" if status is not None and status.state == "running" else ""
    return replace(row, state="interrupted", reason=killed)


def _evaluation(folder: Path, row: RunRow) -> tuple[RunRow, bool]:
    scores = read_record(folder / MANIFEST, part(scores=_READ_SCORES))["scores"]
    steps = scores["problems"]["count"] * scores["sampling"]["attempts"]
    row = replace(row, steps=steps)
    if not (folder / _SUMMARY).is_file():
        return replace(row, step=_lines(folder / _RESULTS)), False
    pass_at = read_record(folder / _SUMMARY, _READ_SUMMARY)["pass_at"]
    k = min(pass_at, key=int) if pass_at and all(map(str.isdecimal, pass_at)) else None
    score = None if k is None else RunScore(f"pass@{k}", pass_at[k]["value"])
    return replace(row, step=steps, score=score), True


def _training(
    folder: Path, row: RunRow, recipe: Mapping[str, Any], status: RunStatus | None
) -> tuple[RunRow, bool]:
    manifest = read_record(folder / MANIFEST, part(made_from=part(), name=text))
    steps = _steps_by_recipe(recipe, manifest["made_from"]) if status is None else status.steps
    if row.kind == "selfcritic":
        done = sum(1 for _ in folder.glob("cycle-*/done.json"))
        return replace(row, step=done, steps=steps), done == steps
    last = _last_line(folder / _METRICS)
    step = last.get("step") if last else 0
    if type(step) is not int:
        raise DataError(f"{folder / _METRICS}: the last line has no step. Restore the file from a copy.")
    time = last.get("time")
    # The log's own time: copying a run changes those of its files.
    updated = float(time) if isinstance(time, int | float) else row.updated
    row = replace(row, step=step, steps=steps, score=_training_score(folder, last), updated=updated)
    ended_early = status is not None and status.state == "finished" and _has_patience(recipe)
    return row, step == steps or ended_early


def _training_score(folder: Path, last: Mapping[str, Any]) -> RunScore | None:
    path = folder / "evals.jsonl"
    scored = [row for row in read_metrics(path) if row.get(SCORE) is not None] if path.is_file() else []
    if scored:
        best = max(scored, key=lambda row: row[SCORE] or 0.0)
        return RunScore(SCORE, best[SCORE] or 0.0, int(best["step"] or 0))
    for name in _TRAINING_SCORES:
        if isinstance(value := last.get(name), int | float):
            return RunScore(name, value, last["step"])
    return None


def _steps_by_recipe(recipe: Mapping[str, Any], made_from: Mapping[str, Any]) -> int | None:
    """Return the steps of a run without `status.json`, where its recipe and its manifest tell them."""
    try:
        if "selfcritic" in recipe:
            return int(recipe["selfcritic"]["cycles"])
        if (steps := recipe["run"].get("steps")) is not None:
            return int(steps)
        count, size = made_from["problems"]["count"], recipe["rollout"]["problems_per_step"]
        return int(-(-count * recipe["data"]["epochs"] // size))
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError):
        return None


def _has_patience(recipe: Mapping[str, Any]) -> bool:
    section = recipe.get("eval")
    return isinstance(section, Mapping) and "patience" in section


def _kind_of(folder: Path, recipe: Mapping[str, Any]) -> RunKind:
    if (marked := marked_kind(folder)) is not None:
        return marked
    # A copy without the lock, which is hidden.
    kinds = {"eval": EVALUATION, "synth": SYNTHESIS}
    other = TRAINING if (folder / MANIFEST).exists() else ROLLOUT
    return kinds.get(command_of(recipe) or "", other)


def read_recipe(folder: Path) -> dict[str, Any]:
    """Return the recipe of a run as a table; empty if the run has none.

    Raises:
        DataError: It cannot be read.
    """
    path = folder / RECIPE
    if not path.exists():
        return {}
    try:
        return tomllib.loads(read_small_file(path).decode())
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: {error}") from None


def _last_line(path: Path) -> dict[str, Any]:
    """Return the last finished line of a log, without reading all of it; empty if there is none."""
    if not path.is_file():
        return {}
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _MOST_READ_OF_LOG))
        lines = file.read().rpartition(b"\n")[0].rpartition(b"\n")
    if not lines[2]:
        return {}
    try:
        return part()(parse_json(lines[2]))
    except ValueError as error:
        raise DataError(
            f"{path}: the last line cannot be read: {error}. Restore the file from a copy."
        ) from None


def _lines(path: Path) -> int:
    if not path.is_file():
        return 0
    with path.open("rb") as file:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b""))


def _last_change(folder: Path) -> float | None:
    times = []
    for name in _CHANGING:
        try:
            times.append((folder / name).stat().st_mtime)
        except OSError:
            continue
    return max(times, default=None)
