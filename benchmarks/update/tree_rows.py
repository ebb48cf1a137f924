"""Rows 1t, 1t.tau2, 8t and 1.tau2: the strongest peer, TRL's own packing of trees, and a tree with a long trunk."""

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.interleave import MIN_RUNS, interleave, medians
from benchmarks.harness.peers import Peer, PeerUnavailableError
from benchmarks.harness.rows import Row, not_measured
from benchmarks.harness.tiny_model import write_tiny_model
from benchmarks.update.flops import TINY
from benchmarks.update.memory_rows import Peaks, memory_question, memory_settings, our_peaks
from benchmarks.update.ours import (
    TOKEN_BUDGET,
    Batch,
    gradients_of,
    make_batch,
    make_learner,
    relative_difference,
)
from benchmarks.update.speed_rows import EQUAL, ONE_TREE, equal_work, timed, update_settings
from benchmarks.update.tau2 import EIGHTH, LEAVES, PROMPT_TOKENS, RETURNED, TURNS, WRITTEN, tau2_tree
from benchmarks.update.tree_side import (
    TREE_MODULE,
    Layout,
    ask_tree_update,
    fastest_layout,
    layouts,
    pack_rows,
)
from benchmarks.update.trees import reasoning_tree, sizes
from benchmarks.update.trl_side import open_peer
from ramify.core.tree import Tree

_TAU2_SEED = 4
"""Of the first six the one whose shared tokens are nearest to their mean."""
_TAU2: Mapping[str, Any] = {
    "leaves": LEAVES,
    "turns": TURNS,
    "prompt": PROMPT_TOKENS,
    "written": WRITTEN,
    "returned": RETURNED,
    "divided_by": EIGHTH,
}


def update_against_tree_row() -> Sequence[Row]:
    """Row 1t."""
    return _against_tree_row("1t", "one tree", reasoning_tree(ONE_TREE[0]))


def tau2_against_tree_row() -> Sequence[Row]:
    """Row 1t.tau2."""
    return _against_tree_row("1t.tau2", "a tau2-like tree", tau2_tree(_TAU2_SEED), lengths=_TAU2)


def _against_tree_row(name: str, what: str, tree: Tree, **more: object) -> Sequence[Row]:
    metric = f"seconds of loss and backward of {what}: TRL's TreeRow / ours (which clips and steps as well)"
    target = "at least 1.3"
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        write_tiny_model(folder)
        learner = make_learner(folder)
        batch = make_batch(learner, [tree])
        rows, total = batch.rows(), batch.denominator
        try:
            with Peer(TREE_MODULE) as peer:
                versions = open_peer(peer, folder, batch)
                layout, trials = fastest_layout(peer, layouts(batch))
                computed = pack_rows(peer, layout)
                file = folder / "gradients.safetensors"
                loss = float(ask_tree_update(peer, file)["loss"])
                equal = equal_work(learner, rows, total, loss, file)
                cpu: dict[str, list[float]] = {"ours": [], "peer": []}

                def theirs() -> float:
                    answer = ask_tree_update(peer)
                    cpu["peer"].append(float(answer["cpu_seconds"]))
                    return float(answer["seconds"])

                ours = timed(lambda: learner.update_rows(rows, total), cpu["ours"])
                runs = interleave({"ours": ours, "peer": theirs})
        except PeerUnavailableError as error:
            return [not_measured(name, metric, target, str(error))]
    middle = medians(runs)
    ratio = middle["peer"] / middle["ours"]
    settings = update_settings(
        batch,
        rows,
        peer_fastest=str(layout),
        peer_computed_tokens=sum(computed),
        peer_cpu_seconds_by_layout=trials,
        equal_work=equal,
        cpu_ratio=statistics.median(cpu["peer"]) / statistics.median(cpu["ours"]),
        **more,
    )
    met = ratio >= 1.3 and equal["gradient"] <= EQUAL and equal["loss"] <= EQUAL
    return [Row(name, metric, middle["ours"], middle["peer"], ratio, target, met, runs, settings, versions)]


