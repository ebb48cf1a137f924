"""How long the work of a recipe takes, roughly, and whether it fits on a GPU that is not in this machine.

The time follows from two rates, which are measured here or assumed.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from ramify.commands.estimate import (
    GIB,
    AnyRecipe,
    Memory,
    Work,
    in_bytes,
    loads_weights,
    memory_by_sizes,
    work_of,
)
from ramify.config.schema_eval import EvalRecipe
from ramify.config.schema_parts import TrainedModelSection
from ramify.core.errors import MachineError
from ramify.modeling.hub import fetch_model
from ramify.modeling.load import parameter_shapes

_USABLE = 0.92
"""Share of a card's memory for tensors; the rest is CUDA itself, captured graphs, and gaps between tensors."""

_WRITING = 2
"""Floating-point operations for each token and parameter."""

_SIDE = 1536
_COPIED = 1 << 27
_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Pace:
    """What a device does in a second: floating-point operations of a matrix product, bytes read."""

    flops: float
    bandwidth: float

    def seconds(self, work: Work, memory: Memory, slots: int, size: int, *, recomputes: bool) -> float:
        """Of one step, where each trajectory has all the tokens that it may have.

        Each round of writing reads all weights once, for at most `slots` trajectories, and their keys and values, which
        are half of the store on average. Tools, the products of attention and prefixes that trajectories share are left
        out.

        Args:
            work: Of the recipe.
            memory: Of the recipe.
            slots: Trajectories that are written at once.
            size: Bytes of a parameter.
            recomputes: Layers are computed again in the backward pass.
        """
        tokens = work.per_step * work.tokens
        at_once = min(slots, work.per_step)
        read = memory.parameters * size + at_once * memory.slot // 2
        writing = max(
            _WRITING * memory.parameters * tokens / self.flops, tokens / at_once * read / self.bandwidth
        )
        learning = _learning_operations(memory, recomputes) * memory.parameters * tokens / self.flops
        return writing * work.writes + learning * work.trains


_RATES = {"float32": Pace(10e12, 0.5e12), "bfloat16": Pace(60e12, 0.5e12)}
"""Assumed, and nowhere measured. An A100's data sheet says 19.5 (float32) and 312 TFLOP/s (bfloat16) and 2.0 TB/s, that of an
RTX 3090 35.6, 71 and 0.94, that of an H100 SXM 67, 989 and 3.4. Float32 products do not use TF32 here."""


def _learning_operations(memory: Memory, recomputes: bool) -> int:
    """Floating-point operations for each token and parameter: forward, again, and backward by inputs and by weights."""
    return 2 + 2 * recomputes + 2 + 2 * (memory.trained >= memory.parameters)


def whole_run(work: Work, seconds: float) -> str:
    """Behind the time of a step: that of the run, where its steps are known."""
    return "" if work.steps in (None, 1) else f", {in_time(seconds * (work.steps or 1))} for the whole run"


def in_time(seconds: float) -> str:
    """A time for a user."""
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:.2g} seconds" if seconds < 10 else f"{seconds:.0f} seconds"


