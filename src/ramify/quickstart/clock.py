"""The phases of a quick start: how long each took, and nothing half made when one fails."""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Clock:
    """Wall-clock seconds by phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure the block."""
        started = time.monotonic()
        yield
        self.seconds[name] = round(time.monotonic() - started, 1)


@contextmanager
def nothing_half_made(out: Path) -> Iterator[None]:
    """If the block fails, remove what it made in the new folder `out`, so that the same command can be run again."""
    try:
        yield
    except BaseException:
        for made in out.iterdir():
            shutil.rmtree(made) if made.is_dir() and not made.is_symlink() else made.unlink()
        raise
