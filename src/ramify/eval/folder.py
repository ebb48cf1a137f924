"""The folder of an evaluation: its files, and a check that it may be used, which runs before anything is loaded.

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
"""Files from before the first attempt. A folder with only these holds nothing to resume, and may be used again."""


def check_eval_folder(path: Path, resume: bool) -> None:
    """Check that an evaluation may use the folder, without writing anything.

    Raises:
        ConfigError: It holds other files or links, or it holds attempts and `resume` is false.
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
