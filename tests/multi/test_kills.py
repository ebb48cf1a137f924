"""Whatever rank is killed, whenever: torchrun starts the run again, it goes on, and ends as if nothing had been."""

import os
import random
import signal
import time
from pathlib import Path

import pytest
from launched import (
    finish,
    forked_ramify,
    free_port,
    ours,
    ramify,
    ranks_of,
    start,
    start_by_hand,
    wait_until,
)
from test_runs import last_checkpoint, trees, weights

from e2e_runs import TRAIN, write_task
from ramify.obs.metrics import read_metrics

KILLS = 10
COPY = TRAIN.replace("deterministic = true", f"deterministic = true\nsteps = {3 * KILLS}").replace(
    "slots = 12", 'slots = 12\nweights = "copy"'
)


def steps_done(run):
    path = run / "metrics.jsonl"
    return path.read_text().count("\n") if path.is_file() else 0


def test_kills_change_nothing(tmp_path, model_folder, forked):
    quiet = write_task(tmp_path / "quiet", model_folder, COPY)
    status, output = forked_ramify(forked, 2, "train", quiet)
    assert status == 0, output
    recipe = write_task(tmp_path / "killed", model_folder, COPY)
    run, draw = recipe.parent / "run", random.Random(5)
    process = start(2, "train", recipe, restarts=KILLS)
    killed = []
    for number in range(KILLS):
        wait_until(lambda number=number: len(ranks_of(process)) == 2 and steps_done(run) >= number, process)
        time.sleep(draw.uniform(0.0, 0.9))
        rank = draw.randrange(2)
        victim = ranks_of(process)[rank]
        os.kill(victim, signal.SIGKILL)
        killed.append(rank)
        wait_until(lambda victim=victim: victim not in ranks_of(process).values(), process)
    status, output = finish(process)
    assert status == 0, output
    assert set(killed) == {0, 1}
    assert output.count("going on from") >= KILLS // 2
    actual, expected = (weights(last_checkpoint(r.parent / "run")) for r in (recipe, quiet))
    assert all((actual[name] == expected[name]).all() for name in expected)
    assert trees(run) == trees(quiet.parent / "run")
    rows, others = (
        [dict(row, time=0) for row in read_metrics(r.parent / "run" / "metrics.jsonl")]
        for r in (recipe, quiet)
    )
    assert rows == others
    assert not list((run / "checkpoints").glob(".*"))


def test_ctrl_c_saves_and_ends_without_a_restart(tmp_path, model_folder, forked):
    recipe = write_task(tmp_path / "task", model_folder, COPY)
    run = recipe.parent / "run"
    process = start(2, "train", recipe, restarts=3)
    wait_until(lambda: steps_done(run) >= 2, process)
    os.kill(process.pid, signal.SIGINT)
    _, output = finish(process)
    assert sum("state saved in" in line for line in ours(output)) == 1, output
    assert len(read_metrics(run / "metrics.jsonl")) == int(last_checkpoint(run).name[-6:])
    status, output = forked_ramify(forked, 2, "train", recipe, "--resume", "--max-steps", 4)
    assert status == 0, output


@pytest.mark.parametrize("lost", [0, 1])
def test_two_nodes_of_one_process_each_start_again_together(tmp_path, model_folder, lost):
    """Each has an agent of its own, which counts restarts for itself."""
    recipe = write_task(tmp_path / "task", model_folder, COPY)
    run, endpoint = recipe.parent / "run", f"localhost:{free_port()}"
    nodes = ["--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-id", "7"]
    node = {"RAMIFY_SECRET": "1f" * 32, "GLOO_SOCKET_IFNAME": "lo"}
    agents = [
        start(1, "train", recipe, "--max-steps", 12, restarts=3, launcher=nodes, **node) for _ in range(2)
    ]
    wait_until(lambda: steps_done(run) >= 2, agents[0])
    ranks = {number: pid for agent in agents for number, pid in ranks_of(agent).items()}
    assert ranks.keys() == {0, 1}
    os.kill(ranks[lost], signal.SIGKILL)
    done = [finish(agent) for agent in agents]
    assert [status for status, _ in done] == [0, 0], done
    output = "".join(written for _, written in done)
    assert "going on from" in output
    assert output.count("model written to") == 1
    assert len(read_metrics(run / "metrics.jsonl")) == 12


def test_of_two_machines_one_is_left_and_the_run_goes_on_there(tmp_path, model_folder):
    recipe = write_task(tmp_path / "task", model_folder, COPY)
    run, endpoint = recipe.parent / "run", f"localhost:{free_port()}"
    nodes = ["--nnodes", "1:2", "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-id", "8"]
    times = "last_call_timeout=12,keep_alive_interval=1,keep_alive_max_attempt=2"
    node = {"RAMIFY_SECRET": "2f" * 32, "GLOO_SOCKET_IFNAME": "lo"}
    # On one host both agents could bind the endpoint: only the machine that is left may have the store.
    left, lost = (
        start(
            1, "train", recipe, "--max-steps", 12, restarts=3,
            launcher=[*nodes, "--rdzv-conf", f"{times},is_host={host}"], **node,
        )
        for host in (True, False)
    )  # fmt: skip
    wait_until(lambda: steps_done(run) >= 2, left)
    assert len(ranks_of(lost)) == 1
    for pid in [*ranks_of(lost).values(), lost.pid]:
        os.kill(pid, signal.SIGKILL)
    finish(lost)
    status, output = finish(left)
    assert status == 0, output
    assert "going on from" in output
    assert len(read_metrics(run / "metrics.jsonl")) == 12


@pytest.mark.parametrize("lost", [0, 1])
def test_a_machine_that_is_gone_without_a_word_ends_the_run(tmp_path, model_folder, lost):
    """A process that stands still keeps its connections, as a machine without power does."""
    recipe = write_task(tmp_path / "task", model_folder, COPY)
    ranks = start_by_hand(
        recipe, free_port(), 2, "train", program=[str(Path(__file__).with_name("hurried.py"))],
        RAMIFY_SECRET="3f" * 32, LOCAL_RANK="0",
    )  # fmt: skip
    wait_until(lambda: steps_done(recipe.parent / "run") >= 2, ranks[0])
    os.kill(ranks[lost].pid, signal.SIGSTOP)
    status, output = finish(ranks[1 - lost], 60)
    assert status == 1
    assert ("rank 1: no sign of life for" in output and "go on with --resume" in output) == (lost == 1)
    os.kill(ranks[lost].pid, signal.SIGKILL)
    finish(ranks[lost])


def test_a_restart_does_not_go_on_with_a_run_of_somebody_else(tmp_path, model_folder, forked):
    recipe = write_task(tmp_path / "task", model_folder, COPY)
    status, output = forked_ramify(forked, 2, "train", recipe, "--max-steps", 1)
    assert status == 0, output
    status, output = ramify(2, "train", recipe, restarts=1)
    assert status != 0
    assert "holds a run; go on with --resume" in output
    assert steps_done(recipe.parent / "run") == 1
