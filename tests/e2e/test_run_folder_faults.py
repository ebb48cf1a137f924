"""Runs that find another world than they left: other data, other weights, a full disk, a folder from a stranger."""

import itertools
import json
import os
import pickle
import shutil
import time

import pytest

from e2e_runs import DPO, SFT, TRAIN, overrides, write_task
from file_limits import file_size_limit
from model_folders import write_model
from ramify.cli import main
from ramify.modeling.load import load_model
from ramify.runs.checkpoint_files import write_record

ORDINARY = ("run.threads=1", "run.deterministic=true", "run.save_every=1")
COMMANDS = {"train": TRAIN, "sft": SFT, "dpo": DPO}
LORA = ("model.lora.rank=2", "model.lora.alpha=4")


def words(*settings):
    return overrides(*ORDINARY, *settings)


@pytest.fixture(params=COMMANDS)
def command(request):
    return request.param


@pytest.mark.parametrize(
    ("command", "lora"),
    [("train", ()), ("train", LORA), ("sft", ()), ("dpo", LORA)],
    ids=["train", "train, lora", "sft", "dpo, lora"],
    indirect=["command"],
)
def test_defaults_of_generation_that_transformers_refuses_to_save(tmp_path, command, lora):
    """Many folders have a temperature and do not say that one is to be drawn with it."""
    model = write_model(tmp_path / "model")
    odd = b'{"eos_token_id": 2, "temperature": 0.6, "top_p": 0.95}\n'
    (model / "generation_config.json").write_bytes(odd)
    recipe = write_task(tmp_path / "task", model, COMMANDS[command])
    assert main([command, str(recipe), *words(*lora), "--max-steps", "1"]) == 0
    saved = recipe.parent / "run" / "checkpoints" / "step-000001"
    load_model(saved)
    if not lora:
        assert (saved / "generation_config.json").read_bytes() == odd
    assert main([command, str(recipe), *words(*lora), "--max-steps", "2", "--resume"]) == 0


DATA = {"train": "problems.jsonl", "sft": "demonstrations.jsonl", "dpo": "pairs.jsonl"}


def test_a_run_does_not_go_on_with_other_data_or_weights(tmp_path, refused, capsys, command):
    model = write_model(tmp_path / "model")
    recipe = write_task(tmp_path / "task", model, COMMANDS[command])
    run = recipe.parent / "run"
    assert main([command, str(recipe), *words(), "--max-steps", "1"]) == 0
    data = recipe.parent / DATA[command]
    text = data.read_text()
    checkpoint = (run / "checkpoints" / "step-000001" / "state.json").read_bytes()

    def message():
        return refused(command, recipe, *words(), "--max-steps", 2, "--resume")

    for other in (text.replace("12 plus", "13 plus"), "".join(text.splitlines(keepends=True)[:-1])):
        data.write_text(other)
        assert f"{run} holds a run with data.sha256 = " in message()
    data.write_text(text)
    shutil.copy(write_model(tmp_path / "other", seed=1) / "model.safetensors", model)
    assert f"{run} holds a run with weights.model = " in message()
    write_model(model)
    for name, changed in (("config.json", '"rope_theta": 7.0,'), ("chat_template.jinja", None)):
        file = model / name
        before = file.read_text()
        file.write_text(before + " " if changed is None else before.replace("{", "{" + changed, 1))
        assert f"{run} holds a run with model.{name} = " in message()
        file.write_text(before)
    assert (run / "checkpoints" / "step-000001" / "state.json").read_bytes() == checkpoint
    assert main([command, str(recipe), *words(), "--max-steps", "2", "--resume"]) == 0


OWN = '''\
def lookup(key: str) -> str:
    """Look a key up.

    Args:
        key: What to look up.
    """
    return key


def paid(completions):
    """Reward."""
    return [float(len(text)) for text in completions]
'''


def test_a_run_does_not_go_on_with_another_corpus_tool_or_reward(tmp_path, refused, model_folder):
    recipe = write_task(tmp_path / "task", model_folder)
    for name in ("tool.py", "reward.py"):
        (recipe.parent / name).write_text(OWN)
    own = words(
        f'tools.own=[{{path="{recipe.parent}/tool.py",function="lookup"}}]',
        f'reward={{name="parts",own=[{{path="{recipe.parent}/reward.py",function="paid",weight=1.0}}]}}',
    )
    assert main(["train", str(recipe), *own, "--max-steps", "1"]) == 0
    for name, change, key in (
        ("passages.jsonl", ("Rome", "Milan"), "tools.search.corpus"),
        ("tool.py", ("return key", "return key + key"), "tools.lookup.sha256"),
        ("reward.py", ("float(", "2 * float("), "rewards.paid.sha256"),
    ):
        file = recipe.parent / name
        text = file.read_text()
        file.write_text(text.replace(*change))
        message = refused("train", recipe, *own, "--max-steps", 2, "--resume")
        assert f"holds a run with {key} = " in message
        file.write_text(text)
    assert main(["train", str(recipe), *own, "--max-steps", "2", "--resume"]) == 0


