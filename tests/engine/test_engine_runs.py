"""Whole runs on real servers: hand-over of weights, adapters, servers that are killed, two servers."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from real_servers import FLAGS, engine_of, play

from ramify.cli import main
from ramify.core.records import Request
from ramify.engines.vllm.routing import least_work
from ramify.modeling import plain_folder
from ramify.obs.metrics import read_metrics
from ramify.obs.trace import read_trees

pytestmark = pytest.mark.timeout(1500)

STEPS = 5
KILLS = int(os.environ.get("RAMIFY_KILLS", "2"))


def words(quickstart, taught, vllm_python, run, *settings):
    """A training command on the quick start's recipe of RL, with an engine of vLLM."""
    ours = (
        "engine.name=vllm", "engine.launch=true", f"engine.python={vllm_python}",
        f"engine.flags={json.dumps(FLAGS)}", "engine.dtype=float32", f"model.path={taught}", f"run.dir={run}",
        "run.save_every=100", "rollout.problems_per_step=4", "learner.problems_per_minibatch=4",
        "preflight.enabled=false", *settings,
    )  # fmt: skip
    return [str(quickstart / "rl" / "recipe.toml"), *(word for setting in ours for word in ("-s", setting))]


@pytest.mark.parametrize("lora", [(), ("model.lora.rank=8", "model.lora.alpha=16")], ids=["tied", "adapter"])
def test_steps_of_rl_with_a_hand_over_after_each(quickstart, taught, vllm_python, tmp_path, lora):
    command = words(quickstart, taught, vllm_python, tmp_path / "run", "preflight.enabled=true", *lora)
    assert main(["train", *command, "--max-steps", str(STEPS)]) == 0
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert len(rows) == STEPS
    assert sum(row["update/steps"] for row in rows) >= 3
    assert all(row["update/mismatch_max"] < 1e-3 for row in rows if row["update/steps"])
    assert all(row["update/mismatch_kl"] < 1e-6 for row in rows if row["update/steps"])
    versions = [
        {
            node.policy_version
            for traced in trees_of(tmp_path / "run", step)
            for node in traced.nodes
            if node.stop
        }
        for step in range(1, STEPS + 1)
    ]
    assert versions == [{step} for step in range(STEPS)]
    assert list((tmp_path / "run" / "engine").glob("server-0.log"))
    assert not ours_left()


def trees_of(run, step):
    return [traced.tree for traced in read_trees(run / "trees" / f"{step:06d}.jsonl")]


def ours_left():
    """Folders of weights that a run left behind."""
    return list(Path("/dev/shm").glob("ramify-weights-*"))


def test_a_hand_over_without_the_heads_mend_is_caught(
    quickstart, taught, vllm_python, tmp_path, capsys, monkeypatch
):
    """A folder that leaves out the tied head, as a checkpoint does: the server keeps the old one, and only the probe shows it."""
    whole = plain_folder.write_weights
    monkeypatch.setattr(
        plain_folder,
        "write_weights",
        lambda folder, weights, names, *settings, **named: whole(
            folder, weights, [name for name in names if name != "lm_head.weight"], *settings, **named
        ),
    )
    command = words(quickstart, taught, vllm_python, tmp_path / "run", "learner.optimizer.rate=0.003")
    status = main(["train", *command, "--max-steps", "4"])
    message = capsys.readouterr().err.strip().splitlines()[-1]
    assert status == 1
    assert "the engine's logprobs differ from the learner's" in message
    assert "nothing was learned from it" in message


