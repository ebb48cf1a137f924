"""Decode steps from CUDA graphs against the same steps launched kernel by kernel."""

import statistics
from collections.abc import Iterator

import numpy as np
import torch
from transformers import PreTrainedModel

from benchmarks.gpu.engine_rows import DECODING, Load
from benchmarks.gpu.figures import Figure
from benchmarks.gpu.models import SMALL, ModelSizes, random_model, served
from benchmarks.gpu.update_rows import repeated_seconds
from ramify.engines.decoder import Decoder
from ramify.engines.model_step import DecodeGraphs, StaticStep, bucket_for, cache_dtype, cache_shape
from ramify.engines.slots import SlotTable

_LEAST_GAIN = 2.0


def decode_graphs() -> Iterator[Figure]:
    """At 0.5B in bfloat16."""
    yield from graph_steps(served(random_model(SMALL, "cuda"), torch.bfloat16), SMALL, DECODING)


@torch.inference_mode()
def graph_steps(model: PreTrainedModel, sizes: ModelSizes, load: Load) -> Iterator[Figure]:
    """Compare a graph with launched steps, in logits and seconds; without a GPU both sides are launched by kernel."""
    device = model.device
    shape = cache_shape(model, load.sequences, load.prompt + load.written)
    table = SlotTable(shape, cache_dtype(model), device)
    generator = torch.Generator(device).manual_seed(0)
    table.keys.normal_(generator=generator)
    table.values.normal_(generator=generator)
    table.lengths[:] = load.prompt
    # Not all rows: those that do not decode write to the spare position.
    rows = np.arange(0, load.sequences, 2)
    tokens = np.random.default_rng(0).integers(100, sizes.vocabulary, len(rows))
    decoder = Decoder(model, table.spare_position + 1)
    step = StaticStep(decoder, table, bucket_for(int(rows.max()), load.prompt + 1, shape))

    def launched() -> torch.Tensor:
        step.fill(rows, tokens)
        return step.compute()[torch.from_numpy(rows).to(device)]

    graphs = DecodeGraphs(decoder, table) if device.type == "cuda" else None

    def replayed() -> torch.Tensor:
        return launched() if graphs is None else graphs.logits(rows, tokens)

    # The second call replays what the first captured.
    replayed()
    away = float((replayed().float() - launched().float()).abs().max())
    seconds = {
        name: repeated_seconds(work, device) for name, work in (("launched", launched), ("graph", replayed))
    }
    middle = {name: statistics.median(values) for name, values in seconds.items()}
    settings = {"rows": len(rows), "context": load.prompt, "seconds": seconds}
    yield Figure(
        f"graphs.{sizes.name}.difference",
        "largest difference of a logit between a captured and a launched step",
        away,
        "0",
        away == 0,
        settings,
        proves="a captured step reads its inputs anew and computes what its kernels compute",
    )
    gain = middle["launched"] / middle["graph"]
    yield Figure(
        f"graphs.{sizes.name}.gain",
        "seconds of a decode step launched kernel by kernel / from a graph",
        gain,
        f"at least {_LEAST_GAIN}",
        None if graphs is None else gain >= _LEAST_GAIN,
        settings,
        proves="capturing pays for itself on a small model",
    )
