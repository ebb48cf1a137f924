"""Ways of new weights into servers: through a folder that they read, or bucket by bucket over a wire."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

from ramify.core.errors import EngineError, RamifyError
from ramify.core.protocols import WeightBuckets
from ramify.core.records import version_folder
from ramify.engines.vllm.middleware.ramify_weights import AbsentError
from ramify.engines.vllm.replica import Replica
from ramify.engines.vllm.server import transfer_seconds
from ramify.engines.vllm.weight_checks import WeightChecks
from ramify.engines.vllm.wires import SECONDS, Wire, WireError
from ramify.net.failures import FailureKind, RequestFailedError

_ATTEMPTS = 2
"""A server that dies ends the pass for all; the others get another one."""
_LINGER_SECONDS = SECONDS + 15.0
"""How long servers may take to notice that a pass has ended early: the limit of gloo's own waits, and a little."""
_MAX_REASON = 200
_BYTES = {"float32": 4, "bfloat16": 2}

Value = TypeVar("Value")
Failures: TypeAlias = dict[Replica, RequestFailedError]
"""Servers that did not take the weights, and the reason of each."""


class Carrier(Protocol):
    """A way of weights into servers."""

    async def carry(self, replicas: Sequence[Replica], version: int, label: str) -> Failures:
        """Have servers load the weights of `version`, and take `label` for them. Requests in flight wait.

        One that fails may have the old weights, new ones or some of both.
        """
        ...


class FolderCarrier:
    """Implements `Carrier`: each server reads the folder of the version."""

    def __init__(self, folder: Path) -> None:
        """Carry what lies in `folder`."""
        self._folder = folder

    async def carry(self, replicas: Sequence[Replica], version: int, label: str) -> Failures:
        """See `Carrier`."""
        folder = version_folder(self._folder, version)
        size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
        seconds = transfer_seconds(size)
        _, failures = await _settled({r: r.server.load(folder, label, seconds) for r in replicas})
        return failures


