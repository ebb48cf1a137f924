"""RL and DPO in turn: each cycle goes on from the last one's model, and an interrupted run goes on in any phase."""

import json
import signal
import time
from pathlib import Path

import pytest

from e2e_runs import SECONDS, SFT, TRAIN, ramify, start, write_lines, write_task
from ramify.cli import main
from ramify.config import shipped_recipes
from ramify.data.example_formats import PAIR
from ramify.data.examples import read_examples
from ramify.obs.trace import read_trees

PROMPT = [{"role": "user", "content": "what is 12 plus 30 ?"}]
CYCLES = """
[selfcritic]
cycles = 2
steps = 2
problems = 4
[dpo]
beta = 0.1
epochs = 2
batch_size = 4
max_tokens = 300
optimizer = {{ rate = 1e-3 }}
"""


@pytest.fixture(scope="module")
def taught(tmp_path_factory, model_folder):
    """A model that answers one question, rightly about half of the time."""
    folder = tmp_path_factory.mktemp("taught")
    recipe = write_task(folder, model_folder, SFT)
    answers = [f"<think> so</think><answer> \\boxed{{ {n} }} </answer>" for n in (42, 41)]
    rows = [{"prompt": PROMPT, "completion": answer} for answer in answers * 20]
    write_lines(folder / "demonstrations.jsonl", rows)
    given = ["data.epochs=2", "learner.optimizer.rate=1e-2", "learner.batch_size=2"]
    assert main(["sft", str(recipe), *(part for one in given for part in ("-s", one))]) == 0
    return max((folder / "run" / "checkpoints").iterdir())


@pytest.fixture
def task(tmp_path, taught):
    text = TRAIN.replace('name = "length"', 'name = "answer"') + CYCLES
    recipe = write_task(tmp_path / "task", taught, text)
    rows = [{"prompt": PROMPT, "answer": "42"} for _ in range(8)]
    write_lines(recipe.parent / "problems.jsonl", rows)
    return recipe


def cycles_of(run):
    return [json.loads((run / f"cycle-{n:02d}" / "done.json").read_text()) for n in (1, 2)]


def test_each_cycle_trains_on_pairs_of_its_own_policy_and_the_next_goes_on_from_it(task, capsys):
    assert main(["selfcritic", str(task)]) == 0
    run = task.parent / "run"
    out = capsys.readouterr().out
    first, second = cycles_of(run)
    assert first["pairs"]["pairs"] >= 1
    assert first["model"].startswith("dpo/checkpoints/")
    assert f"cycle 2 of 2, from {run / 'cycle-01' / first['model']}" in out
    assert f"model written to {run / 'cycle-02' / second['model']}" in out
    for number in (1, 2):
        folder = run / f"cycle-{number:02d}"
        trees = {traced.tree.key.slot: traced.tree for traced in read_trees(folder / "trees.jsonl")}
        assert len(trees) == 4
        rows = [json.loads(line) for line in (folder / "pairs.jsonl").read_text().splitlines()]
        for row in rows:
            leaves = {t.leaf.id for t in trees[row["recorded"]["slot"]].trajectories}
            assert {row["recorded"]["chosen"], row["recorded"]["rejected"]} <= leaves
        assert all(example.recorded for _, example in read_examples(folder / "pairs.jsonl", PAIR))
        # The reference is the policy at the start of the phase: at its first step both are the same, so the loss is ln 2.
        steps = [json.loads(line) for line in (folder / "dpo" / "metrics.jsonl").read_text().splitlines()]
        assert steps[0]["loss"] == pytest.approx(0.6931, abs=1e-4)
        assert steps[0]["margin"] == pytest.approx(0.0, abs=1e-5)
        assert steps[-1]["margin"] > 0
    # The policies of two cycles are not the same.
    one, two = ((run / f"cycle-{n:02d}" / "trees.jsonl").read_text() for n in (1, 2))
    assert one != two
    assert main(["selfcritic", str(task), "--resume"]) == 0
    assert f"model written to {run / 'cycle-02' / second['model']}" in capsys.readouterr().out


def test_an_adapter_is_merged_before_the_next_cycle(task, capsys):
    assert main(["selfcritic", str(task), "-s", "dpo.lora={rank=2, alpha=4.0}"]) == 0
    run = task.parent / "run"
    first, second = cycles_of(run)
    assert (first["model"], second["model"]) == ("model", "model")
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_pretrained(run / "cycle-02" / "model")
    assert (run / "cycle-01" / "dpo" / "checkpoints").is_dir()


def test_rl_on_an_adapter_goes_on_with_it(task):
    assert main(["selfcritic", str(task), "-s", "model.lora={rank=2, alpha=4.0}"]) == 0
    _, second = cycles_of(task.parent / "run")
    model = task.parent / "run" / "cycle-02" / second["model"]
    assert (model / "adapter_config.json").is_file()


def test_a_cycle_without_a_pair_has_no_dpo(task, capsys):
    write_lines(task.parent / "problems.jsonl", [{"prompt": PROMPT, "answer": "7"} for _ in range(8)])
    assert main(["selfcritic", str(task)]) == 0
    first, _ = cycles_of(task.parent / "run")
    assert first["model"].startswith("rl/checkpoints/")
    assert first["pairs"]["questions"] == {"never right": 4}
    assert "no pair, so there is no DPO in it" in capsys.readouterr().out


def weights_and_files(run):
    """Everything of a run that does not hold its random name, a time or a place."""
    found = {}
    for path in sorted(run.rglob("*")):
        inside = path.relative_to(run)
        if (
            path.name in ("trees.jsonl", "pairs.jsonl", "model.safetensors", "done.json")
            or "trees" in inside.parts[:-1]
        ):
            found[str(inside)] = path.read_bytes()
        if path.name == "metrics.jsonl":
            rows = [json.loads(line) for line in path.read_text().splitlines()]
            found[str(inside)] = [{key: value for key, value in row.items() if key != "time"} for row in rows]
    return found


