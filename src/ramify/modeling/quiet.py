"""Silences transformers: ramify itself reports what is wrong with a folder, in one line."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from transformers.utils.logging import disable_progress_bar, get_verbosity, set_verbosity

disable_progress_bar()  # type: ignore[no-untyped-call]  # the command line draws its own


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Inside the block, transformers logs nothing and Python prints no warnings."""
    before = get_verbosity()
    set_verbosity(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        set_verbosity(before)
