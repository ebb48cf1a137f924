"""A checksum over all weights of a folder, which tells apart models of the same shape."""

import zlib
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from ramify.core.errors import DataError
from ramify.files.untrusted import require_readable


def weights_checksum(folder: Path) -> str:
    """CRC-32 over the names, types, shapes and bytes of all tensors in a folder's safetensors files.

    It does not depend on how tensors are spread over files, nor on metadata. Reads all tensors, but only once per
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
                checksums.extend(_described(name, file.get_tensor(name)) for name in file.keys())  # noqa: SIM118
        # Foreign files: report anything that is wrong with them in one line.
        except Exception as error:
            raise DataError(f"{path}: cannot be read ({' '.join(str(error).split())[:200]})") from error
    return f"{zlib.crc32(chr(10).join(sorted(checksums)).encode()):08x}"


def _described(name: str, tensor: torch.Tensor) -> str:
    content: Any = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
    return f"{name} {tensor.dtype} {list(tensor.shape)} {zlib.crc32(content):08x}"
