"""Rows 1, 1.dead, 1b, 2 and 10.update: seconds of an update and of a logprob pass on the tiny model."""

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from benchmarks.harness.interleave import MIN_RUNS, interleave, medians
from benchmarks.harness.peers import Peer, PeerUnavailableError
from benchmarks.harness.rows import Row, not_measured
from benchmarks.harness.threads import NUM_THREADS
from benchmarks.harness.tiny_model import write_tiny_model
from benchmarks.update.flops import TINY
from benchmarks.update.ours import (
    CLIP_HIGH,
    CLIP_LOW,
    OFF_POLICY_STD,
    TOKEN_BUDGET,
    Batch,
    gradients_of,
    make_batch,
    make_learner,
    relative_difference,
    seeded_batch,
)
from benchmarks.update.trees import grafted, reasoning_tree, sizes, under_prompt_of
from benchmarks.update.trl_side import MODULE, ask_update, fastest_batch, open_peer
from ramify.core.records import PackedRow
from ramify.learner.update import Learner

ONE_TREE = (1,)
"""Of the first ten seeds the one whose shared and padded tokens are nearest to the mean of the workload."""
FIVE_TREES = (0, 1, 2, 3, 4)
_PAIRS = ((0, 1, 2), (3, 4, 5))
"""Trees of 16 trajectories, and those whose roots make them trees of 32."""
DEAD = (1, 2)
"""Places of the dead groups: two of five."""
EQUAL = 1e-4
"""Both sides' loss and gradient differ by less, or the row is void."""
MODEL = "tiny: Qwen2 shape, 4 layers x 256, vocabulary 8192, fp32, seed 0"


def update_against_trl() -> Sequence[Row]:
    """Row 1."""
    return _against_trl("1", "loss and backward of one tree", "at least 4, aim 5", 4.0, ONE_TREE, ())


def update_with_dead_groups() -> Sequence[Row]:
    """Row 1.dead."""
    metric = "loss and backward of five trees, two of them dead"
    return _against_trl("1.dead", metric, "at least 6.5, aim 8", 6.5, FIVE_TREES, DEAD)


def _against_trl(
    name: str, what: str, target: str, floor: float, seeds: Sequence[int], dead: Sequence[int]
) -> Sequence[Row]:
    metric = f"seconds of {what}: TRL's GRPOTrainer / ours (which clips and steps as well)"
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        write_tiny_model(folder)
        learner = make_learner(folder)
        batch = seeded_batch(learner, seeds, dead)
        rows, total = batch.rows(), batch.denominator
        try:
            with Peer(MODULE) as peer:
                versions = open_peer(peer, folder, batch)
                size, trials = fastest_batch(peer, "update")
                file = folder / "gradients.safetensors"
                loss = float(ask_update(peer, size, file)["loss"])
                equal = equal_work(learner, rows, total, loss, file)
                cpu: dict[str, list[float]] = {"ours": [], "peer": []}

                def theirs() -> float:
                    answer = ask_update(peer, size)
                    cpu["peer"].append(float(answer["cpu_seconds"]))
                    return float(answer["seconds"])

                ours = timed(lambda: learner.update_rows(rows, total), cpu["ours"])
                runs = interleave({"ours": ours, "peer": theirs})
        except PeerUnavailableError as error:
            return [not_measured(name, metric, target, str(error))]
    middle = medians(runs)
    ratio = middle["peer"] / middle["ours"]
    counts = sizes(batch.trees)
    living = sizes([tree for i, tree in enumerate(batch.trees) if i not in dead])
    settings = update_settings(
        batch,
        rows,
        trl_batch_size=size,
        trl_cpu_seconds_by_batch_size=trials,
        flop_ratio=TINY.padded(counts) / TINY.packed(living),
        flop_ratio_head_on_completions_only=TINY.padded_compact(counts) / TINY.packed(living),
        equal_work=equal,
        cpu_ratio=statistics.median(cpu["peer"]) / statistics.median(cpu["ours"]),
        dead=len(dead),
    )
    return [
        Row(
            name,
            metric,
            middle["ours"],
            middle["peer"],
            ratio,
            target,
            ratio >= floor and equal["gradient"] <= EQUAL and equal["loss"] <= EQUAL,
            runs,
            settings,
            versions,
        )
    ]


