"""What took how long, keyed by node; kept apart from the trace because no two runs agree on it."""

from pathlib import Path

from ramify.core.protocols import Event
from ramify.obs.files import dump_line, replace_lines


class TimingLog:
    """Collects events (an `EventSink`) until they are written."""

    def __init__(self) -> None:
        self._events: list[Event] = []

    def emit(self, event: Event) -> None:
        """Keep one event in memory."""
        self._events.append(event)

    def flush(self, path: Path) -> None:
        """Write the events since the last flush as JSON lines (`timing/STEP.jsonl`) and forget them."""
        replace_lines(
            path,
            [
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
            ],
        )
        self._events.clear()
