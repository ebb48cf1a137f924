"""What an agent's answers depend on besides its recipe, as checksums: for the manifests of runs, which never mix two."""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ramify.config.schema_eval import EvalEngineSection
from ramify.config.schema_parts import ModelSection, ScriptedEngineSection
from ramify.config.schema_vllm import SERVER_KEYS, VllmEngineSection
from ramify.core.messages import Problem
from ramify.runs import manifest
from ramify.sampler.sampler import Task

_TRANSPORT = (
    *("url", "http", "slots", "key_variable", "in_flight", "cache", "failures_to_stop"),
    *SERVER_KEYS,
)


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


def without_reach(made_from: Mapping[str, Any]) -> dict[str, Any]:
    """Without what cannot change an answer: prices, and how to reach the engine.

    In a deterministic run `slots` stays, because it decides which sequences share a step of the engine.
    """
    keeps = ("slots",) if made_from.get("deterministic") else ()
    return {**made_from, "price": None, "engine": without_transport(made_from.get("engine"), keeps)}


def without_transport(service: object, keeps: Collection[str] = ()) -> object:
    """The settings of a service without those that say how to reach it."""
    if not isinstance(service, Mapping):
        return service
    return {key: value for key, value in service.items() if key not in _TRANSPORT or key in keeps}


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
