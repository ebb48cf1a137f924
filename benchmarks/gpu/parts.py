"""The parts of `make gpu`: what each measures, and the seconds that it may take on an H100, by estimate."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_STARTING = 10
"""Seconds of a process's imports and of its CUDA context."""
BUDGET = 525
"""Seconds of all parts together; the rest of nine minutes is for reading and writing between them."""
_TESTS = ("tests/gpu", "tests/unit/engines/test_model_step.py")


@dataclass(frozen=True, slots=True)
class PlannedPart:
    """One process.

    Attributes:
        module: Of its function; None for the tests.
        function: Yields its figures.
        work: Seconds of its work by estimate. None of them was measured yet.
        why: How the estimate comes about.
        proves: What it shows to work on a GPU.
    """

    module: str | None
    function: str
    work: int
    why: str
    proves: str

    @property
    def seconds(self) -> int:
        """Return the estimate of the whole process."""
        return _STARTING + self.work

    @property
    def limit(self) -> int:
        """Return the seconds after which it is stopped: a hang must leave time for the others."""
        return 2 * self.seconds

    def arguments(self, name: str) -> Sequence[str]:
        """Return the arguments of Python."""
        if self.module is not None:
            return ["-m", "benchmarks.gpu", "--part", name]
        # The options of pyproject.toml ask for plugins that a machine with a GPU need not have.
        return ["-m", "pytest", "-q", "-o", "addopts=", "-m", "gpu", "-p", "no:cacheprovider", *_TESTS]


PARTS: Mapping[str, PlannedPart] = {
    "tests": PlannedPart(
        None,
        "",
        50,
        "some 15 compiled kernels at 2 to 3 s",
        "attention, gradients and graphs agree with a CPU or with plain operations",
    ),
    "attention": PlannedPart(
        "benchmarks.gpu.attention_rows",
        "flex_backward",
        15,
        "4 compiled kernels, then milliseconds",
        "FlexAttention's backward pass at the heads of 0.5B and 7B",
    ),
    "processes": PlannedPart(
        "benchmarks.gpu.card_rows",
        "two_processes",
        20,
        "a second process (8 s), 3 updates at 0.5B with their kernels",
        "two processes take one card's memory in turns",
    ),
    "handover": PlannedPart(
        "benchmarks.gpu.handover_rows",
        "hand_over",
        20,
        "3.1 GB written, read and broadcast; a second process (8 s)",
        "weights reach another process bit for bit; our calls fit NCCL",
    ),
    "mismatch": PlannedPart(
        "benchmarks.gpu.engine_rows",
        "mismatch_by_type",
        30,
        "3 types: 256 steps of 10 ms with new graphs, a logprob pass each",
        "the local engine and the learner agree in bfloat16",
    ),
    "graphs": PlannedPart(
        "benchmarks.gpu.graph_rows",
        "decode_graphs",
        6,
        "one graph, 14 steps of 15 ms",
        "CUDA graphs of decode steps compute the same, faster",
    ),
    "block": PlannedPart(
        "benchmarks.gpu.block_rows",
        "block_of_7b",
        25,
        "2 models, 9 updates of .2 to .4 s each, 3 kernels each",
        "7B shapes by one block's layers: kernels, time, memory",
    ),
    "compile": PlannedPart(
        "benchmarks.gpu.block_rows",
        "compiled_blocks",
        60,
        "4 blocks compiled at 10 to 15 s, 16 updates of .4 s",
        "torch.compile of each block on and off: gain, start-up, gradients",
    ),
    "vllm": PlannedPart(
        "benchmarks.gpu.vllm_rows",
        "sleep_and_wake",
        85,
        "a server's start (60 s), 2 turns of 8 s; seconds where no vLLM is",
        "a real vLLM sleeps, wakes and takes weights beside the learner",
    ),
    "engine": PlannedPart(
        "benchmarks.gpu.engine_rows",
        "engine_speed",
        15,
        "4 runs of up to 256 steps of 10 ms, graphs",
        "the local engine's speed at 0.5B",
    ),
    "update-small": PlannedPart(
        "benchmarks.gpu.update_rows",
        "small_updates",
        35,
        "3 trees, 7 updates and 7 passes each of .3 to .8 s, kernels",
        "updates at 0.5B: speed, and memory within doctor's estimate",
    ),
    "update-large": PlannedPart(
        "benchmarks.gpu.update_rows",
        "large_updates",
        35,
        "2 trees, 7 updates and 7 passes each of .8 to 1.5 s",
        "the same at 1.5B",
    ),
}
"""By name, in the order in which they run: what decides comes first, speed last."""


def seconds_together() -> int:
    """Return the sum of the estimates."""
    return sum(part.seconds for part in PARTS.values())
