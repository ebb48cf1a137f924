"""Rows 9.clean and 9.tail: a whole step of training with tools, TRL at its best settings / ours.

Both sides write the same tokens with the same model, have the same rewards, and take an optimizer step. In 9.tail calls wait
as the schedule rows' do, a tenth as long; TRL's tools are coroutines. The figure is the smaller of the ratios of medians and of
means: a tail shows in means.
"""

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.end_to_end.latencies import DEADLINE_SECONDS, FASTER, HANG_SECONDS, HEDGE_SECONDS, waits
from benchmarks.end_to_end.ours import OurSteps
from benchmarks.harness.peers import Peer, PeerUnavailableError
from benchmarks.harness.rows import Row, not_measured
from benchmarks.harness.threads import NUM_THREADS
from benchmarks.harness.tiny_model import write_tiny_model
from benchmarks.rollout.engine_rows import CONTINUOUS
from benchmarks.rollout.workload import Workload, reasoning

PEER = "benchmarks.end_to_end.trl_peer"
_COMPLETION = 1024


@dataclass(frozen=True, slots=True)
class StepSizes:
    """Of what is measured.

    Attributes:
        trajectories: Of the one group of a step.
        turns: Of a trajectory.
        batches: Of TRL's update, in trajectories, that are tried.
        trials: Steps of each setting of TRL that is tried; the best has the least CPU seconds.
        steps: Steps of 9.clean.
        tail_steps: Steps of 9.tail, each with latencies of its own.
    """

    trajectories: int
    turns: int
    batches: Sequence[int]
    trials: int
    steps: int
    tail_steps: int


FULL = StepSizes(trajectories=16, turns=3, batches=(16, 4, 1), trials=2, steps=7, tail_steps=20)


def whole_steps() -> Sequence[Row]:
    """Both rows, at full size: 20 to 25 minutes on two quiet cores."""
    return measure(FULL)


def measure(sizes: StepSizes) -> Sequence[Row]:
    """Both rows; the peer's settings are chosen once, without latencies."""
    metric = (
        f"seconds of a whole step of {sizes.trajectories} trajectories of {sizes.turns} turns, update and all"
    )
    workload = reasoning(0, sizes.trajectories, sizes.turns)
    with tempfile.TemporaryDirectory() as name, ExitStack() as peers:
        folder = Path(name)
        write_tiny_model(folder)
        ours = OurSteps(folder, workload)
        try:
            peer, chosen, versions = _best_peer(peers, folder, workload, sizes)
            clean = _both(ours, peer, workload, [None] * (1 + sizes.steps))
            tail = _both(
                ours, peer, workload, [waits(step, workload.results) for step in range(1 + sizes.tail_steps)]
            )
        except PeerUnavailableError as error:
            return [not_measured(row, metric, target, str(error)) for row, target, _ in _TARGETS]
        finally:
            ours.close()
    settings = {
        "model": "tiny: Qwen2 shape, 4 layers x 256, vocabulary 8192, fp32, seed 0",
        "threads": NUM_THREADS,
        "written": sum(map(sum, workload.turns)),
        **chosen,
    }
    latency = {
        "latencies_divided_by": FASTER,
        "ours": f"deadline {DEADLINE_SECONDS} s, hedge after {HEDGE_SECONDS} s",
        "TRL": f"a call that hangs takes {HANG_SECONDS} s",
    }
    return [
        _row(*_TARGETS[0], metric + ", tools answer at once", clean, settings, versions),
        _row(*_TARGETS[1], metric + ", tools with a heavy tail", tail, {**settings, **latency}, versions),
    ]


_TARGETS = (("9.clean", "at least 10", 10.0), ("9.tail", "at least 20", 20.0))


def _best_peer(
    peers: ExitStack, folder: Path, workload: Workload, sizes: StepSizes
) -> tuple[Peer, Mapping[str, object], dict[str, str]]:
    """Try each kind of generation, then each batch of the update with the better kind; all are processes that wait."""
    versions: dict[str, str] = {}
    tried: dict[str, float] = {}

    def seconds(generation: str, batch: int) -> tuple[float, Peer]:
        peer = peers.enter_context(Peer(PEER))
        question = {"folder": str(folder), "workload": workload.as_json(), "max_completion": _COMPLETION}
        continuous = CONTINUOUS if generation == "continuous batching" else None
        versions.update(peer.ask({**question, "continuous": continuous, "batch": batch})["versions"])
        took = min(float(peer.ask({"waits": None})["cpu_seconds"]) for _ in range(sizes.trials))
        tried[f"{generation}, {batch} at a time"] = took
        return took, peer

    first, *others = sizes.batches
    kinds = {kind: seconds(kind, first) for kind in ("static batch", "continuous batching")}
    generation = min(kinds, key=lambda kind: kinds[kind][0])
    candidates = {first: kinds[generation], **{batch: seconds(generation, batch) for batch in others}}
    batch = min(candidates, key=lambda size: candidates[size][0])
    chosen = {"generation": generation, "trl_batch_size": batch, "trl_cpu_seconds_by_setting": tried}
    return candidates[batch][1], chosen, versions


def _both(
    ours: OurSteps, peer: Peer, workload: Workload, steps: Sequence[list[list[list[float]]] | None]
) -> dict[str, list[float]]:
    """Steps of both sides in turns, with the same latencies; the first of each is not counted."""
    runs: dict[str, list[float]] = {"ours": [], "peer": [], "ours, rollout": []}
    written = sum(map(sum, workload.turns))
    for number, latencies in enumerate(steps):
        sides = ["ours", "peer"] if number % 2 else ["peer", "ours"]
        for side in sides:
            took = ours.step(latencies) if side == "ours" else peer.ask({"waits": latencies})
            if took["written"] != written:
                raise ValueError(f"{side} wrote {took['written']} tokens, not the workload's {written}")
            if number == 0:
                continue
            runs[side].append(float(took["seconds"]))
            if side == "ours":
                runs["ours, rollout"].append(float(took["rollout"]))
    return runs


def _row(
    name: str,
    target: str,
    floor: float,
    metric: str,
    runs: Mapping[str, Sequence[float]],
    settings: Mapping[str, object],
    versions: Mapping[str, str],
) -> Row:
    middle = {side: statistics.median(values) for side, values in runs.items()}
    mean = {side: statistics.fmean(values) for side, values in runs.items()}
    ratios = {"medians": middle["peer"] / middle["ours"], "means": mean["peer"] / mean["ours"]}
    smaller = min(ratios.values())
    return Row(
        name,
        f"{metric}: TRL / ours",
        middle["ours"],
        middle["peer"],
        smaller,
        target,
        smaller >= floor,
        runs,
        {**settings, "ratio_of": ratios, "steps": len(runs["ours"])},
        versions,
    )


ROWS = {"9.clean": whole_steps, "9.tail": whole_steps}
