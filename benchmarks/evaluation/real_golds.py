"""Golds of real data, and published cases, where `RAMIFY_SHARED` names their folder."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet

from benchmarks.evaluation.notations import Kind

NO_DATA = "set RAMIFY_SHARED to the folder of the data"


@dataclass(frozen=True, slots=True)
class Gold:
    """An accepted answer, and how it is compared."""

    text: str
    kind: Kind


def shared_folder() -> Path | None:
    """The folder of the data; None where there is none."""
    folder = os.environ.get("RAMIFY_SHARED")
    return Path(folder) if folder and (Path(folder) / "data" / "rl").is_dir() else None


def training_golds(folder: Path) -> list[Gold]:
    """Golds of the training rows that are not blank."""
    rows = parquet.read_table(folder / "data" / "rl" / "train_10k.parquet").to_pylist()
    return _as_golds([row["reward_model"]["ground_truth"] for row in rows])


def all_golds(folder: Path) -> list[Gold]:
    """Golds of all rows of training and evaluation data, blank ones left out."""
    texts: list[Any] = []
    for path in sorted((folder / "data" / "rl").glob("*.parquet")):
        texts += [row["reward_model"]["ground_truth"] for row in parquet.read_table(path).to_pylist()]
    for path in sorted((folder / "data" / "eval").glob("*/test.jsonl")):
        answers = [json.loads(line)["answer"] for line in path.read_text("utf-8").splitlines()]
        if path.parent.name == "gsm8k":
            answers = [answer.rpartition("#### ")[2].replace(",", "") for answer in answers]
        texts += [gold for answer in answers for gold in (answer if isinstance(answer, list) else [answer])]
    return _as_golds([str(text) for text in texts])


def _as_golds(texts: list[str]) -> list[Gold]:
    from ramify.rewards.math_equal import is_mathematical

    return [Gold(text, "mathematics" if is_mathematical(text) else "words") for text in texts if text.strip()]
