"""Whole runs under torchrun: as on one process, resumed on other numbers of ranks, opened elsewhere."""

import math
import shutil

import numpy as np
import pytest
import torch
from launched import forked_ramify, ramify
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import own_parts
from e2e_runs import ATTEMPTS, DPO, SFT, TRAIN, write_lines, write_task
from ramify.cli import main
from ramify.obs.metrics import read_metrics
from ramify.obs.trace import read_trees
from ramify.obs.trace_index import trace_files

STEPS = "deterministic = true\nsteps = 3"
COPY = TRAIN.replace("deterministic = true", STEPS).replace("slots = 12", 'slots = 12\nweights = "copy"')
SCRIPTED = (
    TRAIN.replace("deterministic = true", STEPS)
    .replace('name = "local"\nslots = 12', 'name = "scripted"\nscript = "{folder}/script.toml"')
    .replace("loss =", 'old = "recompute"\nloss =')
)
DEMONSTRATIONS = SFT.replace('run"\n', 'run"\nthreads = 1\ndeterministic = true\nsave_every = 1\n')
PAIRS = DPO.replace("epochs = 6", "epochs = 2").replace("save_every = 4", "save_every = 1") + ATTEMPTS
CYCLES = (
    SCRIPTED.replace(STEPS, "deterministic = true")
    .replace('name = "length"', 'name = "answer"')
    .replace("max_tokens = 64", "max_tokens = 250")
    + """
[eval]
test = "{folder}/problems.jsonl"
every = 2
limit = 3
[selfcritic]
cycles = 2
steps = 2
problems = 4
[dpo]
beta = 0.1
batch_size = 4
max_tokens = 400
optimizer = {{ rate = 1e-3 }}
"""
)
FILE = f'{{{{ name = "file", path = "{own_parts.__file__}", function = "%s" }}}}'
OWN_PARTS = COPY.replace('{{ name = "group" }}', FILE % "advantage").replace('{{ name = "clip" }}', FILE % "clip")  # fmt: skip
KINDS = {"copy": COPY, "file": OWN_PARTS, "scripted": SCRIPTED, "sft": DEMONSTRATIONS, "dpo": PAIRS}


def command(kind):
    return {"sft": "sft", "dpo": "dpo"}.get(kind, "train")


def last_checkpoint(run):
    return max((run / "checkpoints").glob("step-*"))


def weights(checkpoint):
    return {name: t for path in checkpoint.glob("*.safetensors") for name, t in load_file(path).items()}


def apart(checkpoint, reference):
    """The norm of the difference between the weights of two checkpoints, over the norm of the weights."""
    a, b = weights(checkpoint), weights(reference)
    assert a.keys() == b.keys()
    return math.sqrt(
        sum(float(((a[name] - b[name]) ** 2).sum()) for name in a)
        / sum(float((b[name] ** 2).sum()) for name in b)
    )


def trees(run):
    """Sampled tokens by node, whatever their logprobs are in the last digits."""
    grown = [traced.tree for path in trace_files(run / "trees") for traced in read_trees(path)]
    return [[(node.id, node.token_ids) for node in tree.nodes] for tree in grown]


@pytest.fixture(scope="module")
def alone(tmp_path_factory, model_folder):
    """The runs of one process, by kind."""
    runs = {}
    for kind, text in KINDS.items():
        recipe = write_task(tmp_path_factory.mktemp("alone") / kind, model_folder, text)
        assert main([command(kind), str(recipe)]) == 0
        runs[kind] = recipe.parent / "run"
    return runs


@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_train_as_one_does(alone, kind, tmp_path, model_folder, forked):
    """The first kind is started by torchrun itself."""
    recipe = write_task(tmp_path / "task", model_folder, KINDS[kind])
    words = (2, command(kind), recipe)
    status, output = ramify(*words) if kind == "copy" else forked_ramify(forked, *words)
    assert status == 0, output
    run, expected = recipe.parent / "run", alone[kind]
    assert apart(last_checkpoint(run), last_checkpoint(expected)) <= 1e-5
    rows, others = read_metrics(run / "metrics.jsonl"), read_metrics(expected / "metrics.jsonl")
    assert len(rows) == len(others) >= 3
    name = "update/loss" if command(kind) == "train" else "loss"
    assert [row[name] for row in rows] == pytest.approx([row[name] for row in others], abs=1e-5)
    if command(kind) == "train":
        assert trees(run) == trees(expected)
        assert sum(row["update/steps"] for row in rows) >= 2
        assert any(row["update/unevenness"] > 1 for row in rows)
    if kind == "dpo":
        evaluated, alike = (
            [dict(r, time=0) for r in read_metrics(f / "evals.jsonl")] for f in (run, expected)
        )
        assert evaluated == alike
        assert [row["step"] for row in evaluated] == [0, 4]
    assert output.count("model written to") == 1


