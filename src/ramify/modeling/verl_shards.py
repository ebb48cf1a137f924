"""The weights of a verl checkpoint as those of its model, joined from the shards of all ranks one tensor at a time."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from ramify.core.errors import DataError
from ramify.modeling.load import is_rotary_buffer, require_fit
from ramify.modeling.lora_merge import MergedWeights
from ramify.modeling.lora_products import (
    EMBEDDING,
    HEAD,
    Product,
    adapter_pairs,
    is_adapted,
    plain_names,
)
from ramify.modeling.model_config import read_object_file
from ramify.modeling.plain_folder import Weights
from ramify.modeling.verl_files import VerlCheckpoint, read_lora_scale
from ramify.modeling.verl_pickles import Layout, Piece, read_shard

REOPEN_BYTES = 4_000_000_000
"""After so many bytes the shards are opened again: what was read of a mapped file counts as memory until it is closed.

Opening takes a twelfth of a second a rank, for 28 layers.
"""


class VerlShards:
    """The whole tensors of a checkpoint.

    Attributes:
        shapes: Shape of each tensor, in the order of rank 0's file.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        """Open the shards, and compare what the ranks say about each tensor.

        Raises:
            DataError: A file is damaged or has anything but tensors in it; ranks disagree; a tensor is laid out in a way
                that is not read.
        """
        self._files = tuple(files)
        self._ranks = self._opened()
        self._read = 0
        self._layouts = self._compared()
        self.shapes = {name: layout.shape for name, layout in self._layouts.items()}

    def tensor(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """Return a whole tensor, as `dtype`.

        Raises:
            DataError: Copies of it differ, or a rank's part has an unexpected shape.
        """
        layout = self._layouts[name]
        self._reopen_after(sum(piece.local.nbytes for piece in self._pieces(name)))
        whole = torch.empty(layout.shape, dtype=dtype)
        if not layout.mesh:
            for rank in range(1, len(self._files)):
                self._require_same(name, 0, rank)
            whole.copy_(self._ranks[0][name].local)
            return whole
        places = torch.tensor(layout.ranks).reshape(layout.mesh)
        for part, ranks in _parts(whole, places, layout.split):
            for rank in ranks:
                local = self._ranks[rank][name].local
                if local.shape != part.shape:
                    raise DataError(
                        f"{self._files[rank]}: {name} is {list(local.shape)}, expected {list(part.shape)} of "
                        f"{list(layout.shape)}"
                    )
                self._require_same(name, ranks[0], rank)
            part.copy_(self._ranks[ranks[0]][name].local)
        return whole

    def are_same(self, first: str, second: str) -> bool:
        """Return True if two tensors are equal, bit for bit, on each rank."""
        self._reopen_after(
            sum(piece.local.nbytes for name in (first, second) for piece in self._pieces(name))
        )
        return self._layouts[first] == self._layouts[second] and all(
            _same_bits(rank[first].local, rank[second].local) for rank in self._ranks
        )

    def _opened(self) -> tuple[Mapping[str, Piece], ...]:
        return tuple(read_shard(file, len(self._files)) for file in self._files)

    def _reopen_after(self, more: int) -> None:
        """Let go of the pages that were read, if there would be too many with `more` bytes."""
        if self._read and self._read + more > REOPEN_BYTES:
            self._ranks = ()
            self._ranks = self._opened()
            self._read = 0
        self._read += more

    def _pieces(self, name: str) -> Iterator[Piece]:
        return (rank[name] for rank in self._ranks)

    def _compared(self) -> dict[str, Layout]:
        first = self._ranks[0]
        for file, rank in zip(self._files, self._ranks, strict=True):
            if differing := sorted(rank.keys() ^ first.keys()):
                where = file if differing[0] in first else self._files[0]
                raise DataError(
                    f"{where}: {differing[0]} is missing, another rank has it: the files are of different runs"
                )
            for name, piece in rank.items():
                if piece.layout != first[name].layout:
                    raise DataError(
                        f"{file}: {name} is {_described(piece.layout)}, on rank 0 {_described(first[name].layout)}: the files are of "
                        "different runs"
                    )
        for name, piece in first.items():
            if piece.layout.mesh and sorted(piece.layout.ranks) != list(range(len(self._files))):
                raise DataError(
                    f"{self._files[0]}: {name} is spread over {len(piece.layout.ranks)} ranks, but there are "
                    f"{len(self._files)} files; a mesh of all ranks is expected"
                )
            parts = sum(rank[name].local.numel() for rank in self._ranks)
            if math.prod(piece.layout.shape) > parts:
                raise DataError(
                    f"{self._files[0]}: {name} has shape {list(piece.layout.shape)}, but the shards have only {parts:,} of its "
                    "values. Restore the shards of all ranks"
                )
        return {name: piece.layout for name, piece in first.items()}

    def _require_same(self, name: str, rank: int, other: int) -> None:
        if rank == other:
            return
        if not _same_bits(self._ranks[rank][name].local, self._ranks[other][name].local):
            raise DataError(
                f"{self._files[other]}: {name} differs from rank {rank}, expected the same on both: the files are of "
                "different runs, or the run's ranks fell out of step"
            )


def _parts(
    whole: torch.Tensor, ranks: torch.Tensor, split: Sequence[int | None]
) -> Iterator[tuple[torch.Tensor, list[int]]]:
    """Yield the parts of `whole`, views of it, each with the ranks that have it.

    The first dimension of the mesh splits first; each split is that of `torch.chunk`, with empty parts at the end.
    """
    copies = [dimension for dimension, along in enumerate(split) if along is None]
    by_part = ranks.permute(*(d for d in range(ranks.ndim) if d not in copies), *copies)
    by_part = by_part.reshape(*by_part.shape[: ranks.ndim - len(copies)], -1)
    yield from _chunks(whole, by_part, [along for along in split if along is not None])


def _chunks(
    whole: torch.Tensor, ranks: torch.Tensor, split: Sequence[int]
) -> Iterator[tuple[torch.Tensor, list[int]]]:
    if not split:
        yield whole, [int(rank) for rank in ranks]
        return
    rows, count = whole.shape[split[0]], len(ranks)
    most = -(-rows // count)
    for number in range(count):
        start = min(number * most, rows)
        part = whole.narrow(split[0], start, min(most, rows - start))
        yield from _chunks(part, ranks[number], split[1:])


def _same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Compare bit for bit, so that NaN equals itself."""
    first, second = (tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (left, right))
    return torch.equal(first, second)