def strongest_baseline() -> Sequence[Row]:
    """Row 1b."""
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        write_tiny_model(folder)
        learner = make_learner(folder)
        batch = seeded_batch(learner, ONE_TREE)
        rows, total = batch.rows(), batch.denominator
        layouts = {str(budget): batch.rows_alone(budget) for budget in (1, TOKEN_BUDGET, 2 * TOKEN_BUDGET)}
        trials = {name: timed(lambda r=r: learner.update_rows(r, total))() for name, r in layouts.items()}  # type: ignore[misc]
        trials = {
            name: min(trials[name], timed(lambda r=r: learner.update_rows(r, total))())  # type: ignore[misc]
            for name, r in layouts.items()
        }
        best = min(trials, key=lambda name: trials[name])
        baseline = layouts[best]
        (ours, gradients), (plain, expected) = (gradients_of(learner, r, total) for r in (rows, baseline))
        equal = {
            "loss": abs(ours.loss - plain.loss),
            "gradient": relative_difference(gradients, expected),
        }
        runs = interleave(
            {
                "ours": timed(lambda: learner.update_rows(rows, total)),
                "peer": timed(lambda: learner.update_rows(baseline, total)),
            }
        )
    middle = medians(runs)
    counts = sizes(batch.trees)
    flops = TINY.separate(counts) / TINY.packed(counts)
    speed = middle["peer"] / middle["ours"]
    return [
        Row(
            "1b",
            "seconds of an update: every trajectory alone, unpadded, head on written tokens / ours, over the ratio of "
            "operations",
            middle["ours"],
            middle["peer"],
            speed / flops,
            "at least 0.95",
            speed / flops >= 0.95 and equal["gradient"] <= EQUAL,
            runs,
            update_settings(
                batch,
                rows,
                flop_ratio=flops,
                speed_ratio=speed,
                seconds_by_tokens_a_row=trials,
                tokens_a_row=best,
                equal_work=equal,
            ),
        )
    ]


def logprob_pass() -> Sequence[Row]:
    """Row 2."""
    metric = "seconds of the log-probabilities of one tree: TRL / ours"
    target = "at least 4, aim 5; 0 extra passes in an update at coefficient 0"
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        write_tiny_model(folder)
        learner = make_learner(folder)
        batch = seeded_batch(learner, ONE_TREE)
        rows = batch.rows()
        extra = _extra_passes(learner, rows, batch.denominator)
        try:
            with Peer(MODULE) as peer:
                versions = open_peer(peer, folder, batch)
                size, trials = fastest_batch(peer, "logprobs")
                cpu: dict[str, list[float]] = {"ours": [], "peer": []}

                def theirs() -> float:
                    answer = peer.ask({"do": "logprobs", "batch": size})
                    cpu["peer"].append(float(answer["cpu_seconds"]))
                    return float(answer["seconds"])

                runs = interleave(
                    {"ours": timed(lambda: learner.logprobs(rows), cpu["ours"]), "peer": theirs}
                )
        except PeerUnavailableError as error:
            return [not_measured("2", metric, target, str(error))]
    middle = medians(runs)
    ratio = middle["peer"] / middle["ours"]
    counts = sizes(batch.trees)
    settings = update_settings(
        batch,
        rows,
        extra_passes=extra,
        trl_batch_size=size,
        trl_cpu_seconds_by_batch_size=trials,
        flop_ratio=TINY.padded(counts) / TINY.packed(counts),
        cpu_ratio=statistics.median(cpu["peer"]) / statistics.median(cpu["ours"]),
    )
    met = ratio >= 4 and extra == 0
    return [Row("2", metric, middle["ours"], middle["peer"], ratio, target, met, runs, settings, versions)]