def test_two_processes_take_turns_of_rl_and_dpo_as_one_does(tmp_path, model_folder, forked):
    recipes = {size: write_task(tmp_path / f"at_{size}", model_folder, CYCLES) for size in (1, 2)}
    for recipe in recipes.values():
        rows = [{"prompt": "what is 12 plus 30 ?", "answer": 42} for _ in range(8)]
        write_lines(recipe.parent / "problems.jsonl", rows)
    assert main(["selfcritic", str(recipes[1])]) == 0
    status, output = forked_ramify(forked, 2, "selfcritic", recipes[2])
    assert status == 0, output
    expected, actual = (recipes[size].parent / "run" / "cycle-02" for size in (1, 2))
    evaluated = [read_metrics(cycle / "rl" / "evals.jsonl") for cycle in (expected, actual)]
    ours_alone, ours_together = ([dict(row, time=0) for row in rows] for rows in evaluated)
    assert ours_alone == ours_together
    assert [row["step"] for row in evaluated[1]] == [0, 2]
    assert (actual / "pairs.jsonl").read_text() == (expected / "pairs.jsonl").read_text() != ""
    assert apart(last_checkpoint(actual / "dpo"), last_checkpoint(expected / "dpo")) <= 1e-5
    assert apart(last_checkpoint(actual / "dpo"), last_checkpoint(actual / "rl")) > 1e-4
    assert output.count("model written to") == 1


def test_a_checkpoint_of_two_ranks_goes_on_at_one_and_at_three(alone, tmp_path, model_folder, forked):
    recipe = write_task(tmp_path / "task", model_folder, COPY)
    status, output = forked_ramify(forked, 2, "train", recipe, "--max-steps", 2)
    assert status == 0, output
    saved = last_checkpoint(recipe.parent / "run")
    files = {path.name for path in (saved / "state").iterdir()}
    assert files == {f"optimizer-0000{number}-of-00002.safetensors" for number in (1, 2)}
    opens_elsewhere(saved)
    for size in (1, 3):
        run = shutil.copytree(recipe.parent / "run", tmp_path / f"at_{size}")
        words = ("train", str(recipe), "-s", f"run.dir={run}", "--resume")
        if size == 1:
            assert main([*words]) == 0
        else:
            status, output = forked_ramify(forked, size, *words)
            assert status == 0, output
        assert apart(last_checkpoint(run), last_checkpoint(alone["copy"])) <= 1e-5
        assert trees(run) == trees(alone["copy"])


def opens_elsewhere(checkpoint):
    """transformers reads the folder as it is, and computes what we do."""
    import build
    from ramify.modeling.load import load_model

    ids = list(range(10, 40))
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    with torch.no_grad():
        logprobs = torch.log_softmax(model(torch.tensor([ids])).logits[0, :-1], -1)
    theirs = logprobs.gather(1, torch.tensor(ids[1:])[:, None])[:, 0].double().numpy()
    assert np.abs(theirs - build.learner(load_model(checkpoint)).score(ids)).max() <= 1e-5
    assert math.isfinite(theirs.sum())


def test_an_adapter_of_two_ranks_is_a_peft_folder(tmp_path, model_folder, forked):
    recipe = write_task(tmp_path / "task", model_folder, DEMONSTRATIONS)
    settings = ("-s", "model.lora.rank=4", "-s", "model.lora.alpha=8")
    status, output = forked_ramify(forked, 2, "sft", recipe, *settings)
    assert status == 0, output
    again = write_task(tmp_path / "again", model_folder, DEMONSTRATIONS)
    assert main(["sft", str(again), *settings]) == 0
    actual, expected = (last_checkpoint(path.parent / "run") for path in (recipe, again))
    assert (actual / "adapter_config.json").is_file()
    assert apart(actual, expected) <= 1e-5
