"""What one process of the learner computes: passes over its rows, its part of the gradients, its part of the step.

Every method is called on all ranks at once (`learner.parallel`), each with the rows of its own.
"""

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch
from transformers import PreTrainedModel

from ramify.algos.losses import LossInputs, LossOutput, TokenLoss
from ramify.core.errors import ConfigError, DataError
from ramify.core.records import Floats, Ints, PackedRow
from ramify.learner.configs import OptimizerConfig
from ramify.learner.forward import PassSettings, backward_row, empty_pass, forward_row
from ramify.learner.optimizer import Optimizers
from ramify.learner.optimizer_files import ALONE, StoredState, held_state, write_state_tensors
from ramify.learner.report import Totals
from ramify.learner.sharding import (
    add_reduced,
    computes_by_layer,
    gathered,
    is_sharded,
    own_part,
    own_rows,
    reduced,
    whole,
)
from ramify.modeling.load import load_model, load_unfilled
from ramify.modeling.numerics import compute_device, compute_dtype, release_cached
from ramify.modeling.recompute import set_checkpointing
from ramify.modeling.tensor_files import all_finite, read_rows

Reference: TypeAlias = Callable[[], AbstractContextManager[PreTrainedModel]]
"""Opens the reference model: a frozen copy, or the trained one with its adapters off."""

RowValues: TypeAlias = tuple[Floats, Floats | None]
"""Logprobs of a row's response tokens, and their entropies on request, nats. [W] each"""

_WRITER = ThreadPoolExecutor(1, "ramify-checkpoint")
_LOOK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class RowGradients:
    """What a rank needs for the gradients of an optimizer step.

    Attributes:
        rows: Its rows.
        settings: How they are computed.
        losses: Terms of the loss on tokens.
        sequence_gradients: For each row the gradient of the sequence loss with respect to each written token's logprob
            ([W] each); None: there is no sequence loss.
        denominator: Divides the loss.
        passes: Number of rows of the rank that has most; a rank with fewer makes up empty passes.
    """

    rows: tuple[PackedRow, ...]
    settings: PassSettings
    losses: tuple[TokenLoss, ...]
    sequence_gradients: tuple[Floats, ...] | None
    denominator: float
    passes: int


