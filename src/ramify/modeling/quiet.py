"""Transformers without its own reports: what is wrong with a folder is said by ramify, in one line."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from transformers.utils.logging import disable_progress_bar, get_verbosity, set_verbosity

disable_progress_bar()  # type: ignore[no-untyped-call]  # the command line draws its own


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Inside, transformers and Python's warnings print nothing."""
    before = get_verbosity()
    set_verbosity(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        set_verbosity(before)
