"""Signs of life between ranks: what ends one ends all, also where nothing is heard of it any more.

Rank 0 gives them to all others. One rank of each other machine gives them to rank 0: a process that ends closes its connections,
but a machine that is gone closes none, and a collective would wait for it for half an hour.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count

from ramify.core.rank import Rank
from ramify.learner.post import Post
from ramify.learner.seal import EVERY_RANK, ForgedError

_BEAT_SECONDS = 2.0
SILENCE_SECONDS = 120.0
"""After this long without a sign of life from rank 0 the others end, and rank 0 if it waits for another machine that gives none."""
_PATIENCE_SECONDS = 20.0
"""After this long in a collective that a failed rank will not join, the run ends."""
GONE = "another rank is gone. Earlier checkpoints are whole: go on with --resume"


class Pulse:
    """The signs of life of a rank, which count up, so that an old one shows no life."""

    def __init__(self, post: Post, sender: int) -> None:
        self._post, self.sender = post, sender
        self.latest, self.since = 0, time.monotonic()

    def silence(self) -> float:
        """Return the seconds since the last sign was read."""
        latest = int(self._post.read("beat", sender=self.sender) or b"0")
        if latest > self.latest:
            self.latest, self.since = latest, time.monotonic()
        return time.monotonic() - self.since


def show_life(post: Post, rank: Rank) -> None:
    """Show that another machine lives. A machine that is gone closes no connection, and collectives would wait for it."""
    pulse = Pulse(post, 0)
    # Where the store is gone with rank 0's machine, nothing comes back from it.
    threading.Thread(target=_end_in_silence, args=(pulse,), daemon=True).start()
    for number in count(1):
        with suppress(RuntimeError, ForgedError):
            # One rank for its machine.
            if rank.local == 0:
                post.send("beat", b"%d" % number, sender=rank.number)
            pulse.silence()
        time.sleep(_BEAT_SECONDS)


def _end_in_silence(pulse: Pulse) -> None:
    while time.monotonic() - pulse.since <= SILENCE_SECONDS:
        time.sleep(_BEAT_SECONDS)
    os._exit(1)


def watch(post: Post, rank: Rank, waits_since: Callable[[], float | None], ended: threading.Event) -> None:
    """Show that rank 0 lives; end it if it waits in a collective for a rank that has failed, or whose machine is gone."""
    pulses = [Pulse(post, other) for other in range(1, rank.size) if not rank.on_one_machine]
    for number in count(1):
        if ended.wait(_BEAT_SECONDS):
            return
        try:
            post.send("beat", b"%d" % number)
            since = waits_since()
            if since is None or time.monotonic() - since <= _PATIENCE_SECONDS:
                continue
            if (failure := post.read("failed", sender=EVERY_RANK)) is not None:
                print_error(failure.decode())
                os._exit(1)
            for pulse in pulses:
                silence = pulse.silence()
                if pulse.latest and silence > SILENCE_SECONDS:
                    print_error(f"rank {pulse.sender}: no sign of life for {silence:.0f} s, so {GONE}")
                    os._exit(1)
        except ForgedError as error:
            print_error(f"{error}")
            os._exit(1)
        except RuntimeError:
            # The disk may be full for a moment.
            continue


def print_error(message: str) -> None:
    """Write a line of a rank that nobody else can tell."""
    sys.stderr.write(f"error: {message}\n")
    sys.stderr.flush()
