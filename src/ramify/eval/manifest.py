"""The manifest of an evaluation: all that its scores depend on, written before the first attempt.

With it a user can repeat an evaluation, and ramify refuses to mix the attempts of two.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ramify.core.json_types import count, each, optional, part, text, whole
from ramify.runs import manifest
from ramify.sampler.identity import without_reach, without_transport


def make_manifest(scores: Mapping[str, Any], notes: Sequence[str], device: str) -> dict[str, Any]:
    """Return the manifest: `scores` (all that the scores depend on), `notes` (about the problems), and `made_with`.

    `made_with` is a list of versions of the code and packages: one entry for the first session that made attempts, and one for
    each later session with other versions. `device` is the name of the device that computes.
    """
    return {"scores": dict(scores), "notes": list(notes), "made_with": [manifest.made_with(device)]}


def answered_by(scores: Mapping[str, Any]) -> dict[str, Any]:
    """What answered the problems. With a service or a script, `model.path` is only the folder of the tokenizer."""
    engine, path = scores["engine"], str(scores["model"]["path"])
    match engine["name"]:
        case "openai":
            served = {name: engine.get(name) for name in ("url", "api")}
            return {"name": engine["model"], **served, "tokenizer": path, "exact_ids": False}
        case "vllm" if not engine["launch"]:
            return {
                "name": engine.get("model") or "the model",
                "url": ", ".join(engine["urls"]),
                "tokenizer": path,
            }
        case "scripted":
            return {"name": f"the script {engine['script']}", "tokenizer": path}
        case _:
            return {"name": path}


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of an evaluation.

    Raises:
        DataError: It is missing, cannot be read, or is of another schema.
    """
    return manifest.read_manifest(folder, scores=_read_scores, notes=each(text))


_read_scores = part(
    problems=part(count=count, sha256=text),
    sampling=part(attempts=count, right_by=text),
    engine=part(name=text),
    model=part(path=text),
    reward=part(judge=optional(part())),
    seed=whole,
)


def refuse_other(folder: Path, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Refuse to mix attempts of two evaluations.

    Raises:
        ConfigError: The attempts in the folder were made with another model, other problems or other settings; names
            the first difference.
    """
    manifest.refuse_other(folder, "an evaluation", _compared(found["scores"]), _compared(wanted["scores"]))


def _compared(scores: Mapping[str, Any]) -> dict[str, Any]:
    """The settings without those that cannot change a score: prices, and how to reach the engine and the judge."""
    reward = scores.get("reward")
    if isinstance(reward, Mapping):
        reward = {**reward, "judge": without_transport(reward.get("judge"))}
    return {**without_reach(scores), "reward": reward}
