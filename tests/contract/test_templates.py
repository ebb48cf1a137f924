"""Templates for clusters: their syntax, and what the batch script asks of stand-ins for Slurm's commands."""

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from ramify.cli import COMMANDS

TEMPLATES = Path(__file__).parents[2] / "templates"
SLURM = TEMPLATES / "slurm.sbatch"
HOSTS = 'if [ "$1" = show ]; then printf "node-a\\nnode-b\\n"; else echo "scontrol $*" >> "$TOLD"; fi'


@pytest.fixture
def job():
    """The command of the Kubernetes job's container, and the job."""
    service, _, job = yaml.safe_load_all((TEMPLATES / "kubernetes.yaml").read_text())
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return container["args"][0], job, service


def test_only_the_pods_of_the_job_reach_each_other_and_share_a_secret(job):
    _, policy, _ = yaml.safe_load_all((TEMPLATES / "kubernetes.yaml").read_text())
    pods = {"matchLabels": {"job-name": job[1]["metadata"]["name"]}}
    assert policy["kind"] == "NetworkPolicy"
    assert policy["spec"]["podSelector"] == pods
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    assert policy["spec"]["ingress"] == [{"from": [{"podSelector": pods}]}]
    (container,) = job[1]["spec"]["template"]["spec"]["containers"]
    assert job[1]["spec"]["template"]["spec"]["automountServiceAccountToken"] is False
    (secret,) = [entry for entry in container["env"] if entry["name"] == "RAMIFY_SECRET"]
    assert "value" not in secret
    assert secret["valueFrom"]["secretKeyRef"]["name"] in (TEMPLATES / "kubernetes.yaml").read_text()


def test_the_job_is_indexed_and_its_pods_find_each_other(job):
    command, batch, service = job
    spec = batch["spec"]
    assert (batch["kind"], spec["completionMode"], spec["completions"]) == (
        "Job",
        "Indexed",
        spec["parallelism"],
    )
    name = batch["metadata"]["name"]
    assert service["metadata"]["name"] == spec["template"]["spec"]["subdomain"]
    assert (
        f"--rdzv-endpoint {name}-0.{service['metadata']['name']}:{service['spec']['ports'][0]['port']}"
        in command
    )
    assert re.search(r"--nnodes (\d+):(\d+) ", command)[2] == str(spec["completions"])
    # torchrun kills before the pod is killed, and both wait longer than torchrun's own 30 s.
    seconds = int(re.search(r"--shutdown-timeout (\d+) ", command)[1])
    assert 300 < seconds < spec["template"]["spec"]["terminationGracePeriodSeconds"]
    assert "train" in COMMANDS


@pytest.mark.parametrize("which", ["slurm", "kubernetes"])
def test_the_shell_takes_it(which, job):
    text = SLURM.read_text() if which == "slurm" else job[0]
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def slurm(tmp_path):
    """Run the batch script with stand-ins for srun and scontrol, and return the commands that these got."""

    def run(srun, *words, hosts=HOSTS):
        log = tmp_path / "told"
        log.write_text("")
        for name, text in (("srun", srun), ("scontrol", hosts)):
            (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
            (tmp_path / name).chmod(0o755)
        settings = {
            "SLURM_JOB_NODELIST": "x",
            "SLURM_JOB_NUM_NODES": "2",
            "SLURM_CPUS_PER_TASK": "64",
            "SLURM_JOB_ID": "77",
            "TOLD": str(log),
        }
        path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
        done = subprocess.run(
            ["bash", str(SLURM), *words],
            env={**os.environ, **settings, **path},
            capture_output=True,
            text=True,
            timeout=30,
        )
        return done.returncode, log.read_text().splitlines(), done.stderr

    return run


ASKED = 'echo "srun $*" >> "$TOLD"'


def test_a_first_job_and_one_that_goes_on(slurm, tmp_path):
    run = tmp_path / "run"
    status, (command,), _ = slurm(ASKED, "r.toml", str(run), "-s", "run.seed=1")
    assert status == 0
    assert command.startswith("srun --cpus-per-task=64 torchrun ")
    assert "--nnodes 2:2 --nproc-per-node 8 --max-restarts 3 --shutdown-timeout 540 " in command
    port = int(re.search(r"--rdzv-endpoint node-a:(\d+) --rdzv-id 77", command)[1])
    assert 1024 < port < 65536
    assert command.endswith(f"-m ramify train r.toml -s run.dir={run} -s run.seed=1")
    run.mkdir()
    (run / "recipe.toml").write_text("")
    _, (command,), _ = slurm(ASKED, "r.toml", str(run))
    assert command.endswith("--resume")


def test_a_failed_run_is_a_failed_job(slurm, tmp_path):
    assert slurm("exit 3", "r.toml", str(tmp_path / "run"))[0] == 3


def test_before_its_end_a_job_is_told_and_queued_again(slurm, tmp_path):
    waits = (
        'trap \'echo "srun got TERM" >> "$TOLD"; exit 0\' TERM\n'
        "kill -USR1 $PPID\nfor _ in $(seq 200); do sleep 0.05; done; exit 9"
    )
    status, lines, _ = slurm(waits, "r.toml", str(tmp_path / "run"))
    assert (status, lines) == (0, ["srun got TERM", "scontrol requeue 77"])


def test_a_signal_before_the_processes_run_is_passed_on_too(slurm, tmp_path):
    early = 'if [ "$1" = show ]; then kill -USR1 $PPID; fi\n' + HOSTS
    slow = "for _ in $(seq 200); do sleep 0.05; done; exit 9"
    assert slurm(slow, "r.toml", str(tmp_path / "run"), hosts=early)[:2] == (0, ["scontrol requeue 77"])


def test_each_job_has_a_secret_of_its_own_that_no_command_line_shows(slurm, tmp_path):
    show = f'{ASKED}; echo "$RAMIFY_SECRET" >> "$TOLD"'
    (_, (command, first), _), (_, (_, second), _) = (
        slurm(show, "r.toml", str(tmp_path / "run")) for _ in "ab"
    )
    assert re.fullmatch("[0-9a-f]{64}", first)
    assert first != second
    assert first not in command


def test_without_arguments_it_says_what_it_wants(slurm):
    status, lines, message = slurm(ASKED)
    assert status != 0
    assert not lines
    assert "expected: sbatch" in message
