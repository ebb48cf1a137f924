"""The phases of a quick start: their seconds, and clean-up when one fails."""

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
def emptied_on_error(out: Path) -> Iterator[None]:
    """Empty the new folder `out` if the block fails, so that the same command can be run again."""
    try:
        yield
    except BaseException:
        for path in out.iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        raise
