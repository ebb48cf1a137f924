"""The memory that a recipe takes, part by part, from the sizes of its model: no library is loaded for it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from types import SimpleNamespace
from typing import Any, TypeAlias

from ramify.commands.estimate import AnyRecipe, Work
from ramify.config.largest_row import largest_row
from ramify.config.schema_dpo import DpoRecipe
from ramify.config.schema_eval import EvalRecipe
from ramify.config.schema_parts import LocalEngineSection, LoraSection, ModelSection, TrainedModelSection
from ramify.config.schema_sft import SftRecipe
from ramify.config.schema_train import TrainRecipe
from ramify.modeling.hub import is_fetched
from ramify.modeling.model_config import is_adapter_folder, read_model_config, whole_folder
from ramify.modeling.row_bytes import RowBytes, row_bytes, store_bytes
from ramify.modeling.weight_files import stored_tensors

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]

GIB = 1 << 30
_FLOAT = 4
_OPTIMIZERS = {"adamw": "AdamW", "muon": "Muon"}
_NO_ROW = RowBytes(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes by what they are for.

    Attributes:
        parameters: Of the model, without an adapter.
        trained: Parameters that are trained: all, or those of an adapter.
        parts: What is held throughout.
        slot: The part of one slot of the engine.
        row_tokens: Tokens of the largest row of an update; 0 where nothing is trained.
        row: What that row takes.
        device: "cpu" or "cuda".
    """

    parameters: int
    trained: int
    parts: Mapping[str, int]
    slot: int
    row_tokens: int
    row: RowBytes
    device: str

    @property
    def fixed(self) -> int:
        """Sum of the parts."""
        return sum(self.parts.values())

    @property
    def least(self) -> int:
        """What there must be: with layers of a row that are computed again in the backward pass."""
        return self.fixed + self.row.head + min(self.row.layers, self.row.recomputed)

    def recomputes(self, room: int) -> bool:
        """Whether a run that has `room` bytes computes the layers of a row again."""
        return self.row_tokens > 0 and self.row.recomputes(room - self.fixed, self.device)

    def in_room(self, room: int) -> Mapping[str, int]:
        """All parts of a run that has `room` bytes."""
        again = self.recomputes(room)
        name = f"a row of {self.row_tokens:,} tokens{', layers computed again' if again else ''}"
        rows = {name: self.row.recomputed if again else self.row.layers, "logits of the row": self.row.head}
        return {**self.parts, **(rows if self.row_tokens else {})}

    @property
    def in_words(self) -> str:
        """One line."""
        parts = {**self.parts, "a row of tokens": self.row.kept}
        told = ", ".join(f"{name} {in_bytes(size)}" for name, size in parts.items() if size)
        less = " (less where its layers are computed again)" if self.row_tokens else ""
        return (
            f"about {in_bytes(self.fixed + self.row.kept)} for {self.parameters:,} parameters: {told}{less}"
        )


def in_bytes(size: int) -> str:
    """A size for a user."""
    return f"{size / GIB:,.1f} GiB" if size >= GIB else f"{size / (1 << 20):,.1f} MiB"


def loads_weights(recipe: AnyRecipe, work: Work) -> bool:
    """Whether a model is in this process; it may be at a service."""
    engine = None if isinstance(recipe, SftRecipe | DpoRecipe) else recipe.engine
    return work.trains or isinstance(engine, LocalEngineSection)


def memory_of(recipe: AnyRecipe, work: Work, device: str) -> Memory | None:
    """What a recipe takes on `device` ("cpu" or "cuda"); None where no weights are loaded or they are not here yet.

    Raises:
        DataError: The model's folder cannot be read.
    """
    if not loads_weights(recipe, work) or not is_fetched(recipe.model.path):
        return None
    folder = whole_folder(recipe.model.folder)
    shapes = {name: tensor.shape for name, tensor in stored_tensors(folder).items()}
    return memory_by_sizes(recipe, work, device, shapes, _sizes(read_model_config(folder)))


def memory_by_sizes(
    recipe: AnyRecipe,
    work: Work,
    device: str,
    shapes: Shapes,
    config: Any,  # noqa: ANN401 - transformers' configuration, or its values under the same names
) -> Memory:
    """The same for a model of these tensors; without a configuration the engine's store and the row are left out.

    Raises:
        DataError: The folder of an adapter cannot be read.
    """
    model = recipe.model
    engine = None if isinstance(recipe, SftRecipe | DpoRecipe) else recipe.engine
    parameters = trained = sum(map(prod, shapes.values()))
    size = _FLOAT if model.dtype == "float32" else 2
    parts = {"weights": parameters * size}
    row_tokens, row, slot = 0, _NO_ROW, 0
    if work.trains and not isinstance(recipe, EvalRecipe):
        trained = _trained(model, shapes, parameters)
        parts |= {} if trained == parameters else {"adapter": trained * size}
        parts["gradients"] = trained * _FLOAT
        # Muon keeps one of AdamW's two moments for most parameters; both are counted.
        parts[_OPTIMIZERS[recipe.learner.optimizer.name]] = 2 * trained * _FLOAT
        if _has_reference(recipe) and (trained == parameters or is_adapter_folder(model.folder)):
            parts["reference model"] = parameters * size
        if config is not None:
            row_tokens = largest_row(recipe)
            row = row_bytes(config, row_tokens, size, device)
    if isinstance(engine, LocalEngineSection):
        if device == "cpu" and size == _FLOAT:
            parts["weights in the engine's order"] = parameters * size
        if config is not None:
            slot = store_bytes(config, 1, work.context, size)
            parts[f"keys and values of {engine.slots} slots"] = slot * engine.slots
    return Memory(parameters, trained, parts, slot, row_tokens, row, device)


def _sizes(record: dict[str, Any]) -> SimpleNamespace | None:
    """The sizes of a configuration under transformers' names; None where it leaves one to its family's defaults."""
    config = SimpleNamespace(**record)
    try:
        config.num_key_value_heads = (
            getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        )
        row_bytes(config, 1, _FLOAT)
    except (AttributeError, TypeError):
        return None
    return config


def _trained(model: ModelSection, shapes: Shapes, parameters: int) -> int:
    """Trained parameters: all, or those of an adapter."""
    if is_adapter_folder(model.folder):
        return sum(prod(tensor.shape) for tensor in stored_tensors(model.folder).values())
    section = model.lora if isinstance(model, TrainedModelSection) else None
    return parameters if section is None else sum(_adapters(section, shapes))


def _adapters(section: LoraSection, shapes: Shapes) -> Iterator[int]:
    for name, shape in shapes.items():
        module = name.removesuffix(".weight").rpartition(".")[2]
        is_layer = ".layers." in name and len(shape) == 2
        if is_layer and (section.targets == "all-linear" or module in section.targets):
            yield section.rank * sum(shape)


def _has_reference(recipe: AnyRecipe) -> bool:
    return isinstance(recipe, DpoRecipe) or (
        isinstance(recipe, TrainRecipe) and recipe.algorithm.kl is not None
    )
