"""Weights of the servers: the label that each carries, the version behind a label, and the hand-over of new ones."""

import secrets
from collections.abc import Callable
from pathlib import Path

from ramify.core.errors import EngineError
from ramify.core.records import version_folder
from ramify.engines.vllm.fit import Fit, release_note
from ramify.engines.vllm.replica import Replica
from ramify.net.failures import FailureKind, RequestFailedError

_UNTOUCHED = "default"
"""Label of weights that a server read when it started."""


class WeightSync:
    """Implements `ramify.engines.vllm.replica.Checks`: a server takes requests once it fits, with the weights of this step.

    Attributes:
        current: Label of the weights that were handed over last; None: none were.
        version: Their version.
    """

    def __init__(
        self, fit: Fit, folder: Path | None, changed: Callable[[], None], note: Callable[[str], None]
    ) -> None:
        """Begin with the weights that the servers have.

        Args:
            fit: The demands on a server.
            folder: Where new weights are found, by version; None: there will be none.
            changed: Called when a server changed its state.
            note: Receives a line about a release that was not tested.
        """
        self._fit, self._folder, self.changed, self._note = fit, folder, changed, note
        self.current: str | None = None
        self.version = 0
        # Labels of weights whose answers count, and their versions; empty before the first server was asked.
        self._versions: dict[str, int] = {}
        self._name, self._handed_over = f"ramify-{secrets.token_hex(4)}", 0

    def knows(self, label: str) -> bool:
        """Return True if answers by the weights of this label count."""
        return label in self._versions

    def version_of(self, label: str) -> int:
        """Return the version of a label that it knows."""
        return self._versions[label]

    def advance(self, version: int) -> None:
        """Make the weights of `version` the current ones; `hand_over` and `prepare` load them."""
        self._handed_over += 1
        label = f"{self._name}-{self._handed_over}"
        # Requests in flight go on with the new weights, so answers may name the old ones too.
        handed_over = {old: number for old, number in self._versions.items() if old.startswith(self._name)}
        self.current, self.version, self._versions = label, version, {**handed_over, label: version}

    def is_current(self, replica: Replica) -> bool:
        """Return True if a server has the current weights."""
        return replica.label == self.current and not replica.needs_weights

    async def hand_over(self, replica: Replica) -> None:
        """Load the current weights into a server that takes requests; one that fails is looked at, and prepared again."""
        async with replica.handing_over:
            if not replica.is_up or self.is_current(replica):
                return
            try:
                await self._load(replica)
            except RequestFailedError:
                replica.suspect()

    async def _load(self, replica: Replica) -> None:
        label = self.current
        assert self._folder is not None
        assert label is not None
        replica.prefixes.clear()
        # Until all of it has succeeded: a server that lost only the last answer would count as right, and stay paused.
        replica.needs_weights = True
        await replica.server.load(version_folder(self._folder, self.version), label)
        replica.label, replica.needs_weights = label, False
        self.changed()

    async def prepare(self, replica: Replica) -> None:
        """Check a server that has just answered, and give it the weights of this step.

        Raises:
            ConfigError: It is not the server that the recipe describes.
            EngineError: Its weights are none of this run.
            RequestFailedError: It does not answer.
        """
        info = await self._fit.look(replica.server)
        if not self._versions and (note := release_note(replica.url, info.version)):
            self._note(note)
        if not self._versions or (self.current is None and self._folder is not None):
            # Servers may hold anything before the first hand-over, if there will be one.
            self._versions[info.label] = 0
        replica.label = info.label
        if self.current is None or info.label == self.current:
            self._refuse_unknown(replica, info.label)
        elif info.label != _UNTOUCHED and not info.label.startswith(self._name):
            raise EngineError(
                f"engine 'vllm': {replica.url} has the weights {info.label!r} of another run; give each run servers of "
                "its own"
            )
        # Others may have been handed over while these were loaded.
        while self.current is not None and not self.is_current(replica):
            await self._load(replica)

    def _refuse_unknown(self, replica: Replica, label: str) -> None:
        if not self.knows(label):
            known = next(iter(self._versions))
            raise EngineError(
                f"engine 'vllm': {replica.url} has the weights {label!r}, others have {known!r}: somebody else "
                "loads weights into it"
            )

    async def check(self, replica: Replica) -> None:
        """Return if a server is healthy, awake, and has the weights of this step.

        Raises:
            RequestFailedError: It is not, or it started again.
        """
        await replica.server.health()
        label = await replica.server.label()
        if not self.knows(label) or (self.current is not None and label != self.current):
            raise RequestFailedError(FailureKind.SERVER, f"its weights are {label!r}, so it started again")
        if self.current is not None and not self.is_current(replica):
            raise RequestFailedError(FailureKind.SERVER, "a hand-over of weights to it failed")
        if self._fit.sleeps and await replica.server.is_asleep():
            raise RequestFailedError(FailureKind.SERVER, "it sleeps, or was paused")
