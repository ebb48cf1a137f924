"""What an agent's answers depend on besides its recipe, as checksums: for the manifests of runs, which never mix two."""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ramify.core.messages import Problem
from ramify.engines.configs import SERVER_KEYS
from ramify.runs import manifest
from ramify.sampler.task import Task

_TRANSPORT = (
    *("url", "http", "slots", "key_variable", "in_flight", "cache", "failures_to_stop"),
    *SERVER_KEYS,
)


def agent_identity(
    task: Task, model_folder: Path, weights: Mapping[str, str] | None, script: str | None
) -> dict[str, Any]:
    """Return the checksums by name.

    Args:
        task: The task.
        model_folder: Holds the tokenizer, and the weights if the model computes here or ramify starts its servers.
        weights: Checksums of the weights; None: a service or a script answers.
        script: SHA-256 of a scripted engine's file.

    Raises:
        DataError: A file cannot be read.
    """
    prompts = [task.renderer.prompt_text(problem, task.toolbox.specs) for problem in task.problems]
    return {
        "weights": weights,
        "model_files": manifest.model_files(model_folder),
        "tokenizer": task.renderer.fingerprint,
        "problems": {"count": len(task.problems), "sha256": problems_sha256(task.problems)},
        "prompts": {"first": prompts[0], "sha256": _sha256("\0".join(prompts))},
        "tool_identities": dict(task.toolbox.identities),
        "reward_identities": dict(task.reward.identities),
        "rewriters": dict(task.rewriter_files),
        "helper": None if task.repairs is None else task.repairs.sha256,
        "script_sha256": script,
    }


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


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
