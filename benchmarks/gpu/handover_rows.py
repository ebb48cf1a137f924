"""New weights on their way to an engine: through a folder into another process on the card, and over NCCL."""

import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from benchmarks.gpu.card_rows import CHILD
from benchmarks.gpu.figures import Figure, not_measured
from benchmarks.gpu.models import LARGE, ModelSizes, learner_in, random_model
from benchmarks.harness.peers import Peer
from ramify.engines.vllm.nccl import Communicator, NcclCommunicator
from ramify.engines.vllm.wires import NcclWire
from ramify.learner.update import Learner
from ramify.sampler.served_weights import LearnerBuckets, ServedWeights, write_weights

_SHARED = Path("/dev/shm")
_FOLDER_SECONDS, _NCCL_SECONDS = 2.0, 0.1
"""Most seconds a GB: with these a 7B model (15.2 GB) takes half a minute through a folder, and 1.5 s over NCCL."""


def hand_over() -> Iterator[Figure]:
    """At 1.5B in bfloat16."""
    learner = learner_in(random_model(LARGE, "cuda"), torch.bfloat16)
    yield from through_folder(learner, LARGE, torch.device("cuda"))
    yield from over_nccl(learner, LARGE, NcclCommunicator)
    proves = "another process receives what NCCL sends"
    if torch.cuda.device_count() < 2:
        reason = "needs a second GPU: NCCL refuses two processes on one card"
    else:
        reason = 'its receiver is a vLLM server: train with engine.weights = "nccl"'
    yield not_measured("handover.nccl.two", reason, proves)


def through_folder(learner: Learner, sizes: ModelSizes, device: torch.device) -> Iterator[Figure]:
    """Write the weights as a run does, and have a process of its own read them onto the device."""
    sums = _sums(learner)
    with tempfile.TemporaryDirectory(dir=_SHARED if _SHARED.is_dir() else None) as name:
        folder = Path(name) / "weights"
        with Peer(CHILD, Path(sys.executable)) as other:
            other.ask({"do": "open", "device": str(device)})
            started = time.perf_counter()
            write_weights(learner, folder, "bfloat16")
            writing = time.perf_counter() - started
            size = sum(file.stat().st_size for file in folder.glob("*.safetensors")) / 1e9
            reply = other.ask({"do": "read", "device": str(device), "folder": str(folder)})
    seconds = (writing + float(reply["seconds"])) / size
    yield Figure(
        f"handover.folder.{sizes.name}",
        "seconds a GB: written into memory's file system and read by another process of the card",
        seconds,
        f"at most {_FOLDER_SECONDS}",
        seconds <= _FOLDER_SECONDS,
        {"gigabytes": size, "writing": writing, "reading": reply["seconds"]},
        proves="a server on the learner's card gets its weights while both have a context there",
    )
    changed = sum(sums[name] != reply["sums"].get(name) for name in sums)
    yield Figure(
        "handover.folder.changed",
        "tensors that differ from the learner's in the other process",
        float(changed),
        "0",
        changed == 0,
        {"tensors": len(sums)},
        proves="weights that were cast and gathered on a GPU arrive bit for bit",
    )


def over_nccl(learner: Learner, sizes: ModelSizes, communicator: type[Communicator]) -> Iterator[Figure]:
    """Broadcast all buckets in a group of this process alone."""
    sums = _sums(learner)
    weights, wire = LearnerBuckets(learner, "bfloat16"), NcclWire(communicator)
    try:
        wire.meet(weights, [], 1)
        wire.join()
        wire.announce(weights, "figure")
        wire.send(weights)  # NCCL opens its channels at the first broadcast
        started = time.perf_counter()
        sent = wire.send(weights)
        took = time.perf_counter() - started
    finally:
        wire.remove()
    size = sum(2 * torch.Size(shape).numel() for shape in weights.shapes.values()) / 1e9
    changed = sum(str(sums[name]) != sent[name] for name in sums)
    yield Figure(
        f"handover.nccl.{sizes.name}",
        "seconds a GB of gathering, casting and broadcasting buckets in a group of one",
        took / size,
        f"at most {_NCCL_SECONDS}",
        took / size <= _NCCL_SECONDS and changed == 0,
        {"gigabytes": size, "buckets": len(weights.buckets), "changed": changed},
        proves="our calls fit the NCCL that torch has loaded, and buckets are cut and summed on the GPU",
    )


def _sums(learner: Learner) -> Mapping[str, int]:
    """Sum of the bits of each tensor as servers get it."""
    weights = ServedWeights(learner)
    return {
        name: int(
            weights.tensor(name, torch.bfloat16)
            .contiguous()
            .view(-1)
            .view(torch.int16)
            .sum(dtype=torch.int64)
        )
        for name in weights.shapes
    }
