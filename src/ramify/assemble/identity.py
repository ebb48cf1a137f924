"""Derives from a recipe's engine and task what a run's manifest and its groups of trees depend on."""

from typing import Any

from ramify.engines.configs import EngineConfig
from ramify.modeling.configs import ModelConfig
from ramify.runs.configs import RunConfig
from ramify.runs.manifest import file_sha256, made_with, model_files, problems_sha256, text_sha256
from ramify.sampler.task import Task


def answering_identity(
    model: ModelConfig, engine: EngineConfig, task: Task
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the checksums of what an agent's answers depend on, by name, and the versions and the device of this session.

    Raises:
        DataError: A file cannot be read.
    """
    weights, device = None, "none"
    if engine.loads_weights:
        # Only weights that are read here need torch.
        from ramify.modeling.lora import checksums
        from ramify.modeling.numerics import device_name

        weights = checksums(model.folder)
        device = device_name(model.device) if engine.computes_here else "none"
    prompts = [task.renderer.prompt_text(problem, task.toolbox.specs) for problem in task.problems]
    identity = {
        **task_identity(task),
        "weights": weights,
        "model_files": model_files(model.folder),
        "tokenizer": task.renderer.fingerprint,
        "prompts": {"first": prompts[0], "sha256": text_sha256("\0".join(prompts))},
        "tool_identities": dict(task.toolbox.identities),
        "reward_identities": dict(task.reward.identities),
        "script_sha256": script_identity(engine),
    }
    return identity, made_with(device)


def task_identity(task: Task) -> dict[str, Any]:
    """Return the checksums of a task's problems, rewriters and helper."""
    return {
        "problems": {"count": len(task.problems), "sha256": problems_sha256(task.problems)},
        "rewriters": dict(task.rewriter_files),
        "helper": None if task.repairs is None else task.repairs.sha256,
    }


def script_identity(engine: EngineConfig) -> str | None:
    """Return the checksum of the script that an engine plays; None if a model writes the turns.

    Raises:
        DataError: The file cannot be read.
    """
    return None if engine.script_file is None else file_sha256(engine.script_file)


def group_size(run: RunConfig, engine: EngineConfig) -> int | None:
    """Return the number of sequences that must be grown together; None if each can be grown alone.

    The draws of a tree depend on its key only. In a deterministic run on a local engine a group fills the engine's slots and is
    always grown as a whole: the last bits of logprobs depend on which sequences share a step of the engine.
    """
    return (engine.local_slots or None) if run.deterministic else None
