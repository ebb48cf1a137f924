"""What a run has made, by the folder of the run: its checkpoints, and the model that it stands for."""

import re
from pathlib import Path

from ramify.core.errors import DataError
from ramify.core.json_text import MAX_ECHO, parse_json
from ramify.core.json_types import part, text
from ramify.files.untrusted import read_small_file


def checkpoints(run_dir: Path) -> dict[int, Path]:
    """Return the checkpoint folders of a run by step, ascending."""
    return _numbered(run_dir / "checkpoints", "step")


def model_of(folder: Path) -> Path:
    """Return the last checkpoint of a run, or the model of a self-critic run's last cycle; any other folder itself.

    A run's folder has checkpoints/step-NNNNNN, a self-critic run's cycle-NN/done.json with the place of the cycle's model.

    Raises:
        DataError: The last done.json is damaged.
    """
    if (folder / "config.json").exists():
        return folder
    cycles = _numbered(folder, "cycle").values()
    done = [cycle / "done.json" for cycle in cycles if (cycle / "done.json").exists()]
    if done:
        return cycle_model(done[-1])
    return next(reversed(checkpoints(folder).values()), folder)


def cycle_model(done: Path) -> Path:
    """Return the model that the done.json of a self-critic cycle names: a folder within the cycle's own.

    Raises:
        DataError: The file is damaged, or names something else.
    """
    advice = "put the file back from a copy, or name the model's own folder as model.path"
    try:
        model: str = _READ_DONE(parse_json(read_small_file(done)))["model"]
        inside = (done.parent / model).resolve().is_relative_to(done.parent.resolve())
    except ValueError as error:
        raise DataError(f"{done}: {error}; {advice}") from None
    if not inside:
        raise DataError(
            f"{done}: model: expected a folder within {done.parent}, got {model[:MAX_ECHO]!r}; {advice}"
        )
    return done.parent / model


_READ_DONE = part(model=text)


def _numbered(folder: Path, name: str) -> dict[int, Path]:
    """Return the entries NAME-NUMBER of a folder by number, ascending."""
    entries = [
        (int(match[1]), path)
        for path in folder.glob(f"{name}-*")
        if (match := re.fullmatch(rf"{name}-([0-9]{{1,15}})", path.name))
    ]
    return dict(sorted(entries))