@pytest.mark.integration
def test_an_interrupted_run_goes_on_in_any_phase_to_equal_files(task, tmp_path):
    status, _, err = ramify("selfcritic", task, "-s", f"run.dir='{tmp_path / 'quiet'}'")
    assert status == 0, err
    run = tmp_path / "killed"
    places = [
        ("cycle-01/rl/checkpoints/step-000001", signal.SIGKILL),
        ("cycle-01/trees.jsonl", signal.SIGKILL),
        ("cycle-01/dpo/metrics.jsonl", signal.SIGINT),
        ("cycle-02/rl/metrics.jsonl", signal.SIGTERM),
        ("cycle-02/pairs.jsonl", signal.SIGKILL),
        ("cycle-02/dpo/checkpoints/step-000001", signal.SIGKILL),
    ]
    for number, (place, sign) in enumerate(places):
        resume = ["--resume"] if number else []
        process = start("selfcritic", task, "-s", f"run.dir='{run}'", *resume)
        deadline = time.monotonic() + SECONDS
        while process.poll() is None and not (run / place).exists():
            assert time.monotonic() < deadline
            time.sleep(0.002)
        process.send_signal(sign)
        process.communicate(timeout=SECONDS)
    status, _, err = ramify("selfcritic", task, "-s", f"run.dir='{run}'", "--resume")
    assert status == 0, err
    assert weights_and_files(run) == weights_and_files(tmp_path / "quiet")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["selfcritic.cycles=0"], "selfcritic.cycles"),
        (["run.steps=3"], "selfcritic.steps says how many steps a cycle has"),
        (["dpo.lora={}", "model.lora={}"], "RL trains an adapter"),
        (["reward={name='length'}"], "pairs take a reward that tells right from wrong"),
        (["dpo.betta=1"], "did you mean beta"),
        (["selfcritic="], "a recipe for ramify train, expected one for ramify selfcritic"),
    ],
)
def test_mistakes_are_one_line(task, capsys, settings, message):
    assert main(["selfcritic", str(task), *(part for one in settings for part in ("-s", one))]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert len(told.splitlines()) == 1
    assert not (task.parent / "run").exists()


def test_pairs_from_a_training_run_by_the_command(task, tmp_path, capsys):
    assert main(["selfcritic", str(task)]) == 0
    rl, pairs = task.parent / "run" / "cycle-01" / "rl", tmp_path / "pairs.jsonl"
    assert (
        main(["pairs", str(rl), str(task.parent / "run" / "cycle-01" / "trees.jsonl"), "--out", str(pairs)])
        == 0
    )
    assert "pairs from" in capsys.readouterr().out
    examples = [example for _, example in read_examples(pairs, PAIR)]
    assert examples
    assert all(example.recorded for example in examples)
    assert main(["pairs", str(rl), "--out", str(pairs)]) == 2
    assert "exists; name a new file" in capsys.readouterr().err
    assert main(["pairs", str(tmp_path), "--out", str(tmp_path / "p")]) == 2
    assert "expected a run folder with trees" in capsys.readouterr().err
    assert main(["pairs", str(rl), "--out", str(tmp_path / "p"), "--max-tokens", "3"]) == 2
    told = capsys.readouterr().err
    assert "no pair: 0 pairs from 4 questions" in told
    assert len(told.splitlines()) == 1


def test_help_and_dry_run(task, capsys):
    assert main(["selfcritic", str(task), "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "4 steps" in out
    assert Path(task).exists()


def test_the_recipe_that_ships_on_a_tiny_model_and_its_run_as_a_model(tmp_path, taught, capsys):
    folder = write_task(tmp_path / "task", taught).parent
    write_lines(folder / "problems.jsonl", [{"prompt": PROMPT, "answer": "42"} for _ in range(8)])
    small = {
        # The folder of a run: its last checkpoint.
        "model.path": taught.parents[1],
        "model.dtype": "float32",
        "data.train": folder / "problems.jsonl",
        "run.dir": folder / "run",
        "run.threads": 1,
        "engine.name": "local",
        "tools.search.corpus": folder / "passages.jsonl",
        "tools.python.timeout_seconds": 10,
        "sandbox.min_level": 0,
        "rollout.problems_per_step": 2,
        "rollout.n": 6,
        "rollout.max_tokens": 64,
        "learner.problems_per_minibatch": 2,
        "preflight.problems": 2,
        "preflight.allow_zero_variance": "true",
        "selfcritic.steps": 1,
        "selfcritic.problems": 4,
        "dpo.optimizer.warmup_steps": 1,
    }
    given = [word for key, value in small.items() for word in ("-s", f"{key}={value}")]
    assert main(["selfcritic", str(shipped_recipes() / "toolstar_selfcritic.toml"), *given]) == 0
    first, second = cycles_of(folder / "run")
    # DPO trains an adapter there, which is merged.
    assert (first["model"], second["model"]) == ("model", "model")
    assert first["dpo"]["steps"] >= 1
    assert f"from {taught}" in capsys.readouterr().out
    asked = [
        "eval",
        "--model",
        str(folder / "run"),
        "--dataset",
        str(folder / "problems.jsonl"),
        "--limit",
        "2",
    ]
    asked += ["--out", str(folder / "eval"), "-s", "sandbox.min_level=0", "-s", "sampling.max_tokens=40"]
    assert main(asked) == 0
    # A note names the model that the run's folder stands for.
    assert f"{folder / 'run' / 'cycle-02' / 'model'} was trained on" in capsys.readouterr().out
