"""Several processes under torchrun: rank 0 runs the loop of a single process, the others compute what it tells them to.

So order, rules with memory, signals, logs and files are decided once. Rank 0 sends a command with each rank's part of the
data, does its own part, and collects the answers. Between commands the others wait for a message, not in a collective: a
rollout may outlast a collective's timeout. Rank 0 shows that it lives; what ends it ends all ranks. Everything that ranks tell
each other carries the run's secret, and is data (`learner.post`).
"""

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import count
from typing import Any, Protocol, TypeAlias

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from transformers import PreTrainedModel

from ramify.core.errors import ConfigError, RamifyError, TrainingError, UserError
from ramify.core.rank import Rank
from ramify.learner.channel import open_channel
from ramify.learner.configs import OptimizerConfig
from ramify.learner.post import Post, finish
from ramify.learner.seal import EVERY_RANK, ForgedError
from ramify.learner.signs_of_life import GONE, SILENCE_SECONDS, Pulse, print_error, show_life, watch
from ramify.learner.wire import WireError
from ramify.learner.worker import Reference, Worker

JOIN_SECONDS = 300
"""How long rank 0 waits for the others, and they for it."""
_AFTER_SIGNAL_SECONDS = 5.0
_LEAVING_SECONDS = 3.0
_COLLECTIVE = timedelta(minutes=30)
_CALL, _END = b"call", b"end"

_LOST = ("gloo", "nccl", "connection", "broken pipe", "socket", "timed out", "store")


class Plan(Protocol):
    """Makes a rank's worker; rank 0 sends its description to the other ranks."""

    def __call__(self, rank: Rank) -> Worker:
        """Make the worker of a rank."""
        ...

    def description(self) -> Mapping[str, Any]:
        """Return what another rank makes an equal plan from: values that `learner.wire` can express."""
        ...


ReadPlan: TypeAlias = Callable[[Mapping[str, Any]], Plan]
"""Makes a plan from its description."""


@dataclass(frozen=True, slots=True)
class _Failure:
    """The answer of a rank that could not do its part; `is_mistake`: the user can put it right."""

    message: str
    is_mistake: bool

    @classmethod
    def of(cls, error: Exception, rank: Rank) -> "_Failure":
        if isinstance(error, RamifyError):
            return cls(str(error), isinstance(error, UserError))
        text = " ".join(str(error).split())
        if isinstance(error, RuntimeError) and any(sign in text.lower() for sign in _LOST):
            return cls(GONE, False)
        reason = f"{type(error).__name__}: {text}"[:300]
        return cls(
            f"rank {rank.number}: {reason}. Earlier checkpoints are whole: fix that and go on with --resume",
            False,
        )

    def error(self) -> RamifyError:
        return (UserError if self.is_mistake else TrainingError)(self.message)


