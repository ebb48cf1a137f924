"""`make gpu`: every GPU test and every figure of one GPU, within nine minutes and without a network, into one JSON file.

Each part is a process of its own with a time limit, so that an error of the device or a hang costs that part alone. What
was measured before stays, and the file is written again after every part. Without a GPU each part says that it is skipped.
"""

import argparse
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks.gpu.figures import Figure, not_measured
from benchmarks.gpu.parts import BUDGET, PARTS, seconds_together

_ROOT = Path(__file__).parents[2]
_TAIL = 2000
"""Characters of a part's output that are kept beside its figures."""
_FIGURE = '{"row": '
"""How a line begins that is a figure."""

_Measure: TypeAlias = Callable[[], Iterator[Figure]]


@dataclass(frozen=True, slots=True)
class Part:
    """What became of one process. `exit` is None if it was stopped at its limit; `output` is the end of what it said."""

    name: str
    seconds: float
    exit: int | None
    output: str


def main() -> int:
    """Run all parts, or in a child one of them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu")
    parser.add_argument("--out", type=Path, help="the JSON file (default: gpu.json in $OUT, or in runs/)")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    parser.add_argument("--parts", metavar="NAME,..", help=f"of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = options.parts.split(",") if options.parts else list(PARTS)
    if unknown := [name for name in names if name not in PARTS]:
        parser.error(f"--parts: {', '.join(unknown)}: expected names of {', '.join(PARTS)}")
    if (missing := no_gpu()) is not None:
        for name in names:
            print(f"{name:14} skipped: {missing}; about {PARTS[name].seconds} s: {PARTS[name].proves}")
        print(f"all parts take about {seconds_together()} s of {BUDGET} on one H100")
        return 0
    if options.part:
        part = PARTS[options.part]
        assert part.module is not None
        print_figures(getattr(importlib.import_module(part.module), part.function), part.proves)
        return 0
    out: Path = options.out or Path(os.environ.get("OUT", _ROOT / "runs")) / "gpu.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    print(f"about {sum(PARTS[name].seconds for name in names)} s", file=sys.stderr, flush=True)
    return _run_parts(names, out, options.json)


def no_gpu() -> str | None:
    """Why there is nothing to measure here; None: there is a GPU."""
    try:
        import torch
    except ImportError:
        return "no GPU: torch is not installed"
    return None if torch.cuda.is_available() else "no GPU"


def print_figures(measure: _Measure, proves: str) -> None:
    """Print figures as they come. A failure ends those of one function only, and is one of them: what it was to prove is open."""
    try:
        for figure in measure():
            print(figure.as_json, flush=True)
            _free()
    # Whatever goes wrong is part of the result.
    except Exception as error:  # noqa: BLE001
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
        print(not_measured(measure.__name__, reason, proves).as_json, flush=True)


def _free() -> None:
    import torch

    gc.collect()
    torch.cuda.empty_cache()


def _run_parts(names: Sequence[str], out: Path, as_json: bool) -> int:
    started, parts, figures = time.monotonic(), list[Part](), list[Figure]()
    for name in names:
        planned = PARTS[name]
        left = BUDGET - (time.monotonic() - started)
        if left < 1:
            figures.append(not_measured(name, "no time was left", planned.proves))
        else:
            part, measured = run_part(name, planned.arguments(name), min(left, planned.limit))
            parts.append(part)
            last = part.output.splitlines()[-1:]
            print(
                f"{name}: {part.seconds:.0f} s of about {planned.seconds}", *last, file=sys.stderr, flush=True
            )
            if part.exit != 0:
                stopped = f"stopped after {part.seconds:.0f} s" if part.exit is None else f"exit {part.exit}"
                measured.append(not_measured(name, f"{stopped}: see parts", planned.proves))
            figures.extend(measured)
            for figure in measured:
                print(figure.as_json if as_json else figure.in_words, flush=True)
        record = {
            "machine": _machine(),
            "seconds": time.monotonic() - started,
            "parts": [asdict(part) for part in parts],
            "figures": [asdict(figure) for figure in figures],
        }
        partial = out.with_suffix(".partial")
        partial.write_text(json.dumps(record, indent=1), encoding="utf-8")
        partial.replace(out)
    print(f"{out}: {len(figures)} figures", file=sys.stderr)
    return 0 if all(part.exit == 0 for part in parts) else 1


def run_part(name: str, arguments: Sequence[str], seconds: float) -> tuple[Part, list[Figure]]:
    """Run Python with these arguments for so long at most; returns also the figures that it printed."""
    started = time.monotonic()
    environment = {**os.environ, "PYTHONPATH": f"{_ROOT / 'src'}:{_ROOT}", "HF_HUB_OFFLINE": "1"}
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=_ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        printed, _ = process.communicate(timeout=seconds)
        status: int | None = process.returncode
    except subprocess.TimeoutExpired:
        # Torch's compiler has processes of its own, which hold the pipe open.
        os.killpg(process.pid, signal.SIGKILL)
        printed, _ = process.communicate()
        status = None
    lines = printed.splitlines()
    output = "\n".join(line for line in lines if not line.startswith(_FIGURE))[-_TAIL:]
    figures = [Figure(**json.loads(line)) for line in lines if line.startswith(_FIGURE)]
    return Part(name, time.monotonic() - started, status, output), figures


def _machine() -> Mapping[str, Any]:
    import platform

    import torch
    import transformers

    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": properties.name,
        "memory_gib": properties.total_memory / 2**30,
        "capability": [properties.major, properties.minor],
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "transformers": transformers.__version__,
    }


if __name__ == "__main__":
    sys.exit(main())
