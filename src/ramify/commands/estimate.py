"""What a recipe asks for: work, device and memory, from the recipe and the heads of its files; no library is loaded."""

import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

from ramify.config.load import resolved
from ramify.config.schema_eval import EvalRecipe
from ramify.config.schema_examples import DpoRecipe, SftRecipe
from ramify.config.schema_parts import (
    LocalEngineSection,
    LoraSection,
    ModelSection,
    TrainedModelSection,
    TrainingEngineSection,
)
from ramify.config.schema_train import TrainRecipe
from ramify.config.sizes import largest_row, num_steps
from ramify.modeling.hub import is_fetched
from ramify.modeling.model_config import is_adapter_folder, read_model_config, whole_folder
from ramify.modeling.row_bytes import RowBytes, row_bytes, store_bytes
from ramify.modeling.weight_files import stored_tensors

AnyRecipe: TypeAlias = TrainRecipe | SftRecipe | DpoRecipe | EvalRecipe
Shapes: TypeAlias = Mapping[str, tuple[int, ...]]

GIB = 1 << 30
_FLOAT = 4
_OPTIMIZERS = {"adamw": "AdamW", "muon": "Muon"}
_NO_ROW = RowBytes(0, 0, 0)
_MOST_COUNTED = 1 << 28
"""Bytes of a file of lines that are read to count them."""
_DRIVER = Path("/proc/driver/nvidia/version")


def dry_run(recipe: AnyRecipe, problems: int | None = None) -> str:
    """A recipe with every default, and behind it, as comments, what it asks for.

    Raises:
        DataError: The model's folder cannot be read.
    """
    work = work_of(recipe, problems)
    device, why = device_of(recipe.model)
    memory = memory_of(recipe, work, device)
    lines = [*work.in_words, f"device: {device} ({why})"]
    if not is_fetched(recipe.model.path):
        lines.append(f"model: {recipe.model.path} is fetched from the hub when the run starts")
    if memory is not None:
        lines.append(f"memory: {memory.in_words}")
    return resolved(recipe) + "\n" + "".join(f"# {line}\n" for line in lines)


@dataclass(frozen=True, slots=True)
class Work:
    """How much there is to do.

    Attributes:
        steps: Of the whole run; None where the data do not tell before they are read.
        unit: What a step takes, in words.
        per_step: Trajectories, demonstrations or sides of pairs in a step.
        tokens: The most that one of them may have; of a trajectory, what follows the prompt.
        context: The longest sequence.
        writes: The model writes these tokens itself.
        trains: The step ends with an update.
    """

    steps: int | None
    unit: str
    per_step: int
    tokens: int
    context: int
    writes: bool
    trains: bool

    @property
    def in_words(self) -> Iterator[str]:
        """Lines for a user."""
        steps = (
            "as many steps as the data give"
            if self.steps is None
            else f"{self.steps:,} step{'s' * (self.steps != 1)}"
        )
        yield f"{steps} of {self.unit}"
        what = "trajectories" if self.writes else "sequences"
        each = f"{self.per_step:,} {what} a step, at most {self.per_step * self.tokens:,} tokens"
        behind = " after the prompts" if self.writes else ""
        if self.steps is None:
            yield each + behind
        else:
            total = self.steps * self.per_step
            yield f"{each}{behind}; {total:,} {what}, at most {total * self.tokens:,} tokens in the whole run"


def work_of(recipe: AnyRecipe, problems: int | None = None) -> Work:
    """How much a recipe asks for; `problems`: its trees are grown for so many and nothing is trained."""
    if isinstance(recipe, EvalRecipe):
        sampling, rows = recipe.sampling, _rows(Path(recipe.data.test))
        known = [count for count in (rows, recipe.data.limit) if count is not None]
        count = min(known) if rows is not None and known else None
        return Work(
            None if count is None else 1,
            f"{'each problem' if count is None else f'{count:,} problems'} x {sampling.attempts} attempts",
            (count or 1) * sampling.attempts,
            sampling.max_tokens,
            recipe.data.max_prompt_tokens + sampling.max_tokens,
            writes=True,
            trains=False,
        )
    rows, epochs = _rows(recipe.data.train), recipe.data.epochs
    if isinstance(recipe, TrainRecipe):
        rollout = recipe.rollout
        size = problems or rollout.problems_per_step
        context = recipe.data.max_prompt_tokens + rollout.max_tokens
        unit = f"{size:,} problems x {rollout.n} trajectories"
        shape = (size * rollout.n, rollout.max_tokens, context)
    else:
        size = recipe.learner.batch_size
        sides = 2 if isinstance(recipe, DpoRecipe) else 1
        unit = f"{size:,} {'pairs' if sides == 2 else 'demonstrations'}"
        shape = (size * sides, recipe.data.max_tokens, recipe.data.max_tokens)
    if problems is not None:
        return Work(1, unit, *shape, writes=True, trains=False)
    steps = recipe.run.steps
    if steps is None and rows is not None:
        steps = num_steps(recipe.run, epochs, rows, size)
        unit += f" ({rows:,} rows, {epochs} epoch{'s' * (epochs > 1)})"
    return Work(steps, unit, *shape, writes=isinstance(recipe, TrainRecipe), trains=True)


def device_of(model: ModelSection) -> tuple[str, str]:
    """Where a model would run, "cpu" or "cuda", and why, without asking torch."""
    if model.device != "auto":
        return model.device, f'model.device = "{model.device}"'
    if not _DRIVER.exists():
        return "cpu", "no NVIDIA driver here"
    found = importlib.util.find_spec("torch")
    version = Path(found.origin).with_name("version.py") if found and found.origin else None
    if version is not None and version.is_file() and "cuda: Optional[str] = None" in version.read_text():
        return "cpu", "this build of torch is for the CPU"
    return "cuda", "an NVIDIA driver is here"


def _rows(path: Path) -> int | None:
    """Rows of a data file, without looking into them; None where it is no single file of a known kind."""
    try:
        if path.suffix == ".parquet":
            import pyarrow.parquet

            return int(pyarrow.parquet.read_metadata(path).num_rows)
        if path.suffix == ".jsonl" and path.stat().st_size <= _MOST_COUNTED:
            with path.open("rb") as file:
                return sum(not line.isspace() for line in file)
    # A foreign file: what is wrong with it is told by the one who reads it.
    except Exception:  # noqa: BLE001
        return None
    return None


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
        if work.trains and isinstance(engine, TrainingEngineSection) and engine.weights == "copy":
            parts["the engine's copy of the weights"] = parts["weights"] + parts.get("adapter", 0)
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
