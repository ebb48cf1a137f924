"""Rows 1.gpu, 1t.gpu, 2.gpu and 8.gpu: the same on a GPU, bfloat16, a random model of Qwen2.5-0.5B's size, full lengths.

Nobody has run them: the machines at hand had no GPU. Row 1t.gpu computes TRL's packed trees with the kernel that TRL ships
for them (FlashAttention 3 of the package `kernels`); its peer says so where package or kernel are absent.
"""

import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks.harness.interleave import interleave, medians
from benchmarks.harness.peers import Peer, PeerUnavailableError
from benchmarks.harness.rows import Row, not_measured
from benchmarks.harness.tiny_model import write_tiny_tokenizer
from benchmarks.update.flops import peak_flops, qwen2
from benchmarks.update.ours import Batch, make_batch, make_learner
from benchmarks.update.speed_rows import timed
from benchmarks.update.tree_side import TREE_MODULE, fastest_layout, layouts, pack_rows
from benchmarks.update.trees import TreeSizes, reasoning_tree, sizes
from benchmarks.update.trl_side import MODULE, fastest_batch, open_peer
from ramify.core.records import PackedRow
from ramify.learner.update import Learner

_SEEDS = (0, 1, 2, 3)
_TOKEN_BUDGET = 4096
_SIZES: dict[str, Any] = {
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
}
_SHAPE = qwen2(hidden=896, intermediate=4864, layers=24, heads=14, kv_heads=2, vocabulary=151936)
_NO_GPU = "no CUDA device"


def update_on_gpu() -> Sequence[Row]:
    """Row 1.gpu: an update, unique tokens a second and MFU."""
    return _timed("1.gpu", "update", "at least 4, aim 5", 4.0, 3, _update, _padded("update"))


def update_against_tree_row_on_gpu() -> Sequence[Row]:
    """Row 1t.gpu: the same against TRL's packing of trees."""
    return _timed("1t.gpu", "update", "at least 1.3", 1.3, 3, _update, _TREE_ROW)


def logprobs_on_gpu() -> Sequence[Row]:
    """Row 2.gpu: a logprob pass."""
    return _timed("2.gpu", "logprobs", "at least 4, aim 5", 4.0, 1, _logprobs, _padded("logprobs"))


def peak_on_gpu() -> Sequence[Row]:
    """Row 8.gpu: memory that torch has at most, above weights and gradients."""
    import torch

    metric, target = "GiB at the peak of an update above weights and gradients: TRL / ours", "at least 5"
    if not torch.cuda.is_available():
        return [not_measured("8.gpu", metric, target, _NO_GPU)]
    with tempfile.TemporaryDirectory() as folder:
        learner, batch, rows = _prepare(Path(folder))
        learner.update_rows(rows, batch.denominator)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        learner.update_rows(rows, batch.denominator)
        gradients = sum(p.nbytes for p in learner.model.parameters())
        ours = (torch.cuda.max_memory_allocated() - before - gradients) / 2**30
        try:
            with Peer(MODULE) as peer:
                versions = open_peer(peer, Path(folder), batch, device="cuda")
                size, _ = fastest_batch(peer, "update")
                theirs = float(peer.ask({"do": "peak", "batch": size})["second"]) / 2**30
        except PeerUnavailableError as error:
            return [not_measured("8.gpu", metric, target, str(error))]
    settings = _settings(sizes(batch.trees), trl_batch_size=size)
    return [
        Row("8.gpu", metric, ours, theirs, theirs / ours, target, theirs / ours >= 5, {}, settings, versions)
    ]


_Work: TypeAlias = Callable[[Learner, Sequence[PackedRow], float], object]


@dataclass(frozen=True, slots=True)
class _Side:
    """The other side of a row.

    Attributes:
        name: What the row calls it.
        module: Of the child process.
        choose: Gives the question that the peer answers at its fastest, and what was tried, for the settings.
    """

    name: str
    module: str
    choose: Callable[[Peer, Batch], tuple[Mapping[str, Any], Mapping[str, Any]]]


