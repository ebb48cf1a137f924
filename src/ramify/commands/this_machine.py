"""What this machine has: versions, processors, memory, the level of the sandbox, GPUs, keys."""

import importlib
import os
import platform
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ramify import __version__
from ramify.core.errors import MachineError
from ramify.sandbox.levels import MAX_LEVEL, why_not

_GIB = 1 << 30
_KEYS = ("BRIGHTDATA_API_KEY", "SERPER_API_KEY", "JINA_API_KEY")
_PACKAGES = ("torch", "transformers", "tokenizers", "tantivy")
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def this_machine(level: int) -> Iterator[str]:
    """Yield lines about it; `level`: that the sandbox reaches."""
    yield row("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    yield row("ramify", __version__)
    for name in _PACKAGES:
        try:
            yield row(name, metadata.version(name))
        except metadata.PackageNotFoundError:
            yield row(name, "not installed")
    has_affinity = hasattr(os, "sched_getaffinity")
    yield row("cpus", str(len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1))
    yield row("memory", f"{_memory() / _GIB:.1f} GiB")
    untested = "" if platform.system() == "Linux" else ", which is untested on this system"
    yield row("sandbox", f"level {level} of {MAX_LEVEL}{untested}")
    yield from (
        row("", f"not level {higher}: {why_not(higher)}") for higher in range(level + 1, MAX_LEVEL + 1)
    )
    yield from (row("gpu", gpu) for gpu in _gpus())
    is_set = {name: bool(os.environ.get(name, "").strip()) for name in _KEYS}
    keys = {word: [name for name in _KEYS if is_set[name] == (word == "set")] for word in ("set", "not set")}
    yield row("keys", "; ".join(f"{', '.join(names)} {word}" for word, names in keys.items() if names))


def memory_of_device(device: str) -> int:
    """Return the memory of "cpu" or "cuda", in bytes.

    Raises:
        MachineError: There is no GPU.
    """
    if device == "cpu":
        return _memory()
    torch: Any = importlib.import_module("torch")
    if not torch.cuda.is_available():
        raise MachineError('model.device: expected a GPU, torch finds none; set it to "cpu"')
    return int(torch.cuda.get_device_properties(0).total_memory)


def row(name: str, text: str) -> str:
    """Return a line with its name before it."""
    return f"{name:14}{text}"


def _gpus() -> Iterator[str]:
    if find_spec("torch") is None:
        yield "unknown, torch is not installed"
        return
    torch: Any = importlib.import_module("torch")
    if torch.cuda.device_count() == 0:
        yield "none, models run on the CPU in float32"
    for index in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(index)
        yield f"{gpu.name}, {gpu.total_memory / _GIB:.1f} GiB"


def _memory() -> int:
    """Return the memory that this process may have: the machine's, or its control group's (a container) where that is less."""
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        return min(whole, int(_CGROUP_LIMIT.read_text(encoding="ascii")))
    except (OSError, ValueError):  # not Linux, another version of control groups, or "max"
        return whole
