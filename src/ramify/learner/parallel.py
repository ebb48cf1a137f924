"""Several processes under torchrun: rank 0 runs the loop of a single process, the others compute what it tells them to.

So order, rules with memory, signals, logs and files are decided once. Rank 0 sends a command with each rank's part of the
data, does its own part, and collects the answers. Between commands the others wait on a store, not in a collective: a
rollout may outlast a collective's timeout. Rank 0 shows there that it lives; what ends it ends all ranks.
"""

import json
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore, Store
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.rendezvous import rendezvous
from transformers import PreTrainedModel

from ramify.core.errors import ConfigError, RamifyError, TrainingError, UserError
from ramify.core.rank import Rank
from ramify.learner.optimizer import OptimizerSettings
from ramify.learner.worker import Reference, Worker

JOIN_SECONDS = 300
"""How long rank 0 waits for the others, and they for it."""
_LOOK_SECONDS = 0.1
_BEAT_SECONDS = 2.0
_SILENCE_SECONDS = 120.0
"""After this long without a sign of life from rank 0 the others end."""
_PATIENCE_SECONDS = 20.0
"""After this long in a collective that a failed rank will not join, the run ends."""
_AFTER_SIGNAL_SECONDS = 5.0
_LEAVING_SECONDS = 3.0
_COLLECTIVE = timedelta(minutes=30)
_CALL, _END = "call", "end"

_LOST = ("gloo", "nccl", "connection", "broken pipe", "socket", "timed out", "store")
_GONE = "another rank is gone; earlier checkpoints are whole: go on with --resume"

MakeWorker: TypeAlias = Callable[[Rank], Worker]
"""Makes a rank's worker; sent to the other ranks, so it must be picklable."""


@dataclass(frozen=True, slots=True)
class _Failure:
    """What a rank answers that could not do its part; `is_mistake`: the user can put it right."""

    message: str
    is_mistake: bool

    @classmethod
    def of(cls, error: Exception, rank: Rank) -> "_Failure":
        if isinstance(error, RamifyError):
            return cls(str(error), isinstance(error, UserError))
        text = " ".join(str(error).split())
        if isinstance(error, RuntimeError) and any(sign in text.lower() for sign in _LOST):
            return cls(_GONE, False)
        told = f"{type(error).__name__}: {text}"[:300]
        return cls(
            f"rank {rank.number}: {told}; earlier checkpoints are whole: mend that and go on with --resume",
            False,
        )

    def error(self) -> RamifyError:
        return (UserError if self.is_mistake else TrainingError)(self.message)


