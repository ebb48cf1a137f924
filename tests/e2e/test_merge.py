"""`ramify merge`: what comes out opens in transformers and in ramify, what is wrong is one line, and nothing is left."""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from e2e_runs import SECONDS
from file_limits import file_size_limit
from ramify.cli import main
from ramify.modeling import plain_folder
from ramify.modeling.configs import AdapterConfig
from ramify.modeling.load import load_model, save_model
from ramify.modeling.lora import add_lora
from verl_checkpoints import whole_tensors, write_plain, write_sharded, write_small_model

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def merged(*arguments):
    assert main(["merge", *map(str, arguments)]) == 0


@pytest.fixture
def tensors(model_folder):
    return whole_tensors(model_folder)


@pytest.fixture
def actor(tmp_path, model_folder, tensors):
    """A step of one rank with plain tensors."""
    return write_plain(tmp_path / "save", tensors, model_folder)


def require_equal(folder, tensors, dtype=torch.float32):
    merged = load_file(folder / "model.safetensors")
    assert merged.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(merged[name], tensor.to(dtype)), name


def test_a_checkpoint_of_three_ranks_makes_the_round_trip(tmp_path, model_folder, capsys):
    write_sharded(tmp_path / "save", model_folder, (3,), tmp_path / "scratch")
    out = tmp_path / "out"
    merged("verl", tmp_path / "save", "--out", out)
    assert "global_step_7" in capsys.readouterr().out
    assert {file.name for file in out.iterdir()} == {
        *(file.name for file in model_folder.iterdir()),
        "conversion.json",
    }
    require_equal(out, load_file(model_folder / "model.safetensors"))
    record = json.loads((out / "conversion.json").read_text())
    assert (record["step"], record["world_size"], record["dtype"]) == (7, 3, "float32")
    assert len(record["sources"]) == 3
    assert not [file for file in tmp_path.iterdir() if file.name.startswith(".")]
    ids = torch.tensor([[5, 6, 7]])
    logits = [AutoModelForCausalLM.from_pretrained(folder)(ids).logits for folder in (out, model_folder)] + [
        load_model(out)(input_ids=ids).logits
    ]
    assert torch.equal(logits[0], logits[1])
    torch.testing.assert_close(logits[2], logits[1])
    assert AutoTokenizer.from_pretrained(out)("Paris").input_ids
    merged("verify", model_folder, out, "--tokens", 300)
    assert "300 tokens differ by 0 nats" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_weights_are_cast(tmp_path, actor, model_folder, name, capsys):
    merged("verl", actor, "--out", tmp_path / "out", "--dtype", name)
    require_equal(tmp_path / "out", load_file(model_folder / "model.safetensors"), getattr(torch, name))
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert model.dtype == getattr(torch, name)
    merged("verify", tmp_path / "out", model_folder)


def test_a_large_model_is_spread_over_files(tmp_path, actor, model_folder, monkeypatch):
    monkeypatch.setattr(plain_folder, "FILE_BYTES", 60_000)
    out = tmp_path / "out"
    merged("verl", actor, "--out", out)
    files = sorted(out.glob("*.safetensors"))
    assert len(files) > 2
    assert files[0].name == f"model-00001-of-{len(files):05}.safetensors"
    tensors = {name: tensor for file in files for name, tensor in load_file(file).items()}
    assert (
        json.loads((out / "model.safetensors.index.json").read_text())["weight_map"].keys() == tensors.keys()
    )
    wanted = load_file(model_folder / "model.safetensors")
    opened = [AutoModelForCausalLM.from_pretrained(out), load_model(out)]
    for model in opened:
        assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in wanted.items())


def test_an_untied_head_is_kept(tmp_path):
    model = write_small_model(tmp_path / "model", tied=False)
    write_sharded(tmp_path / "save", model, (2,), tmp_path / "scratch")
    merged("verl", tmp_path / "save", "--out", tmp_path / "out")
    require_equal(tmp_path / "out", load_file(model / "model.safetensors"))
    load_model(tmp_path / "out")


def test_a_tied_head_that_differs_is_refused(tmp_path, tensors, model_folder, refused):
    actor = write_plain(tmp_path / "save", tensors | {HEAD: tensors[HEAD] + 1}, model_folder)
    message = refused("merge", "verl", actor, "--out", tmp_path / "out")
    assert "tie_word_embeddings is true, but lm_head.weight and model.embed_tokens.weight differ" in message
    # The advice works.
    own = tmp_path / "own"
    own.mkdir()
    config = json.loads((model_folder / "config.json").read_text()) | {"tie_word_embeddings": False}
    (own / "config.json").write_text(json.dumps(config))
    merged("verl", actor, "--out", tmp_path / "out", "--config", own)
    require_equal(tmp_path / "out", tensors | {HEAD: tensors[HEAD] + 1})


