"""Derives from a recipe's engine what a run's manifest and its groups of trees depend on."""

from typing import Any

from ramify.config.schema_eval import EvalEngineSection
from ramify.engines.configs import LocalEngineConfig, ScriptedEngineConfig
from ramify.modeling.configs import ModelConfig
from ramify.runs.configs import RunConfig
from ramify.runs.manifest import file_sha256
from ramify.sampler.identity import agent_identity
from ramify.sampler.task import Task


def answering_identity(
    model: ModelConfig, engine: EvalEngineSection, task: Task
) -> tuple[dict[str, Any], str]:
    """Return the checksums of what an agent's answers depend on, by name, and the name of the device that computes.

    Raises:
        DataError: A file cannot be read.
    """
    weights, device = None, "none"
    if engine.computes_here or engine.starts_servers:
        # Only weights that are read here need torch.
        from ramify.modeling.adapter_files import checksums
        from ramify.modeling.numerics import device_name

        weights = checksums(model.folder)
        device = device_name(model.device) if engine.computes_here else "none"
    script = file_sha256(engine.script) if isinstance(engine, ScriptedEngineConfig) else None
    return agent_identity(task, model.folder, weights, script), device


def group_size(run: RunConfig, engine: EvalEngineSection) -> int | None:
    """Return the number of sequences that must be grown together; None if each can be grown alone.

    The draws of a tree depend on its key only. In a deterministic run on a local engine a group fills the engine's slots and is
    always grown as a whole: the last bits of logprobs depend on which sequences share a step of the engine.
    """
    return engine.slots if run.deterministic and isinstance(engine, LocalEngineConfig) else None