class Worker:
    """One process's part of the learner."""

    def __init__(
        self, model: PreTrainedModel, optimizer: OptimizerConfig, reference: Reference | None = None
    ) -> None:
        """Make a worker for a model.

        Args:
            model: Loaded by `ramify.modeling`; with several processes it is sharded.
            optimizer: Settings of the optimizer.
            reference: Opens the reference model, if one is needed.
        """
        self.model = model
        self.optimizers = Optimizers(model, optimizer)
        self._reference = reference
        self._norm = torch.zeros(())
        self._writing: Future[None] | None = None

    @property
    def has_reference(self) -> bool:
        """True if there is a reference model."""
        return self._reference is not None

    def hold_reference(self, reference: Reference | None) -> None:
        """Use a reference model that was not needed when the worker was made."""
        self._reference = reference

    def recompute(self) -> None:
        """Compute layers again in the backward pass from now on."""
        set_checkpointing(self.model, True)

    def forward(
        self, rows: Sequence[PackedRow], settings: PassSettings, of_reference: bool, passes: int
    ) -> list[RowValues]:
        """Return logprobs, and entropies on request, of this rank's rows."""
        with self._opened(of_reference) as model, gathered(model):
            values = [_as_arrays(forward_row(model, row, settings)) for row in rows]
            with torch.no_grad():
                _make_up(model, passes - len(rows))
        return values

    def gradients(self, work: RowGradients) -> tuple[Totals, float]:
        """Compute the gradients; returns what this rank's rows measured, and the norm of all ranks' gradients together."""
        self.optimizers.zero_grad()
        totals = Totals()
        head = self._head()
        wide = torch.promote_types(compute_dtype(self.model), torch.float32)
        device = compute_device(self.model)
        buffer = torch.zeros(head.shape, dtype=wide, device=device) if head.requires_grad else None
        # Where nothing stands between the head and its gradient, that is not held twice.
        is_direct = buffer is not None and buffer.dtype == head.dtype and not is_sharded(self.model)
        if is_direct:
            head.grad = buffer
        with reduced(self.model):
            for number, row in enumerate(work.rows):
                sequence_gradients = (
                    None if work.sequence_gradients is None else work.sequence_gradients[number]
                )
                _accumulate(self.model, row, work, sequence_gradients, buffer, totals)
            _make_up(self.model, work.passes - len(work.rows))
        if buffer is not None and not is_direct:
            add_reduced(self._head(), buffer)
        gradients = [p.grad for p in self.optimizers.parameters if p.grad is not None]
        self._norm = whole(torch.nn.utils.get_total_norm(gradients))
        return totals, float(self._norm)

    def step(self, factor: float, max_norm: float) -> None:
        """Scale the gradients down to `max_norm`, and take a step at `factor` times the configured rates."""
        trained = [p for p in self.optimizers.parameters if p.grad is not None]
        torch.nn.utils.clip_grads_with_norm_(trained, max_norm, self._norm)
        self.optimizers.step(factor)
        self.optimizers.zero_grad()

    def try_gradients(self, work: RowGradients) -> None:
        """Compute gradients and drop them, in the memory that the optimizer's state leaves: it is made at the end of the first step."""
        device = compute_device(self.model)
        state = self.optimizers.missing_bytes() if self.model.device == device else 0
        held = torch.empty(state, dtype=torch.uint8, device=device)
        self.gradients(work)
        self.drop()
        del held

    def drop(self) -> None:
        """Drop the gradients."""
        self.optimizers.zero_grad()

    def release_memory(self) -> None:
        """Give back the GPU's memory that nothing uses: another program on it comes next."""
        release_cached(compute_device(self.model))

    def whole_parameters(
        self, names: tuple[str, ...], dtypes: tuple[str | None, ...], keep: bool, on_cpu: bool
    ) -> list[torch.Tensor] | None:
        """Return parameters with the parts of all ranks; None on ranks that do not `keep` them.

        Args:
            names: Their names.
            dtypes: In which each travels from rank to rank, and is returned; None: its own.
            keep: This rank gets them.
            on_cpu: What was split is returned on a CPU.
        """
        tensors = []
        for name, dtype in zip(names, dtypes, strict=True):
            parameter = self.model.get_parameter(name).detach()
            tensor = whole(parameter if dtype is None else parameter.to(getattr(torch, dtype)))
            if keep:
                tensors.append(tensor.cpu() if on_cpu and is_sharded(self.model) else tensor)
        return tensors if keep else None

    def not_finite(self) -> str | None:
        """Return the name of the first tensor with a non-finite number in this rank's weights or optimizer state, or None."""
        for what, tensors in (
            ("weights", dict(self.model.named_parameters())),
            ("optimizer state", self.optimizers.state_tensors()),
        ):
            for name, tensor in tensors.items():
                if not all_finite(own_part(tensor)):
                    return f"{what} of {name}"
        return None

    def require_file(self, file: Path, number: int, seconds: float) -> None:
        """Wait for a file that rank 0 has written in the run's folder: a shared disk may show it late.

        Raises:
            ConfigError: It does not come.
        """
        until = time.monotonic() + seconds
        while not file.exists():
            if time.monotonic() > until:
                raise ConfigError(
                    f"run.dir: rank {number} on {socket.gethostname()} does not see what rank 0 writes to {file.parent}. Name a "
                    "folder on a disk that all machines share."
                )
            time.sleep(_LOOK_SECONDS)

    def write_state(self, folder: Path, number: int, count: int) -> None:
        """Write this rank's part of the optimizer state into a folder.

        Raises:
            OSError: The file cannot be written.
        """
        write_state_tensors(folder, held_state(self.optimizers.state_tensors(), number, count))

    def begin_writing(self, folder: Path, number: int, count: int) -> None:
        """As `write_state`, from a copy in the machine's memory, in a thread; `end_writing` waits for it."""
        held = held_state(self.optimizers.state_tensors(), number, count, copy=True)
        self._writing = _WRITER.submit(write_state_tensors, folder, held)

    def end_writing(self) -> None:
        """Wait for what `begin_writing` began.

        Raises:
            OSError: The file cannot be written.
        """
        if self._writing is not None:
            writing, self._writing = self._writing, None
            writing.result()

    def load_state(self, folder: Path, if_damaged: str) -> None:
        """Load the optimizer state of a folder, whatever number of ranks wrote it.

        Raises:
            DataError: It cannot be read, or belongs to another model; `if_damaged` ends the message.
        """
        try:
            self.optimizers.load_state_tensors(StoredState(folder))
        except DataError as error:
            raise DataError(
                f"{folder / ALONE}: damaged, or of another model ({error}); {if_damaged}"
            ) from error

    def load_weights(self, folder: Path) -> None:
        """Copy the trained weights of a checkpoint into the model, in place.

        Raises:
            DataError: The weights cannot be read, or belong to another model.
        """
        read: Callable[[str, slice], torch.Tensor]
        # A rank that keeps a part of the weights reads no more of them.
        unfilled = load_unfilled(folder, "float32") if is_sharded(self.model) else None
        if unfilled is None:
            saved = dict(load_model(folder).named_parameters())
            read = lambda name, rows: saved[name][rows]  # noqa: E731
        else:
            saved, stored = dict(unfilled[0].named_parameters()), unfilled[1]
            read = lambda name, rows: read_rows(stored[name].file, name, rows)  # noqa: E731
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                if not parameter.requires_grad:
                    continue
                if name not in saved or saved[name].shape != parameter.shape:
                    shape = list(saved[name].shape) if name in saved else None
                    raise DataError(
                        f"checkpoint {folder}: {name} is {shape}, expected {list(parameter.shape)}"
                    )
                try:
                    own_part(parameter).copy_(read(name, own_rows(parameter)))
                except ValueError as error:
                    raise DataError(f"checkpoint {folder}: {error}") from error

    def _head(self) -> torch.Tensor:
        """Return the head's weight: its part while it is split, which is another tensor than the whole one."""
        weight: torch.Tensor = self.model.get_output_embeddings().weight  # type: ignore[no-untyped-call]
        return weight

    @contextmanager
    def _opened(self, of_reference: bool) -> Iterator[PreTrainedModel]:
        if not of_reference:
            yield self.model
            return
        if self._reference is None:
            raise ValueError("reference logprobs need a reference model")
        with self._reference() as model:
            yield model


