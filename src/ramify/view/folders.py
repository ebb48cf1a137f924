"""The runs in a folder, and the traces of each: a run by itself, the folder of a quick start, the cycles of a self-critic run."""

import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal, TypeAlias

from ramify.core.errors import ConfigError
from ramify.files.durable import RECIPE, dump_line
from ramify.obs.trace import lines_of
from ramify.obs.trace_index import trace_files
from ramify.runs.run_folder import ROLLOUT, SYNTHESIS

Kind: TypeAlias = Literal["train", "rollout", "evaluation", "synthesis"]

_LEVELS = 3
"""Folders below the one that the user names: `eval/NAME` of a quick start, `cycle-01/rl` of a self-critic run."""
_INSIDE = frozenset({"checkpoints", "trees", "timing", "evals", "preflight", "judge", "tokenizer"})
"""Folders of a run that hold no other run."""
_ORDER: tuple[Kind, ...] = ("train", "rollout", "synthesis", "evaluation")


@dataclass(frozen=True, slots=True)
class RunPlace:
    """A run: its name (the folder's path below the one that the user named), its folder and its kind."""

    name: str
    folder: Path
    kind: Kind

    @property
    def recipe(self) -> Path:
        """Return the path of its recipe."""
        return self.folder / RECIPE


@dataclass(frozen=True, slots=True)
class TraceSource:
    """A file of trees.

    Attributes:
        id: Its name in the page: the path below the run's root, without suffix; of a second root after "2:".
        run: Number of its run.
        owner: Its run.
        step: The step that grew the trees; 0 where there are no steps.
        path: The trace.
        times: The file with the times of its trees, which may be missing.
        by_attempt: The times, the results and the verdicts are keyed by problem and attempt, as in an evaluation.
    """

    id: str
    run: int
    owner: RunPlace
    step: int
    path: Path
    times: Path
    by_attempt: bool


def find_runs(roots: Sequence[Path]) -> tuple[RunPlace, ...]:
    """Return all runs in the folders.

    Raises:
        ConfigError: A folder is missing, cannot be read, or holds no run.
    """
    runs: list[RunPlace] = []
    for root in roots:
        if not root.is_dir():
            why = "It is a file: name the folder above" if root.exists() else "There is no such folder"
            raise ConfigError(f"{root}: expected the folder of a run. {why}.")
        below = [
            RunPlace(_name(root, folder, len(roots) > 1), folder, kind)
            for folder in _folders(root, _LEVELS)
            if (kind := _kind_of(folder)) is not None
        ]
        if not below:
            raise ConfigError(
                f"{root}: no run is in it. Expected the folder of a run of train, rollout, eval or synth, or one that "
                "holds such folders."
            )
        # Runs that train come first; what evaluates them follows.
        runs.extend(sorted(below, key=lambda run: _ORDER.index(run.kind)))
    return tuple(runs)


def _name(root: Path, folder: Path, names_root: bool) -> str:
    inner = folder.relative_to(root).as_posix()
    own = f"{root}" if names_root else root.resolve().name
    return own if inner == "." else f"{root}/{inner}" if names_root else inner


def _folders(folder: Path, levels: int) -> Iterator[Path]:
    """Yield a folder and those below it, without links, hidden ones and the insides of runs."""
    yield folder
    if not levels:
        return
    try:
        with os.scandir(folder) as listing:
            names = sorted(
                entry.name
                for entry in listing
                if entry.is_dir(follow_symlinks=False)
                and entry.name not in _INSIDE
                and not entry.name.startswith(".")
                # Folders of others beside one's own are no obstacle.
                and os.access(entry, os.R_OK | os.X_OK)
            )
    except OSError as error:
        raise ConfigError(
            f"{folder}: cannot be read: {error.strerror}. Change its permissions, or name another folder."
        ) from None
    for name in names:
        yield from _folders(folder / name, levels - 1)


def _kind_of(folder: Path) -> Kind | None:
    if is_file(folder / "starts.jsonl"):
        # An ablation, whose results.jsonl is about the runs below it.
        return None
    if any(is_file(folder / name) for name in (*SYNTHESIS.lines, "questions.jsonl")):
        return "synthesis"
    if any(is_file(folder / name) for name in ("results.jsonl", "trees.jsonl")):
        return "evaluation"
    if is_file(folder / "metrics.jsonl") or (folder / "checkpoints").is_dir():
        return "train"
    return "rollout" if is_file(folder / ROLLOUT.results[0]) or any(_traces(folder / "trees")) else None


def is_file(path: Path) -> bool:
    """Return True for a regular file that is no link: a page shows nothing from outside of the run's folder."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def lines_of_attempt(path: Path, problem: str, attempt: int) -> Iterator[bytes]:
    """Yield the lines of an attempt in a file of an evaluation, `results.jsonl` or one like it; a last line that is cut off is none.

    Where the lines of each attempt lie is found once, since a page asks for all of them in turn.
    """
    try:
        about = path.lstat()
    except OSError:
        return
    if stat.S_ISREG(about.st_mode):
        mark = dump_line({"problem": problem, "attempt": attempt})[:-1].encode() + b","
        for offset in _places(path, about.st_ino, about.st_size, about.st_mtime_ns).get(mark, ()):
            line = next(lines_of(path, offset), b"")
            # Another one where the file was written anew meanwhile.
            if line.startswith(mark):
                yield line


@lru_cache(maxsize=4)
def _places(path: Path, *_version: int) -> dict[bytes, list[int]]:
    """Return where lines begin, by what they begin with for an attempt; a file that has changed is read again."""
    places: dict[bytes, list[int]] = {}
    offset = 0
    for line in lines_of(path):
        if line.endswith(b"\n") and (mark := _ATTEMPT.match(line)):
            places.setdefault(mark[0], []).append(offset)
        offset += len(line)
    return places


_ATTEMPT = re.compile(rb'\{"problem":"(?:[^"\\]|\\.)*","attempt":[0-9]{1,15},')


def sources_of(runs: Sequence[RunPlace], roots: Sequence[Path]) -> tuple[TraceSource, ...]:
    """Return all traces of the runs, in the order of runs, steps and names."""
    return tuple(
        TraceSource(_source_id(path, roots), number, run, _step(path), path, times, by_attempt)
        for number, run in enumerate(runs)
        for path, times, by_attempt in _files(run)
    )


def _files(run: RunPlace) -> Iterator[tuple[Path, Path, bool]]:
    folder = run.folder
    if is_file(first := folder / "preflight" / "trees.jsonl"):
        yield first, folder / "preflight" / "timing.jsonl", False
    for path in _traces(folder / "trees"):
        yield path, folder / "timing" / path.name, False
    for path in _traces(folder / "evals"):
        yield path, folder / "times.jsonl", False
    if is_file(attempts := folder / "trees.jsonl"):
        yield attempts, folder / "times.jsonl", True


def _traces(folder: Path) -> Iterator[Path]:
    if folder.is_dir() and not folder.is_symlink():
        yield from filter(is_file, trace_files(folder))


def _step(path: Path) -> int:
    return int(path.stem) if re.fullmatch("[0-9]{1,15}", path.stem) else 0


def _source_id(path: Path, roots: Sequence[Path]) -> str:
    number = next(number for number, root in enumerate(roots) if path.is_relative_to(root))
    inner = path.relative_to(roots[number]).with_suffix("").as_posix()
    return f"{number + 1}:{inner}" if number else inner
