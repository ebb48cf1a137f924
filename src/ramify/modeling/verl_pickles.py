"""Reads the shards that torch.save wrote for FSDP, without running anything in them.

The weights of a shard are DTensors: a local tensor and a description of the mesh of ranks. `torch.load` with
`weights_only` makes only objects of an allow-list. The classes of DTensor on it are replaced by inert ones, so that it
needs no process group, and files of other versions of torch open too: their names and fields differ, and the real
classes would refuse them.
"""

import itertools
import math
import operator
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.serialization import add_safe_globals, clear_safe_globals, get_safe_globals, safe_globals

from ramify.core.errors import DataError


class _Part:
    """Stands for a class of torch.distributed; its attributes are the fields that the file gives."""

    def __new__(cls, *_: object) -> "_Part":
        return super().__new__(cls)


class _Mesh(_Part):
    """DeviceMesh."""


class _Spec(_Part):
    """DTensorSpec."""


class _Shard(_Part):
    """Split along a dimension."""


class _Replicate(_Part):
    """The same on all ranks."""


class _OtherPlacement(_Part):
    """Partial sums, or rows dealt out in strides."""


class _DTensor(torch.Tensor):
    """DTensor, of which only `_local_tensor` and `_spec` are used."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, *_: object) -> Any:  # noqa: ANN401 - torch's interface
        raise RuntimeError("a stored DTensor cannot be computed with")


_NAMES: dict[type, tuple[str, ...]] = {
    _DTensor: ("api.DTensor", "_api.DTensor", "DTensor"),
    _Spec: ("_dtensor_spec.DTensorSpec", "placement_types.DTensorSpec"),
    _Shard: ("placement_types.Shard",),
    _Replicate: ("placement_types.Replicate",),
    _OtherPlacement: (
        "placement_types.Partial",
        "placement_types._Partial",
        "placement_types._StridedShard",
        "placement_types._MaskPartial",
        "_ops._embedding_ops._MaskPartial",
        "ops.embedding_ops._MaskPartial",
    ),
    _Part: (
        "_dtensor_spec.TensorMeta",
        "_dtensor_spec.ShardOrderEntry",
        "placement_types.TensorMeta",
    ),
}
_PACKAGES = ("torch.distributed.tensor", "torch.distributed._tensor")
"""The second name is that of torch 2.4 and before."""

_ALLOWED: list[Any] = [
    *(
        (stand_in, f"{package}.{name}")
        for stand_in, names in _NAMES.items()
        for name in names
        for package in _PACKAGES
    ),
    (_Mesh, "torch.distributed.device_mesh.DeviceMesh"),
    (_Mesh, "torch.distributed._tensor.device_mesh.DeviceMesh"),
    (_Part, "torch.distributed._mesh_layout._MeshLayout"),
    (_Part, "torch.distributed._mesh_layout._FlatLayout"),
]


@dataclass(frozen=True, slots=True)
class Layout:
    """How a tensor is spread over ranks.

    Attributes:
        dtype: Type of its numbers.
        shape: Shape of the whole tensor.
        mesh: Shape of the mesh of ranks; empty for a plain tensor, which each rank has whole.
        ranks: Ranks in the mesh, row by row.
        split: For each dimension of the mesh, the dimension of the tensor that it splits; None: the ranks have copies.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    mesh: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()
    split: tuple[int | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """What one rank has of a tensor."""

    layout: Layout
    local: torch.Tensor


class _FaultyError(Exception):
    """Says what is wrong with one tensor."""


_FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_MAX_DIMENSIONS = 8
"""Of a mesh; verl's have one or two."""


def read_shard(file: Path, ranks: int) -> dict[str, Piece]:
    """Return the pieces of one of so many ranks; their numbers stay in the file until they are used.

    Raises:
        DataError: The file is damaged, has anything but tensors in it, or a tensor is laid out in an unknown way.
    """
    try:
        with _only_these():
            content = torch.load(file, map_location="cpu", mmap=True, weights_only=True)
        sizes = _record_sizes(file)
    # A reader of foreign files: torch raises anything about them.
    except Exception as error:  # noqa: BLE001
        raise DataError(f"{file}: {_reason(error)}") from None
    # Torch maps as many bytes as the pickle says, whatever the record holds. Places in memory are in the order of the file.
    if [size for _, size in sorted(_storages(content))] != sizes:
        raise DataError(
            f"{file}: its tensors have other sizes than its records; it is damaged: copy it again"
        )
    if not isinstance(content, dict) or not content:
        raise DataError(f"{file}: expected tensors by name, found {type(content).__name__}")
    pieces = {}
    for name, value in content.items():
        try:
            pieces[str(name)] = _piece(value, ranks)
        except _FaultyError as error:
            raise DataError(f"{file}: {name!s:.200}: {error}") from None
        except Exception as error:  # noqa: BLE001 - fields of another version
            raise DataError(
                f"{file}: {name!s:.200}: its layout cannot be read ({error!r:.100}); it was written by a version of torch "
                "that is not known here"
            ) from None
    return pieces


def require_intact(file: Path) -> None:
    """Compare the content of a shard with the checksums in it, which reading its tensors does not do.

    Raises:
        DataError: They differ.
    """
    try:
        with zipfile.ZipFile(file) as parts:
            damaged = parts.testzip()
    # Foreign files: zipfile raises several kinds of errors about them.
    except Exception as error:  # noqa: BLE001
        raise DataError(f"{file}: {_reason(error)}") from None
    if damaged is not None:
        raise DataError(f"{file}: {damaged} does not match its checksum; it is damaged: copy it again")


def _storages(content: object) -> set[tuple[int, int]]:
    """Return address and bytes of the numbers of all tensors that are not empty, those of meshes too."""
    storages: set[tuple[int, int]] = set()
    waiting, known = [content], {id(content)}
    while waiting:
        item = waiting.pop()
        inner: Iterable[object] = ()
        if isinstance(item, dict):
            inner = item.values()
        elif isinstance(item, list | tuple):
            inner = item
        elif isinstance(item, _Part | _DTensor):
            inner = vars(item).values()
        elif isinstance(item, torch.Tensor) and item.layout == torch.strided and item.device.type == "cpu":
            storage = item.untyped_storage()
            storages |= {(storage.data_ptr(), storage.nbytes())} if storage.nbytes() else set()
        fresh = [value for value in inner if id(value) not in known]
        known |= set(map(id, fresh))
        waiting += fresh
    return storages


def _record_sizes(file: Path) -> list[int]:
    """Return the bytes of each record of numbers that is not empty, in the order of the file.

    Raises:
        ValueError: A record is compressed, or two have one name.
    """
    reader = torch._C.PyTorchFileReader(str(file))
    with zipfile.ZipFile(file) as parts:
        records = [part for part in parts.infolist() if part.filename.partition("/")[2].startswith("data/")]
    if any(part.compress_type != zipfile.ZIP_STORED for part in records):
        raise ValueError("a record is compressed")
    starts = {
        reader.get_record_offset(part.filename.partition("/")[2]): part.file_size  # type: ignore[attr-defined]
        for part in records
        if part.file_size
    }
    if len(starts) != sum(part.file_size > 0 for part in records):
        raise ValueError("two records lie in one place")
    return [size for _, size in sorted(starts.items())]


@contextmanager
def _only_these() -> Iterator[None]:
    """Have torch.load take this module's allow-list alone while the block runs, without what libraries have added or warnings."""
    before = get_safe_globals()
    clear_safe_globals()
    try:
        with safe_globals(_ALLOWED), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        clear_safe_globals()
        add_safe_globals(before)


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    if "GLOBAL " in text or "weights_only" in text or "Weights only" in text:
        name = text.partition("GLOBAL ")[2].partition(" ")[0]
        what = f"holds {name}" if name else "holds more than tensors"
        return f"{what}, which is none of the parts of verl's shards; it was not run"
    return f"cannot be read ({text[:150] or type(error).__name__}); it is cut off or damaged: copy it again"


def _piece(value: object, ranks: int) -> Piece:
    if not isinstance(value, torch.Tensor):
        raise _FaultyError(f"expected a tensor, found {type(value).__name__}")
    stored: Any = value
    local = stored._local_tensor if isinstance(value, _DTensor) else value
    if type(local) not in (torch.Tensor, torch.nn.Parameter) or local.dtype not in _FLOATS:
        raise _FaultyError(f"is of type {getattr(local, 'dtype', type(local).__name__)}, expected floats")
    if local.device.type != "cpu" or local.nbytes > local.untyped_storage().nbytes():
        raise _FaultyError(f"{local.numel()} numbers, more than are stored for it")
    if not isinstance(value, _DTensor):
        return Piece(Layout(local.dtype, tuple(local.shape)), local.detach())
    mesh, members = _mesh(vars(stored._spec.mesh), ranks)
    split = tuple(_split(placement, value.ndim) for placement in stored._spec.placements)
    if len(split) != len(mesh):
        raise _FaultyError(f"{len(split)} placements on a mesh of {len(mesh)} dimensions")
    return Piece(Layout(local.dtype, tuple(stored.shape), mesh, members, split), local.detach())


def _split(placement: object, dimensions: int) -> int | None:
    if isinstance(placement, _Replicate):
        return None
    if isinstance(placement, _Shard):
        dimension = vars(placement)["dim"]
        if type(dimension) is not int or not 0 <= dimension < dimensions:
            raise _FaultyError(f"is split along dimension {dimension!r:.40}")
        return dimension
    raise _FaultyError("is neither split nor copied: partial sums and strides are not read")


def _mesh(fields: dict[str, Any], ranks: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shape and the members of a mesh of at most so many ranks.

    Older files hold a tensor of ranks, newer ones strides into a list of ranks.
    """
    if isinstance(mesh := fields.get("mesh", fields.get("_mesh")), torch.Tensor):
        _require_few(mesh.shape, ranks)
        return tuple(mesh.shape), tuple(map(int, mesh.flatten().tolist()))
    layout = vars(fields["_layout"])
    if "axes" in layout:
        axes = [(_numbers(vars(axis)["shape"]), _numbers(vars(axis)["stride"])) for axis in layout["axes"]]
    else:
        whole = zip(_numbers(layout["shape"]), _numbers(layout["stride"]), strict=True)
        axes = [(_numbers(shape), _numbers(stride)) for shape, stride in whole]
    # An axis may be made of several; one of a single rank has none.
    sizes = [size for shape, _ in axes for size in shape]
    strides = [step for _, stride in axes for step in stride]
    _require_few(sizes, ranks)
    _require_few(fields["_rank_map"].shape, ranks)
    known = fields["_rank_map"].tolist()
    indices = [sum(map(operator.mul, point, strides)) for point in itertools.product(*map(range, sizes))]
    if len(sizes) != len(strides) or not all(0 <= index < len(known) for index in indices):
        raise _FaultyError("its mesh leads out of the list of ranks")
    return tuple(math.prod(shape) for shape, _ in axes), tuple(int(known[index]) for index in indices)


def _require_few(sizes: Sequence[Any], ranks: int) -> None:
    """Refuse a mesh of more ranks than there are files, before anything is made of it."""
    are_sizes = len(sizes) <= _MAX_DIMENSIONS and all(type(size) is int and size >= 1 for size in sizes)
    if not are_sizes or math.prod(sizes) > ranks:
        shown = " x ".join(f"{size!s:.12}" for size in sizes[:_MAX_DIMENSIONS])
        raise _FaultyError(f"is spread over a mesh of {shown} ranks, but there are {ranks} files")


def _numbers(value: Any) -> tuple[Any, ...]:  # noqa: ANN401 - of a file
    return value if isinstance(value, tuple) else (value,)