class BucketCarrier:
    """Implements `Carrier`: one pass over the learner's weights reaches all servers, bucket by bucket.

    Attributes:
        weights: The learner's weights; None: no learner was named yet.
    """

    def __init__(self, wire: Wire) -> None:
        """Carry over `wire`."""
        self._wire = wire
        self.weights: WeightBuckets | None = None
        self._joined: tuple[Replica, ...] = ()
        self._checks = WeightChecks()
        self._lock = asyncio.Lock()

    async def carry(self, replicas: Sequence[Replica], version: int, label: str) -> Failures:  # noqa: ARG002 - of the protocol
        """See `Carrier`.

        Raises:
            DataError: A weight is NaN or infinite.
            EngineError: There is no learner.
        """
        if self.weights is None:
            raise EngineError("engine.weights: no learner hands over weights here. Leave that key out.")
        failures: Failures = {}
        left = tuple(replicas)
        async with self._lock:
            for _ in range(_ATTEMPTS):
                failed = await self._pass(left, self.weights, label)
                failures = {r: error for r, error in failures.items() if r not in left} | failed
                healthy = await asyncio.gather(*(r.is_healthy() for r in failed))
                # One whose worker hangs would end the next pass for the others too, though its /health answers.
                left = tuple(
                    r
                    for (r, failure), lives in zip(failed.items(), healthy, strict=True)
                    if lives and failure.kind is not FailureKind.TIMEOUT
                )
                if not left:
                    break
        return failures

    def remove(self) -> None:
        """Free the wire; a second time does nothing."""
        self._end()
        self._wire.remove()

    async def close(self) -> None:
        """See `remove`."""
        self.remove()

    async def _pass(self, replicas: tuple[Replica, ...], weights: WeightBuckets, label: str) -> Failures:
        if self._joined != replicas and (failures := await self._join(replicas, weights)):
            return failures
        about = self._wire.announce(weights, label)
        seconds = transfer_seconds(sum(map(math.prod, weights.shapes.values())) * _BYTES[weights.dtype])

        async def give(replica: Replica, sent: Awaitable[Mapping[str, str]]) -> None:
            async with replica.server.taking_weights(label):
                await replica.server.receive(about, seconds)
                # Cancelling this must leave our end to be waited for: a thread sends.
                await self._checks.look(replica.server, await asyncio.shield(sent), weights)

        return await self._together(lambda: self._wire.send(weights), dict.fromkeys(replicas, give))

    async def _join(self, replicas: tuple[Replica, ...], weights: WeightBuckets) -> Failures:
        """Have the servers and the learner meet; nothing may be left of an earlier meeting."""
        self._end()
        _, _ = await _settled({r: r.within_limit(r.server.leave()) for r in replicas})
        sizes, failures = await _settled({r: r.within_limit(r.server.world_size()) for r in replicas})
        if failures:
            return failures
        ends = list(accumulate((sizes[r] for r in replicas), initial=1))
        about = dict(zip(replicas, self._wire.meet(weights, ends[:-1], ends[-1]), strict=True))

        async def meet(replica: Replica, _: Awaitable[None]) -> None:
            await replica.server.join(about[replica], SECONDS + 2 * _LINGER_SECONDS)

        def join() -> None:
            try:
                self._wire.join()
            except AbsentError as error:
                absent = [
                    r.url
                    for r, first, end in zip(replicas, ends[:-1], ends[1:], strict=True)
                    if not {*range(first, end)}.isdisjoint(error.ranks)
                ]
                raise WireError(f"{', '.join(absent)} did not come within {SECONDS:g} s") from None

        failures = await self._together(join, dict.fromkeys(replicas, meet))
        if not failures:
            self._joined = replicas
        return failures

    async def _together(
        self,
        ours: Callable[[], Value],
        theirs: Mapping[Replica, Callable[[Replica, Awaitable[Value]], Awaitable[None]]],
    ) -> Failures:
        """Run our end in a thread beside the servers' ends; if one fails, end the others too.

        Raises:
            RamifyError: It does not concern a server.
        """
        own = asyncio.ensure_future(asyncio.to_thread(ours))
        tasks = {r: asyncio.ensure_future(work(r, own)) for r, work in theirs.items()}
        every: set[asyncio.Future[Any]] = {own, *tasks.values()}
        has_ended = False
        try:
            await asyncio.wait(every, return_when=asyncio.FIRST_EXCEPTION)
            if any(task.done() and task.exception() is not None for task in every):
                self._end()
                await asyncio.wait(every, timeout=_LINGER_SECONDS)
                for replica, task in tasks.items():
                    # It waits for a learner that is gone, and would let a last request to it wait too.
                    if not task.done() and replica.process is not None:
                        replica.process.kill()
            has_ended = True
        finally:
            if not has_ended:
                self._end()
            for task in tasks.values():
                task.cancel()
            # A thread cannot be cancelled, but what it waits for has been closed.
            await asyncio.wait(every)
            for ended in every:
                # asyncio prints a traceback of an error that nobody looked at.
                _ = ended.cancelled() or ended.exception()
        if isinstance(error := own.exception(), RamifyError):
            raise error
        return {r: failure for r, task in tasks.items() if (failure := _failure(r, task, own)) is not None}

    def _end(self) -> None:
        self._joined = ()
        self._wire.stop()


def _failure(
    replica: Replica, task: "asyncio.Future[None]", own: "asyncio.Future[Any]"
) -> RequestFailedError | None:
    """Return why a server did not do its part, if so."""
    if task.cancelled():
        remedy = "" if replica.process is not None else ". Start it again"
        reason = f"{replica.url} did not end within {_LINGER_SECONDS:g} s a hand-over that failed{remedy}"
        return RequestFailedError(FailureKind.TIMEOUT, reason)
    error = task.exception() or own.exception()
    if error is None or isinstance(error, RequestFailedError):
        return error
    if isinstance(error, RamifyError):
        raise error
    reason = " ".join(str(error).split())[:_MAX_REASON]
    return RequestFailedError(FailureKind.SERVER, f"{replica.url}: a hand-over of weights ended: {reason}")


async def _settled(work: Mapping[Replica, Awaitable[Value]]) -> tuple[dict[Replica, Value], Failures]:
    """Return what each server answered, and which did not."""
    answers: dict[Replica, Value] = {}
    failures: Failures = {}

    async def settle(replica: Replica, answer: Awaitable[Value]) -> None:
        try:
            answers[replica] = await answer
        except RequestFailedError as failed:
            failures[replica] = failed

    await asyncio.gather(*(settle(replica, answer) for replica, answer in work.items()))
    return answers, failures
