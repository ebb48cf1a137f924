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

_GIB = 1 << 30
_KEYS = ("BRIGHTDATA_API_KEY", "SERPER_API_KEY", "JINA_API_KEY")
_PACKAGES = ("torch", "transformers", "tokenizers", "tantivy")
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def this_machine(level: int) -> Iterator[str]:
    """Lines about it; `level`: that the sandbox reaches."""
    yield from _machine()
    yield from _sandbox(level)
    yield from _devices()
    yield _keys()


def _machine() -> Iterator[str]:
    yield row("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    yield row("ramify", __version__)
    for name in _PACKAGES:
        try:
            yield row(name, metadata.version(name))
        except metadata.PackageNotFoundError:
            yield row(name, "not installed")
    yield row("cpus", str(num_cpus()))
    yield row("memory", f"{memory_bytes() / _GIB:.1f} GiB")


def _sandbox(level: int) -> Iterator[str]:
    from ramify.sandbox.levels import MAX_LEVEL, why_not

    untested = "" if platform.system() == "Linux" else ", which is untested on this system"
    yield row("sandbox", f"level {level} of {MAX_LEVEL}{untested}")
    for higher in range(level + 1, MAX_LEVEL + 1):
        yield row("", f"not level {higher}: {why_not(higher)}")


def _keys() -> str:
    found = [name for name in _KEYS if os.environ.get(name, "").strip()]
    missing = [name for name in _KEYS if name not in found]
    return row(
        "keys",
        "; ".join(
            f"{', '.join(names)} {word}" for names, word in ((found, "set"), (missing, "not set")) if names
        ),
    )


def _devices() -> Iterator[str]:
    if find_spec("torch") is None:
        yield row("gpu", "unknown, torch is not installed")
        return
    torch: Any = importlib.import_module("torch")
    count = torch.cuda.device_count()
    if not count:
        yield row("gpu", "none, models run on the CPU in float32")
    for index in range(count):
        found = torch.cuda.get_device_properties(index)
        yield row("gpu", f"{found.name}, {found.total_memory / _GIB:.1f} GiB")


def memory_of_device(device: str) -> int:
    """Memory of "cpu" or "cuda", in bytes.

    Raises:
        MachineError: There is no GPU.
    """
    if device == "cpu":
        return memory_bytes()
    torch: Any = importlib.import_module("torch")
    if not torch.cuda.is_available():
        raise MachineError('model.device: expected a GPU, torch finds none; set it to "cpu"')
    return int(torch.cuda.get_device_properties(0).total_memory)


def num_cpus() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_bytes() -> int:
    """Memory that this process may have: the machine's, or less where its control group (a container) is limited."""
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        return min(whole, int(_CGROUP_LIMIT.read_text(encoding="ascii")))
    except (OSError, ValueError):  # not Linux, another version of control groups, or "max"
        return whole


def row(name: str, text: str) -> str:
    """A line with its name before it."""
    return f"{name:14}{text}"
