"""One thread on every side; must be called before numpy or torch is imported."""

import os

NUM_THREADS = 1
_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")


def thread_environment() -> dict[str, str]:
    """Environment variables that hold a child process to `NUM_THREADS`."""
    return dict.fromkeys(_VARIABLES, str(NUM_THREADS))


def pin_threads() -> None:
    """Hold this process to `NUM_THREADS`."""
    os.environ.update(thread_environment())