def measure_pace(device: str) -> Pace:
    """Measure a device ("cpu" or "cuda") in float32; takes about a second."""
    one = torch.ones(_SIDE, _SIDE, device=device)
    many = torch.ones(_COPIED // 4, device=device)
    product = _fastest(lambda: one @ one, device)
    reading = _fastest(many.sum, device)
    return Pace(2 * _SIDE**3 / product, _COPIED / reading)


def _fastest(work: Callable[[], object], device: str) -> float:
    """Seconds of the fastest of a few rounds; the first, which may load a library, does not count."""
    seconds = []
    for _ in range(_ROUNDS + 1):
        started = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return min(seconds[1:])


def on_card(path: Path, recipe: AnyRecipe, gigabytes: float) -> Iterator[str]:
    """Lines about a recipe on one card; of the model only `config.json` is needed, which the hub is asked for.

    Raises:
        UserError: It does not fit, or the model's sizes are not to be had.
    """
    room = int(_USABLE * gigabytes * GIB)
    work = work_of(recipe)
    yield f"one GPU of {gigabytes:g} GiB, not this machine's; {in_bytes(room)} of them are counted on"
    yield from work.in_words
    if not loads_weights(recipe, work):
        yield "the model runs at a service and takes no memory here"
        return
    memory = _memory(recipe, work)
    if memory.least > room:
        raise MachineError(
            f"{path}: takes at least {in_bytes(memory.least)} ({_told(memory, room)}), and {in_bytes(room)} of "
            f"{gigabytes:g} GiB can be counted on; {_knob(recipe, memory, room)}"
        )
    parts = memory.in_room(room)
    total = sum(parts.values())
    yield from (f"{in_bytes(size):>10}  {name}" for name, size in parts.items())
    yield f"{in_bytes(total):>10}  together: fits, {in_bytes(room - total)} to spare"
    yield from _time(recipe, work, memory, memory.recomputes(room))


def _memory(recipe: AnyRecipe, work: Work) -> Memory:
    path = recipe.model.path
    try:
        fetch_model(path, weights=False)
    except MachineError:
        raise MachineError(
            f"model.path: {path} is not here, and the hub cannot be reached for its config.json, which tells the sizes; "
            "connect, or put that one file into a folder and name it: -s model.path=FOLDER"
        ) from None
    shapes, config = parameter_shapes(recipe.model.folder)
    return memory_by_sizes(recipe, work, "cuda", shapes, config)


def _told(memory: Memory, room: int) -> str:
    return ", ".join(f"{name} {in_bytes(size)}" for name, size in memory.in_room(room).items())


def _knob(recipe: AnyRecipe, memory: Memory, room: int) -> str:
    """What to change so that it fits."""
    slots = getattr(getattr(recipe, "engine", None), "slots", 0)
    state = memory.fixed - slots * memory.slot
    rows = memory.least - memory.fixed
    if memory.slot and (fitting := (room - state - rows) // memory.slot) > 0:
        return f"engine.slots = {fitting} would fit"
    if state + memory.slot > room:
        if isinstance(recipe.model, TrainedModelSection) and memory.trained == memory.parameters:
            return "train an adapter (-s model.lora={}), a smaller model, or take a larger GPU"
        narrower = isinstance(recipe, EvalRecipe) and recipe.model.dtype == "float32"
        return f"take {'-s model.dtype=bfloat16, ' * narrower}a smaller model or a larger GPU"
    longest = "rollout.max_tokens" if memory.slot else "data.max_tokens"
    return f"the row is too long: lower learner.token_budget and {longest}"


def _time(recipe: AnyRecipe, work: Work, memory: Memory, recomputes: bool) -> Iterator[str]:
    dtype = recipe.model.dtype
    pace = _RATES[dtype]
    slots = getattr(getattr(recipe, "engine", None), "slots", work.per_step)
    seconds = pace.seconds(work, memory, slots, 4 if dtype == "float32" else 2, recomputes=recomputes)
    tokens = work.per_step * work.tokens
    each = (_WRITING if work.writes else 0) + (_learning_operations(memory, recomputes) if work.trains else 0)
    yield (
        f"about {in_time(seconds)} a step{whole_run(work, seconds)}, where every sequence has all its tokens; "
        "tools and the products of attention not counted"
    )
    yield (
        f"{tokens:,} tokens x {memory.parameters:,} parameters x {each} = {tokens * memory.parameters * each:.1e} FLOP, "
        f"at an assumed {pace.flops / 1e12:g} TFLOP/s in {dtype} and {pace.bandwidth / 1e12:g} TB/s (an A100's data sheet: "
        f"{'19.5' if dtype == 'float32' else '312'} and 2); measured on no GPU"
    )
