"""What a zygote imports once for all its snippets. Standard library only."""

import contextlib
import os
import sys
from collections.abc import Sequence

# Modules that snippets often use. Each one also makes every fork a little slower.
_MODULES = """
bisect cmath collections datetime decimal fractions functools heapq itertools json math operator random re statistics
string time
"""
_ONE_THREAD = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


def preload(modules: Sequence[str], paths: Sequence[str]) -> None:
    """Import the modules that snippets often use, and `modules` from `paths`.

    The paths do not stay in `sys.path`: a package finds its own parts without them, and nothing else there can be
    imported.
    """
    for name in _MODULES.split():
        __import__(name)
    sys.path += paths
    os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))
    for name in modules:
        with contextlib.suppress(ImportError) if "." in name else contextlib.nullcontext():
            __import__(name)
    os.environ.clear()
    del sys.path[len(sys.path) - len(paths) :]


def forget_ourselves() -> None:
    """Remove ramify from `sys.modules`, so that snippets cannot import it. Existing references stay valid."""
    for name in [name for name in sys.modules if name.split(".")[0] == "ramify"]:
        del sys.modules[name]
