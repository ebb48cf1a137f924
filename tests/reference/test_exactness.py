"""Packed updates against plain sums over trajectories, over algorithms and layouts of rows (a sample of the benchmark's row 14)."""

from dataclasses import fields

import numpy as np
import pytest
import torch
from exactness_cases import LAYOUTS, PackedUpdate, Plain, all_cases
from exactness_ranks import sample, worst_over_two_ranks
from exactness_world import PATH_EDGES, TOKEN_EDGES, World, write_model

CASES = all_cases()
SAMPLE = sample(CASES, 40)
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exactness") / "model"
    write_model(folder)
    return folder


@pytest.fixture(scope="module", params=TOLERANCE, ids=str)
def world(request, folder):
    return World(folder, request.param)


@pytest.fixture(scope="module")
def sums(world):
    """Those over the trajectories, for each case."""
    plain = Plain(world)
    return {case: plain(case) for case in SAMPLE}


def test_value_clip_fraction_and_gradient_equal_the_sums_over_trajectories(world, sums):
    packed = PackedUpdate(world)
    errors = {}
    for i, case in enumerate(SAMPLE):
        layout = LAYOUTS[i % len(LAYOUTS)]
        errors[case, layout] = sums[case].error(packed(case, layout))
    worst = max(errors, key=errors.get)
    assert errors[worst] <= TOLERANCE[world.dtype], worst
    assert all(
        {getattr(case, axis.name) for case in SAMPLE} == {getattr(case, axis.name) for case in CASES}
        for axis in fields(SAMPLE[0])
    )


def test_clips_act_on_some_tokens_and_not_on_others(world, sums):
    tokens = sum(len(trip.places) for trips in world.trips for trip in trips)
    paths = sum(len(trips) for trips in world.trips)
    shares = {case: sums[case].clipped / (paths if case.whole_paths else tokens) for case in SAMPLE}
    assert all(0.05 < share < 0.95 for share in shares.values())


def test_the_ground_is_as_hard_as_it_should_be(world):
    ratios, shared = [], 0
    for tree, notes, trips, rewards in zip(world.trees, world.notes, world.trips, world.rewards, strict=True):
        for trip in trips:
            shift = (trip.logprobs - trip.old).numpy()
            ratios += np.exp(shift).tolist()
            if len(shift):
                assert np.abs(np.exp(shift.mean()) - PATH_EDGES).min() > 0.9e-5
        high = rewards > rewards.mean()
        below = {n.id: [n in t.nodes for t in tree.trajectories] for n in tree.nodes if n.behavior_logprobs}
        shared += sum(
            len({bool(h) for h, b in zip(high, inside, strict=True) if b}) == 2 for inside in below.values()
        )
        assert notes.keys() == {n.id for n in tree.nodes if n.source == "policy"}
    assert np.abs(np.array(ratios)[:, None] - TOKEN_EDGES).min() > 0.9e-4
    assert min(ratios) < 0.4
    assert max(ratios) > 2.5
    assert shared >= 5
    assert max(len(t.policy_nodes) for tree in world.trees for t in tree.trajectories) >= 4
    assert any(t.num_written == 0 for tree in world.trees for t in tree.trajectories)
    assert any(len(t.segments) > 1 for tree in world.trees for t in tree.trajectories)


def test_rows_of_two_ranks_add_up(folder, tmp_path):
    worst = worst_over_two_ranks(folder, torch.float64, sample(CASES, 10, seed=1), tmp_path)
    assert worst <= TOLERANCE[torch.float64]
