"""A recipe trained end to end on the machine at hand, in 45 minutes at most and without a network: a row of a table "tested on".

    PYTHONPATH=src:. python -m benchmarks.gpu.tested_on recipes/arpo_qwen2.5_1.5b_lora_24gb.toml --model FOLDER

It teaches the model the form on demonstrations (SFT), trains it by the recipe, and compares held-out problems before and after.
The task is the word problems of `make quickstart-lm`: small, made here, with search and Python. Beside the score stand the
seconds of a step, and the peak of the memory beside what `ramify doctor` says. Without a GPU it measures the CPU.
"""

import argparse
import json
import os
import re
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from ramify.config.load import read_toml
from ramify.obs.metrics import read_metrics
from ramify.quickstart.example import search_tool
from ramify.quickstart.word_problems import demonstration_rows, passages, problem_rows
from ramify.quickstart.world_files import write_rows

_ROOT = Path(__file__).parents[2]
_COLD_START = _ROOT / "recipes" / "sft_qwen2.5_0.5b_24gb.toml"
_SHARES = {"cold start": 0.25, "training": 1.0}
"""Of the time that is left, what a part may take."""
_SAVING_SECONDS = 120
_ADAPTER_RATE = 1e-4
"""Of the cold start of an adapter, as its recipe says."""


@dataclass(slots=True)
class Peak:
    """The most memory in use at a look, in GiB: of the first GPU, or without one of the child processes."""

    card: str = "CPU"
    gigabytes: float = 0.0
    whole: float = 0.0
    _ended: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Look once a second while the block runs."""
        watcher = threading.Thread(target=self._watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            self._ended.set()
            watcher.join()
            if self.card == "CPU":
                self.gigabytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20

    def _watch(self) -> None:
        if shutil.which("nvidia-smi") is None:
            return
        query = ["nvidia-smi", "--query-gpu=name,memory.used,memory.total", "--format=csv,noheader,nounits"]
        while not self._ended.wait(1.0):
            first = subprocess.run(query, capture_output=True, text=True, check=False).stdout.partition("\n")[
                0
            ]
            if first.count(",") == 2:
                self.card, used, whole = first.split(", ")
                self.whole = float(whole) / 1024
                self.gigabytes = max(self.gigabytes, float(used) / 1024)


def main() -> int:
    """Run the parts and print the row; 1 if a part failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.tested_on")
    parser.add_argument("recipe", type=Path, help="a recipe of `ramify train` for one GPU")
    parser.add_argument("--model", type=Path, required=True, help="the folder of its model")
    parser.add_argument("--out", type=Path, default=_ROOT / "runs" / "tested_on", help="a new folder")
    parser.add_argument("--minutes", type=float, default=45.0)
    parser.add_argument("--demonstrations", type=int, default=960)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument(
        "--tests", type=int, default=210, help="held-out problems, tried once before and after"
    )
    parser.add_argument("-s", dest="settings", action="append", default=[], help="a key of the recipe")
    options = parser.parse_args()
    until = time.monotonic() + 60 * options.minutes
    out: Path = options.out
    out.mkdir(parents=True)
    _write_task(out, options.demonstrations, options.tests)
    model, steps = read_toml(options.recipe)["model"], options.steps
    adapter = "lora" in model
    search = {"provider": "local", "corpus": out / "passages.jsonl", "top_k": 2, "snippet_chars": 200}
    cold = [
        *(
            f"model.path={options.model}",
            f"data.train={out / 'demonstrations.jsonl'}",
            f"run.dir={out / 'sft'}",
        ),
        *("data.epochs=1", "data.max_tokens=1024", "learner.optimizer.warmup_steps=3"),
        *(("model.lora={}", f"learner.optimizer.rate={_ADAPTER_RATE}") if adapter else ()),
        *([f"model.dtype={model['dtype']}"] if "dtype" in model else ()),
        *(setting for setting in options.settings if setting.startswith("model.")),
    ]
    status = _ramify(["sft", str(_COLD_START)], cold, _SHARES["cold start"] * (until - time.monotonic()))
    started = max((out / "sft" / "checkpoints").glob("step-*"), default=None)
    if status or started is None:
        print("the cold start failed", file=sys.stderr)
        return 1
    trained = [
        # The adapter of the cold start is trained further.
        *(("model.lora=",) if adapter else ()),
        *(f"model.path={started}", f"data.train={out / 'train.jsonl'}", f"run.dir={out / 'rl'}"),
        *(f"run.steps={steps}", f"run.save_every={steps}", "preflight.allow_zero_variance=true"),
        *(f"tools.search.{key}={value}" for key, value in search.items()),
        *(f"eval.test={out / 'test.jsonl'}", f"eval.every={steps}", "eval.at_start=true"),
        *options.settings,
    ]
    peak = Peak()
    with peak.watched():
        status = _ramify(
            ["train", str(options.recipe)], trained, _SHARES["training"] * (until - time.monotonic())
        )
    if status:
        print("training failed", file=sys.stderr)
        return 1
    # Doctor's figure is that of the recipe as it stands, on its own model.
    settings = [*(word for word in trained if not word.startswith("model.")), f"model.path={options.model}"]
    estimate = _estimate(options.recipe, [*settings, *options.settings], peak.whole)
    print(_row(options.recipe.stem, options.model.name, out / "rl", peak, estimate))
    return 0


