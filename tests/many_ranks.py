"""Processes that work as the ranks of one learner, as under torchrun but on a port of the loopback device."""

import multiprocessing
import os
import pickle
import socket
import sys

import torch
import torch.multiprocessing as mp

from ramify.core.rank import Rank
from ramify.learner.parallel import Ranks, serve, together

LOADED_ONCE = ["ramify.learner.update", "transformers.models.qwen3.modeling_qwen3", "peft"]
"""What takes seconds to import: each rank is a copy of a process that has imported it."""


def with_ranks(size, work, scratch, *arguments):
    """What `work(ranks, *arguments)` returns on rank 0 of `size` processes; of one process, on this one."""
    if size == 1:
        return work(Ranks(Rank()), *arguments)
    multiprocessing.set_forkserver_preload(LOADED_ONCE)
    result = scratch / f"of_{size}"
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    mp.start_processes(_rank, (size, port, work, result, arguments), size, start_method="forkserver")
    return pickle.loads(result.read_bytes())


def _rank(number, size, port, work, result, arguments):
    os.environ |= {
        "GLOO_SOCKET_IFNAME": "lo",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": f"{port}",
        "RANK": f"{number}",
        "WORLD_SIZE": f"{size}",
    }
    torch.set_num_threads(1)
    rank = Rank(number, size, number)
    if number:
        sys.exit(serve(rank, dict))
    with together(rank, {}) as ranks:
        result.write_bytes(pickle.dumps(work(ranks, *arguments)))
