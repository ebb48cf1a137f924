"""Rows 15: a file of 53,971 alpaca rows, read and checked as `ramify sft` does, in a process of its own."""

import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.examples.alpaca_file import NUM_ROWS, AlpacaFile, write_file
from benchmarks.harness.family import RowFunction
from benchmarks.harness.interleave import MIN_RUNS
from benchmarks.harness.peers import Peer
from benchmarks.harness.rows import Row
from benchmarks.harness.tiny_model import words_of, write_tiny_tokenizer
from ramify.config import shipped_recipes
from ramify.config.load import read_toml

_CHILD = "benchmarks.examples.file_child"
_GIBI = 2**30
_MOST_GIB, _LEAST_RATE = 1.5, 500.0


def read_the_file() -> Sequence[Row]:
    """Rows 15.speed and 15.memory."""
    with tempfile.TemporaryDirectory() as folder:
        model, data = Path(folder, "model"), Path(folder, "final_sft_edition9_v2.json")
        write_tiny_tokenizer(model, seed=0)
        written = write_file(data, words_of(model))
        answers = [_read(model, data, folder) for _ in range(MIN_RUNS)]
    rates = [NUM_ROWS / answer["seconds"] for answer in answers]
    peaks = [answer["peak"] / _GIBI for answer in answers]
    repaired = f"in {written.escaped:,} of {NUM_ROWS:,} rows"
    right = all(
        answer["examples"] == NUM_ROWS - written.bad and any(repaired in note for note in answer["notes"])
        for answer in answers
    )
    settings = _settings(written, answers[-1])
    rate, peak = statistics.median(rates), max(peaks)
    return [
        Row(
            "15.speed",
            "rows a second that are read, rendered and checked",
            rate,
            None,
            rate,
            f">= {_LEAST_RATE:,.0f}, every planted fault found, every escaped program repaired",
            right and rate >= _LEAST_RATE,
            {"ours": rates},
            settings,
        ),
        Row(
            "15.memory",
            "GiB of resident memory at the peak, torch and all rows included",
            peak,
            None,
            peak,
            f"< {_MOST_GIB}",
            right and peak < _MOST_GIB,
            {"ours": peaks},
            settings,
        ),
    ]


def _read(model: Path, data: Path, folder: str) -> dict[str, Any]:
    recipe = read_toml(shipped_recipes() / "toolstar_sft.toml")
    recipe["model"] = {"path": str(model), "device": "cpu"}
    recipe["data"] |= {"train": str(data)}
    recipe["run"]["dir"] = f"{folder}/run"
    with Peer(_CHILD, Path(sys.executable)) as child:
        return child.ask({"recipe": recipe})


def _settings(written: AlpacaFile, answer: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "rows": NUM_ROWS,
        "file_mb": round(written.size / 1e6),
        "planted_faults": written.bad,
        "escaped_programs": written.escaped,
        "gib_before_the_file": round(answer["before"] / _GIBI, 2),
        "notes": answer["notes"],
        "recipe": "recipes/toolstar_sft.toml with the tokenizer of benchmarks/harness/tiny_model.py",
    }


ROWS: Mapping[str, RowFunction] = {"15.speed": read_the_file, "15.memory": read_the_file}
