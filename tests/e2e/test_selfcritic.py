"""RL and DPO in turn: each cycle goes on from the last one's model, and an interrupted run goes on in any phase."""

import json
import shutil
import signal
import tomllib

import pytest
import torch

from e2e_runs import SELFCRITIC, SFT, overrides, read_lines, write_lines, write_task
from ramify.cli import main
from ramify.config import shipped_recipes
from ramify.data.example_formats import PAIR
from ramify.data.examples import read_examples
from ramify.modeling.load import load_model
from ramify.modeling.lora_merge import write_merged
from ramify.obs.trace import read_trees
from ramify.synth.pairs import PairRule
from vllm_stand_in import install

PROMPT = [{"role": "user", "content": "what is 12 plus 30 ?"}]
TWO_CYCLES = SELFCRITIC.replace(
    "cycles = 1\nsteps = 1\nproblems = 2", "cycles = 2\nsteps = 2\nproblems = 4"
).replace("[dpo]\n", "[dpo]\nepochs = 2\n")


@pytest.fixture(scope="module")
def taught(tmp_path_factory, model_folder):
    """A model that answers one question, rightly about half of the time."""
    folder = tmp_path_factory.mktemp("taught")
    recipe = write_task(folder, model_folder, SFT)
    answers = [f"<think> so</think><answer> \\boxed{{ {n} }} </answer>" for n in (42, 41)]
    rows = [{"prompt": PROMPT, "completion": answer} for answer in answers * 20]
    write_lines(folder / "demonstrations.jsonl", rows)
    settings = ("data.epochs=2", "learner.optimizer.rate=1e-2", "learner.batch_size=2")
    assert main(["sft", str(recipe), *overrides(*settings)]) == 0
    return max((folder / "run" / "checkpoints").iterdir())


ONE_STEP = ("selfcritic.cycles=1", "selfcritic.steps=1")
PROBLEMS = [{"prompt": PROMPT, "answer": "42"} for _ in range(8)]


@pytest.fixture
def task(tmp_path, taught):
    return write_task(tmp_path / "task", taught, TWO_CYCLES, problems=PROBLEMS)


@pytest.fixture(scope="module")
def finished(tmp_path_factory, taught, forked):
    """A run of two cycles that nobody stopped: its recipe, and what it said."""
    recipe = write_task(tmp_path_factory.mktemp("finished"), taught, TWO_CYCLES, problems=PROBLEMS)
    status, out, err = forked("selfcritic", recipe)
    assert status == 0, err
    return recipe, out


def cycles_of(run):
    return [json.loads((run / f"cycle-{n:02d}" / "done.json").read_text()) for n in (1, 2)]


def recipe_in(run, name):
    return tomllib.loads((run / name / "recipe.toml").read_text())


