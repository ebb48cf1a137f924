"""SmolLM2-135M, a real language model: fetched, taught for a few steps, evaluated. `make test-real` runs this alone."""

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

SECONDS = 900


def ramify(*arguments):
    """A command in a process of its own; skips where the package index cannot be reached."""
    done = subprocess.run(
        [sys.executable, "-m", "ramify", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    if "the package index cannot be reached" in done.stderr:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    return done


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("lm") / "out"
    done = ramify("quickstart", "--lm", "--smoke", "--out", out)
    assert done.returncode == 0, done.stderr
    return out


@pytest.mark.timeout(SECONDS)
def test_the_report_counts_the_steps_and_the_problems(finished):
    report = json.loads((finished / "report.json").read_text())
    assert report["steps"] == {"sft": 2, "rl": 1}
    assert set(report["by_kind"]) == {"story", "fact", "difference"}
    assert report["pass_at_1"]["rl"]["n"] == 9
    assert report["train_entities"] is None
    losses = [
        json.loads(line)["loss"] for line in (finished / "sft" / "metrics.jsonl").read_text().splitlines()
    ]
    assert losses[1] < losses[0] < 5


@pytest.mark.timeout(SECONDS)
def test_every_checkpoint_opens_in_transformers(finished):
    base = load_file(finished / "base" / "model.safetensors")
    for stage in ("sft", "rl"):
        (folder,) = (finished / stage / "checkpoints").iterdir()
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        ids = tokenizer("The capital of France is", return_tensors="pt").input_ids
        with torch.no_grad():
            assert tokenizer.decode(model(ids).logits[0, -1].argmax()) == " Paris"
        assert model.config.eos_token_id == tokenizer.convert_tokens_to_ids("<|im_end|>")
        name = "model.layers.0.mlp.up_proj.weight"
        assert not torch.equal(model.get_parameter(name), base[name])


@pytest.mark.timeout(SECONDS)
def test_a_fetched_model_is_the_one_that_the_quick_start_begins_with(finished, tmp_path):
    out = tmp_path / "models" / "smollm2"
    done = ramify("model", "fetch", "smollm2-135m", "--out", out)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in out.iterdir()) == sorted(
        path.name for path in (finished / "base").iterdir()
    )
    for file in out.iterdir():
        assert file.read_bytes() == (finished / "base" / file.name).read_bytes(), file.name
    assert [path.name for path in out.parent.iterdir()] == ["smollm2"]
    again = ramify("model", "fetch", "smollm2-135m", "--out", out)
    assert again.returncode == 2
    assert "exists and is not empty" in again.stderr
