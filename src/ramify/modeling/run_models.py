"""What a run has made, by the folder of the run: its checkpoints, and the model that it stands for."""

import re
from pathlib import Path

from ramify.core.errors import DataError
from ramify.core.foreign_files import parse_object, read_small_file


def checkpoints(run_dir: Path) -> dict[int, Path]:
    """The checkpoint folders of a run by step, ascending."""
    return _numbered(run_dir / "checkpoints", "step")


def model_of(folder: Path) -> Path:
    """The last checkpoint of a run, or the model of a self-critic run's last cycle; any other folder itself.

    A run's folder has checkpoints/step-NNNNNN, a self-critic run's cycle-NN/done.json with the place of the cycle's model.

    Raises:
        DataError: The last done.json is damaged.
    """
    if (folder / "config.json").exists():
        return folder
    cycles = _numbered(folder, "cycle").values()
    done = [cycle / "done.json" for cycle in cycles if (cycle / "done.json").exists()]
    if done:
        return done[-1].parent / _model_in(done[-1])
    return next(reversed(checkpoints(folder).values()), folder)


def _numbered(folder: Path, name: str) -> dict[int, Path]:
    """What is called NAME-NUMBER in a folder, by number, ascending."""
    found = [
        (int(match[1]), path)
        for path in folder.glob(f"{name}-*")
        if (match := re.fullmatch(rf"{name}-(\d+)", path.name))
    ]
    return dict(sorted(found))


def _model_in(done: Path) -> str:
    try:
        model = parse_object(read_small_file(done)).get("model")
    except ValueError as error:
        raise DataError(f"{done}: {error}; name the model's own folder as model.path") from None
    if not isinstance(model, str):
        raise DataError(f"{done}: it names no model; name the model's own folder as model.path")
    return model
