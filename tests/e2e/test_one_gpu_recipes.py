"""The recipes that promise to fit one GPU: what `ramify doctor --gpu-memory` says of them with the real models' sizes."""

import json
import re

import pytest

from e2e_runs import overrides
from model_folders import write_model
from ramify.cli import main
from ramify.config import shipped_recipes
from ramify.config.load import read_toml

RECIPES = {path.stem: path for path in sorted(shipped_recipes().glob("*.toml")) if path.stem.endswith("gb")}
SIZES = {
    "Qwen/Qwen2.5-0.5B-Instruct": (896, 24, 14, 2, 4864, 151936, True, 494_032_768),
    "Qwen/Qwen2.5-1.5B-Instruct": (1536, 28, 12, 2, 8960, 151936, True, 1_543_714_304),
    "Qwen/Qwen2.5-3B-Instruct": (2048, 36, 16, 2, 11008, 151936, True, 3_085_938_688),
    "Qwen/Qwen2.5-7B-Instruct": (3584, 28, 28, 4, 18944, 152064, False, 7_615_616_512),
}
KEYS = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size",
    "vocab_size", "tie_word_embeddings",
)  # fmt: skip


@pytest.fixture
def sizes(tmp_path):
    """Makes a folder with the `config.json` of a published model and nothing else."""

    def make(name):
        config = dict(zip(KEYS, SIZES[name], strict=False))
        folder = tmp_path / name.replace("/", "-")
        folder.mkdir()
        others = {"model_type": "qwen2", "hidden_act": "silu", "max_position_embeddings": 32768}
        (folder / "config.json").write_text(json.dumps(config | others))
        return folder

    return make


@pytest.fixture
def doctor(capsys):
    """Run `ramify doctor --gpu-memory`: its status, and its output with its errors."""

    def ask(recipe, card, *settings):
        status = main(["doctor", str(recipe), "--gpu-memory", str(card), *overrides(*settings)])
        return status, "".join(capsys.readouterr())

    return ask


def test_there_are_recipes_for_both_cards():
    assert {name.rpartition("_")[2] for name in RECIPES} == {"24gb", "80gb"}
    assert {read_toml(path)["model"]["path"] for path in RECIPES.values()} == set(SIZES)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_fits_its_card_and_says_what_doctor_says(name, sizes, doctor):
    recipe, card = RECIPES[name], re.search(r"_(\d+)gb$", name)[1]
    model = read_toml(recipe)["model"]["path"]
    status, message = doctor(recipe, card, f"model.path={sizes(model)}")
    assert status == 0
    assert f"{SIZES[model][-1]:,} parameters" in message
    total, _ = re.search(r"([\d.]+) GiB  together: fits, ([\d.]+) GiB to spare", message).groups()
    header = " ".join(recipe.read_text().partition("\n[")[0].replace("\n# ", " ").split())
    assert f"Memory: {total} GiB of the" in header
    assert f"--gpu-memory {card}" in header
    assert "Nobody has run this on a GPU" in header
    for size, part in re.findall(r"^ *([\d.]+) GiB  (weights|activations|logits)", message, re.MULTILINE):
        assert size in header, part


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_passes_a_dry_run_on_a_small_model_of_the_family(name, tmp_path, capsys):
    model = write_model(tmp_path / "model", "qwen2")
    (tmp_path / "rows.jsonl").write_text("{}\n" * 16)
    words = ["-s", f"model.path={model}", "-s", f"data.train={tmp_path / 'rows.jsonl'}"]
    command = "sft" if name.startswith("sft_") else "train"
    assert main([command, str(RECIPES[name]), "--dry-run", *words]) == 0
    assert "# memory: about" in capsys.readouterr().out


@pytest.mark.parametrize(("model", "gigabytes"), [("Qwen/Qwen2.5-1.5B-Instruct", 24), ("Qwen/Qwen2.5-7B-Instruct", 80)])  # fmt: skip
def test_the_cold_start_serves_the_larger_models(model, gigabytes, sizes, doctor):
    recipe = RECIPES["sft_qwen2.5_0.5b_24gb"]
    status, message = doctor(recipe, gigabytes, f"model.path={sizes(model)}", "model.lora={}")
    assert status == 0
    total = re.search(r"([\d.]+ GiB)  together: fits", message)[1]
    line = next(
        line for line in recipe.read_text().splitlines() if line.startswith(f"#   -s model.path={model}")
    )
    assert f"{total}: one GPU of {gigabytes} GB" in line


TOO_LARGE = {
    "slots": (["engine.slots=400"], "0.5B", r"engine.slots = (\d+) would fit"),
    "all weights": ([], "1.5B", r"-s model.lora=\{\}"),
    "weights": (["model.lora={}"], "7B", "a smaller model or a larger GPU"),
    "a row": (["rollout.max_tokens=60000"], "0.5B", "lower learner.token_budget and rollout.max_tokens"),
}


@pytest.mark.parametrize("case", TOO_LARGE)
def test_what_does_not_fit_is_refused_with_what_to_change(case, sizes, doctor):
    settings, size, knob = TOO_LARGE[case]
    recipe = RECIPES["arpo_qwen2.5_0.5b_24gb"]
    settings = [f"model.path={sizes(f'Qwen/Qwen2.5-{size}-Instruct')}", *settings]
    status, message = doctor(recipe, 24, *settings)
    assert status == 2
    assert "takes at least" in message
    match = re.search(knob, message)
    assert match
    if case == "slots":
        assert doctor(recipe, 24, *settings, f"engine.slots={match[1]}")[0] == 0
        assert doctor(recipe, 24, *settings, f"engine.slots={int(match[1]) + 1}")[0] == 2


def test_a_model_whose_sizes_are_not_here(doctor, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    status, message = doctor(RECIPES["arpo_qwen2.5_0.5b_24gb"], 24, "model.path=org/not-here")
    assert status == 2
    assert "config.json" in message
    assert "-s model.path=FOLDER" in message
    (tmp_path / "empty").mkdir()
    status, message = doctor(RECIPES["arpo_qwen2.5_0.5b_24gb"], 24, f"model.path={tmp_path / 'empty'}")
    assert (status, "config.json is missing" in message) == (2, True)


@pytest.mark.parametrize("words", [["--gpu-memory", "24"], ["arpo_qwen2.5_0.5b_24gb", "--gpu-memory", "much"]])  # fmt: skip
def test_a_card_needs_a_recipe_and_a_number(words, capsys):
    assert main(["doctor", *words]) == 2
    assert "--gpu-memory: expected a" in " ".join(capsys.readouterr().err.split())
