"""Two processes that share the rows of one optimizer step."""

import random

from exactness_cases import PackedUpdate, Plain
from exactness_world import World

from many_ranks import with_ranks
from watched import STILL, WorkerPlan


def worst_over_two_ranks(folder, dtype, cases, scratch):
    """The largest error over `cases`; `folder` holds the model, `scratch` is an empty folder."""
    return with_ranks(2, _worst, scratch, folder, dtype, cases)


def _worst(ranks, folder, dtype, cases):
    world = World(folder, dtype)
    ranks.build(WorkerPlan(str(folder), dtype, optimizer=STILL))
    plain, packed = Plain(world), PackedUpdate(world, ranks)
    return max(plain(case).error(packed(case, "split")) for case in cases)


def sample(cases, count, seed=0):
    """Some of the cases, a tenth of them with ratios of whole trajectories."""
    generator = random.Random(seed)
    whole = [case for case in cases if case.whole_paths]
    others = [case for case in cases if not case.whole_paths]
    return [
        *generator.sample(whole, min(len(whole), count // 10)),
        *generator.sample(others, count - count // 10),
    ]
