"""The work and the memory that a recipe asks for: against sums by hand, the tensors of the model itself, and GPUs that are not here.

The last are asked of `ramify doctor RECIPE --gpus N --gpu-memory GB`.
"""

import json
import re
from math import prod
from shutil import copytree

import pytest
import torch

from family_models import write_family
from ramify.assemble.worker import build_engine_model
from ramify.cli import main
from ramify.commands import memory
from ramify.commands.memory import device_of, job_here, job_of, memory_fit
from ramify.config import shipped_recipes
from ramify.config.load import check_recipe
from ramify.config.schema_examples import DpoRecipe, SftRecipe
from ramify.config.schema_train import TrainRecipe
from ramify.config.sizes import largest_row, work_of
from ramify.core.errors import MachineError
from ramify.modeling.configs import AdapterConfig, ModelConfig
from ramify.modeling.load import load_model, parameter_shapes
from ramify.modeling.lora import add_lora
from ramify.modeling.memory_plan import choose


@pytest.fixture
def table(tmp_path, model_folder):
    (tmp_path / "rows.jsonl").write_text("{}\n" * 7 + "\n")
    return {
        "model": {"path": str(model_folder)},
        "data": {"train": str(tmp_path / "rows.jsonl"), "epochs": 3, "max_tokens": 100},
        "run": {"dir": "runs/a"},
        "learner": {"batch_size": 2, "optimizer": {"rate": 1e-3}},
    }


def test_the_steps_are_those_of_the_data_or_those_that_the_recipe_says(table):
    work = work_of(check_recipe(SftRecipe, table, "r"))
    assert (work.steps, work.per_step, work.tokens) == (11, 2, 100)
    table["run"]["steps"] = 4
    assert work_of(check_recipe(SftRecipe, table, "r")).steps == 4
    del table["run"]["steps"]
    table["data"]["train"] = "nowhere.jsonl"
    unknown = work_of(check_recipe(SftRecipe, table, "r"))
    assert unknown.steps is None
    assert "as many steps as the data give" in next(unknown.in_words)


@pytest.mark.parametrize(
    "lora", [None, {"rank": 4, "alpha": 8.0}, {"rank": 2, "alpha": 2.0, "targets": ["q_proj"]}]
)
@pytest.mark.parametrize("schema", [SftRecipe, DpoRecipe])
def test_memory_is_that_of_the_models_tensors(table, model_folder, schema, lora):
    if lora is not None:
        table["model"]["lora"] = lora
    if schema is DpoRecipe:
        table["learner"]["beta"] = 0.1
    recipe = check_recipe(schema, table, "r")
    model = load_model(model_folder)
    if lora is not None:
        add_lora(
            model,
            AdapterConfig(
                rank=lora["rank"], alpha=lora["alpha"], targets=tuple(lora.get("targets", ())) or "all-linear"
            ),
            0,
        )
    everything = sum(prod(parameter.shape) for parameter in model.parameters())
    trained = sum(prod(parameter.shape) for parameter in model.parameters() if parameter.requires_grad)
    # The adapters' base is its own reference.
    reference = everything if schema is DpoRecipe and lora is None else 0
    job = job_here(recipe, "cpu")
    # The adapter's own weights lie beside those of the model.
    assert (job.size.base, job.trained) == (everything - trained * (lora is not None), trained)
    wide, narrow = choose(job, 1 << 40), choose(job, 0)
    assert wide.total - wide.row == 4 * everything + 12 * trained + 4 * reference
    assert 0 < narrow.row < wide.row
    assert (wide.recompute, narrow.recompute, wide.layout.gather) == (False, True, "once")
    shapes, config = parameter_shapes(model_folder)
    assert choose(job_of(recipe, shapes, config, "cpu"), 0) == narrow


