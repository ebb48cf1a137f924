"""The folder of an evaluation: whether it may be used, looked at before anything is loaded.

RUN/recipe.toml  manifest.json  results.jsonl  times.jsonl  trees.jsonl; at the end times.json  results.csv  report.html  summary.json
"""

from pathlib import Path

from ramify.core.errors import ConfigError
from ramify.obs.files import entries, require_plain_files
from ramify.obs.manifest import MANIFEST

_OURS = frozenset(
    {
        MANIFEST,
        "recipe.toml",
        "results.jsonl",
        "times.jsonl",
        "trees.jsonl",
        "summary.json",
        "times.json",
        "results.csv",
        "report.html",
    }
)

_BEFORE_ATTEMPTS = frozenset({MANIFEST, "recipe.toml"})
"""What there is before the first attempt: an evaluation that was refused for its model leaves nothing to go on with."""


def check_eval_folder(path: Path, resume: bool) -> None:
    """See that an evaluation may have the folder; nothing is written.

    Raises:
        ConfigError: It holds something else, attempts and `resume` is false, or links.
    """
    if not path.exists():
        return
    names = entries(path) if path.is_dir() else frozenset({""})
    if not names <= _OURS:
        raise ConfigError(f"run.dir: {path} exists and is not empty; expected a new or empty folder")
    if names - _BEFORE_ATTEMPTS and not resume:
        raise ConfigError(f"run.dir: {path} holds an evaluation; go on with --resume or name a new folder")
    require_plain_files("run.dir", path)
    for name in sorted(names):
        if (path / name).is_dir():
            raise ConfigError(f"run.dir: {path / name} is a folder, expected a file; move it away")
