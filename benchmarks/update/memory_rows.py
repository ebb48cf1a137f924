"""Rows 8 and 8b: peak memory of an update above weights, gradients and the optimizer's state, in fresh processes."""

import pickle
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.interleave import MIN_RUNS
from benchmarks.harness.peers import Peer, PeerUnavailableError
from benchmarks.harness.rows import Row, not_measured
from benchmarks.harness.tiny_model import write_tiny_model
from benchmarks.update.ours import TOKEN_BUDGET, Batch, make_batch, make_learner
from benchmarks.update.speed_rows import MODEL, ONE_TREE
from benchmarks.update.trees import doubled, one_short_tree, reasoning_tree, sizes
from benchmarks.update.trl_side import BATCH_SIZES, MODULE, fastest_batch, open_peer
from ramify.learner.update import Learner

MEMORY_TOKEN_BUDGET = TOKEN_BUDGET // 2
"""What a recipe that is short of memory asks for; an update takes about 7 % longer. TRL's batch is its fastest one."""
_CHILD = "benchmarks.update.memory_child"
_MIB = 2**20


def peak_against_trl() -> Sequence[Row]:
    """Row 8."""
    metric = "MiB at the peak of an update of one tree above weights and gradients: TRL / ours"
    target = "at least 5"
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        write_tiny_model(folder)
        learner = make_learner(folder)
        batch = make_batch(learner, [reasoning_tree(seed) for seed in ONE_TREE])
        question = memory_question(folder, learner, batch)
        try:
            with Peer(MODULE) as peer:
                versions = open_peer(peer, folder, batch)
                fastest, _ = fastest_batch(peer, "update")
            ours = [our_peaks(question) for _ in range(MIN_RUNS)]
            peaks = {
                f"batch {size}, checkpointing {'on' if on else 'off'}": _trl(folder, batch, size, on)
                for on in (False, True)
                for size in BATCH_SIZES
            }
            fastest_name = f"batch {fastest}, checkpointing off"
            theirs = [peaks[fastest_name], *(_trl(folder, batch, fastest, False) for _ in ours[1:])]
        except PeerUnavailableError as error:
            return [not_measured("8", metric, target, str(error))]
    runs = {"ours": [peak.second for peak in ours], "peer": [peak.second for peak in theirs]}
    middle = {side: statistics.median(values) for side, values in runs.items()}
    ratio = middle["peer"] / middle["ours"]
    first = statistics.median(p.first for p in theirs) / statistics.median(p.first for p in ours)
    return [
        Row(
            "8",
            metric,
            middle["ours"],
            middle["peer"],
            ratio,
            target,
            ratio >= 5,
            runs,
            memory_settings(
                batch,
                trl=f"its fastest: {fastest_name}",
                trl_peaks={name: peak.second for name, peak in peaks.items()},
                ratios={name: peak.second / middle["ours"] for name, peak in peaks.items()},
                ratio_of_the_first_updates=first,
            ),
            versions,
        )
    ]


def peak_of_a_doubled_tree() -> Sequence[Row]:
    """Row 8b."""
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        write_tiny_model(folder)
        learner = make_learner(folder)
        tree = reasoning_tree(ONE_TREE[0])
        batches = {
            "ours": make_batch(learner, [doubled(tree, seed=0)]),
            "once": make_batch(learner, [tree]),
        }
        runs: dict[str, list[float]] = {name: [] for name in batches}
        for _ in range(MIN_RUNS):
            for name, batch in batches.items():
                runs[name].append(our_peaks(memory_question(folder, learner, batch)).second)
    twice, once = (statistics.median(runs[name]) for name in ("ours", "once"))
    return [
        Row(
            "8b",
            "MiB at the peak of an update: every root of a tree twice / once, tokens a row fixed",
            twice,
            once,
            twice / once,
            "at most 1.3",
            twice / once <= 1.3,
            runs,
            memory_settings(batches["ours"], tokens_once=asdict(sizes([tree]))),
        )
    ]


def memory_question(
    folder: Path, learner: Learner, batch: Batch, token_budget: int = MEMORY_TOKEN_BUDGET
) -> Mapping[str, Any]:
    """Write the rows and a few rows to warm up on; return the question for `our_peaks`."""
    short = make_batch(learner, [one_short_tree(batch.trees[0])])
    files = {"rows": folder / "rows.pickle", "warm_up": folder / "warm_up.pickle"}
    files["rows"].write_bytes(pickle.dumps(batch.rows(token_budget)))
    files["warm_up"].write_bytes(pickle.dumps(short.rows_alone(1)))
    return {
        "folder": str(folder),
        "denominator": batch.denominator,
        **{name: str(file) for name, file in files.items()},
    }


@dataclass(frozen=True, slots=True)
class Peaks:
    """MiB above weights and gradients in the first update of a process, and in its second, when libraries have theirs."""

    first: float
    second: float

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> "Peaks":
        """From a child's answer, in bytes."""
        return cls(float(answer["first"]) / _MIB, float(answer["second"]) / _MIB)


def our_peaks(question: Mapping[str, Any]) -> Peaks:
    """Measure an update in a process of its own."""
    with Peer(_CHILD, python=Path(sys.executable)) as child:
        return Peaks.of(child.ask(dict(question)))


def _trl(folder: Path, batch: Batch, size: int, checkpointing: bool) -> Peaks:
    with Peer(MODULE) as peer:
        open_peer(peer, folder, batch, checkpointing)
        return Peaks.of(peer.ask({"do": "peak", "batch": size}))


def memory_settings(batch: Batch, **more: object) -> Mapping[str, Any]:
    return {
        "model": MODEL,
        "trees": [tree.problem.id for tree in batch.trees],
        "tokens": asdict(sizes(batch.trees)),
        "computed_tokens": sum(len(row.token_ids) for row in batch.rows(MEMORY_TOKEN_BUDGET)),
        "token_budget": MEMORY_TOKEN_BUDGET,
        "default_token_budget": TOKEN_BUDGET,
        "runs": MIN_RUNS,
        **more,
    }


ROWS = {"8": peak_against_trl, "8b": peak_of_a_doubled_tree}