def server_of(ramify):
    """Process id of the server that a run started."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            status, line = (path / "status").read_text(), (path / "cmdline").read_bytes()
        except OSError:
            continue
        if f"PPid:\t{ramify}\n" in status and b"vllm.entrypoints" in line:
            return int(path.name)
    return None


def finished_steps(run):
    file = run / "metrics.jsonl"
    return len(file.read_text().splitlines()) if file.is_file() else 0


def test_a_server_killed_in_mid_step_comes_back_and_nothing_is_lost_or_counted_twice(
    quickstart, taught, vllm_python, tmp_path
):
    """Once in each step, at a random moment of it. Weights that were not handed over again would show as a mismatch."""
    draw, run, killed = random.Random(0), tmp_path / "run", 0
    command = words(quickstart, taught, vllm_python, run, "engine.start_seconds=300", "data.epochs=9")
    ramify = subprocess.Popen(
        [sys.executable, "-m", "ramify", "train", *command, "--max-steps", str(KILLS)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        while ramify.poll() is None and killed < KILLS:
            answered = requests_in(run)
            while ramify.poll() is None and not (
                finished_steps(run) == killed and requests_in(run) > answered
            ):
                time.sleep(0.02)
            # This step's first requests have been answered.
            time.sleep(draw.uniform(0.0, 0.5))
            server = server_of(ramify.pid)
            if finished_steps(run) == killed and server is not None:
                os.kill(server, signal.SIGKILL)
                killed += 1
        output = ramify.communicate(timeout=1200)[0]
    finally:
        ramify.kill()
    assert ramify.returncode == 0, output
    assert killed == KILLS
    assert output.count(" is down (") == output.count(" is back after ") == KILLS
    rows = read_metrics(run / "metrics.jsonl")
    assert len(rows) == KILLS
    for step, row in enumerate(rows, start=1):
        trees = trees_of(run, step)
        assert len({tree.key for tree in trees}) == len(trees) == 4
        assert len({len(tree.trajectories) for tree in trees}) == 1
        assert {n.policy_version for t in trees for n in t.nodes if n.token_ids and n.stop} == {step - 1}
        assert not row["update/steps"] or row["update/mismatch_max"] < 1e-3


def requests_in(run):
    """Requests that the server's log holds."""
    log = run / "engine" / "server-0.log"
    return log.read_text(errors="replace").count("POST /inference/v1/generate") if log.is_file() else 0


def hits(server):
    lines = server.ask("GET", "/metrics").text.splitlines()
    counts = {
        line.partition("{")[0]: float(line.split()[-1])
        for line in lines
        if line.startswith("vllm:prefix_cache")
    }
    return counts["vllm:prefix_cache_hits_total"], counts["vllm:prefix_cache_queries_total"]


def test_prefix_affinity_finds_more_in_the_caches_of_two_servers(start_server, taught):
    """Trajectories of turns with results between them, which branch once. The servers count what they find."""
    # On a CPU blocks have 128 tokens, longer than a turn here; on a GPU 16.
    servers = [start_server(taught, "--block-size", "32") for _ in range(2)]
    draw = random.Random(1)

    async def rollout(engine, salt):
        async def go_on(ids, turn, name):
            while turn < 5:
                done = await engine.generate(Request(ids, turn, 16, entropy_first_k=0))
                result = random.Random(f"{name}{turn}").choices(range(30, 500), k=16)
                ids, turn = (*ids, *done.token_ids, *result), turn + 1
                if turn == 2:
                    await asyncio.gather(*(go_on(ids, turn, f"{name}{branch}") for branch in "ab"))
                    return

        prompts = (tuple(random.Random(f"{salt}{n}").choices(range(30, 500), k=48)) for n in range(16))
        await asyncio.gather(*(go_on(ids, 0, f"{salt}{n}") for n, ids in enumerate(prompts)))

    def share(route, salt):
        before = [hits(s) for s in servers]
        engine = engine_of(taught, *servers)
        engine._route = route
        play(engine, lambda e: rollout(e, salt))
        after = [hits(s) for s in servers]
        cached, queried = (sum(a[i] - b[i] for a, b in zip(after, before, strict=True)) for i in (0, 1))
        return cached / queried

    play(engine_of(taught, *servers), lambda e: e.score(range(20, 30)))
    by_prefix = share(least_work, "prefix")
    at_random = share(lambda places, blocks: draw.choice(places), "random")
    sys.stderr.write(
        f"share of prompt tokens found cached: by prefix {by_prefix:.3f}, at random {at_random:.3f}\n"
    )
    assert by_prefix > at_random + 0.05