def peft_model(folder, targets=("q_proj", "down_proj"), **more):
    """A random adapter on the model at `folder`."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    settings = LoraConfig(r=4, lora_alpha=6, target_modules=list(targets), **more)
    wrapped = get_peft_model(model, settings)
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if "lora_" in name:
                parameter.normal_(0.0, 0.2)
    return wrapped


def require_as_peft_merges(folder, wrapped):
    expected = wrapped.merge_and_unload().state_dict()
    tensors = load_file(folder / "model.safetensors")
    assert tensors.keys() == expected.keys() - {HEAD}
    for name, tensor in tensors.items():
        torch.testing.assert_close(tensor, expected[name])


@pytest.mark.parametrize("settings", ["lora_adapter/adapter_config.json", "lora_train_meta.json"])
def test_a_lora_run_is_merged(tmp_path, model_folder, refused, settings):
    wrapped = peft_model(model_folder)
    names = {f"base_model.model.{name}": t for name, t in wrapped.base_model.model.state_dict().items()}
    actor = write_plain(tmp_path / "save", names, model_folder)
    arguments = ("verl", actor, "--out", tmp_path / "out")
    assert "Use --lora" in refused("merge", *arguments)
    assert "lora_adapter/adapter_config.json" in refused("merge", *arguments, "--lora")
    (actor / settings).parent.mkdir(exist_ok=True)
    (actor / settings).write_text(json.dumps({"r": 8, "lora_alpha": 6, "peft_type": "LORA"}))
    assert "r = 8, but" in refused("merge", *arguments, "--lora")
    (actor / settings).write_text(json.dumps({"r": 4, "lora_alpha": 6, "peft_type": "LORA"}))
    merged(*arguments, "--lora")
    require_as_peft_merges(tmp_path / "out", wrapped)
    load_model(tmp_path / "out")


def test_a_lora_run_with_an_adapter_on_a_tied_head_is_refused(tmp_path, model_folder, refused):
    wrapped = peft_model(model_folder, ["lm_head"])
    names = {f"base_model.model.{name}": t for name, t in wrapped.base_model.model.state_dict().items()}
    actor = write_plain(tmp_path / "save", names, model_folder)
    (actor / "lora_train_meta.json").write_text(json.dumps({"r": 4, "lora_alpha": 6}))
    message = refused("merge", "verl", actor, "--lora", "--out", tmp_path / "out")
    assert "lm_head.weight has an adapter of its own" in message


def test_an_adapter_on_a_tied_embedding_gets_a_head(tmp_path, model_folder, capsys):
    wrapped = peft_model(model_folder, ["embed_tokens", "q_proj"], lora_dropout=0.05).eval()
    adapter, out = tmp_path / "adapter", tmp_path / "out"
    wrapped.save_pretrained(adapter)
    merged("lora", adapter, "--out", out)
    assert "tie_word_embeddings = false" in capsys.readouterr().out
    assert HEAD in load_file(out / "model.safetensors")
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        for model in (load_model(out), AutoModelForCausalLM.from_pretrained(out)):
            torch.testing.assert_close(model(input_ids=ids).logits, wrapped(ids).logits, atol=1e-4, rtol=1e-5)


def test_an_adapter_is_merged_into_its_base(tmp_path, model_folder, refused):
    wrapped = peft_model(model_folder)
    adapter = tmp_path / "adapter"
    wrapped.save_pretrained(adapter)
    merged("lora", adapter, "--out", tmp_path / "out")
    merged("verify", adapter, tmp_path / "out")
    require_as_peft_merges(tmp_path / "out", wrapped)
    assert AutoTokenizer.from_pretrained(tmp_path / "out")("Paris").input_ids
    assert "a whole model, expected" in refused("merge", "lora", model_folder, "--out", tmp_path / "other")
    assert (
        "adapter_config.json is missing, expected the folder of an adapter (adapter_config.json); adapter below"
        in refused("merge", "lora", tmp_path, "--out", tmp_path / "other")
    )
    shutil.copytree(model_folder, tmp_path / "bare")
    (tmp_path / "bare" / "generation_config.json").unlink()
    for base, out in ((model_folder, tmp_path / "out"), (tmp_path / "bare", tmp_path / "out2")):
        record = json.loads((adapter / "adapter_config.json").read_text())
        (adapter / "adapter_config.json").write_text(
            json.dumps(record | {"base_model_name_or_path": str(base)})
        )
        if not out.exists():
            merged("lora", adapter, "--out", out)
        ends = GenerationConfig.from_pretrained(out).eos_token_id
        assert ends == AutoTokenizer.from_pretrained(out).eos_token_id
    other = write_small_model(tmp_path / "small")
    record = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps(record | {"base_model_name_or_path": str(other)}))
    assert "their product is not" in refused("merge", "lora", adapter, "--out", tmp_path / "other")


def test_a_base_of_the_hub_is_the_one_in_its_cache(tmp_path, model_folder, refused, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    wrapped = peft_model(model_folder)
    adapter = tmp_path / "adapter"
    wrapped.save_pretrained(adapter)
    record = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps(record | {"base_model_name_or_path": "org/tiny"}))
    assert "a model of the hub into its cache" in refused("merge", "lora", adapter, "--out", tmp_path / "out")
    repo = tmp_path / "hub" / "models--org--tiny"
    commit = "5" * 40
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text(commit)
    shutil.copytree(model_folder, repo / "snapshots" / commit)
    merged("lora", adapter, "--out", tmp_path / "out")
    require_as_peft_merges(tmp_path / "out", wrapped)


def test_an_adapter_in_a_pickle_is_not_read(tmp_path, model_folder, refused):
    adapter = tmp_path / "adapter"
    peft_model(model_folder).save_pretrained(adapter)
    torch.save(load_file(adapter / "adapter_model.safetensors"), adapter / "adapter_model.bin")
    (adapter / "adapter_model.safetensors").unlink()
    line = refused("merge", "lora", adapter, "--out", tmp_path / "out")
    assert "adapter_model.bin is a pickle, which is never read" in line


def test_ranks_of_the_settings_are_those_of_the_weights(tmp_path, model_folder, refused):
    wrapped = peft_model(model_folder, rank_pattern={"layers.0.self_attn.q_proj": 2})
    adapter = tmp_path / "adapter"
    wrapped.save_pretrained(adapter)
    merged("lora", adapter, "--out", tmp_path / "out")
    require_as_peft_merges(tmp_path / "out", wrapped)
    file = adapter / "adapter_config.json"
    record = json.loads(file.read_text())
    for change, message in (
        ({"r": 8}, "says rank 8 for model.layers."),
        ({"rank_pattern": {}}, "says rank 4 for model.layers.0.self_attn.q_proj.weight, but"),
        ({"rank_pattern": {"q_proj": 2}}, "says rank 2 for model.layers.1.self_attn.q_proj.weight, but"),
        ({"rank_pattern": {"(a+)+$": 2}}, "rank_pattern: '(a+)+$' may take too long"),
    ):
        file.write_text(json.dumps(record | change))
        assert message in refused("merge", "lora", adapter, "--out", tmp_path / "other")


def test_an_adapter_of_a_run_is_merged_into_the_base_that_it_was_trained_on(
    tmp_path, model_folder, refused, capsys
):
    base = tmp_path / "base"
    shutil.copytree(model_folder, base)
    model = load_model(base)
    add_lora(model, AdapterConfig(rank=4, alpha=8.0), seed=0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.fill_(0.01)
    save_model(model, tmp_path / "adapter")
    merged("lora", tmp_path / "adapter", "--out", tmp_path / "out")
    assert main(["merge", "verify", str(tmp_path / "adapter"), str(tmp_path / "out")]) == 0
    assert main(["merge", "verify", str(base), str(tmp_path / "out")]) == 1
    assert "hold different models" in capsys.readouterr().err
    save_file(
        {name: t + 1 for name, t in load_file(base / "model.safetensors").items()}, base / "model.safetensors"
    )
    message = refused("merge", "lora", tmp_path / "adapter", "--out", tmp_path / "other")
    assert "Put the model there that the adapter was trained on" in message


def test_models_that_differ_are_told_apart(tmp_path, model_folder, tensors, capsys):
    write_plain(
        tmp_path / "save", tensors | {"model.norm.weight": tensors["model.norm.weight"] * 2}, model_folder
    )
    merged("verl", tmp_path / "save", "--out", tmp_path / "out")
    assert main(["merge", "verify", str(model_folder), str(tmp_path / "out")]) == 1
    assert "logprobs differ by up to" in capsys.readouterr().err
    other = write_small_model(tmp_path / "other")
    assert main(["merge", "verify", str(model_folder), str(other)]) == 1
    assert "model.embed_tokens.weight is [600, 64] and [7, 8]" in capsys.readouterr().err


def change_byte(file, position):
    content = bytearray(file.read_bytes())
    content[position] ^= 1
    file.write_bytes(content)


def nan_at(tensors, name):
    return tensors | {name: tensors[name].clone().index_fill_(0, torch.tensor(1), float("nan"))}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda actor: (actor / "huggingface" / "config.json").unlink(), "Set --config to the folder"),
        (lambda actor: next(actor.glob("*.pt")).unlink(), "no model_world_size_W_rank_R.pt there, expected a verl"),
        (lambda actor: os.truncate(next(actor.glob("*.pt")), 5000), "model_world_size_1_rank_0.pt: cannot be read"),
        (lambda actor: change_byte(next(actor.glob("*.pt")), 200_000), "does not match its checksum"),
    ],
)  # fmt: skip
def test_a_damaged_checkpoint_is_refused(tmp_path, actor, refused, change, message):
    change(actor)
    assert message in refused("merge", "verl", actor, "--out", tmp_path / "out")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["save"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: nan_at(tensors, EMBEDDING) | {HEAD: nan_at(tensors, EMBEDDING)[EMBEDDING]}, "holds NaN"),
        (lambda tensors: {name: tensors[name] for name in [*tensors][:-2]}, "is missing"),
        (lambda tensors: tensors | {"score.weight": torch.zeros(3)}, "score.weight is none of this model"),
        (lambda tensors: tensors | {"model.norm.weight": torch.ones(3)}, "model.norm.weight is [3], expected [64]"),
    ],
)  # fmt: skip
def test_wrong_weights_are_refused(tmp_path, tensors, model_folder, refused, change, message):
    write_plain(tmp_path / "save", change(tensors), model_folder)
    assert message in refused("merge", "verl", tmp_path / "save", "--out", tmp_path / "out")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["save"]


def test_numbers_beyond_float16_are_refused(tmp_path, tensors, model_folder, refused):
    large = tensors | {"model.norm.weight": tensors["model.norm.weight"] + 1e5}
    write_plain(tmp_path / "save", large, model_folder)
    message = refused("merge", "verl", tmp_path / "save", "--out", tmp_path / "out", "--dtype", "float16")
    assert "Use --dtype bfloat16 or float32" in message


def test_the_configuration_of_another_model_is_refused(tmp_path, actor, refused):
    other = write_small_model(tmp_path / "other")
    message = refused("merge", "verl", actor, "--config", other, "--out", tmp_path / "out")
    assert "the weights are of another model" in message
    assert "no config.json there" in refused(
        "merge", "verl", actor, "--config", tmp_path, "--out", tmp_path / "out"
    )


def test_wrong_folders_are_refused(tmp_path, actor, refused):
    (tmp_path / "empty").mkdir()
    assert "empty: exists; name a new" in refused("merge", "verl", actor, "--out", tmp_path / "empty")
    assert "does not exist" in refused("merge", "verl", actor, "--out", tmp_path / "a" / "b")
    assert "cannot be created" in refused("merge", "verl", actor, "--out", "/proc/a")
    assert "no such folder" in refused("merge", "verl", tmp_path / "none", "--out", tmp_path / "out")
    assert "no model_world_size" in refused("merge", "verl", tmp_path / "empty", "--out", tmp_path / "out")
    assert "is a file" in refused(
        "merge", "verl", actor / "huggingface" / "config.json", "--out", tmp_path / "out"
    )
    assert "--lora" in refused("merge", "verl", actor, "--lora", "--out", tmp_path / "out")


def test_nothing_is_left_when_the_disk_is_full(tmp_path, actor, capsys):
    with file_size_limit(100_000):
        assert main(["merge", "verl", str(actor), "--out", str(tmp_path / "out")]) == 1
    assert "File too large: " in (message := capsys.readouterr().err)
    assert "model.safetensors" in message
    assert sorted(file.name for file in tmp_path.iterdir()) == ["save"]


def test_a_disk_without_room_is_refused(tmp_path, actor, refused, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**6, 10**6, 1000))
    message = refused("merge", "verl", actor, "--out", tmp_path / "out")
    assert "the model takes 0.00 GB, the disk has 0.00 GB left" in message
    assert sorted(file.name for file in tmp_path.iterdir()) == ["save"]


def test_what_a_killed_merge_left_is_replaced(tmp_path, actor):
    left = tmp_path / ".out.part"
    left.mkdir()
    (left / "model-00001-of-00002.safetensors").write_bytes(b"some")
    merged("verl", actor, "--out", tmp_path / "out")
    assert not left.exists()
    assert not list((tmp_path / "out").glob("*-of-*"))


@pytest.mark.integration
def test_a_signal_leaves_nothing(tmp_path, actor):
    """The model is large enough that the signal comes while it is written."""
    model = write_small_model(
        tmp_path / "model", vocab_size=50_000, hidden_size=512, intermediate_size=2048, num_hidden_layers=8
    )
    write_plain(tmp_path / "large", whole_tensors(model), model)
    command = [sys.executable, "-m", "ramify", "merge", "verl", tmp_path / "large", "--out", tmp_path / "out"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while "tensors" not in process.stdout.readline():
            pass
        process.send_signal(signal.SIGINT)
        message = process.communicate(timeout=SECONDS)[1]
    assert process.returncode == 130, message
    assert message == "ramify merge: stopped by Ctrl-C\n"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["large", "model", "save"]
