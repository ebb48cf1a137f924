"""Processes that work as the ranks of one learner, as under torchrun on one machine, on loopback."""

import os
import pickle
import sys
import uuid

import torch

from group_of_processes import start_processes
from ramify.core.rank import Rank
from ramify.learner.parallel import Ranks, connect_ranks, serve
from watched import WorkerPlan


def with_ranks(size, work, scratch, *arguments):
    """Return `work(ranks, *arguments)` of rank 0 of `size` processes; of one process, it runs in this one."""
    if size == 1:
        return work(Ranks(Rank()), *arguments)
    result = scratch / f"of_{size}"
    start_processes(_rank, (size, uuid.uuid4().hex, work, result, arguments), size)
    return pickle.loads(result.read_bytes())


def _rank(number, size, run, work, result, arguments):
    os.environ["TORCHELASTIC_RUN_ID"] = run
    torch.set_num_threads(1)
    rank = Rank(number, size, local=number, local_size=size, is_supervised=True)
    if number:
        sys.exit(serve(rank, dict, WorkerPlan.read))
    with connect_ranks(rank, {}) as ranks:
        result.write_bytes(pickle.dumps(work(ranks, *arguments)))