def _make_up(model: PreTrainedModel, passes: int) -> None:
    """Make the passes that the other ranks wait for."""
    if computes_by_layer(model):
        for _ in range(passes):
            empty_pass(model)


def _accumulate(
    model: PreTrainedModel,
    row: PackedRow,
    work: RowGradients,
    sequence_gradients: Floats | None,
    head_grad: torch.Tensor | None,
    totals: Totals,
) -> None:
    dtype = torch.promote_types(compute_dtype(model), torch.float32)

    def tensor(values: Floats) -> torch.Tensor:
        return torch.from_numpy(values).to(compute_device(model), dtype)

    def loss(chunk: Ints, logprobs: torch.Tensor, entropies: torch.Tensor | None) -> torch.Tensor:
        assert entropies is not None
        inputs = LossInputs(
            s_plus=tensor(row.s_plus[chunk]),
            s_minus=tensor(row.s_minus[chunk]),
            weight=tensor(row.weight[chunk]),
            num_paths=tensor(row.num_paths[chunk]),
            policy_logprobs=logprobs,
            old_logprobs=tensor(row.old_logprobs[chunk]),
            entropies=entropies,
            ref_logprobs=None if row.ref_logprobs is None else tensor(row.ref_logprobs[chunk]),
        )
        outputs: list[LossOutput] = [term(inputs) for term in work.losses]
        for output in outputs:
            totals.add_token_loss(output)
        terms = [output.loss for output in outputs]
        if sequence_gradients is not None:
            terms.append((tensor(sequence_gradients[chunk]) * logprobs).sum())
        return sum(terms, logprobs.new_zeros(())) / work.denominator

    logprobs, entropies = backward_row(model, row, work.settings, loss, head_grad)
    assert entropies is not None
    totals.add(row, logprobs, entropies)


def _as_arrays(tensors: tuple[torch.Tensor, torch.Tensor | None]) -> RowValues:
    logprobs, entropies = (None if tensor is None else tensor.double().cpu().numpy() for tensor in tensors)
    assert logprobs is not None
    return logprobs, entropies
