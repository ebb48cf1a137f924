"""A disk that takes no large files, as a quota does."""

import resource
from contextlib import contextmanager


@contextmanager
def file_size_limit(size):
    """No file of this process grows beyond `size` bytes while the block runs."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