def _write_task(out: Path, demonstrations: int, tests: int) -> None:
    write_rows(out / "passages.jsonl", passages())
    write_rows(out / "train.jsonl", problem_rows("train", 2000, 0))
    write_rows(out / "test.jsonl", problem_rows("test", tests, 0))
    with search_tool("smollm2", out / "passages.jsonl") as search:
        rows = list(demonstration_rows(demonstrations, 0, lambda query: search(None, query)))
    write_rows(out / "demonstrations.jsonl", rows)


def _ramify(command: Sequence[str], settings: Sequence[str], seconds: float) -> int:
    """Run a command for so long at most: it saves its state when its time is over; returns its status, 0 then too."""
    words = [word for setting in settings for word in ("-s", setting)]
    print(f"ramify {' '.join([*command, *words])}", file=sys.stderr, flush=True)
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    process = subprocess.Popen([sys.executable, "-m", "ramify", *command, *words], env=environment)
    try:
        return process.wait(max(seconds, 1.0))
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(_SAVING_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return 1
    return 0


def _estimate(recipe: Path, settings: Sequence[str], gigabytes: float) -> str:
    """Return doctor's figure for the card; "-" where there is none."""
    words = [word for setting in settings for word in ("-s", setting)]
    command = ["doctor", str(recipe), *(("--gpu-memory", f"{gigabytes:.1f}") if gigabytes else ()), *words]
    run = subprocess.run(
        [sys.executable, "-m", "ramify", *command], capture_output=True, text=True, check=False
    )
    total = re.search(r"([\d.,]+ [GM]iB)  together", run.stdout)
    return total[1] if total else "-"


def _row(recipe: str, model: str, run: Path, peak: Peak, estimate: str) -> str:
    """Return the table's head and the row of a run that has ended, or was stopped at its time."""
    import torch

    steps = read_metrics(run / "metrics.jsonl")
    times = [ended for row in steps if (ended := row["time"]) is not None]
    seconds = [after - before for before, after in pairwise(times)]
    path = run / "evals.jsonl"
    scores = [row["eval/pass@1"] for row in read_metrics(path)] if path.exists() else []
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=_ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    cells = {
        "card": peak.card,
        "recipe": recipe,
        "model": model,
        "steps": str(len(steps)),
        "seconds a step": f"{statistics.median(seconds):.1f}" if seconds else "-",
        "peak memory": f"{peak.gigabytes:.1f} GiB",
        "doctor says": estimate,
        "reward, first and last step": " to ".join(
            f"{row['reward/mean']:.2f}" for row in (steps[0], steps[-1])
        ),
        "right before and after": " to ".join(f"{score:.1%}" for score in scores) or "-",
        "torch": torch.__version__,
        "commit": commit or "-",
    }
    record = run.parent / "tested_on.json"
    record.write_text(json.dumps(cells, indent=1) + "\n", encoding="utf-8")
    lines = (cells.keys(), ("---",) * len(cells), cells.values())
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