def test_a_clock_that_jumps_and_files_of_the_future_change_nothing(tmp_path, caller, monkeypatch):
    model = tmp_path / "model"
    shutil.copytree(caller, model, ignore=shutil.ignore_patterns("state.json", "state"))
    runs = []
    for name in ("steady", "jumping"):
        recipe = write_task(tmp_path / name, model)
        runs.append(recipe.parent / "run")
        for resume, steps in (((), "1"), (("--resume",), "2")):
            with monkeypatch.context() as patch:
                if name == "jumping":
                    times = itertools.cycle((0.0, 4e9, -5.0, 1e9))
                    patch.setattr(time, "time", lambda times=times: next(times))
                assert main(["train", str(recipe), *words(), "--max-steps", steps, *resume]) == 0
            for path in (*recipe.parent.rglob("*"), *model.rglob("*")) if name == "jumping" else ():
                os.utime(path, (4e9, 4e9))
    for file in ("checkpoints/step-000002/model.safetensors", "trees/000002.jsonl"):
        assert (runs[0] / file).read_bytes() == (runs[1] / file).read_bytes()
    message = [json.loads(line)["time"] for line in (runs[1] / "metrics.jsonl").read_text().splitlines()]
    assert set(message) <= {0.0, 4e9, -5.0, 1e9}


class _Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def _seal(run):
    folder = max((run / "checkpoints").iterdir())
    write_record(folder, json.loads((folder / "state.json").read_text())["state"])


def _pickles(run, outside):
    for name in ("state/.metadata", "pytorch_model.bin", "optimizer.pt", "rng_state.pth"):
        (run / "checkpoints" / "step-000002" / name).write_bytes(pickle.dumps(_Evil(outside / "made")))
    _seal(run)


def _of_before(run, outside):
    folder = run / "checkpoints" / "step-000002"
    _pickles(run, outside)
    (folder / "state" / "optimizer.safetensors").unlink()
    record = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps({**record, "schema": 3}))


def _only_pickled_weights(run, outside):
    folder = run / "checkpoints" / "step-000002"
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(_Evil(outside / "made")))
    (folder / "model.safetensors").rename(folder / "x.safetensors")
    _seal(run)


def _own_code(run, outside):
    folder = run / "checkpoints" / "step-000002"
    (folder / "evil.py").write_text(f"import os; os.mkdir({str(outside / 'made')!r})")
    for name, key in (("config.json", "AutoModelForCausalLM"), ("tokenizer_config.json", "AutoTokenizer")):
        table = json.loads((folder / name).read_text())
        (folder / name).write_text(
            json.dumps(table | {"auto_map": {key: "evil.Evil", "AutoConfig": "evil.Evil"}})
        )
    _seal(run)


def _weights_elsewhere(run, outside):
    folder = run / "checkpoints" / "step-000002"
    shutil.move(folder / "model.safetensors", outside / "model.safetensors")
    index = {"metadata": {}, "weight_map": {"model.norm.weight": "../../../../outside/model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    _seal(run)


def _linked(name):
    def change(run, outside):
        path = run / name
        target = outside / path.name
        if path.exists():
            shutil.move(path, target)
        else:
            target.write_text("mine")
            path.parent.mkdir(exist_ok=True)
        path.symlink_to(target)

    return change


def _manifest(run, outside):
    (run / "manifest.json").write_text('{"schema": 2, "made_with": [1], "made_from": {}}')


LINKS = (
    ".lock", "metrics.jsonl", "metrics.jsonl.part", "recipe.toml", "manifest.json", "trees",
    "trees/000002.jsonl", "checkpoints", "checkpoints/.step-000003.partial", "checkpoints/step-000002",
    "checkpoints/step-000002/model.safetensors", "checkpoints/step-000002/state",
)  # fmt: skip
HOSTILE = {
    "pickles": (_pickles, None),
    "a folder of before": (_of_before, "schema 3, expected 5: it was written by another version"),
    "pickled weights only": (_only_pickled_weights, "step-000002"),
    "code of its own": (_own_code, None),
    "weights elsewhere": (_weights_elsewhere, "expected one of"),
    "a manifest of nothing": (_manifest, "manifest.json: missing or not readable"),
    **{f"{name} is a link": (_linked(name), f"{name} is a link") for name in LINKS},
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory, model_folder):
    recipe = write_task(tmp_path_factory.mktemp("finished"), model_folder, SFT)
    assert main(["sft", str(recipe), *words(), "--max-steps", "2"]) == 0
    return recipe


@pytest.mark.parametrize("name", HOSTILE)
def test_a_folder_from_a_stranger_runs_nothing_and_leads_nowhere(tmp_path, finished, capsys, name):
    """`None` as what is told: it does not act, and the run goes on."""
    change, expected = HOSTILE[name]
    run, outside = tmp_path / "run", tmp_path / "outside"
    shutil.copytree(finished.parent / "run", run)
    outside.mkdir()
    settings = words(f"run.dir={run}")
    change(run, outside)
    before = {path: path.read_bytes() for path in outside.rglob("*") if path.is_file()}
    capsys.readouterr()
    status = main(["sft", str(finished), *settings, "--max-steps", "3", "--resume"])
    message = capsys.readouterr().err
    assert not (outside / "made").exists()
    assert {path: path.read_bytes() for path in outside.rglob("*") if path.is_file()} == before
    if expected is None:
        assert status == 0, message
        return
    assert (status, message.count("\n")) == (2, 1), message
    assert expected in message


@pytest.mark.parametrize("kilobytes", [80, 400], ids=["weights", "optimizer state"])
def test_a_checkpoint_that_the_disk_does_not_take(tmp_path, model_folder, capsys, kilobytes):
    recipe = write_task(tmp_path / "task", model_folder, SFT)
    with file_size_limit(kilobytes << 10):
        assert main(["sft", str(recipe), *words()]) == 1
    message = capsys.readouterr().err
    assert f"{recipe.parent}/run/checkpoints/step-000001: cannot be written (" in message
    assert "File too large" in message
    assert message.count("\n") == 1
    assert main(["sft", str(recipe), *words(), "--resume"]) == 0
    assert (recipe.parent / "run" / "checkpoints" / "step-000003").is_dir()