def marginal_trajectories() -> Sequence[Row]:
    """Row 10.update."""
    first, second = ([reasoning_tree(seed) for seed in seeds] for seeds in _PAIRS)
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        write_tiny_model(folder)
        learner = make_learner(folder)
        # A tree of 32 grows as two of 16 under one prompt do, so trajectories 17 to 32 are those of the second.
        small = make_batch(learner, first)
        large = make_batch(learner, [grafted(*pair) for pair in zip(first, second, strict=True)])
        added = make_batch(learner, [under_prompt_of(*pair) for pair in zip(first, second, strict=True)])
        work = {
            "n=16": (small.rows(), small.denominator),
            "n=32": (large.rows(), large.denominator),
            "17-32 alone": (added.rows_alone(1), added.denominator),
        }
        runs = interleave(
            {name: timed(lambda w=w: learner.update_rows(*w)) for name, w in work.items()}  # type: ignore[misc]
        )
    middle = medians(runs)
    count = sum(len(tree.trajectories) for tree in second)
    marginal, single = (middle["n=32"] - middle["n=16"]) / count, middle["17-32 alone"] / count
    operations = TINY.packed(sizes(large.trees)) - TINY.packed(sizes(small.trees))
    return [
        Row(
            "10.update",
            "seconds of an update a trajectory: trajectories 17-32 of a branching tree / a trajectory alone",
            marginal,
            single,
            marginal / single,
            "at most 0.60",
            marginal / single <= 0.60,
            runs,
            update_settings(
                small,
                work["n=16"][0],
                tokens_of_n_32=asdict(sizes(large.trees)),
                alone="trajectories 17 to 32, a row each",
                flop_ratio=operations / TINY.separate(sizes(added.trees)),
            ),
        )
    ]


def equal_work(
    learner: Learner, rows: Sequence[PackedRow], total: float, loss: float, file: Path
) -> Mapping[str, float]:
    """Differences of loss and gradient from those of the peer, whose gradients are in a file, and the gradient's norm."""
    report, gradients = gradients_of(learner, rows, total)
    return {
        "loss": abs(report.loss - loss),
        "gradient": relative_difference(gradients, load_file(file)),
        "gradient_norm": report.grad_norm,
        "clip_fraction": report.metrics["clip_fraction"],
    }


def _extra_passes(learner: Learner, rows: Sequence[PackedRow], total: float) -> float:
    """Tokens that an update puts through the model, in units of the rows' tokens, less the one pass it needs."""
    token_counts: list[int] = []
    hook = learner.model.base_model.register_forward_hook(
        lambda _module, _arguments, output: token_counts.append(output.last_hidden_state.shape[1])
    )
    learner.update_rows(rows, total)
    hook.remove()
    return sum(token_counts) / sum(len(row.token_ids) for row in rows) - 1


def timed(work: Callable[[], object], cpu: list[float] | None = None) -> Callable[[], float]:
    def run() -> float:
        started, cpu_started = time.perf_counter(), time.process_time()
        work()
        if cpu is not None:
            cpu.append(time.process_time() - cpu_started)
        return time.perf_counter() - started

    return run


def update_settings(batch: Batch, rows: Sequence[PackedRow], **more: object) -> Mapping[str, Any]:
    return {
        "model": MODEL,
        "trees": [tree.problem.id for tree in batch.trees],
        "tokens": asdict(sizes(batch.trees)),
        "computed_tokens": sum(len(row.token_ids) for row in rows),
        "token_budget": TOKEN_BUDGET,
        "clip": [CLIP_LOW, CLIP_HIGH],
        "old_logprobs": f"off by {OFF_POLICY_STD} (std)",
        "threads": NUM_THREADS,
        "runs": MIN_RUNS,
        **more,
    }


ROWS = {
    "1": update_against_trl,
    "1.dead": update_with_dead_groups,
    "1b": strongest_baseline,
    "2": logprob_pass,
    "10.update": marginal_trajectories,
}
