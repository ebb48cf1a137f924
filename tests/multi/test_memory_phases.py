"""Learner and servers on the same GPUs, under torchrun: never does one take memory that the other has.

Cards, servers and the allocator are stand-ins that refuse what overlaps (`cards`, `vllm_stand_in`, `card_ranks`).
"""

import sys
from pathlib import Path

import pytest
from launched import finish, start

import cards
from e2e_runs import TRAIN, write_task
from ramify.obs.metrics import read_metrics
from vllm_stand_in import install

SHARED = (
    TRAIN.replace("deterministic = true", "steps = 3")
    .replace("n = 6\nm = 3\nmax_tokens = 64", "n = 4\nm = 2\nmax_tokens = 24")
    .replace(
        'name = "local"\nslots = 12',
        'name = "vllm"\nlaunch = true\nsleep = true\ndtype = "float32"\ngpus = ["0", "1"]\nslots = 8\n'
        f'python = "{sys.executable}"\nweights_dir = "{{folder}}/weights"',
    )
    + "[preflight]\nproblems = 1\nallow_zero_variance = true\n"
)
SECONDS = 300.0
PROGRAM = (str(Path(__file__).with_name("card_ranks.py")),)


@pytest.fixture
def train(tmp_path, model_folder):
    """Train for three steps on two ranks and two servers; returns the status, the output, the cards' folder and the run's."""

    def run():
        recipe = write_task(tmp_path / "task", model_folder, SHARED)
        path, _ = install(tmp_path / "packages")
        (tmp_path / "packages" / "crash-1.txt").touch()
        booked = tmp_path / "cards"
        booked.mkdir()
        settings = {"PYTHONPATH": path, cards.FOLDER: str(booked)}
        status, output = finish(start(2, "train", recipe, program=PROGRAM, **settings), SECONDS)
        return status, output, booked, recipe.parent / "run"

    return run


def test_servers_and_learner_take_turns_from_the_start_and_after_a_crash(train):
    status, output, booked, run = train()
    assert status == 0, output
    assert len(read_metrics(run / "metrics.jsonl")) == 3
    assert "http://server-1 is down" in output
    for number in (0, 1):
        rank, server = f"rank-{number}", f"server-{number}"
        events = cards.events_of(booked, number)
        start = [
            (rank, "built"), (rank, "released"), (server, "starts"), (server, "awake"), (server, "asleep"),
        ]  # fmt: skip
        assert events[:6] == [*start, (rank, "computes")]  # the dry step
        turns = [event for _, event in events[6:]]
        # The preflight and three steps; the last save is behind the last update.
        turn = ["released", "awake", "asleep", "computes"]
        # Server 1 crashes in the first step and comes back: in that rollout, or in the next one.
        assert turns == turn * 4 if number == 0 else turns[:4] == turn and turns[-4:] == turn
        assert turns.count("starts") >= (number == 1)
