"""Checks of a recipe that need a look at the disk but nothing heavy, made before anything is loaded."""

from pathlib import Path

from ramify.config.schema_parts import EngineSection, RunSection, ScriptedEngineSection, ToolsSection
from ramify.core.errors import ConfigError


def require_file(key: str, path: Path) -> None:
    """Raise ConfigError unless `path` is a file."""
    if not path.is_file():
        raise ConfigError(f"{key}: expected a file, found none at {path}")


def require_model(path: Path) -> None:
    """Raise ConfigError unless `path` is a model folder with a tokenizer."""
    for name in ("config.json", "tokenizer.json"):
        if not (path / name).is_file():
            raise ConfigError(f"model.path: expected a model folder, {path / name} is missing")


def require_tools(section: ToolsSection) -> None:
    """Raise ConfigError unless there is a tool and its files are there."""
    if section.search is None and section.python is None:
        raise ConfigError("tools: expected [tools.search], [tools.python] or both, found no tool")
    if section.search is not None:
        require_file("tools.search.corpus", section.search.corpus)


def require_script(section: EngineSection) -> None:
    """Raise ConfigError unless a scripted engine's script is there."""
    if isinstance(section, ScriptedEngineSection):
        require_file("engine.script", section.script)


def require_new_run(section: RunSection, resume: bool) -> None:
    """Raise ConfigError when the run's folder is taken."""
    if not resume and (section.dir / "recipe.json").is_file():
        raise ConfigError(f"run.dir: {section.dir} holds a run; go on with --resume or name a new folder")
