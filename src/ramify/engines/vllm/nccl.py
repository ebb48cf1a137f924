"""NCCL's own library, for a group that begins with an id that was handed over elsewhere. Nobody has run this on GPUs yet.

torch's groups meet in a store, and vLLM's in one with pickles. No call blocks (`blocking = 0` of ncclConfig_t, since NCCL 2.14): a
process that never comes, or dies, would hold its peers without end. So states are polled, each wait has a limit, and another
thread may end the group meanwhile.
"""

import ctypes
import time
from collections.abc import Callable
from threading import Lock
from typing import Any, Protocol

import torch

_ID_BYTES = 128
_UINT8, _FLOAT32, _SUM = 1, 7, 0
_IN_PROGRESS = 7
_POLL_SECONDS = 0.0005


class Communicator(Protocol):
    """The first process of a group, from which tensors are broadcast. Each wait has the limit that it was made with."""

    @staticmethod
    def new_id() -> bytes:
        """Return the id of a new group."""
        ...

    def __init__(self, group: bytes, size: int, seconds: float) -> None:
        """Wait for nobody yet."""
        ...

    def join(self) -> None:
        """Begin the group, with rank 0; wait for the others. RuntimeError if one does not come, or the group was ended."""
        ...

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Send a tensor to all others. RuntimeError if that fails, or the group was ended."""
        ...

    def abort(self) -> None:
        """End the group; a thread that waits in it gets a RuntimeError."""
        ...


class Library(Protocol):
    """The calls of NCCL and CUDA, none of which waits for another process. RuntimeError if one fails."""

    def new_id(self) -> bytes:
        """As ncclGetUniqueId."""
        ...

    def begin(self, group: bytes, size: int) -> Any:  # noqa: ANN401 - a handle of NCCL's
        """As ncclCommInitRankConfig of rank 0; returns the communicator."""
        ...

    def is_pending(self, handle: Any) -> bool:  # noqa: ANN401
        """As ncclCommGetAsyncError: True while a call is in progress."""
        ...

    def start_sum(self, handle: Any) -> None:  # noqa: ANN401
        """As ncclAllReduce of one number."""
        ...

    def start_broadcast(self, handle: Any, tensor: torch.Tensor) -> None:  # noqa: ANN401
        """As ncclBroadcast from rank 0."""
        ...

    def is_computing(self) -> bool:
        """Return True while this thread's stream has work."""
        ...

    def abort(self, handle: Any) -> None:  # noqa: ANN401
        """As ncclCommAbort: ends what is in progress, and frees the communicator."""
        ...


class _Id(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_byte * _ID_BYTES),)


class _Config(ctypes.Structure):
    """ncclConfig_t of NCCL 2.14. Later releases read what the version in it had, and take their own defaults for the rest."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", ctypes.c_int),
    )


class CudaLibrary:
    """Implements `Library` with NCCL on the current GPU."""

    def __init__(self) -> None:
        """Open the library, which torch for CUDA has loaded."""
        self._nccl = ctypes.CDLL("libnccl.so.2")
        self._nccl.ncclGetErrorString.restype = ctypes.c_char_p

    def new_id(self) -> bytes:
        """See `Library`."""
        identity = _Id()
        self._check(self._nccl.ncclGetUniqueId(ctypes.byref(identity)))
        return bytes(identity)

    def begin(self, group: bytes, size: int) -> ctypes.c_void_p:
        """See `Library`."""
        handle, identity = ctypes.c_void_p(), _Id.from_buffer_copy(group)
        config = _Config(ctypes.sizeof(_Config), 0xCAFEBEEF, 21400, 0)
        self._check(
            self._nccl.ncclCommInitRankConfig(ctypes.byref(handle), size, identity, 0, ctypes.byref(config))
        )
        return handle

    def is_pending(self, handle: ctypes.c_void_p) -> bool:
        """See `Library`."""
        state = ctypes.c_int()
        self._check(self._nccl.ncclCommGetAsyncError(handle, ctypes.byref(state)))
        self._check(state.value)
        return state.value == _IN_PROGRESS

    def start_sum(self, handle: ctypes.c_void_p) -> None:
        """See `Library`."""
        # It must outlive this call, which may return before NCCL has queued its work.
        self._number = torch.zeros(1, device="cuda")
        ends = _pointers(self._number)
        self._check(
            self._nccl.ncclAllReduce(*ends, ctypes.c_size_t(1), _FLOAT32, _SUM, handle, self._stream())
        )

    def start_broadcast(self, handle: ctypes.c_void_p, tensor: torch.Tensor) -> None:
        """See `Library`."""
        count = ctypes.c_size_t(tensor.numel())
        self._check(self._nccl.ncclBroadcast(*_pointers(tensor), count, _UINT8, 0, handle, self._stream()))

    def is_computing(self) -> bool:
        """See `Library`."""
        return not torch.cuda.current_stream().query()

    def abort(self, handle: ctypes.c_void_p) -> None:
        """See `Library`."""
        self._nccl.ncclCommAbort(handle)

    def _stream(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)

    def _check(self, status: int) -> None:
        if status not in (0, _IN_PROGRESS):
            reason = self._nccl.ncclGetErrorString(status)
            raise RuntimeError(f"NCCL: {reason.decode() if reason else status}")


class NcclCommunicator:
    """Implements `Communicator` with NCCL."""

    def __init__(
        self, group: bytes, size: int, seconds: float, library: Callable[[], Library] = CudaLibrary
    ) -> None:
        """See `Communicator`; `library` opens NCCL."""
        self._group, self._size, self._seconds = group, size, seconds
        self._library = library()
        self._handle: Any = None
        self._is_ended = False
        # Held during calls, never while something is waited for: an ended communicator must not be called again.
        self._lock = Lock()

    @staticmethod
    def new_id() -> bytes:
        """See `Communicator`."""
        return CudaLibrary().new_id()

    def join(self) -> None:
        """See `Communicator`."""
        until = time.monotonic() + self._seconds
        with self._lock:
            self._refuse_ended()
            self._handle = self._library.begin(self._group, self._size)
        reason = f"not all of {self._size} processes came"
        self._wait(until, reason)
        # vLLM's workers begin with this, and wait for all to do so.
        with self._lock:
            self._refuse_ended()
            self._library.start_sum(self._handle)
        self._wait(until, reason)

    def broadcast(self, tensor: torch.Tensor) -> None:
        """See `Communicator`."""
        until = time.monotonic() + self._seconds
        with self._lock:
            self._refuse_ended()
            self._library.start_broadcast(self._handle, tensor)
        self._wait(until, "a process did not take a bucket of weights")

    def abort(self) -> None:
        """See `Communicator`."""
        with self._lock:
            self._is_ended = True
            handle, self._handle = self._handle, None
            if handle is not None:
                self._library.abort(handle)

    def _refuse_ended(self) -> None:
        if self._is_ended:
            raise RuntimeError("NCCL: the group was ended")

    def _wait(self, until: float, reason: str) -> None:
        """Wait for what was started.

        Raises:
            RuntimeError: It failed, takes too long (then the group is ended), or the group was ended.
        """
        while True:
            with self._lock:
                self._refuse_ended()
                if not self._library.is_pending(self._handle) and not self._library.is_computing():
                    return
            if time.monotonic() > until:
                self.abort()
                raise RuntimeError(f"NCCL: {reason} within {self._seconds:g} s")
            time.sleep(_POLL_SECONDS)


def _pointers(tensor: torch.Tensor) -> tuple[ctypes.c_void_p, ctypes.c_void_p]:
    pointer = ctypes.c_void_p(tensor.data_ptr())
    return pointer, pointer