class Ranks:
    """Rank 0's hold on all ranks."""

    def __init__(self, rank: Rank, store: Store | None = None, lasting: Store | None = None) -> None:
        """With a `store`, commands go to the other ranks too, which `serve`; torchrun's `lasting` one outlives restarts."""
        self.rank = rank
        self._store, self._lasting = store, lasting
        self.has_failed = False
        self._worker: Worker | None = None
        self._number = 0
        self._lock = threading.Lock()
        self.waits_since: float | None = None

    @property
    def worker(self) -> Worker:
        """Rank 0's own worker."""
        assert self._worker is not None
        return self._worker

    @property
    def has_begun(self) -> bool:
        """Whether the run was begun by processes that torchrun has started again since."""
        return self._lasting is not None and self._lasting.check(["begun"])

    def begin(self) -> None:
        """Say that the run has begun: processes that torchrun starts again go on with it."""
        if self._lasting is not None:
            self._lasting.set("begun", "1")

    def build(self, make: MakeWorker) -> None:
        """Make the worker of every rank.

        Raises:
            RamifyError: As for `each`.
        """
        self.all("build", make)

    def all(self, method: str, *arguments: Any) -> list[Any]:  # noqa: ANN401 - the worker's methods
        """As `each`, with the same arguments for all ranks."""
        return self.each(method, [arguments] * self.rank.size)

    def each(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call a method of every rank's worker with arguments of its own; returns what they return, in rank order.

        Raises:
            RamifyError: A rank could not do its part, or is gone.
        """
        if self._store is None:
            return [self._call(method, arguments[0])]
        # A publisher's thread may still be at it when a signal makes the main thread save.
        with self._lock:
            self._number += 1
            self.waits_since = time.monotonic()
            try:
                self._store.set(f"command/{self._number}", _CALL)
                _scattered([(method, part) for part in arguments])
                own, mistake = _answer(lambda: self._call(method, arguments[0]), self.rank, self._store)
                answers = _gathered(own, self.rank)
            except RuntimeError as error:
                self.has_failed = True
                raise TrainingError(self._cause(error)) from error
            finally:
                self.waits_since = None
            self._store.delete_key(f"command/{self._number - 1}")
        if mistake is not None:
            raise mistake
        for answer in answers:
            if isinstance(answer, _Failure):
                raise answer.error()
        return list(answers)

    def stop(self) -> None:
        """Have the other ranks end, and wait a little until they have: the store may be this process's own."""
        if self._store is None:
            return
        self._store.set(f"command/{self._number + 1}", _END)
        self._store.set("ended", "1")
        if not self.has_failed:
            left = [f"left/{number}" for number in range(1, self.rank.size)]
            self._store.wait(left, timedelta(seconds=_LEAVING_SECONDS))

    def _call(self, method: str, arguments: tuple[Any, ...]) -> Any:  # noqa: ANN401
        if method == "build":
            # The memory of an earlier one, of another phase of the run, is free before.
            self._worker = None
            self._worker = arguments[0](self.rank)
            return None
        return getattr(self.worker, method)(*arguments)

    def _cause(self, error: RuntimeError) -> str:
        """What a rank told before it went, or that one is gone."""
        with suppress(RuntimeError):
            assert self._store is not None
            if self._store.check(["failed"]):
                return str(self._store.get("failed"), "utf-8")
        return _Failure.of(error, self.rank).message


def alone(model: PreTrainedModel, optimizer: OptimizerSettings, reference: Reference | None = None) -> Ranks:
    """One process that trains `model`."""
    ranks = Ranks(Rank())
    ranks.build(lambda _: Worker(model, optimizer, reference))
    return ranks


@contextmanager
def together(rank: Rank, same: Mapping[str, str]) -> Iterator[Ranks]:
    """Rank 0's side: wait for the other ranks, check that all are alike, and hold them while the block runs.

    Args:
        rank: This process, number 0.
        same: What must be the same on all ranks, by name: code, recipe, data.

    Raises:
        UserError: A rank is missing or differs, or cannot read the recipe; or the port is in use.
    """
    if rank.size == 1:
        try:
            yield Ranks(rank, lasting=_store(rank) if rank.is_supervised else None)
        finally:
            _leave()
        return
    lasting = _store(rank)
    generation = f"{lasting.add('generation', 1)}"
    store = PrefixStore(generation, lasting)
    ranks = Ranks(rank, store, lasting)
    ended = threading.Event()
    try:
        _wait_for_all(rank, lasting, generation, same)
        store.set("go", "1")
        _join(rank, store)
        threading.Thread(
            target=_beat,
            args=(
                store.clone(),  # type: ignore[attr-defined]  # the stubs lack it
                ranks,
                ended,
            ),
            daemon=True,
        ).start()
        yield ranks
    finally:
        ended.set()
        with suppress(RuntimeError):
            ranks.stop()
        _leave()


def serve(rank: Rank, prepare: Callable[[], Mapping[str, str]]) -> int:
    """Another rank's side: compute what rank 0 says until it ends; returns the exit status and prints nothing.

    Args:
        rank: This process.
        prepare: Reads what `together` compares.
    """
    signalled: list[float] = []
    for sign in (signal.SIGINT, signal.SIGTERM):
        # Rank 0 gets the signal too, saves, and says when to end.
        signal.signal(sign, lambda *_: signalled.append(time.monotonic()))
    try:
        store = _invited(rank, _store(rank))
        if store is None:
            return 1
        told: dict[str, str] = {}
        try:
            told = dict(prepare())
        except RamifyError as error:
            told = {"mistake": str(error)}
        store.set(f"joined/{rank.number}", json.dumps(told))
        if "mistake" in told or not _told(store, "go", signalled, JOIN_SECONDS):
            return 1
        _join(rank, store)
        ranks = Ranks(rank)
        for number in count(1):
            if not _told(store, f"command/{number}", signalled):
                return 1
            if store.get(f"command/{number}") == _END.encode():
                store.set(f"left/{rank.number}", "1")
                return 0
            method, part = _scattered(None)

            def work(method: str = method, part: tuple[Any, ...] = part) -> Any:  # noqa: ANN401
                return ranks._call(method, part)

            _gathered(_answer(work, rank, store)[0], rank)
    except RuntimeError:
        # The store or another rank is gone; rank 0 tells it, or torchrun.
        return 1
    finally:
        _leave()
    return 1


def make_mesh(rank: Rank, device: str, copies: int) -> DeviceMesh:
    """The mesh of all ranks: parts of the weights, or `copies` of them (a divisor of their number) that are split each."""
    if not dist.is_initialized():
        # A single process whose compute type is not that of its weights.
        dist.init_process_group(
            "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl", store=HashStore(), rank=0, world_size=1
        )
    if copies == 1:
        return init_device_mesh(device, (rank.size,), mesh_dim_names=("parts",))
    return init_device_mesh(device, (copies, rank.size // copies), mesh_dim_names=("copies", "parts"))


def _store(rank: Rank) -> Store:
    """The store of the run; torchrun has one, else rank 0 opens it.

    Raises:
        ConfigError: It cannot be opened or reached.
    """
    place = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
    try:
        store, _, _ = next(rendezvous("env://", timeout=timedelta(seconds=JOIN_SECONDS)))
    except (RuntimeError, ValueError) as error:
        text = " ".join(str(error).split())
        if "EADDRINUSE" in text:
            raise ConfigError(
                f"MASTER_PORT: {place} is in use; name another port (torchrun --master-port)"
            ) from None
        if "clients joined" in text:
            raise ConfigError(
                f"not all of the {rank.size} ranks came to {place} within {JOIN_SECONDS} s; start the others, or look why "
                "they ended"
            ) from None
        raise ConfigError(f"the processes cannot meet at {place}: {text:.200}") from None
    return PrefixStore("ramify", store)


def _invited(rank: Rank, lasting: Store) -> Store | None:
    """Another rank's side of meeting: the part of the store that rank 0 has for the processes that live now.

    torchrun may keep one store over restarts, with what dead processes wrote, and each of its agents counts restarts for itself.
    So a rank says hello with a name that nobody had before, and rank 0 answers that name.
    """
    name = uuid.uuid4().hex
    lasting.set(f"hello/{rank.number}", name)
    with suppress(dist.DistStoreError):
        lasting.wait([f"invite/{name}"], timedelta(seconds=JOIN_SECONDS))
        return PrefixStore(str(lasting.get(f"invite/{name}"), "utf-8"), lasting)
    return None


def _invite(rank: Rank, lasting: Store, generation: str, known: dict[int, str]) -> None:
    """Rank 0's side: answer every hello that is new."""
    for number in range(1, rank.size):
        if lasting.check([f"hello/{number}"]):
            name = str(lasting.get(f"hello/{number}"), "utf-8")
            if known.get(number) != name:
                lasting.set(f"invite/{name}", generation)
                known[number] = name


def _wait_for_all(rank: Rank, lasting: Store, generation: str, same: Mapping[str, str]) -> None:
    store = PrefixStore(generation, lasting)
    until, known = time.monotonic() + JOIN_SECONDS, dict[int, str]()
    for number in range(1, rank.size):
        key = f"joined/{number}"
        while not store.check([key]):
            if time.monotonic() > until:
                raise ConfigError(
                    f"rank {number} of {rank.size} did not join within {JOIN_SECONDS} s; start it, or look why it ended"
                )
            _invite(rank, lasting, generation, known)
            time.sleep(_LOOK_SECONDS)
        theirs = json.loads(store.get(key))
        if "mistake" in theirs:
            raise UserError(f"rank {number}: {theirs['mistake']}")
        for what, value in same.items():
            if theirs.get(what) != value:
                raise ConfigError(
                    f"rank {number} has another {what} than rank 0 ({theirs.get(what)}, {value}): give all ranks the same"
                )


def _join(rank: Rank, store: Store) -> None:
    has_gpu = torch.cuda.is_available()
    if has_gpu:
        torch.cuda.set_device(rank.local)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if has_gpu else "gloo",
        store=PrefixStore("collectives", store),
        rank=rank.number,
        world_size=rank.size,
        timeout=_COLLECTIVE,
    )


def _leave() -> None:
    if dist.is_initialized():
        with suppress(RuntimeError):
            dist.destroy_process_group()


def _beat(store: Store, ranks: Ranks, ended: threading.Event) -> None:
    """Show that rank 0 lives; end it if a rank has failed and it waits for that one in a collective."""
    while not ended.wait(_BEAT_SECONDS):
        try:
            store.add("beat", 1)
            since = ranks.waits_since
            hangs = since is not None and time.monotonic() - since > _PATIENCE_SECONDS
            if hangs and store.check(["failed"]):
                sys.stderr.write(f"error: {store.get('failed').decode()}\n")
                sys.stderr.flush()
                os._exit(1)
        except RuntimeError:
            return


def _told(store: Store, key: str, signalled: Sequence[float], patience: float = _SILENCE_SECONDS) -> bool:
    """Wait for a key of rank 0; False if the run has ended, or it is silent."""
    beat, heard = -1, time.monotonic()
    while True:
        with suppress(dist.DistStoreError):
            store.wait([key], timedelta(seconds=1))
        if store.check([key]):
            return True
        if store.check(["ended"]):
            return bool(store.check([key]))
        found = store.add("beat", 0)
        if found != beat:
            beat, heard = found, time.monotonic()
        silent = time.monotonic() - heard > patience
        if silent or (signalled and time.monotonic() - heard > _AFTER_SIGNAL_SECONDS):
            return False


def _answer(work: Callable[[], Any], rank: Rank, store: Store) -> tuple[Any, Exception | None]:
    """What `work` returns, or a failure and its error; the store gets the failure too, as other ranks may wait here."""
    try:
        return work(), None
    except Exception as error:  # noqa: BLE001 - whatever it is, rank 0 tells it
        failure = _Failure.of(error, rank)
        with suppress(RuntimeError):
            # The first failure counts; others may only follow from it.
            if store.add("failures", 1) == 1:
                store.set("failed", failure.message)
        return failure, None if failure.message == _GONE else error


def _scattered(parts: Sequence[Any] | None) -> Any:  # noqa: ANN401
    """This rank's part of what rank 0 has."""
    mine: list[Any] = [None]
    dist.scatter_object_list(mine, None if parts is None else list(parts), src=0)
    return mine[0]


def _gathered(own: Any, rank: Rank) -> list[Any]:  # noqa: ANN401
    """What every rank has, on rank 0."""
    found: list[Any] | None = [None] * rank.size if rank.number == 0 else None
    dist.gather_object(own, found, dst=0)
    return found or []
