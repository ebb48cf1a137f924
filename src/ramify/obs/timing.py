"""How long things took, keyed by node; kept apart from the trace because no two runs agree on it."""

from dataclasses import asdict
from pathlib import Path

from ramify.core.call_clock import HeldUp
from ramify.core.protocols import Event
from ramify.obs.files import dump_line, replace_lines


class TimingLog:
    """Collects events (an `EventSink`) until they are written."""

    def __init__(self) -> None:
        self._events: list[Event] = []

    def emit(self, event: Event) -> None:
        """Keep one event in memory."""
        self._events.append(event)

    def flush(self, path: Path, held_up: HeldUp) -> None:
        """Write the events since the last flush as JSON lines (`timing/STEP.jsonl`) and drop them from memory.

        The first line says how long the agent's event loop was blocked in that time.
        """
        replace_lines(
            path,
            [
                dump_line({"kind": "event_loop", **asdict(held_up)}),
                *(
                    dump_line(
                        {
                            "kind": event.kind,
                            "tree": event.tree,
                            "node": event.node,
                            "seconds": event.seconds,
                            "fields": dict(event.fields),
                        }
                    )
                    for event in self._events
                ),
            ],
        )
        self._events.clear()
