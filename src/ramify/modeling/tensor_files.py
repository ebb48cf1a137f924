"""Writes safetensors files one tensor at a time, reads them, and computes a checksum over the weights of a folder.

So a GPU's state is never held a second time, and a model that does not fit into memory can be written; safetensors' own
writer takes all tensors at once, and copies everything that is not on the CPU first. The format
(github.com/huggingface/safetensors): 8 bytes with the header's length, a JSON header, then the bytes of all tensors.
"""

import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from ramify.core.errors import DataError
from ramify.files.untrusted import require_readable

_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.float64: "F64"}
TYPES = {name: dtype for dtype, name in _NAMES.items()}
_ALIGNMENT = 8
_PREFIX_BYTES = 8


@dataclass(frozen=True, slots=True)
class TensorHead:
    """Type and shape of a tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size of the tensor's numbers."""
        return self.dtype.itemsize * torch.Size(self.shape).numel()


def write_tensors(
    path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write a new file; its header holds `metadata`.

    Raises:
        OSError: The file exists, or cannot be written.
    """
    heads = {name: TensorHead(tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}
    write_each_tensor(path, heads, tensors.__getitem__, metadata)


def write_each_tensor(
    path: Path,
    heads: Mapping[str, TensorHead],
    tensor: Callable[[str], torch.Tensor],
    metadata: Mapping[str, str] | None = None,
    *,
    threads: int = 1,
) -> None:
    """Write a new file; each of `threads` asks `tensor` for one tensor at a time, of the type and shape in `heads`.

    Raises:
        OSError: The file exists, or cannot be written.
    """
    # The widest types first, so that every tensor is aligned.
    order = sorted(heads, key=lambda name: (-heads[name].dtype.itemsize, name))
    # transformers asks for the format.
    header: dict[str, Any] = {"__metadata__": {"format": "pt", **(metadata or {})}}
    end = 0
    for name in order:
        start, end = end, end + heads[name].nbytes
        header[name] = {
            "dtype": _NAMES[heads[name].dtype],
            "shape": list(heads[name].shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with path.open("xb", buffering=0) as file:
        _write_at(file.fileno(), memoryview(len(text).to_bytes(_PREFIX_BYTES, "little") + text), 0)

        def write(name: str) -> None:
            flat: Any = tensor(name).detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            start, _ = header[name]["data_offsets"]
            _write_at(file.fileno(), memoryview(flat.numpy()), _PREFIX_BYTES + len(text) + start)

        # Explicit threads, each with a part of the file: torchrun leaves one to OpenMP.
        pool = ThreadPoolExecutor(threads, "ramify-tensors")
        try:
            for done in [pool.submit(write, name) for name in order]:
                done.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _write_at(file: int, content: memoryview, position: int) -> None:
    while content:
        written = os.pwrite(file, content, position)
        content, position = content[written:], position + written


def read_heads(path: Path) -> tuple[dict[str, TensorHead], dict[str, str]]:
    """Return the types and shapes of a file's tensors, and what its header holds besides.

    Raises:
        ValueError: The file cannot be read, is not of this format, or holds a tensor of another type.
    """
    with _opened(path) as file:
        heads = {}
        for name in file.keys():  # noqa: SIM118
            part = file.get_slice(name)
            if part.get_dtype() not in TYPES:
                raise ValueError(f"{name} is not made of finite numbers, but of {part.get_dtype()}")
            heads[name] = TensorHead(TYPES[part.get_dtype()], tuple(part.get_shape()))
        return heads, dict(file.metadata() or {})


def read_rows(path: Path, name: str, rows: slice | None = None) -> torch.Tensor:
    """Return a tensor of a file, or some of its rows.

    Raises:
        ValueError: The file cannot be read, or the tensor holds a number that is not finite.
    """
    with _opened(path) as file:
        tensor: torch.Tensor = file.get_tensor(name) if rows is None else file.get_slice(name)[rows]
    if not all_finite(tensor):
        raise ValueError(f"{name} is not made of finite numbers")
    return tensor


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a file; the library has errors of its own."""
    try:
        path.open("rb").close()
        with safe_open(path, framework="pt") as file:
            yield file
    except ValueError:
        raise
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror or error}") from None
    except Exception as error:
        raise ValueError(" ".join(str(error).split()) or type(error).__name__) from error


def all_finite(tensor: torch.Tensor) -> bool:
    """Return True if no number is NaN or infinite; avoids the copies that `torch.isfinite` makes of a whole tensor."""
    return not tensor.numel() or all(bool(torch.isfinite(end)) for end in torch.aminmax(tensor.detach()))


def weights_checksum(folder: Path) -> str:
    """Return a CRC-32 over the names, types, shapes and bytes of all tensors in a folder's safetensors files.

    It tells apart models of the same shape. It does not depend on how tensors are spread over files, nor on metadata. Reads all tensors, but only once per
    process as long as the files do not change.

    Raises:
        DataError: A file cannot be read.
    """
    files = sorted(folder.glob("*.safetensors"))
    return _checksum(tuple((file, (stat := file.stat()).st_size, stat.st_mtime_ns) for file in files))


@lru_cache(maxsize=8)
def _checksum(files: tuple[tuple[Path, int, int], ...]) -> str:
    checksums: list[str] = []
    for path, _, _ in files:
        require_readable(path)
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 - not a mapping
                    tensor = file.get_tensor(name)
                    content: Any = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
                    crc = f"{zlib.crc32(content):08x}"
                    checksums.append(f"{name} {tensor.dtype} {list(tensor.shape)} {crc}")
        # Foreign files: report anything that is wrong with them in one line.
        except Exception as error:
            raise DataError(f"{path}: cannot be read ({' '.join(str(error).split())[:200]})") from error
    return f"{zlib.crc32(chr(10).join(sorted(checksums)).encode()):08x}"
