"""What an agent's answers depend on besides its recipe, as checksums: for the manifests of runs, which never mix two."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from ramify.actor.actor import Task
from ramify.config.schema_eval import EvalEngineSection
from ramify.config.schema_parts import ModelSection, ScriptedEngineSection
from ramify.config.schema_vllm import VllmEngineSection
from ramify.core.messages import Problem
from ramify.obs import manifest


def agent_identity(model: ModelSection, engine: EvalEngineSection, task: Task) -> tuple[dict[str, Any], str]:
    """The checksums by name, and the name of the device that computes.

    Raises:
        DataError: A file cannot be read.
    """
    prompts = [task.renderer.prompt_text(problem) for problem in task.problems]
    weights, device = None, "none"
    if engine.computes_here:
        # Only a local model needs torch.
        from ramify.modeling.adapter_files import checksums
        from ramify.modeling.numerics import device_name

        weights, device = checksums(model.folder), device_name(model.device)
    elif isinstance(engine, VllmEngineSection) and engine.launch:
        from ramify.modeling.adapter_files import checksums

        weights = checksums(model.folder)
    found: dict[str, Any] = {
        "weights": weights,
        "model_files": manifest.model_files(model.folder),
        "tokenizer": task.renderer.fingerprint,
        "problems": {"count": len(task.problems), "sha256": problems_sha256(task.problems)},
        "prompts": {"first": prompts[0], "sha256": _sha256("\0".join(prompts))},
        "tool_identities": dict(task.toolbox.identities),
        "reward_identities": dict(task.reward.identities),
        "rewriters": dict(task.rewriter_files),
        "helper": None if task.repairs is None else task.repairs.sha256,
        "script_sha256": script_sha256(engine),
    }
    return found, device


def problems_sha256(problems: Sequence[Problem]) -> str:
    """SHA-256 of the problems' ids, messages and accepted answers, in order."""
    told = [
        [problem.id, [[message.role, message.text] for message in problem.messages], list(problem.answer)]
        for problem in problems
    ]
    return _sha256(json.dumps(told, ensure_ascii=True))


def script_sha256(engine: EvalEngineSection) -> str | None:
    """SHA-256 of a scripted engine's file; None for other engines.

    Raises:
        DataError: The file cannot be read.
    """
    return manifest.file_sha256(engine.script) if isinstance(engine, ScriptedEngineSection) else None


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