def test_each_cycle_trains_on_pairs_of_its_own_policy_and_the_next_goes_on_from_it(finished, taught, capsys):
    task, out = finished
    run = task.parent / "run"
    first, second = cycles_of(run)
    assert first["pairs"]["pairs"] >= 1
    assert first["model"].startswith("dpo/checkpoints/")
    assert f"cycle 2 of 2, from {run / 'cycle-01' / first['model']}" in out
    assert f"model written to {run / 'cycle-02' / second['model']}" in out
    for number in (1, 2):
        folder = run / f"cycle-{number:02d}"
        trees = {traced.tree.key.slot: traced.tree for traced in read_trees(folder / "trees.jsonl")}
        assert len(trees) == 4
        rows = read_lines(folder / "pairs.jsonl")
        for row in rows:
            leaves = {t.leaf.id for t in trees[row["recorded"]["slot"]].trajectories}
            assert {row["recorded"]["chosen"], row["recorded"]["rejected"]} <= leaves
        assert all(example.recorded for _, example in read_examples(folder / "pairs.jsonl", PAIR))
        # The reference is the policy at the start of the phase: at its first step both are the same, so the loss is ln 2.
        steps = read_lines(folder / "dpo" / "metrics.jsonl")
        assert steps[0]["loss"] == pytest.approx(0.6931, abs=1e-4)
        assert steps[0]["margin"] == pytest.approx(0.0, abs=1e-5)
        assert steps[-1]["margin"] > 0
    # Each phase begins with the model of the one before, with draws of its own.
    phases = {
        name: recipe_in(run, name) for name in ("cycle-01/rl", "cycle-01/dpo", "cycle-02/rl", "cycle-02/dpo")
    }
    last = [str(max((run / f"cycle-{n:02d}" / "rl" / "checkpoints").iterdir())) for n in (1, 2)]
    starts = [phase["model"]["path"] for phase in phases.values()]
    assert starts == [str(taught), last[0], str(run / "cycle-01" / first["model"]), last[1]]
    assert len({phase["run"]["seed"] for phase in phases.values()}) == 4
    assert all(phase["tools"] == recipe_in(run, ".")["tools"] for phase in phases.values())
    assert set(phases["cycle-01/dpo"]["tools"]) >= {"search", "python"}
    # The policies of two cycles are not the same.
    grown = [(run / f"cycle-{n:02d}" / "trees.jsonl").read_text() for n in (1, 2)]
    assert grown[0] != grown[1]
    assert main(["selfcritic", str(task), "--resume"]) == 0
    assert f"model written to {run / 'cycle-02' / second['model']}" in capsys.readouterr().out
    # The passages that the tools search are part of what all cycles are made from.
    passages = task.parent / "passages.jsonl"
    before = passages.read_bytes()
    write_lines(passages, [{"text": "Berlin is the capital of Germany."}])
    assert main(["selfcritic", str(task), "--resume"]) == 2
    assert "holds a run with tools.search." in capsys.readouterr().err
    passages.write_bytes(before)


def test_a_question_gives_no_more_pairs_than_the_recipe_says(task):
    settings = overrides(*ONE_STEP, "selfcritic.pairs_per_question=1", "rollout.temperature=2.0")
    words = ["selfcritic", str(task), *settings]
    assert main(words) == 0
    cycle = task.parent / "run" / "cycle-01"
    # Every other answer is right now; the pairs are made again, of the trees that are recorded.
    lines = read_lines(cycle / "trees.jsonl")
    for line in lines:
        line["rewards"] = [
            {"value": i % 2, "parts": {"correct": i % 2}, "events": {}, "counts": True} for i in range(6)
        ]
    write_lines(cycle / "trees.jsonl", lines)
    for name in ("pairs.json", "pairs.jsonl", "done.json"):
        (cycle / name).unlink()
    shutil.rmtree(cycle / "dpo", ignore_errors=True)
    assert main([*words, "--resume"]) == 0
    possible = [PairRule(9, 300).choose(each)[1] for each in read_trees(cycle / "trees.jsonl")]
    assert max(map(len, possible)) > 1
    assert json.loads((cycle / "done.json").read_text())["pairs"]["pairs"] == sum(map(bool, possible))


def test_rl_on_an_adapter_goes_on_with_it(task):
    assert (
        main(["selfcritic", str(task), *overrides("model.lora={rank=2, alpha=4.0}", "selfcritic.steps=1")])
        == 0
    )
    _, second = cycles_of(task.parent / "run")
    model = task.parent / "run" / "cycle-02" / second["model"]
    assert (model / "adapter_config.json").is_file()


