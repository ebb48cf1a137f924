"""The folder of an ablation: what its runs were begun with, so that a session goes on with nothing else."""

from collections.abc import Mapping
from pathlib import Path

from ramify.core.errors import ConfigError
from ramify.core.json_types import mapping, part
from ramify.files.durable import LOCK, read_record, write_record
from ramify.runs.manifest import differences
from ramify.study.arms import Ablation
from ramify.study.lines import RESULTS, STARTS, RunLine

SETTINGS = "settings.json"
_MOST_SHOWN = 4
"""Keys that a message names."""


def is_ablation(path: Path) -> bool:
    """Return True for the folder of an ablation, also of one without a finished run."""
    return any((path / name).is_file() for name in (RESULTS, STARTS))


def refuse_other_ablation(ablation: Ablation, lines: Mapping[str, RunLine], out: Path) -> None:
    """Compare an ablation with what a folder holds.

    Raises:
        ConfigError: The folder holds something else, or runs with other settings or another rule; names the keys.
    """
    if not is_ablation(out):
        others = {path.name for path in out.iterdir()} - {LOCK, SETTINGS, "logs"} if out.is_dir() else ()
        if others:
            raise ConfigError(f"--out: {out} holds no ablation. Name a new folder.")
        # A command that was refused before it started a run binds no other one.
        return
    rules = {line.arm: line.branching for line in lines.values()}
    if (out / SETTINGS).is_file():
        before = read_record(out / SETTINGS, part(settings=part(), arms=mapping(part())))
        rules = before["arms"] | rules
        if keys := _differences(before["settings"], ablation.settings):
            raise ConfigError(f"--out: {out} holds runs with {keys}. Set it as before, or name a new folder.")
    for run in ablation.runs:
        if run.arm in rules and (keys := _differences(rules[run.arm], run.branching)):
            raise ConfigError(
                f"--arm {run.arm}: {out} holds a run of this name with {keys}. Choose another name or folder."
            )
        if run.name in lines and lines[run.name].recipe != ablation.fingerprint:
            raise ConfigError(
                f"--out: {out} holds runs of another recipe, or with other -s. Name a new folder."
            )


def _differences(before: object, now: object) -> str:
    every = [str(difference) for difference in differences(before, now)]
    more = f" and {len(every) - _MOST_SHOWN} more" if len(every) > _MOST_SHOWN else ""
    return "; ".join(every[:_MOST_SHOWN]) + more


def note_ablation(ablation: Ablation, out: Path) -> None:
    """Record what the runs of a folder are begun with; arms of earlier sessions stay."""
    path = out / SETTINGS
    arms = (
        read_record(path, part(arms=mapping(part())))["arms"] if path.is_file() and is_ablation(out) else {}
    )
    arms |= {run.arm: run.branching for run in ablation.runs}
    write_record(path, {"recipe": ablation.fingerprint, "settings": ablation.settings, "arms": arms})


def refuse_other_inputs(
    inputs: Mapping[str, Mapping[str, str]], lines: Mapping[str, RunLine], out: Path
) -> None:
    """Compare the files that recipes name with those that finished runs were made from.

    Args:
        inputs: Checksums by key, by the name of the run.
        lines: Finished runs by name.
        out: The folder.

    Raises:
        ConfigError: The content of one has changed.
    """
    for name, line in lines.items():
        now = inputs.get(name, {})
        if changed := [key for key, checksum in line.inputs.items() if now.get(key, checksum) != checksum]:
            raise ConfigError(
                f"--out: {out}: the content of {' and '.join(changed)} is not that from which {name} was made. Put it back, "
                "or name a new folder."
            )
