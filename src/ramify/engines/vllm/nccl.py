"""NCCL's own library, for a group that begins with an id that was handed over elsewhere. Nobody has run this on GPUs yet.

torch's groups meet in a store, and vLLM's in one with pickles. The functions that are called here have been the same since NCCL 2.0.
"""

import ctypes
from typing import Protocol

import torch

_ID_BYTES = 128
_UINT8, _FLOAT32, _SUM = 1, 7, 0


class Communicator(Protocol):
    """The first process of a group, from which tensors are broadcast."""

    @staticmethod
    def new_id() -> bytes:
        """Return the id of a new group."""
        ...

    def __init__(self, group: bytes, size: int) -> None:
        """Begin the group, with rank 0; wait for the others. RuntimeError if that fails."""
        ...

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Send a tensor to all others. RuntimeError if that fails."""
        ...

    def abort(self) -> None:
        """End the group, also while another thread waits in it."""
        ...


class _Id(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_byte * _ID_BYTES),)


def _library() -> ctypes.CDLL:
    # torch for CUDA has loaded it.
    library = ctypes.CDLL("libnccl.so.2")
    library.ncclGetErrorString.restype = ctypes.c_char_p
    return library


class NcclCommunicator:
    """Implements `Communicator` with NCCL on the current GPU."""

    @staticmethod
    def new_id() -> bytes:
        """As there."""
        identity = _Id()
        _check(_library().ncclGetUniqueId(ctypes.byref(identity)))
        return bytes(identity)

    def __init__(self, group: bytes, size: int) -> None:
        """As there."""
        self._nccl, self._handle = _library(), ctypes.c_void_p()
        identity = _Id.from_buffer_copy(group)
        _check(self._nccl.ncclCommInitRank(ctypes.byref(self._handle), size, identity, 0))
        # vLLM's workers begin with this, and wait for all to do so.
        first = torch.zeros(1, device="cuda")
        _check(self._nccl.ncclAllReduce(*_pointers(first, first), _count(1), _FLOAT32, _SUM, *self._where()))
        torch.cuda.current_stream().synchronize()

    def broadcast(self, tensor: torch.Tensor) -> None:
        """As there."""
        count = _count(tensor.numel())
        _check(self._nccl.ncclBroadcast(*_pointers(tensor, tensor), count, _UINT8, 0, *self._where()))
        torch.cuda.current_stream().synchronize()

    def abort(self) -> None:
        """As there."""
        self._nccl.ncclCommAbort(self._handle)

    def _where(self) -> tuple[ctypes.c_void_p, ctypes.c_void_p]:
        return self._handle, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)


_count = ctypes.c_size_t


def _pointers(*tensors: torch.Tensor) -> list[ctypes.c_void_p]:
    return [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]


def _check(status: int) -> None:
    if status:
        reason = _library().ncclGetErrorString(status)
        raise RuntimeError(f"NCCL: {reason.decode() if reason else status}")