def _update(learner: Learner, rows: Sequence[PackedRow], total: float) -> object:
    return learner.update_rows(rows, total)


def _logprobs(learner: Learner, rows: Sequence[PackedRow], total: float) -> object:
    del total
    return learner.logprobs(rows)


def _padded(what: str) -> _Side:
    def choose(peer: Peer, batch: Batch) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        del batch
        size, trials = fastest_batch(peer, what)
        tried = {"trl_batch_size": size, "trl_cpu_seconds_by_batch_size": trials}
        return {"do": what, "batch": size}, tried

    return _Side("TRL", MODULE, choose)


def _packed(peer: Peer, batch: Batch) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    layout, trials = fastest_layout(peer, layouts(batch, "cuda"))
    computed = pack_rows(peer, layout)
    return {"do": "update"}, {
        "peer_fastest": str(layout),
        "peer_computed_tokens": sum(computed),
        "peer_cpu_seconds_by_layout": trials,
    }


_TREE_ROW = _Side("TRL's TreeRow", TREE_MODULE, _packed)


def _timed(
    name: str,
    what: str,
    target: str,
    floor: float,
    passes: int,
    work: _Work,
    side: "_Side",
) -> Sequence[Row]:
    import torch

    metric = f"seconds of {what} of four trees, bfloat16: {side.name} / ours"
    if not torch.cuda.is_available():
        return [not_measured(name, metric, target, _NO_GPU)]
    with tempfile.TemporaryDirectory() as folder:
        learner, batch, rows = _prepare(Path(folder))

        def ours() -> None:
            work(learner, rows, batch.denominator)
            torch.cuda.synchronize()

        try:
            with Peer(side.module) as peer:
                versions = open_peer(peer, Path(folder), batch, device="cuda")
                question, tried = side.choose(peer, batch)
                runs = interleave(
                    {
                        "ours": timed(ours),
                        "peer": lambda: float(peer.ask(dict(question))["seconds"]),
                    },
                    warm_ups=2,
                )
        except PeerUnavailableError as error:
            return [not_measured(name, metric, target, str(error))]
    middle = medians(runs)
    ratio = middle["peer"] / middle["ours"]
    counts = sizes(batch.trees)
    device = torch.cuda.get_device_name()
    peak = peak_flops(device)
    speed = passes * _SHAPE.packed(counts) / statistics.median(runs["ours"])
    settings = _settings(
        counts,
        device=device,
        unique_tokens_a_second=counts.unique / middle["ours"],
        mfu=None if peak is None else speed / peak,
        flop_ratio=_SHAPE.padded_compact(counts) / _SHAPE.packed(counts),
        **tried,
    )
    return [
        Row(
            name,
            metric,
            middle["ours"],
            middle["peer"],
            ratio,
            target,
            ratio >= floor,
            runs,
            settings,
            versions,
        )
    ]


def _prepare(folder: Path) -> tuple[Learner, Batch, tuple[PackedRow, ...]]:
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    write_tiny_tokenizer(folder, 0)
    config = Qwen2Config(**_SIZES, max_position_embeddings=32768, tie_word_embeddings=True)
    torch.manual_seed(0)
    Qwen2ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)  # type: ignore[arg-type]
    learner = make_learner(folder, "cuda", "bfloat16")
    batch = make_batch(learner, [reasoning_tree(seed, shorter=1) for seed in _SEEDS])
    return learner, batch, batch.rows(_TOKEN_BUDGET)


def _settings(counts: TreeSizes, **more: object) -> Mapping[str, Any]:
    return {
        "model": "random, Qwen2.5-0.5B's sizes, bfloat16",
        "trees": list(_SEEDS),
        "tokens": asdict(counts),
        "token_budget": _TOKEN_BUDGET,
        **more,
    }


ROWS = {
    "1.gpu": update_on_gpu,
    "1t.gpu": update_against_tree_row_on_gpu,
    "2.gpu": logprobs_on_gpu,
    "8.gpu": peak_on_gpu,
}