@pytest.mark.integration
@pytest.mark.parametrize("lora", [(), ("model.lora={rank=2, alpha=4.0}",)], ids=["whole", "adapter"])
def test_servers_that_ramify_starts_sample_with_the_trained_policy(task, taught, tmp_path, monkeypatch, lora):
    path, log = install(tmp_path / "packages")
    monkeypatch.setenv("PYTHONPATH", path)
    engine = "engine={name='vllm', launch=true, dtype='float32', slots=4}"
    settings = (engine, "run.deterministic=false", *ONE_STEP, "learner.optimizer.rate=1e-2")
    words = overrides(*settings, *lora)
    assert main(["selfcritic", str(task), *words]) == 0
    cycle = task.parent / "run" / "cycle-01"
    policy = max((cycle / "rl" / "checkpoints").iterdir())
    merged = cycle / "sampling" / "model"
    assert log.read_text().split() == [str(taught), str(merged if lora else policy)]
    assert not merged.exists()
    # What was recorded is what the trained policy would write, and not what it began with.
    model = load_model(write_merged(policy, tmp_path / "merged") if lora else policy)
    sampled = [each.tree.trajectories[0].segments[-1] for each in read_trees(cycle / "trees.jsonl")]
    assert max(off_by(model, segment) for segment in sampled) < 1e-3
    assert max(off_by(load_model(taught), segment) for segment in sampled) > 1e-3


@torch.no_grad()
def off_by(model, segment):
    """Largest difference of the logprobs of a context that the policy wrote from those that a model gives."""
    ids = torch.tensor(segment.token_ids)
    ours = torch.log_softmax(model(ids[None]).logits[0].float(), -1)[:-1].gather(1, ids[1:, None])[:, 0]
    theirs = torch.tensor(
        [p for node in segment.nodes[1:] for p in node.behavior_logprobs or (0.0,) * len(node.token_ids)]
    )
    start = len(segment.nodes[0].token_ids) - 1
    written = torch.tensor(segment.written[start + 1 :])
    return float((ours[start:] - theirs)[written].abs().max())


def test_a_cycle_without_a_pair_has_no_dpo(task, capsys):
    write_lines(task.parent / "problems.jsonl", [{"prompt": PROMPT, "answer": "7"} for _ in range(8)])
    assert main(["selfcritic", str(task), *overrides(*ONE_STEP)]) == 0
    first = json.loads((task.parent / "run" / "cycle-01" / "done.json").read_text())
    assert first["model"].startswith("rl/checkpoints/")
    assert first["pairs"]["questions"] == {"never right": 4}
    assert "no pair, so there is no DPO in it" in capsys.readouterr().out


def weights_and_files(run):
    """Everything of a run that does not hold its random name, a time or a place."""
    contents = {}
    for path in sorted(run.rglob("*")):
        inside = path.relative_to(run)
        if (
            path.name in ("trees.jsonl", "pairs.jsonl", "model.safetensors", "done.json")
            or "trees" in inside.parts[:-1]
        ):
            contents[str(inside)] = path.read_bytes()
        if path.name == "metrics.jsonl":
            rows = read_lines(path)
            contents[str(inside)] = [
                {key: value for key, value in row.items() if key != "time"} for row in rows
            ]
    return contents


@pytest.mark.integration
def test_an_interrupted_run_goes_on_in_any_phase_to_equal_files(finished, task, tmp_path, forked):
    run = tmp_path / "killed"
    places = [
        ("cycle-01/rl/checkpoints/step-000001", signal.SIGKILL), ("cycle-01/trees.jsonl", signal.SIGKILL),
        ("cycle-01/dpo/metrics.jsonl", signal.SIGINT), ("cycle-02/rl/metrics.jsonl", signal.SIGTERM),
        ("cycle-02/pairs.jsonl", signal.SIGKILL), ("cycle-02/dpo/checkpoints/step-000001", signal.SIGKILL),
    ]  # fmt: skip
    for number, (position, sign) in enumerate(places):
        resume = ["--resume"] if number else []
        forked("selfcritic", task, "-s", f"run.dir='{run}'", *resume, when=(f"{run / position}", 0, sign))
    status, _, err = forked("selfcritic", task, "-s", f"run.dir='{run}'", "--resume")
    assert status == 0, err
    assert weights_and_files(run) == weights_and_files(finished[0].parent / "run")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["selfcritic.cycles=0"], "selfcritic.cycles"),
        (["run.steps=3"], "selfcritic.steps says how many steps a cycle has"),
        (["dpo.lora={}", "model.lora={}"], "RL trains an adapter"),
        (
            ["run.deterministic=false", "engine={name='vllm', urls=['http://127.0.0.1:9'], start_seconds=1}"],
            "engine.urls: each phase starts servers of its own",
        ),
        (["reward={name='length'}"], "pairs take a reward that tells right from wrong"),
        (["dpo.betta=1"], "did you mean beta"),
        (["selfcritic="], "a recipe for ramify train, expected one for ramify selfcritic"),
    ],
)
def test_mistakes_are_one_line(task, refused, settings, message):
    assert message in refused("selfcritic", task, *overrides(*settings))
    assert not (task.parent / "run").exists()


