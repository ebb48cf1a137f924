"""Two processes that share the rows of one optimizer step, over gloo on the loopback device."""

import json
import os
import random

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from exactness_cases import Packed, Plain
from exactness_world import World

NUM_RANKS = 2


def worst_over_two_ranks(folder, dtype, cases, scratch):
    """The largest error of each rank over `cases`; `folder` holds the model, `scratch` is an empty folder."""
    mp.spawn(_rank, args=(folder, dtype, cases, scratch), nprocs=NUM_RANKS)
    return [json.loads((scratch / f"{rank}.json").read_text()) for rank in range(NUM_RANKS)]


def _rank(rank, folder, dtype, cases, scratch):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    store = dist.FileStore(str(scratch / "store"), NUM_RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=NUM_RANKS)
    world = World(folder, dtype)
    plain, by_row, by_tree = (
        Plain(world),
        Packed(world),
        Packed(world, range(rank, len(world.trees), NUM_RANKS)),
    )
    worst = 0.0
    for case in cases:
        # The ratio of a whole trajectory needs all of its rows on one rank; any other loss takes rows as they fall.
        ours = by_tree(case, "split") if case.whole_paths else by_row(case, "split", rank, NUM_RANKS)
        worst = max(worst, plain(case).error(ours))
    (scratch / f"{rank}.json").write_text(json.dumps(worst))
    dist.destroy_process_group()


def sample(cases, count, seed=0):
    """Some of the cases, a tenth of them with ratios of whole trajectories."""
    generator = random.Random(seed)
    whole = [case for case in cases if case.whole_paths]
    others = [case for case in cases if not case.whole_paths]
    return [
        *generator.sample(whole, min(len(whole), count // 10)),
        *generator.sample(others, count - count // 10),
    ]
