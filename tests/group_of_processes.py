"""Processes that work as the ranks of one group, over gloo on the loopback device: forks of one that has imported torch."""

import datetime
import multiprocessing
import os
import pickle

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

PRELOADED = ["torch.distributed.fsdp", "transformers", "pytest", "watched", "ramify.learner.parallel"]


def start_processes(work, arguments, size):
    """Run `work(number, *arguments)` in `size` forks of a process that has imported what they need, until all have ended."""
    multiprocessing.set_forkserver_preload(PRELOADED)
    mp.start_processes(work, arguments, size, start_method="forkserver")


def on_ranks(num_ranks, work, scratch, *arguments):
    """Return the results of `work(rank, *arguments)` on each rank; `scratch` is an empty folder."""
    start_processes(_rank, (num_ranks, work, scratch, arguments), num_ranks)
    return [pickle.loads((scratch / str(rank)).read_bytes()) for rank in range(num_ranks)]


def _rank(rank, num_ranks, work, scratch, arguments):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    store = dist.FileStore(str(scratch / "store"), num_ranks)
    # A rank that waits for a step which the other does not take fails, and does not hang.
    patience = datetime.timedelta(seconds=120)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=num_ranks, timeout=patience)
    (scratch / str(rank)).write_bytes(pickle.dumps(work(rank, *arguments)))
    dist.destroy_process_group()