def peak_against_tree_row() -> Sequence[Row]:
    """Row 8t."""
    metric = "MiB at the peak of an update of one tree above weights and gradients: ours / TRL's TreeRow"
    target = "at most 0.7"
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        write_tiny_model(folder)
        learner = make_learner(folder)
        batch = make_batch(learner, [reasoning_tree(seed) for seed in ONE_TREE])
        at_default = our_peaks(memory_question(folder, learner, batch, TOKEN_BUDGET)).second
        question = memory_question(folder, learner, batch)
        try:
            with Peer(TREE_MODULE) as peer:
                versions = open_peer(peer, folder, batch)
                fastest, _ = fastest_layout(peer, layouts(batch))
            ours = [our_peaks(question) for _ in range(MIN_RUNS)]
            choices = [layout for layout in layouts(batch) if layout.attention == fastest.attention]
            peaks = {
                f"{layout}, checkpointing {'on' if on else 'off'}": _peaks(folder, batch, layout, on)
                for on in (False, True)
                for layout in choices
            }
            fastest_name = f"{fastest}, checkpointing off"
            theirs = [peaks[fastest_name], *(_peaks(folder, batch, fastest, False) for _ in ours[1:])]
        except PeerUnavailableError as error:
            return [not_measured("8t", metric, target, str(error))]
    runs = {"ours": [peak.second for peak in ours], "peer": [peak.second for peak in theirs]}
    middle = medians(runs)
    ratio = middle["ours"] / middle["peer"]
    settings = memory_settings(
        batch,
        ours_at_default_token_budget=at_default,
        peer_fastest=fastest_name,
        peer_peaks={name: peak.second for name, peak in peaks.items()},
        ratios={name: middle["ours"] / peak.second for name, peak in peaks.items()},
        ratio_of_the_first_updates=statistics.median(p.first for p in ours)
        / statistics.median(p.first for p in theirs),
    )
    return [
        Row(
            "8t",
            metric,
            middle["ours"],
            middle["peer"],
            ratio,
            target,
            ratio <= 0.7,
            runs,
            settings,
            versions,
        )
    ]


def tau2_against_dense() -> Sequence[Row]:
    """Row 1.tau2."""
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        write_tiny_model(folder)
        learner = make_learner(folder)
        batch = make_batch(learner, [tau2_tree(_TAU2_SEED)])
        rows, dense, total = batch.rows(), batch.rows_alone(1), batch.denominator
        (ours, gradients), (plain, expected) = (gradients_of(learner, r, total) for r in (rows, dense))
        equal = {"loss": abs(ours.loss - plain.loss), "gradient": relative_difference(gradients, expected)}
        runs = interleave(
            {
                "ours": timed(lambda: learner.update_rows(rows, total)),
                "peer": timed(lambda: learner.update_rows(dense, total)),
            }
        )
    middle = medians(runs)
    counts = sizes(batch.trees)
    speed, flops = middle["peer"] / middle["ours"], TINY.separate(counts) / TINY.packed(counts)
    return [
        Row(
            "1.tau2",
            "seconds of an update of a tau2-like tree: a row for each leaf, unpadded, head on written tokens / ours",
            middle["ours"],
            middle["peer"],
            speed,
            f"at least 0.95 of the ratio of operations, {0.95 * flops:.2f}",
            speed >= 0.95 * flops and equal["gradient"] <= EQUAL,
            runs,
            update_settings(
                batch,
                rows,
                flop_ratio=flops,
                padded_flop_ratio=TINY.padded_compact(counts) / TINY.packed(counts),
                token_ratio=counts.separate / counts.unique,
                equal_work=equal,
                lengths=_TAU2,
            ),
        )
    ]


def _peaks(folder: Path, batch: Batch, layout: Layout, checkpointing: bool) -> Peaks:
    with Peer(TREE_MODULE) as peer:
        open_peer(peer, folder, batch, checkpointing)
        pack_rows(peer, layout)
        return Peaks.of(peer.ask({"do": "peak", "attention": layout.attention}))


ROWS = {
    "1t": update_against_tree_row,
    "1t.tau2": tau2_against_tree_row,
    "8t": peak_against_tree_row,
    "1.tau2": tau2_against_dense,
}