@pytest.mark.parametrize("family", ["qwen3_moe", "gemma3", "gemma4"])
def test_a_decoder_is_counted_alone_and_adapters_of_experts_not_at_all(table, family, tmp_path):
    folder = write_family(tmp_path / family, family)
    table["model"] = {"path": str(folder), "lora": {"rank": 2, "alpha": 2.0}}
    recipe = check_recipe(SftRecipe, table, "r")
    model = load_model(folder)
    base = sum(parameter.numel() for parameter in model.parameters())
    # Gemma 4's files hold a number for each layer that is no parameter.
    base += sum(buffer.numel() for name, buffer in model.named_buffers() if "layer_scalar" in name)
    add_lora(model, AdapterConfig(rank=2), 0)
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    job = job_here(recipe, "cpu")
    assert job.size.base == base
    # Gemma 4 has two linear layers outside its layers.
    assert trained * 0.8 < job.trained <= trained
    assert (job.trained == trained) == (family != "gemma4")
    assert job.config is not None
    assert choose(job, 1 << 40).row > 0
    shapes, config = parameter_shapes(folder)
    assert choose(job_of(recipe, shapes, config, "cpu"), 1 << 40).row == choose(job, 1 << 40).row


def test_a_configuration_that_leaves_sizes_out_still_counts_weights(table, model_folder, tmp_path):
    folder = copytree(model_folder, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    del config["intermediate_size"]
    (folder / "config.json").write_text(json.dumps(config))
    train_table(table)["model"]["path"] = str(folder)
    recipe = check_recipe(TrainRecipe, table, "r")
    job = job_here(recipe, "cpu")
    assert (job.config, job.sequence_bytes) == (None, 0)
    with pytest.raises(MachineError, match=r"take a smaller model or more memory$"):
        list(memory_fit("r", recipe, job, 1000))


def test_an_engine_at_a_service_takes_no_memory_here(table):
    train_table(table)["engine"] = {"name": "vllm", "launch": True}
    recipe = check_recipe(TrainRecipe, table, "r")
    assert job_here(recipe, "cpu", trains=False) is None
    assert job_here(recipe, "cpu").trains


def test_the_device_is_the_one_that_torch_would_take(model_folder):
    assert device_of(ModelConfig(path=model_folder, device="cpu"))[0] == "cpu"
    assert device_of(ModelConfig(path=model_folder))[0] == ("cuda" if torch.cuda.is_available() else "cpu")


def test_the_driver_of_windows_is_one_too(model_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "_DRIVERS", (tmp_path / "version", tmp_path / "libcuda.so.1"))
    assert device_of(ModelConfig(path=model_folder)) == ("cpu", "no NVIDIA driver here")
    (tmp_path / "libcuda.so.1").touch()
    assert device_of(ModelConfig(path=model_folder))[1] != "no NVIDIA driver here"


def train_table(table, budget=900):
    """The same sizes in a recipe of RL."""
    del table["data"]["max_tokens"]
    table["data"]["max_prompt_tokens"] = 40
    table["rollout"] = {
        "problems_per_step": 2,
        "n": 6,
        "m": 3,
        "max_tokens": 160,
        "max_calls": 2,
        "branching": "bernoulli",
    }
    table |= {
        "engine": {"name": "local", "slots": 4},
        "tools": {"python": {}},
        "reward": {"name": "length"},
        "algorithm": {"estimator": {"name": "group"}, "loss": {"name": "clip"}},
        "learner": {"problems_per_minibatch": 2, "token_budget": budget, "optimizer": {"rate": 1e-3}},
    }
    return table


@pytest.mark.parametrize(
    ("budget", "tokens"),
    [
        (64, 264),  # a path of up to 200 above a stage of the budget
        (199, 399),
        (900, 1000),  # no more than the whole tree
        (1100, 1100),
    ],
)
def test_the_largest_row_is_a_stage_and_the_path_above_it(table, budget, tokens):
    assert largest_row(check_recipe(TrainRecipe, train_table(table, budget), "r")) == tokens


@pytest.mark.parametrize("lora", [None, {"rank": 4, "alpha": 8.0}])
def test_an_engine_with_a_copy_of_the_weights_takes_a_second_model(table, model_folder, lora):
    train_table(table)["model"] |= {} if lora is None else {"lora": lora}
    shared = check_recipe(TrainRecipe, table, "r")
    table["engine"]["weights"] = "copy"
    copied = check_recipe(TrainRecipe, table, "r")
    model = load_model(model_folder)
    if lora is not None:
        add_lora(model, AdapterConfig(rank=4, alpha=8.0), 0)
    more = 4 * sum(
        prod(parameter.shape)
        for parameter in build_engine_model(copied.engine, model, pytest.fail).parameters()
    )
    totals = [choose(job_here(recipe, "cpu"), 0).total for recipe in (shared, copied)]
    assert totals[1] - totals[0] == more


def test_a_demonstration_is_a_row_at_least(table):
    recipe = check_recipe(SftRecipe, table | {"learner": table["learner"] | {"token_budget": 64}}, "r")
    assert largest_row(recipe) == 100


# on GPUs that are not here


@pytest.fixture
def doctor(capsys, monkeypatch):
    """Run doctor without a network: its status, its output and its errors."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    def run(name, *words):
        status = main(["doctor", *([str(shipped_recipes() / f"{name}.toml")] if name else []), *words])
        return status, *capsys.readouterr()

    return run


ON_EIGHT = ("--gpus", "8", "--gpu-memory", "80")
ARPO = "arpo_reasoning_7b_8gpus"
MISTAKES = {
    "no GPU": (ARPO, ("--gpus", "0", "--gpu-memory", "80"), "--gpus: expected a whole number"),
    "half a GPU": (ARPO, ("--gpus", "0.5", "--gpu-memory", "80"), "--gpus: expected a whole number"),
    "no memory": (ARPO, ("--gpus", "8"), "--gpus 8 --gpu-memory 80"),
    "nonsense": (ARPO, ("--gpus", "8", "--gpu-memory", "-80"), "--gpu-memory: expected a"),
    "no recipe": (None, ON_EIGHT, "expected a recipe too"),
    "an evaluation": ("eval_reasoning", ON_EIGHT, "leave --gpus out"),
    "copies": (ARPO, (*ON_EIGHT, "-s", "learner.copies=3"), "learner.copies: expected a divisor"),
    "shared weights": ("grpo_reasoning_7b", (*ON_EIGHT, "-s", "engine.name=local", "-s", "engine.weights=shared"), 'engine.weights: expected "copy"'),
    "an unknown model": ("dpo_toolstar_7b", ON_EIGHT, "-s model.path=Qwen/Qwen2.5-7B"),
    "an unknown model of the hub": (ARPO, (*ON_EIGHT, "-s", "model.path=org/unknown"), "-s model.path=Qwen/Qwen2.5-7B"),
    "a small GPU": (ARPO, ("--gpus", "8", "--gpu-memory", "24"), "lower learner.token_budget and rollout.max_tokens"),
    "servers that take too much": (
        "arpo_deepsearch_14b",
        (*ON_EIGHT, "-s", 'engine.flags=["--gpu-memory-utilization=0.9"]'),
        "set --gpu-memory-utilization to 0.64 at most",
    ),
    "servers that take too little": (
        "arpo_deepsearch_14b",
        (*ON_EIGHT, "-s", 'engine.flags=["--gpu-memory-utilization", "0.3"]'),
        "does not hold the server's weights",
    ),
    "an evaluation's servers": (
        "eval_reasoning",
        ("--gpu-memory", "10", "-s", "engine.name=vllm", "-s", "engine.launch=true"),
        "does not hold the server's weights",
    ),
    "a share that is no number": (ARPO, (*ON_EIGHT, "-s", 'engine.flags=["--gpu-memory-utilization", "nan"]'), "expected a number above 0"),
    "a share that is missing": (ARPO, (*ON_EIGHT, "-s", 'engine.flags=["--gpu_memory_utilization"]'), "expected a number above 0"),
    "a flag of ramify's": (ARPO, (*ON_EIGHT, "-s", 'engine.flags=["--max_model_len=9"]'), "--max_model_len is set by ramify"),
}  # fmt: skip


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_one_line_that_says_what_to_do(case, doctor):
    name, words, advice = MISTAKES[case]
    status, _, errors = doctor(name, *words)
    assert status == 2
    assert advice in " ".join(errors.split())
    assert "Traceback" not in errors
    assert errors.count("\n") == 1


def test_what_it_says_of_a_recipe_that_fits(doctor):
    status, out, errors = doctor("arpo_deepsearch_14b", *ON_EIGHT)
    assert (status, errors) == (0, "")
    lines = [line.strip() for line in out.splitlines()]
    parts = [line for line in lines if re.match(r"[\d.]+ [GM]iB  ", line)]
    how = "a row of 24,576 tokens, layers computed again; weights gathered layer by layer"
    assert any(line.endswith(how) for line in lines)
    assert [line.split("  ")[1] for line in parts[:-1]] == [
        "activations",
        "logits",
        "weights",
        "gradients",
        "optimizer",
        "gathered weights",
        "gradients before they are summed",
        "the engine's server, asleep (assumed)",
        "NCCL's buffers (assumed)",
    ]
    sizes = [float(line.split()[0]) * (1 if "GiB" in line else 1 / 1024) for line in parts]
    assert sum(sizes[:-1]) == pytest.approx(sizes[-1], abs=0.3)
    assert re.search(
        r"updates: about \d+ s a step at 30% of the 989 TFLOP/s of the H100 on each of 8", lines[-2]
    )
    assert "while the servers write" in lines[-1]


REMARKS = {
    "servers on other GPUs": ((ARPO, *ON_EIGHT, "-s", "engine.sleep=false"), "need other GPUs than these"),
    "an optimizer on the CPU": (
        (ARPO, "--gpu-memory", "80", "-s", 'engine.gpus=["0"]'),
        "the optimizer on the CPU come on top",
    ),
    "an evaluation's servers": (
        ("eval_reasoning", "--gpu-memory", "80", "-s", "engine.name=vllm", "-s", "engine.launch=true"),
        "of a server's weights, and keys and values of",
    ),
}


@pytest.mark.parametrize("case", REMARKS)
def test_what_the_estimate_leaves_out_is_in_a_line(case, doctor):
    words, remark = REMARKS[case]
    status, out, _ = doctor(*words)
    assert status == 0
    assert remark in out


def test_the_updates_of_a_step_take_as_long_as_the_card_needs_for_expected_lengths(doctor):
    """ARPO, 7B: 2.3 million tokens of 128 trees, in four passes of 2 operations a parameter: a minute, not half an hour."""
    _, out, _ = doctor("arpo_reasoning_7b", *ON_EIGHT)
    seconds, tokens = re.search(r"updates: about (\d+) s a step .* are computed \(([\d,]+)\)", out).groups()
    assert 2.1e6 < int(tokens.replace(",", "")) < 2.4e6
    assert 50 < int(seconds) < 75
    _, out, _ = doctor("arpo_reasoning_7b", "--gpus", "16", "--gpu-memory", "80")
    assert re.search(r"updates: about (\d+) s", out)[1] == f"{round(int(seconds) / 2)}"


def test_a_machine_without_a_c_compiler_cannot_use_its_gpu(tmp_path, monkeypatch, capsys, model_folder):
    (tmp_path / "data.jsonl").write_text('{"prompt": "a", "completion": "b"}\n' * 20)
    words = ["-s", f"model.path={model_folder}", "-s", f"data.train={tmp_path / 'data.jsonl'}"]
    recipe = str(shipped_recipes() / "sft_qwen2.5_0.5b_24gb.toml")
    command = ["doctor", recipe, *words, "-s", "model.device=cuda", "-s", f"run.dir={tmp_path / 'run'}"]
    monkeypatch.setenv("CC", "gcc")
    assert main(command) == 2
    assert "expected a GPU, torch finds none" in capsys.readouterr().err
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(command) == 2
    assert "no C compiler; Triton" in capsys.readouterr().err


def test_what_does_not_fit_on_the_gpus_may_lie_in_the_machines_memory(doctor):
    status, out, _ = doctor("aepo_deepsearch_32b", *ON_EIGHT)
    assert status == 0
    assert "lie in the machine's memory: 61.0 GiB for each of its GPUs" in out
    assert "  optimizer" not in out