class Ranks:
    """Rank 0's hold on all ranks."""

    def __init__(self, rank: Rank, post: Post | None = None, lasting: Post | None = None) -> None:
        """With a `post`, commands go to the other ranks too, which `serve`; `lasting` messages outlive restarts."""
        self.rank = rank
        self._post, self._lasting = post, lasting
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
        """True if the run was begun by processes that torchrun has started again since."""
        return self._lasting is not None and self._lasting.read("begun") is not None

    def begin(self) -> None:
        """Say that the run has begun: processes that torchrun starts again go on with it."""
        if self._lasting is not None:
            self._lasting.send("begun")

    def hold(self, worker: Worker) -> None:
        """Take a worker that was made elsewhere, in a run of one process."""
        self._worker = worker

    def build(self, plan: Plan) -> None:
        """Make the worker of every rank.

        Raises:
            RamifyError: As for `each`.
        """
        descriptions = [(plan.description(),)] * (self.rank.size - 1)
        self.each("build", [(plan,), *descriptions])

    def all(self, method: str, *arguments: Any) -> list[Any]:  # noqa: ANN401 - the worker's methods
        """As `each`, with the same arguments for all ranks."""
        return self.each(method, [arguments] * self.rank.size)

    def each(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call a method of every rank's worker with arguments of its own; returns what they return, in rank order.

        Raises:
            RamifyError: A rank could not do its part, or is gone.
        """
        # A publisher's thread may be at it when a signal makes the main thread save, or a server that is back needs weights.
        with self._lock:
            if self._post is None:
                return [self.call(method, arguments[0])]
            self._number += 1
            self.waits_since = time.monotonic()
            try:
                answers, mistake = self._command(self._post, method, arguments)
            except (RuntimeError, ForgedError, WireError) as error:
                self.has_failed = True
                if isinstance(error, RamifyError):
                    raise
                raise TrainingError(self._cause(error)) from error
            finally:
                self.waits_since = None
        if mistake is not None:
            raise mistake
        for answer in answers:
            if isinstance(answer, _Failure):
                raise answer.error()
        return answers

    def _command(
        self, post: Post, method: str, arguments: Sequence[tuple[Any, ...]]
    ) -> tuple[list[Any], Exception | None]:
        """Return the answers of all ranks, and the error of this one."""
        number, others = self._number, range(1, self.rank.size)
        post.send("command", _CALL, number=number)
        works = [
            work for other in others for work in post.start_object(other, number, (method, arguments[other]))
        ]
        finish(works)
        own, mistake = _answer(partial(self.call, method, arguments[0]), self.rank, post)
        answers = [own]
        for other in others:
            failed, *values = post.receive_answer(other, number)
            answers.append(_Failure(*values) if failed else values[0])
        post.delete("command", number=number - 1)
        return answers, mistake

    def stop(self) -> bool:
        """Have the other ranks end, and wait a little; returns True if all have: the store may be this process's own."""
        if self._post is None:
            return True
        self._post.send("command", _END, number=self._number + 1)
        self._post.send("ended")
        until, others = time.monotonic() + _LEAVING_SECONDS, set(range(1, self.rank.size))
        while others and not self.has_failed and time.monotonic() < until:
            others -= {other for other in others if self._post.wait("left", sender=other) is not None}
        return not others

    def call(self, method: str, arguments: tuple[Any, ...]) -> Any:  # noqa: ANN401
        """Call a method of this rank's worker, or make the worker."""
        if method == "build":
            # The memory of an earlier one, of another phase of the run, is free before.
            self._worker = None
            self._worker = arguments[0](self.rank)
            return None
        if method.startswith("_"):
            raise AttributeError(method)
        return getattr(self.worker, method)(*arguments)

    def _cause(self, error: RuntimeError) -> str:
        """Return what a rank wrote before it went, or that one is gone."""
        with suppress(RuntimeError, ForgedError):
            assert self._post is not None
            if (content := self._post.read("failed", sender=EVERY_RANK)) is not None:
                return content.decode()
        return _Failure.of(error, self.rank).message


def single_process(
    model: PreTrainedModel, optimizer: OptimizerConfig, reference: Reference | None = None
) -> Ranks:
    """Return ranks of one process, which trains `model`."""
    ranks = Ranks(Rank())
    ranks.hold(Worker(model, optimizer, reference))
    return ranks


@contextmanager
def connect_ranks(rank: Rank, must_match: Mapping[str, str], secret: str | None = None) -> Iterator[Ranks]:
    """Rank 0's side: wait for the other ranks, check that all are alike, and hold them while the block runs.

    Args:
        rank: This process, number 0.
        must_match: What must be equal on all ranks, by name: code, recipe, data.
        secret: The run's secret; ranks that torchrun started on one machine need none.

    Raises:
        UserError: A rank is missing or differs, or cannot read the recipe; ranks on several machines have no secret; or the
            port is in use.
    """
    if rank.size == 1 and not rank.is_supervised:
        try:
            yield Ranks(rank)
        finally:
            _leave()
        return
    channel, seal = open_channel(rank, secret, os.environ, JOIN_SECONDS)
    meeting = Post(channel, seal)
    is_last = _is_last_life()
    ended = threading.Event()
    ranks = Ranks(rank, lasting=meeting)
    try:
        if rank.size > 1:
            post = meeting.meet_all(rank, must_match, JOIN_SECONDS)
            ranks = Ranks(rank, post, meeting)
            post.send("go")
            threading.Thread(
                target=watch, args=(post.clone(), rank, lambda: ranks.waits_since, ended), daemon=True
            ).start()
            # Collectives begin with one in which a rank that has failed is waited for, too.
            ranks.waits_since = time.monotonic()
            _join(rank, post)
            ranks.waits_since = None
        yield ranks
        is_done = True
    except BaseException:
        is_done = False
        raise
    finally:
        ended.set()
        has_stopped = False
        with suppress(RuntimeError, ForgedError):
            has_stopped = ranks.stop()
        _leave()
        channel.close(is_last or (is_done and has_stopped))


def _is_last_life() -> bool:
    """Return True if torchrun will not start these processes again."""
    lives, restarts = (os.environ.get(f"TORCHELASTIC_{name}") for name in ("RESTART_COUNT", "MAX_RESTARTS"))
    return lives is not None and lives == restarts


def serve(
    rank: Rank, prepare: Callable[[], Mapping[str, str]], read_plan: ReadPlan, secret: str | None = None
) -> int:
    """Another rank's side: compute what rank 0 says until it ends; returns the exit status.

    It prints nothing, unless somebody else speaks in the name of rank 0.

    Args:
        rank: This process.
        prepare: Reads what `connect_ranks` compares.
        read_plan: Makes the plan of a worker from its description.
        secret: See `connect_ranks`.
    """
    signalled: list[float] = []
    post: Post | None = None
    # Until rank 0 answers there is nothing to save, and torch's store would wait for it.
    _on_signals(signal.SIG_DFL)
    try:
        # Rank 0 reads the weights for their checksums, which may take minutes, at the same time.
        prepared = _prepared(prepare)
        channel, seal = open_channel(rank, secret, os.environ, JOIN_SECONDS)
        post = Post(channel, seal).say_hello(rank, JOIN_SECONDS)
        if post is None:
            return 1
        # Rank 0 gets the signal too, saves, and says when to end.
        _on_signals(lambda *_: signalled.append(time.monotonic()))
        post.send("joined", json.dumps(prepared).encode(), sender=rank.number)
        if "mistake" in prepared or _wait(post, "go", 0, signalled, JOIN_SECONDS) is None:
            return 1
        if not rank.on_one_machine:
            threading.Thread(target=show_life, args=(post.clone(), rank), daemon=True).start()
        _join(rank, post)
        return _serve(rank, post, read_plan, signalled)
    except ConfigError as error:
        if rank.local == 0:
            # Another machine than that of rank 0, which cannot tell it.
            print_error(f"{error}")
        raise
    except RuntimeError:
        # The store or another rank is gone; rank 0 tells it, or torchrun.
        return 1
    except (ForgedError, WireError) as error:
        if post is not None:
            with suppress(RuntimeError):
                post.send_first("failed", f"{error}".encode())
        print_error(f"rank {rank.number}: {error}")
        return 1
    finally:
        _leave()


def _on_signals(handler: Any) -> None:  # noqa: ANN401 - of `signal.signal`
    for sign in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sign, handler)