def _described(layout: Layout) -> str:
    return f"{list(layout.shape)} {str(layout.dtype).removeprefix('torch.')} over a mesh {list(layout.mesh)}"


def verl_weights(checkpoint: VerlCheckpoint, config: Path, *, lora: bool) -> tuple[Weights, list[str]]:
    """Return the weights, and the names of those to write, in the order of the shards.

    Args:
        checkpoint: The checkpoint.
        config: The file `config.json` of the model that was trained.
        lora: Merge the adapter of a LoRA run.

    Raises:
        DataError: A shard is damaged; the run has an adapter and `lora` is off, or the other way around; the weights are
            not those of the configuration; the head is tied and differs from the embedding.
    """
    shards = VerlShards(checkpoint.shards)
    if is_adapted(shards.shapes) != lora:
        raise DataError(
            f"--lora: {checkpoint.folder} holds no adapter (no name with lora_A). Remove the option"
            if lora
            else f"{checkpoint.folder}: weights of a LoRA run (names with lora_A and base_layer). Use --lora to merge the "
            "adapter into them"
        )
    stored = plain_names(shards.shapes) if lora else {name: name for name in shards.shapes}
    weights = _adapted(shards, stored, checkpoint) if lora else shards
    names = [name for name in weights.shapes if not is_rotary_buffer(name)]
    model = require_fit(read_object_file(config), config, {name: weights.shapes[name] for name in names})
    if model.tie_word_embeddings and {HEAD, EMBEDDING} <= set(names):
        if lora and HEAD in adapter_pairs(shards.shapes, checkpoint.folder):
            raise DataError(
                f"{config}: tie_word_embeddings is true, but {HEAD} has an adapter of its own. Set --config to a copy of the "
                "folder where it is false"
            )
        if not shards.are_same(stored[HEAD], stored[EMBEDDING]):
            raise DataError(
                f"{config}: tie_word_embeddings is true, but {HEAD} and {EMBEDDING} differ. If they were trained apart, "
                "set --config to a copy of the folder where it is false"
            )
        names.remove(HEAD)
    return weights, names


def _adapted(shards: VerlShards, stored: dict[str, str], checkpoint: VerlCheckpoint) -> MergedWeights:
    scale = read_lora_scale(checkpoint)
    products = {}
    for name, (a, b) in adapter_pairs(shards.shapes, checkpoint.folder).items():
        if (rank := shards.shapes[a][0]) != scale.rank:
            raise DataError(f"{scale.path}: r = {scale.rank}, but {a} has rank {rank}")
        products[name] = Product(a, b, scale.alpha / scale.rank)
    return MergedWeights({name: (shards, own) for name, own in stored.items()}, shards, products)
