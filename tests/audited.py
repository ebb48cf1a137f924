"""What happens elsewhere just before this process does something to a file (audit events of Python, PEP 578)."""

import sys
from contextlib import contextmanager


@contextmanager
def just_before(event, path, action):
    """Call `action` once, just before the block raises the event for that path, in the thread that raises it."""
    pending = [action]

    def look(happened, arguments):
        # A hook stays for the life of the process.
        if pending and happened == event and str(arguments[0]) == str(path):
            pending.pop()()

    sys.addaudithook(look)
    try:
        yield
    finally:
        pending.clear()