def _prepared(prepare: Callable[[], Mapping[str, str]]) -> dict[str, str]:
    try:
        return dict(prepare())
    except RamifyError as error:
        return {"mistake": str(error)}


def _serve(rank: Rank, post: Post, read_plan: ReadPlan, signalled: Sequence[float]) -> int:
    ranks = Ranks(rank)
    for number in count(1):
        command = _wait(post, "command", number, signalled, SILENCE_SECONDS)
        if command is None:
            return 1
        if command == _END:
            post.send("left", sender=rank.number)
            return 0
        method, arguments = post.receive_object(rank.number, number)
        if method == "build":
            arguments = (read_plan(*arguments),)
        answer, _ = _answer(partial(ranks.call, method, arguments), rank, post)
        is_failure = isinstance(answer, _Failure)
        post.send_answer(
            rank.number, number, (True, answer.message, answer.is_mistake) if is_failure else (False, answer)
        )
    return 1


def make_mesh(rank: Rank, device: str, copies: int) -> DeviceMesh:
    """Return the mesh of all ranks: parts of the weights, or `copies` of them (a divisor of their number) that are split each."""
    if not dist.is_initialized():
        _bind_to_loopback()
        # A single process whose compute type is not that of its weights.
        dist.init_process_group(
            "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl", store=HashStore(), rank=0, world_size=1
        )
    if copies == 1:
        return init_device_mesh(device, (rank.size,), mesh_dim_names=("parts",))
    return init_device_mesh(device, (copies, rank.size // copies), mesh_dim_names=("copies", "parts"))


def _join(rank: Rank, post: Post) -> None:
    has_gpu = torch.cuda.is_available()
    if has_gpu:
        torch.cuda.set_device(rank.local)
    if rank.on_one_machine:
        _bind_to_loopback()
    post.join_collectives(rank, backend="cpu:gloo,cuda:nccl" if has_gpu else "gloo", timeout=_COLLECTIVE)


def _bind_to_loopback() -> None:
    """Have collectives listen on the loopback device: their sockets ask nobody for a secret."""
    loopback = next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None)
    if loopback is not None:
        os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = loopback


def _leave() -> None:
    if dist.is_initialized():
        with suppress(RuntimeError):
            dist.destroy_process_group()


def _wait(post: Post, kind: str, number: int, signalled: Sequence[float], patience: float) -> bytes | None:
    """Return a message of rank 0; None if the run has ended, or it is silent."""
    pulse = Pulse(post, 0)
    while True:
        content = post.wait(kind, number=number, seconds=1.0)
        if content is not None:
            return content
        if post.read("ended") is not None:
            return post.read(kind, number=number)
        silence = pulse.silence()
        if silence > patience or (signalled and silence > _AFTER_SIGNAL_SECONDS):
            return None


def _answer(work: Callable[[], Any], rank: Rank, post: Post) -> tuple[Any, Exception | None]:
    """Return what `work` returns, or a failure and its error; the failure is left as a message too: others may wait here."""
    try:
        return work(), None
    except Exception as error:  # noqa: BLE001 - whatever it is, rank 0 tells it
        failure = _Failure.of(error, rank)
        with suppress(RuntimeError):
            # The first failure counts; others may only follow from it.
            post.send_first("failed", failure.message.encode())
        return failure, None if failure.message == GONE else error
