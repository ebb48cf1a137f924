"""What a recipe asks of a machine, from the recipe, the heads of its files and the model's sizes: no library is loaded for it."""

import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import TypeAlias

from ramify.config.against_data import num_steps
from ramify.config.load import resolved
from ramify.config.schema_dpo import DpoRecipe
from ramify.config.schema_eval import EvalRecipe
from ramify.config.schema_parts import LocalEngineSection, LoraSection, ModelSection, TrainedModelSection
from ramify.config.schema_sft import SftRecipe
from ramify.config.schema_train import TrainRecipe
from ramify.modeling.hub import is_fetched
from ramify.modeling.model_config import is_adapter_folder, read_model_config, whole_folder
from ramify.modeling.row_bytes import activation_bytes
from ramify.modeling.weight_files import stored_tensors

AnyRecipe: TypeAlias = TrainRecipe | SftRecipe | DpoRecipe | EvalRecipe

GIB = 1 << 30
_FLOAT = 4
_TRAINED = 3 * _FLOAT
"""Bytes of a trained parameter beside itself: its gradient and AdamW's two moments."""
_NAMES = {"adamw": "AdamW", "muon": "Muon"}
_MOST_COUNTED = 1 << 28
"""Bytes of a file of lines that are read to count them."""
_DRIVER = Path("/proc/driver/nvidia/version")


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


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes by what they are for; `row` is what forward and backward of the largest row take, without recomputing."""

    parameters: int
    parts: Mapping[str, int]
    row: int

    @property
    def least(self) -> int:
        """What there must be; layers of a row can be computed again instead of kept."""
        return sum(self.parts.values())

    @property
    def in_words(self) -> str:
        """One line."""
        parts = {**self.parts, "a row of tokens": self.row}
        told = ", ".join(f"{name} {in_bytes(size)}" for name, size in parts.items() if size)
        less = " (less where its layers are computed again)" if self.row else ""
        return f"about {in_bytes(self.least + self.row)} for {self.parameters:,} parameters: {told}{less}"


def in_bytes(size: int) -> str:
    """A size for a user."""
    return f"{size / GIB:,.1f} GiB" if size >= GIB else f"{size / (1 << 20):,.1f} MiB"


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


def memory_of(recipe: AnyRecipe, work: Work, device: str) -> Memory | None:
    """What a recipe takes on `device` ("cpu" or "cuda"); None where no weights are loaded or they are not here yet.

    Raises:
        DataError: The model's folder cannot be read.
    """
    engine = None if isinstance(recipe, SftRecipe | DpoRecipe) else recipe.engine
    is_local = isinstance(engine, LocalEngineSection)
    if not (is_local or work.trains) or not is_fetched(recipe.model.path):
        return None
    model = recipe.model
    folder = whole_folder(model.folder)
    shapes = {name: tensor.shape for name, tensor in stored_tensors(folder).items()}
    parameters = sum(map(prod, shapes.values()))
    size = _FLOAT if model.dtype == "float32" else 2
    parts = {"weights": parameters * size}
    row = 0
    config = _sizes(folder)
    if work.trains and not isinstance(recipe, EvalRecipe):
        trained = _trained(model, shapes, parameters)
        parts["weights"] += 0 if trained == parameters else trained * size
        parts[f"gradients and {_NAMES[recipe.learner.optimizer.name]}"] = trained * _TRAINED
        if _has_reference(recipe) and (trained == parameters or is_adapter_folder(model.folder)):
            parts["reference model"] = parameters * size
        if config is not None:
            row = activation_bytes(config, max(recipe.learner.token_budget, work.context), size, device)
    if isinstance(engine, LocalEngineSection) and config is not None:
        heads = config.num_hidden_layers * config.num_key_value_heads * config.head_dim
        parts[f"keys and values of {engine.slots} slots"] = (
            2 * heads * size * engine.slots * (work.context + 1)
        )
    return Memory(parameters, parts, row)


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


def _sizes(folder: Path) -> SimpleNamespace | None:
    """The sizes of a configuration under transformers' names; None where it leaves one to its family's defaults."""
    config = SimpleNamespace(**read_model_config(folder))
    try:
        config.num_key_value_heads = (
            getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        )
        config.head_dim = (
            getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        )
        activation_bytes(config, 1, _FLOAT)
    except (AttributeError, TypeError):
        return None
    return config


def _trained(model: ModelSection, shapes: Mapping[str, tuple[int, ...]], parameters: int) -> int:
    """Trained parameters: all, or those of an adapter."""
    if is_adapter_folder(model.folder):
        return sum(prod(tensor.shape) for tensor in stored_tensors(model.folder).values())
    section = model.lora if isinstance(model, TrainedModelSection) else None
    return parameters if section is None else sum(_adapters(section, shapes))


def _adapters(section: LoraSection, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[int]:
    for name, shape in shapes.items():
        module = name.removesuffix(".weight").rpartition(".")[2]
        is_layer = ".layers." in name and len(shape) == 2
        if is_layer and (section.targets == "all-linear" or module in section.targets):
            yield section.rank * sum(shape)


def _has_reference(recipe: AnyRecipe) -> bool:
    return isinstance(recipe, DpoRecipe) or (
        isinstance(recipe, TrainRecipe) and recipe.algorithm.kl is not None
    )
