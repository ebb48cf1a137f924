"""The model that a run has made, by the folder of the run."""

import json
from pathlib import Path


def model_of(folder: Path) -> Path:
    """The last checkpoint of a run, or the model of a self-critic run's last cycle; any other folder itself.

    A run's folder has checkpoints/step-NNNNNN, a self-critic run's cycle-NN/done.json with the place of the cycle's model.
    """
    if (folder / "config.json").exists():
        return folder
    done = sorted(folder.glob("cycle-[0-9][0-9]/done.json"))
    steps = sorted(folder.glob("checkpoints/step-[0-9][0-9][0-9][0-9][0-9][0-9]"))
    if done:
        return done[-1].parent / str(json.loads(done[-1].read_text(encoding="utf-8"))["model"])
    return steps[-1] if steps else folder
