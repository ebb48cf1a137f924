"""The learner's weights as an engine's servers take them, under the names of the model's files: those of an adapter merged, a
tied head under its own name too, experts one by one.

What vLLM loads over an old tied head leaves the head as it was, so the head goes along. Parameters are cast to the servers' type before ranks gather them:
a float32 copy of the whole model is nowhere.
"""

import errno
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock

import torch

from ramify.core.errors import DataError
from ramify.files.durable import sync_folder
from ramify.learner.sharding import is_sharded
from ramify.learner.update import Learner
from ramify.modeling import plain_folder
from ramify.modeling.lora import adapted_parts, adapter_scaling, merged
from ramify.modeling.tensor_files import all_finite
from ramify.modeling.text_decoder import whole_model

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_BASE = ".base_layer."
_ADAPTER = ".lora_"
_EXPERTS = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
"""Matrices that transformers keeps in one tensor for all experts, and those of each expert in the files."""
BUCKET_BYTES = 256 * 2**20
"""A bucket ends with the tensor that makes it larger than this."""
_MOST_THREADS = 8


class ServedWeights:
    """The parameters of a learner's model under the names of a plain model.

    Attributes:
        shapes: Shape of each tensor by name.
    """

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        named = dict(learner.model.named_parameters(remove_duplicate=False))
        # A tied parameter has several names, and is asked for by the one that the optimizer uses.
        first = {id(parameter): name for name, parameter in learner.model.named_parameters()}
        modules = dict(learner.model.named_modules())
        whole = whole_model(learner.model)
        self._sources: dict[str, tuple[str, ...]] = {}
        self._places: dict[str, tuple[int, slice]] = {}
        self._scaling: dict[str, float] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        for name, parameter in named.items():
            if _ADAPTER in name:
                continue
            owner, _, kind = name.partition(_BASE)
            plain = f"{owner}.{kind}" if kind else name
            source, shape = first[id(parameter)], tuple(parameter.shape)
            if plain.rpartition(".")[0].endswith(".experts"):
                for part, part_of, expert_shape in _by_expert(plain, shape):
                    self._sources[part], self._places[part] = (source,), part_of
                    self.shapes[part] = expert_shape
                continue
            plain = plain if whole is None else whole.stored_name(plain)
            self._sources[plain] = (source,)
            if kind == "weight":
                self._sources[plain] = tuple(f"{owner}.{part}" for part in adapted_parts())
                self._scaling[plain] = adapter_scaling(modules[owner])
            self.shapes[plain] = shape

    @property
    def divides_tensors(self) -> bool:
        """Return True if several names are parts of one parameter, which is dear to ask for once each."""
        return bool(self._places)

    def tensor(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor as `dtype`, on a CPU if it is split."""
        return self.tensors((name,), dtype)[0]

    def tensors(self, names: Sequence[str], dtype: torch.dtype, *, on_cpu: bool = True) -> list[torch.Tensor]:
        """Return tensors as `dtype`, gathered at once."""
        wire = str(dtype).removeprefix("torch.")
        # A sum is cast once it is made. What several names are parts of is gathered once.
        pairs = {
            (source, None if name in self._scaling else wire): None
            for name in names
            for source in self._sources[name]
        }
        whole = self._learner.whole_parameters(
            tuple(source for source, _ in pairs), tuple(kind for _, kind in pairs), on_cpu=on_cpu
        )
        gathered = {source: tensor for (source, _), tensor in zip(pairs, whole, strict=True)}
        return [self._tensor(name, gathered, dtype) for name in names]

    def _tensor(self, name: str, gathered: Mapping[str, torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
        base, *matrices = (gathered[source] for source in self._sources[name])
        if name in self._places:
            expert, rows = self._places[name]
            return base[expert, rows]
        if name not in self._scaling:
            return base
        # A base that is not split stays where it is; what was gathered is on a CPU.
        a, b = (matrix.to(base.device) for matrix in matrices)
        return merged(base, a, b, self._scaling[name]).to(dtype)


def _by_expert(name: str, shape: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, slice], tuple[int, ...]]]:
    """Return the name of each expert's matrices in a tensor of all, where they are, and their shape."""
    owner, _, kind = name.rpartition(".")
    rows = shape[1] // len(_EXPERTS[kind])
    for expert in range(shape[0]):
        for number, matrix in enumerate(_EXPERTS[kind]):
            part_of = expert, slice(number * rows, (number + 1) * rows)
            yield f"{owner}.{expert}.{matrix}.weight", part_of, (rows, *shape[2:])


class LearnerBuckets:
    """Implements `ramify.core.protocols.WeightBuckets` with a learner.

    Attributes:
        dtype: See `WeightBuckets`.
        buckets: See `WeightBuckets`.
        shapes: See `WeightBuckets`.
        bucket_bytes: See `WeightBuckets`.
    """

    bucket_bytes = BUCKET_BYTES

    def __init__(self, learner: Learner, dtype: str) -> None:
        """The weights of `learner` as `dtype`, in the order of its model."""
        self._learner, self._weights, self.dtype = learner, ServedWeights(learner), dtype
        self.shapes: Mapping[str, tuple[int, ...]] = self._weights.shapes
        self.buckets: Sequence[Sequence[str]] = _buckets(
            self.shapes, self.shapes, _DTYPES[dtype], self.bucket_bytes
        )
        self._step = learner.step

    def take_current(self) -> None:
        """Stand for the weights as they are now."""
        self._step = self._learner.step

    def tensors(self, number: int, *, on_cpu: bool) -> Sequence[torch.Tensor] | None:
        """See `WeightBuckets`.

        Raises:
            DataError: A weight is NaN or infinite.
        """
        if self._learner.step != self._step:
            return None
        names = self.buckets[number]
        tensors = self._weights.tensors(names, _DTYPES[self.dtype], on_cpu=on_cpu)
        if self.dtype == "float32":
            # Not cast, they may be the learner's own, which change while they are sent.
            tensors = [tensor.clone() for tensor in tensors]
        for name, tensor in zip(names, tensors, strict=True):
            if not all_finite(tensor):
                raise DataError(plain_folder.not_finite(self._weights, name))
        # The number grows before weights change, so these are still those of that step.
        return tensors if self._learner.step == self._step else None


class _ByBuckets:
    """Served weights that ranks gather a bucket at a time, for threads that ask for each tensor once, in the order of `names`."""

    def __init__(self, weights: ServedWeights, names: Sequence[str], dtype: torch.dtype) -> None:
        self._weights, self.shapes = weights, weights.shapes
        buckets = _buckets(names, weights.shapes, dtype, BUCKET_BYTES)
        self._bucket_of = {name: bucket for bucket in buckets for name in bucket}
        self._gathered: dict[str, torch.Tensor] = {}
        self._lock = Lock()

    def tensor(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor as `dtype`, on a CPU."""
        with self._lock:
            if name not in self._gathered:
                bucket = self._bucket_of[name]
                tensors = self._weights.tensors(bucket, dtype)
                self._gathered.update(zip(bucket, tensors, strict=True))
            return self._gathered.pop(name)


def _buckets(
    names: Iterable[str], shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype, most: int
) -> list[Sequence[str]]:
    """Return the names in groups, each of which ends with the tensor that makes it larger than `most` bytes."""
    buckets: list[list[str]] = []
    size = most + 1
    for name in names:
        if size > most:
            buckets.append([])
            size = 0
        buckets[-1].append(name)
        size += torch.Size(shapes[name]).numel() * dtype.itemsize
    return list(buckets)


def write_weights(learner: Learner, folder: Path, dtype: str) -> None:
    """Write all parameters in `dtype` into a new folder, which is complete or absent, and what killed writers left of it is removed.

    One of that name, which a server may be reading, is moved aside, so that its files stay open: it is never half there.

    Raises:
        DataError: A weight is NaN or infinite.
        OSError: The folder cannot be written; nothing is left of it.
    """
    weights, kind = ServedWeights(learner), _DTYPES[dtype]
    part, old = (folder.with_name(f".{folder.name}.{ending}") for ending in ("part", "old"))
    for left in (part, old):
        shutil.rmtree(left, ignore_errors=True)
    try:
        part.mkdir(parents=True)
        _require_room(
            part, sum(torch.Size(shape).numel() for shape in weights.shapes.values()) * kind.itemsize
        )
        threads = min(_MOST_THREADS, os.cpu_count() or 1)
        # Files hold their tensors in the order of the names.
        names = sorted(weights.shapes)
        by_buckets = is_sharded(learner.model) or weights.divides_tensors
        source = _ByBuckets(weights, names, kind) if by_buckets else weights
        plain_folder.write_weights(part, source, names, kind, lambda: None, threads=threads)
        sync_folder(part)
        with suppress(FileNotFoundError):
            folder.rename(old)
        part.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def _require_room(folder: Path, needed: int) -> None:
    """Fail as the write itself would, but before it takes minutes."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        message = (
            f"{os.strerror(errno.ENOSPC)} ({needed / 1e9:.3g} GB are needed, {free / 1e9:.3g} GB are free)"
        )
        raise OSError(errno.ENOSPC, message, str(folder))
