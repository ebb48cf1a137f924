"""What a score depends on, written before the first attempt: enough to make it again, and to refuse to mix two."""

import hashlib
import json
import platform
import subprocess
from collections.abc import Collection, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from ramify.config.build_reward import BuiltReward
from ramify.config.build_tools import Toolbox
from ramify.config.schema_eval import EvalRecipe
from ramify.core.errors import ConfigError, DataError
from ramify.core.json_text import MAX_DEPTH, parse_object
from ramify.core.messages import Problem
from ramify.eval.folder import MANIFEST
from ramify.eval.records import require_types
from ramify.obs.files import read_text, replace_file

SCHEMA = 2
_TRANSPORT = ("url", "http", "slots", "key_variable", "in_flight", "cache", "failures_to_stop")
_PACKAGES = ("ramify", "torch", "transformers", "tokenizers", "numpy", "tantivy", "math-verify", "sympy")


def make_manifest(
    recipe: EvalRecipe,
    toolbox: Toolbox,
    problems: Sequence[Problem],
    prompts: Sequence[str],
    tokenizer: str,
    reward: BuiltReward,
    notes: Sequence[str],
) -> dict[str, Any]:
    """Three parts: `scores`, which decides what the numbers mean, `notes` about the problems, and `made_with`.

    `made_with` is a list: the code and the packages of each session that made attempts, where they differ.

    Args:
        recipe: Of the evaluation; its `[run]` counts for the seed and for being deterministic only.
        toolbox: The tools, opened.
        problems: As they are attempted.
        prompts: As they are rendered.
        tokenizer: Fingerprint.
        reward: As it is built.
        notes: What was dropped, and what is to be known about the problems.

    Raises:
        DataError: The model's weights cannot be read.
    """
    table = recipe.model_dump(mode="json", exclude={"run"})
    scores = {
        **table,
        "seed": recipe.run.seed,
        "deterministic": recipe.run.deterministic,
        "weights": _weights(recipe),
        "tokenizer": tokenizer,
        "problems": {"count": len(problems), "sha256": problems_sha256(problems)},
        "prompts": {"first": prompts[0], "sha256": _sha256("\0".join(prompts))},
        "tool_identities": dict(toolbox.identities),
        "reward_identities": dict(reward.identities),
        "script_sha256": _script_sha256(recipe),
    }
    return {
        "schema": SCHEMA,
        "scores": scores,
        "notes": list(notes),
        "made_with": [made_with(recipe.model.device)],
    }


def made_with(device: str) -> dict[str, Any]:
    """Versions of the code and of what it runs on; `commit` is None outside of a git checkout.

    `device` is that of the recipe, "auto" for the one that is found.
    """
    import torch

    cuda = device != "cpu" and torch.cuda.is_available()
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "commit": _commit(),
        "python": platform.python_version(),
        "packages": versions,
        "device": torch.cuda.get_device_name() if cuda else "cpu",
    }


def problems_sha256(problems: Sequence[Problem]) -> str:
    """Of ids, messages and accepted answers, in order: two evaluations with the same one had the same problems."""
    told = [
        [problem.id, [[message.role, message.text] for message in problem.messages], list(problem.answer)]
        for problem in problems
    ]
    return _sha256(json.dumps(told, ensure_ascii=True))


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Write `manifest.json`."""
    replace_file(folder / MANIFEST, (json.dumps(manifest, indent=2) + "\n").encode())


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read `manifest.json`.

    Raises:
        DataError: It is missing, cannot be read, or is of a newer schema.
    """
    path = folder / MANIFEST
    try:
        record = parse_object(read_text(path), max_depth=2 * MAX_DEPTH)
        _check(record)
    except DataError:
        raise
    # A reader of foreign files: a field may hold anything.
    except Exception as error:  # noqa: BLE001
        raise DataError(
            f"{path}: expected the manifest of an evaluation, schema {SCHEMA}: {error!r:.200}"
        ) from None
    return record


def _check(record: Mapping[str, Any]) -> None:
    """See that what is read of a manifest is there."""
    if record["schema"] != SCHEMA:
        raise ValueError(f"schema {record['schema']!r:.40}")
    require_types(record, scores=dict, notes=list, made_with=list)
    if not all(isinstance(made, dict) for made in record["made_with"] or [None]):
        raise TypeError("'made_with': expected objects")
    scores = record["scores"]
    require_types(scores, problems=dict, sampling=dict, engine=dict, reward=dict, seed=int)
    require_types(scores["problems"], count=int, sha256=str)
    require_types(scores["sampling"], attempts=int)
    if scores["reward"].get("judge") is not None:
        require_types(scores["reward"], judge=dict)


def refuse_other(folder: Path, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """See that attempts of two evaluations are not mixed.

    Raises:
        ConfigError: What is in the folder was made with another model, other problems or other settings; names the first
            difference.
    """
    # What is written is compared with what was read: tuples have become lists on the way.
    plain = json.loads(json.dumps(wanted["scores"]))
    difference = _first_difference(_compared(found["scores"]), _compared(plain))
    if difference is not None:
        key, before, now = difference
        raise ConfigError(
            f"run.dir: {folder} holds an evaluation with {key} = {_shown(before)}, now it is {_shown(now)}; name a new "
            "folder, or go on with what it was"
        )


def _compared(scores: Mapping[str, Any]) -> dict[str, Any]:
    """Without prices, and without how the engine's and the judge's services are reached: no score depends on these."""
    engine = _without(scores["engine"], _TRANSPORT)
    reward = dict(scores["reward"])
    if reward.get("judge") is not None:
        reward["judge"] = _without(reward["judge"], _TRANSPORT)
    return {**_without(scores, ("price",)), "engine": engine, "reward": reward}


def _without(table: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key not in keys}


def _first_difference(before: Any, now: Any, key: str = "") -> tuple[str, Any, Any] | None:  # noqa: ANN401 - JSON
    if isinstance(before, dict) and isinstance(now, dict):
        for name in sorted({*before, *now}):
            place = f"{key}.{name}" if key else name
            found = _first_difference(before.get(name), now.get(name), place)
            if found is not None:
                return found
        return None
    return None if before == now else (key, before, now)


def _shown(value: Any) -> str:  # noqa: ANN401 - JSON
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _script_sha256(recipe: EvalRecipe) -> str | None:
    """Of the turns of a scripted engine; None for another one."""
    if recipe.engine.name != "scripted":
        return None
    return hashlib.sha256(recipe.engine.script.read_bytes()).hexdigest()


def _weights(recipe: EvalRecipe) -> dict[str, str] | None:
    """Checksums of the weights that the engine in this process runs on; None where another one has them."""
    if recipe.engine.name != "local":
        return None
    from ramify.modeling.model_config import is_adapter_folder, whole_folder
    from ramify.modeling.weight_checksums import weights_checksum

    folder = recipe.model.path
    own = {"model": weights_checksum(folder)}
    return {**own, "base": weights_checksum(whole_folder(folder))} if is_adapter_folder(folder) else own


def _commit() -> str | None:
    """Of the checkout that this code lies in; "-dirty" when its files differ from the commit."""
    here = Path(__file__).resolve().parents[1]
    try:
        asked = [
            subprocess.run(
                ["git", "-C", str(here), *words], capture_output=True, text=True, timeout=10, check=True
            ).stdout.strip()
            for words in (
                ("rev-parse", "HEAD"),
                ("status", "--porcelain", "--untracked-files=no", "--", str(here)),
            )
        ]
    except (OSError, subprocess.SubprocessError):
        return None
    head, changed = asked
    return f"{head}-dirty" if changed else head


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