def test_pairs_from_a_training_run_by_the_command(finished, tmp_path, capsys):
    cycle = finished[0].parent / "run" / "cycle-01"
    rl, pairs = cycle / "rl", tmp_path / "pairs.jsonl"
    assert main(["pairs", str(rl), str(cycle / "trees.jsonl"), "--out", str(pairs)]) == 0
    assert "pairs from" in capsys.readouterr().out
    examples = [example for _, example in read_examples(pairs, PAIR)]
    assert examples
    assert all(example.recorded for example in examples)
    # A file that is named twice is read once.
    for number, places in enumerate(([rl], [rl, rl / "trees" / "000001.jsonl", rl])):
        assert main(["pairs", *map(str, places), "--out", str(tmp_path / f"{number}.jsonl")]) == 0
    assert (tmp_path / "0.jsonl").read_bytes() == (tmp_path / "1.jsonl").read_bytes()
    assert main(["pairs", str(rl), "--out", str(pairs)]) == 2
    assert "exists; name a new file" in capsys.readouterr().err
    assert main(["pairs", str(tmp_path), "--out", str(tmp_path / "p")]) == 2
    assert "expected a run folder with trees" in capsys.readouterr().err
    assert main(["pairs", str(rl), "--out", str(tmp_path / "p"), "--max-tokens", "3"]) == 2
    message = capsys.readouterr().err
    assert "no pair: 0 pairs from 4 questions" in message
    assert len(message.splitlines()) == 1


def test_a_dry_run_counts_the_steps(task, capsys):
    assert main(["selfcritic", str(task), "--dry-run"]) == 0
    assert "4 steps" in capsys.readouterr().out


def test_the_recipe_that_ships_on_a_tiny_model_and_its_run_as_a_model(tmp_path, taught, capsys):
    folder = write_task(tmp_path / "task", taught).parent
    write_lines(folder / "problems.jsonl", PROBLEMS)
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
        "dpo.optimizer.warmup_ratio": 0.5,
        "log.to": '["tensorboard"]',
    }
    assert main(["selfcritic", str(shipped_recipes() / "toolstar_selfcritic.toml"), *overrides(small)]) == 0
    run = folder / "run"
    first, second = cycles_of(run)
    # DPO trains an adapter there, which is merged before the next cycle.
    assert (first["model"], second["model"]) == ("model", "model")
    assert (run / "cycle-01" / "dpo" / "checkpoints").is_dir()
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_pretrained(run / "cycle-02" / "model")
    # Each phase is a run of its own for loggers.
    assert len(list(run.glob("cycle-0[12]/*/tensorboard/events*"))) == 4
    assert first["dpo"]["steps"] >= 1
    assert f"from {taught}" in capsys.readouterr().out
    words = ["eval", "--model", str(run), "--dataset", str(folder / "problems.jsonl"), "--limit", "2"]
    words += ["--out", str(folder / "eval"), "-s", "sandbox.min_level=0", "-s", "sampling.max_tokens=40"]
    assert main(words) == 0
    # A note names the model that the run's folder stands for.
    assert f"{run / 'cycle-02' / 'model'} was trained on" in capsys.readouterr().out
