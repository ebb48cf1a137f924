import errno
import json
import math
import os
import pickle
import random
import shutil
import subprocess
import threading
import zlib

import numpy as np
import pytest
import torch
from huggingface_hub.utils import filter_repo_objects
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

import build
from audited import just_before
from file_limits import file_size_limit
from model_folders import write_model
from ramify.algos.credit import denominator
from ramify.algos.sft import SUPERVISED
from ramify.chat.tokenizer import ChatTokenizer
from ramify.core.errors import DataError, MachineError, TrainingError
from ramify.core.rank import Rank
from ramify.learner import optimizer_files
from ramify.learner.configs import OptimizerConfig
from ramify.learner.pack import pack
from ramify.learner.parallel import make_mesh
from ramify.learner.sharding import Sharding, gathered, shard
from ramify.modeling.configs import AdapterConfig
from ramify.modeling.load import load_model
from ramify.modeling.lora import add_lora
from ramify.modeling.memory_plan import GATHERED_ONCE
from ramify.modeling.plain_folder import GENERATION
from ramify.modeling.tensor_files import read_heads, read_rows, write_tensors
from ramify.runs import checkpoint
from ramify.runs.checkpoint import check_saving, companion_files, save_checkpoint
from ramify.runs.checkpoint_files import (
    advice_on_damaged,
    check_model_folder,
    checkpoint_folder,
    latest_checkpoint,
    prune_checkpoints,
    read_state,
    write_record,
)
from random_trees import credited, random_tree, supervised_credit

ADVICE = "do this"
STATE = {"step": 3, "policy_version": 3, "cursor": {"epoch": 0, "next_index": 24}}
OPTIMIZERS = [
    OptimizerConfig(rate=0.01),
    OptimizerConfig(name="muon", rate=0.006, vector_rate=4e-3, embedding_rate=1e-3),
]


def batch(seed):
    tree = random_tree(np.random.default_rng(seed))
    credits = supervised_credit(tree)
    return pack(credited([tree], [credits]), 1000), denominator([tree], SUPERVISED)


def trained(steps, optimizer=OPTIMIZERS[0]):
    learner = build.learner(build.tiny_model(), optimizer=optimizer)
    for seed in range(steps):
        learner.update_rows(*batch(seed))
    return learner


def save(folder, learner, tokenizer_dir):
    save_checkpoint(folder, learner, STATE, companion_files(tokenizer_dir))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_training_goes_on_bitwise(tmp_path, model_folder, optimizer):
    learner = trained(3, optimizer)
    folder = checkpoint_folder(tmp_path, 3)
    save(folder, learner, model_folder)
    again = build.learner(load_model(folder), optimizer=optimizer)
    assert read_state(folder, ADVICE) == STATE
    again.ranks.all("load_state", folder / "state", ADVICE)
    saved, loaded = learner.optimizers.state_tensors(), again.optimizers.state_tensors()
    assert saved.keys() == loaded.keys()
    assert all(torch.equal(saved[key], loaded[key]) for key in saved)
    for seed in (3, 4):
        learner.update_rows(*batch(seed))
        again.update_rows(*batch(seed))
    pairs = zip(learner.model.parameters(), again.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_opens_in_transformers_with_the_learners_logprobs_and_the_tokenizer(tmp_path, model_folder):
    learner = trained(2)
    save(tmp_path / "c", learner, model_folder)
    stock = AutoModelForCausalLM.from_pretrained(tmp_path / "c")
    rows, _ = batch(9)
    (logprobs,) = learner.logprobs(rows)
    tree = random_tree(np.random.default_rng(9))
    segment = tree.trajectories[0].segments[0]
    ids = torch.tensor([segment.token_ids])
    with torch.no_grad():
        table = torch.log_softmax(stock(ids).logits[0, :-1], -1).gather(1, ids[0, 1:, None])[:, 0].numpy()
    written = np.flatnonzero(segment.written)
    assert len(written) > 2
    assert logprobs[: len(written)] == pytest.approx(table[written - 1], abs=1e-5)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "c")
    assert (
        tokenizer("solve 12").input_ids == AutoTokenizer.from_pretrained(model_folder)("solve 12").input_ids
    )


def test_before_the_first_step_there_is_no_optimizer_state_and_saving_makes_none(tmp_path, model_folder):
    learner = trained(0)
    save(tmp_path / "c", learner, model_folder)
    assert learner.optimizers.state_tensors() == {}
    assert read_state(tmp_path / "c", ADVICE) == STATE
    other = trained(2)
    other.ranks.all("load_state", tmp_path / "c" / "state", ADVICE)
    assert other.optimizers.state_tensors() == {}


def test_a_save_that_died_is_not_seen_and_is_written_over(tmp_path, model_folder):
    learner = trained(1)
    save(checkpoint_folder(tmp_path, 1), learner, model_folder)
    target = checkpoint_folder(tmp_path, 2)
    partial = target.with_name(f".{target.name}.partial")
    partial.mkdir()
    (partial / "config.json").write_text("{")
    assert latest_checkpoint(tmp_path) == checkpoint_folder(tmp_path, 1)
    save(target, learner, model_folder)
    assert latest_checkpoint(tmp_path) == target
    assert not partial.exists()
    assert read_state(target, ADVICE) == STATE


def test_the_advice_on_a_damaged_checkpoint_looks_at_what_is_before_it(tmp_path, model_folder):
    learner = trained(0)
    first, second = (checkpoint_folder(tmp_path, step) for step in (5, 20))
    save(first, learner, model_folder)
    assert advice_on_damaged(first) == (
        "there is none before it: put it back from a copy, or name a new run.dir to start again"
    )
    save(second, learner, model_folder)
    assert advice_on_damaged(second) == "delete this folder to go on from step-000005"


def test_a_models_folder_that_is_a_damaged_checkpoint_is_to_be_copied_again(tmp_path, model_folder):
    check_model_folder(model_folder)
    save(tmp_path / "c", trained(0), model_folder)
    check_model_folder(tmp_path / "c")
    (tmp_path / "c" / "model.safetensors").write_bytes(b"")
    with pytest.raises(
        DataError,
        match=r"it is incomplete, .*model\.path",
    ):
        check_model_folder(tmp_path / "c")


def test_what_is_there_is_not_written_over(tmp_path, model_folder):
    save(tmp_path / "c", trained(0), model_folder)
    with pytest.raises(DataError, match="exists already"):
        save(tmp_path / "c", trained(0), model_folder)


def test_any_damaged_byte_of_any_file_is_found(tmp_path, model_folder):
    folder = tmp_path / "c"
    save(folder, trained(1), model_folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    assert {path.name for path in files} >= {
        "model.safetensors",
        "tokenizer.json",
        "optimizer.safetensors",
        "state.json",
    }
    for path in files:
        content = path.read_bytes()
        for at in (0, len(content) // 3, len(content) - 1):
            path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
            with pytest.raises(
                DataError, match=rf"{path.name}.*(it is damaged|broken JSON|expected UTF-8|of schema)"
            ):
                read_state(folder, ADVICE)
        path.write_bytes(content)
    assert read_state(folder, ADVICE) == STATE


def test_a_damaged_byte_of_a_large_file_is_found_wherever_it_is(tmp_path):
    weights = tmp_path / "model.safetensors"
    content = np.random.default_rng(0).bytes(3_500_000)
    weights.write_bytes(content)
    write_record(tmp_path, STATE)
    assert read_state(tmp_path, ADVICE) == STATE
    for at in range(0, len(content), 499_999):
        weights.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises(DataError, match="it is damaged"):
            read_state(tmp_path, ADVICE)


@pytest.mark.parametrize(
    "name", ["model.safetensors", "state/optimizer.safetensors", "tokenizer.json", "config.json"]
)
def test_a_file_that_is_cut_off_or_missing_is_named(tmp_path, model_folder, name):
    folder = tmp_path / "c"
    save(folder, trained(1), model_folder)
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[:-10])
    with pytest.raises(
        DataError, match=rf"{name} has {len(content) - 10} bytes, expected .* it is incomplete"
    ):
        read_state(folder, ADVICE)
    (folder / name).unlink()
    with pytest.raises(DataError, match=rf"{name} is missing; it is incomplete, do this"):
        read_state(folder, ADVICE)


def crc_of(record):
    content = {key: record[key] for key in ("state", "files")}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return f"{zlib.crc32(text.encode()):08x}"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 3}, "a checkpoint of schema 3, expected 5: it was written by another version"),
        ({"schema": 4}, "The last version that goes on from it is 0.1.0 at commit c7758c3. "),
        ({"schema": "4"}, "a checkpoint of schema '4'"),
        ({"state": {**STATE, "step": 4}}, "its content does not match its checksum"),
        ({"state": None}, "its content does not match its checksum"),
        ({"state": [], "crc32": None}, "state: expected a JSON object, got a list; do this"),
        ({"files": ["config.json"], "crc32": None}, "files: expected a JSON object, got a list; do this"),
        (
            {"files": {"config.json": 7}, "crc32": None},
            r"files\.config\.json: expected a JSON object, got 7; do",
        ),
        ({"files": {"c": {"bytes": "7", "crc32": "0"}}, "crc32": None}, r"files\.c\.bytes: expected a whole"),
    ],
)
def test_a_record_that_is_not_what_was_written_is_refused(tmp_path, model_folder, change, message):
    folder = tmp_path / "c"
    save(folder, trained(0), model_folder)
    record = json.loads((folder / "state.json").read_text()) | change
    if "crc32" in change:
        record["crc32"] = crc_of(record)
    (folder / "state.json").write_text(json.dumps(record))
    with pytest.raises(DataError, match=message):
        read_state(folder, ADVICE)


def test_a_record_that_is_missing_or_no_json_object_is_refused(tmp_path, model_folder):
    folder = tmp_path / "c"
    save(folder, trained(0), model_folder)
    for content in (b"", b"{", b"[1]", b"\xff\xfe", b"[" * 100_000):
        (folder / "state.json").write_bytes(content)
        with pytest.raises(DataError, match=r"state\.json: (broken JSON|expected|nested).*; do this"):
            read_state(folder, ADVICE)
    (folder / "state.json").unlink()
    with pytest.raises(DataError, match=r"state\.json is missing, .*; do this"):
        read_state(folder, ADVICE)


def test_a_number_that_json_does_not_know_is_not_written(tmp_path, model_folder):
    learner = trained(0)
    with pytest.raises(ValueError, match="JSON compliant"):
        save_checkpoint(tmp_path / "c", learner, {"score": math.nan}, {})
    assert not (tmp_path / "c").exists()


def names(run):
    return sorted(path.name for path in (run / "checkpoints").iterdir())


def test_the_last_ones_are_kept_in_order_of_their_steps(tmp_path, model_folder):
    learner = trained(0)
    assert latest_checkpoint(tmp_path) is None
    for step in (5, 20, 100, 1_000_000):
        save(checkpoint_folder(tmp_path, step), learner, model_folder)
    for left_behind in (".step-000007.partial", ".step-000020.partial"):
        (tmp_path / "checkpoints" / left_behind / "state").mkdir(parents=True)
    (tmp_path / "checkpoints" / ".step-000005.partial").write_text("a plain file")
    prune_checkpoints(tmp_path, 2)
    assert names(tmp_path) == ["step-000100", "step-1000000"]
    assert latest_checkpoint(tmp_path) == checkpoint_folder(tmp_path, 1_000_000)


def test_a_checkpoint_that_somebody_reads_on_a_network_disk_goes_the_next_time(
    tmp_path, model_folder, monkeypatch
):
    """NFS keeps a file that is open under another name, so that its folder is not empty."""

    def is_open(folder):
        raise OSError(errno.ENOTEMPTY, "Directory not empty", str(folder))

    learner = trained(0)
    for step in (1, 2):
        save(checkpoint_folder(tmp_path, step), learner, model_folder)
    monkeypatch.setattr(shutil, "rmtree", is_open)
    prune_checkpoints(tmp_path, 1)
    assert names(tmp_path) == [".step-000001.partial", "step-000002"]
    prune_checkpoints(tmp_path, 1)
    monkeypatch.undo()
    prune_checkpoints(tmp_path, 1)
    assert names(tmp_path) == ["step-000002"]


@pytest.mark.parametrize(("keep", "left"), [((), [4]), ((1, 3), [1, 3, 4]), ((2, 8), [2, 4])])
def test_what_is_to_be_kept_stays_beside_the_last(tmp_path, model_folder, keep, left):
    learner = trained(0)
    for step in (1, 2, 3, 4):
        save(checkpoint_folder(tmp_path, step), learner, model_folder)
    prune_checkpoints(tmp_path, 1, keep)
    assert names(tmp_path) == [f"step-{step:06d}" for step in left]


@pytest.fixture
def sealed(tmp_path, model_folder):
    """A checkpoint of a trained model, and what gives a changed one its checksums again."""
    learner, folder = trained(1), tmp_path / "c"
    save(folder, learner, model_folder)
    return learner, folder, lambda: write_record(folder, STATE)


def read_tensors(path):
    return {name: read_rows(path, name).clone() for name in read_heads(path)[0]}


def broken(name, change):
    def work(folder):
        tensors = read_tensors(folder / OPTIMIZER)
        (folder / OPTIMIZER).unlink()
        write_tensors(folder / OPTIMIZER, tensors | {name: change(tensors[name])})

    return work


OPTIMIZER = "state/optimizer.safetensors"
NORM = "exp_avg.model.norm.weight"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / OPTIMIZER).write_bytes(b""), "header"),
        (lambda folder: (folder / OPTIMIZER).unlink(), "No such file"),
        (broken(NORM, lambda t: t * math.nan), f"{NORM} is not made of finite numbers"),
        (broken(NORM, lambda t: t.half()), rf"{NORM} is float16 \[32\], expected float32 \[32\]"),
    ],
)
def test_optimizer_state_is_checked_for_itself(sealed, damage, message):
    """Checksums can be made again by anyone."""
    learner, folder, seal = sealed
    before = {name: t.clone() for name, t in learner.optimizers.state_tensors().items()}
    damage(folder)
    seal()
    assert read_state(folder, ADVICE) == STATE
    with pytest.raises(DataError, match=rf"optimizer\.safetensors: damaged, .*{message}.*; do this") as error:
        learner.ranks.all("load_state", folder / "state", ADVICE)
    assert "\n" not in str(error.value)
    after = learner.optimizers.state_tensors()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_whatever_is_changed_under_good_checksums_is_loaded_or_refused(sealed):
    learner, folder, seal = sealed
    content, draw = (folder / OPTIMIZER).read_bytes(), random.Random(1)
    refused = 0
    for _ in range(150):
        changed = bytearray(content)
        for _ in range(draw.randint(1, 3)):
            # The header more often than the numbers.
            changed[draw.randrange(draw.choice([200, len(changed)]))] = draw.randrange(256)
        (folder / OPTIMIZER).write_bytes(changed)
        seal()
        read_state(folder, ADVICE)
        try:
            learner.ranks.all("load_state", folder / "state", ADVICE)
        except DataError:
            refused += 1
    assert refused > 30


class _Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_no_pickle_is_read(tmp_path, sealed):
    learner, folder, seal = sealed
    for name in ("state/.metadata", "pytorch_model.bin", "state/optimizer.pt", "training_args.bin"):
        (folder / name).write_bytes(pickle.dumps(_Evil(tmp_path / "was here")))
    seal()
    read_state(folder, ADVICE)
    load_model(folder)
    learner.ranks.all("load_weights", folder)
    learner.ranks.all("load_state", folder / "state", ADVICE)
    assert not (tmp_path / "was here").exists()


@pytest.mark.parametrize("name", ["../outside", "/etc/hostname", "state/../../outside"])
def test_a_record_names_no_file_outside_of_its_folder(tmp_path, sealed, name):
    _, folder, _ = sealed
    (tmp_path / "outside").write_bytes(b"x")
    record = json.loads((folder / "state.json").read_text())
    record["files"][name] = {"bytes": 1, "crc32": "8cdc1683"}
    (folder / "state.json").write_text(json.dumps(record | {"crc32": crc_of(record)}))
    with pytest.raises(DataError, match=rf"{name} is missing"):
        read_state(folder, ADVICE)


@pytest.mark.parametrize(
    "index",
    [
        {"weight_map": {"lm_head.weight": "../../outside.safetensors"}},
        {"weight_map": {"lm_head.weight": ["model.safetensors"]}},
        {"weight_map": []},
        [],
    ],
)
def test_the_index_of_a_models_files_leads_nowhere_else(sealed, index):
    _, folder, seal = sealed
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    seal()
    with pytest.raises(
        DataError,
        match=r"index\.json: (weight_map.*: )?expected (one of .*config\.json, |a JSON obj|a text).*; do this",
    ):
        read_state(folder, ADVICE)


def test_weights_in_several_files_come_back(tmp_path, model_folder, monkeypatch):
    monkeypatch.setattr("ramify.modeling.load._SHARD", "20KB")
    learner = trained(1)
    save(tmp_path / "c", learner, model_folder)
    assert len(list((tmp_path / "c").glob("model-*.safetensors"))) > 1
    assert read_state(tmp_path / "c", ADVICE) == STATE
    again = load_model(tmp_path / "c")
    pairs = zip(learner.model.parameters(), again.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_a_file_that_the_record_does_not_name_is_refused_where_a_run_goes_on(sealed):
    _, folder, _ = sealed
    (folder / "README.md").write_text("mine")
    check_model_folder(folder)
    with pytest.raises(DataError, match=r"README\.md is not one of its files; move it away"):
        read_state(folder, ADVICE)


@pytest.mark.parametrize("content", ["[" * 900 + "]" * 900, "1" * 5000, '"\\ud800"', "1e999", "NaN"])
def test_a_state_of_any_json_is_given_back_or_refused(sealed, content):
    _, folder, _ = sealed
    text = (folder / "state.json").read_text()
    (folder / "state.json").write_text(text.replace('"step": 3', f'"step": {content}', 1))
    with pytest.raises(DataError, match=r"state\.json"):
        read_state(folder, ADVICE)


@pytest.mark.parametrize("adapter", [None, AdapterConfig(rank=2)], ids=["whole", "adapter"])
@pytest.mark.parametrize("content", [None, b'{"temperature": 0.6, "eos_token_id": [0, 1]}\n', b"{"])
def test_the_defaults_of_generation_are_those_of_the_recipes_model_or_end_where_its_turns_do(
    tmp_path, model_folder, content, adapter
):
    source = tmp_path / "source"
    shutil.copytree(model_folder, source)
    (source / GENERATION).unlink()
    if content is not None:
        (source / GENERATION).write_bytes(content)
    model = load_model(source)
    if adapter is not None:
        add_lora(model, adapter, seed=0)
    learner = build.learner(model)
    own = learner.model.generation_config
    check_saving(tmp_path, learner, companion_files(source))
    save(tmp_path / "c", learner, source)
    assert learner.model.generation_config is own
    if content is not None:
        assert (tmp_path / "c" / GENERATION).read_bytes() == content
    if content != b"{":
        ends = ChatTokenizer(source).eos_id if content is None else [0, 1]
        assert GenerationConfig.from_pretrained(tmp_path / "c").eos_token_id == ends
        assert ChatTokenizer(tmp_path / "c").fingerprint == ChatTokenizer(source).fingerprint


def test_what_is_pushed_is_a_plain_model(tmp_path, model_folder):
    folder = tmp_path / "c"
    save(folder, trained(1), model_folder)
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    plain = {name for name in files if not name.startswith("state")}
    assert files - plain == {"state.json", "state/optimizer.safetensors"}
    # As docs/checkpoints.md calls `hf upload`, and as git does.
    assert {*filter_repo_objects(files, ignore_patterns=["state*"])} == plain
    git = ["git", "-C", str(folder)]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "-A"], check=True)
    listed = subprocess.run([*git, "ls-files"], check=True, capture_output=True, text=True).stdout
    assert {*listed.split()} == plain
    shutil.rmtree(folder / ".git")
    for name in files - plain:
        (folder / name).unlink()
    check_model_folder(folder)
    assert load_model(folder).num_parameters() == build.tiny_model().num_parameters()


def test_a_model_that_refuses_to_be_saved_is_found_before_anything_is_trained(tmp_path):
    learner = trained(0)
    learner.model.config.validate = lambda: 1 // 0
    with pytest.raises(DataError, match=r"model\.path: .*ZeroDiv"):
        check_saving(tmp_path, learner, {})
    assert list(tmp_path.iterdir()) == []


def test_room_for_one_checkpoint_is_looked_for(tmp_path, model_folder, monkeypatch):
    learner = trained(1)
    companions = companion_files(model_folder)
    save(tmp_path / "c", learner, model_folder)
    taken = sum(path.stat().st_size for path in (tmp_path / "c").rglob("*") if path.is_file())
    usage = shutil.disk_usage(tmp_path)
    for free, fits in ((taken, True), (int(0.9 * taken), False)):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: usage._replace(free=free))
        if fits:
            check_saving(tmp_path, learner, companions)
            continue
        with pytest.raises(MachineError, match=r"run\.dir: .* has room for .* GB, one checkpoint takes"):
            check_saving(tmp_path, learner, companions)


def test_of_an_adapter_the_adapter_alone_has_to_fit(tmp_path, monkeypatch):
    model = load_model(write_model(tmp_path / "base"))
    add_lora(model, AdapterConfig(rank=2, alpha=4.0), seed=0)
    learner = build.learner(model)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=100_000))
    assert sum(p.nbytes for p in model.parameters()) > 100_000
    check_saving(tmp_path, learner, {})


def test_a_save_that_fails_names_the_file_and_leaves_the_others_whole(tmp_path, model_folder, monkeypatch):
    """The size of a file is limited as a quota limits it."""
    learner = trained(1)
    first, second = (checkpoint_folder(tmp_path, step) for step in (1, 2))
    save(first, learner, model_folder)
    with file_size_limit(20_000), pytest.raises(TrainingError, match=r"cannot be written .*File too large"):
        save(second, learner, model_folder)
    assert names(tmp_path) == ["step-000001"]
    assert read_state(first, ADVICE) == STATE
    save(second, learner, model_folder)
    assert read_state(second, ADVICE) == STATE


def test_weights_go_back_in_place(tmp_path, model_folder):
    learner = trained(1)
    save(tmp_path / "c", learner, model_folder)
    before = {name: p.detach().clone() for name, p in learner.model.named_parameters()}
    learner.update_rows(*batch(1))
    parameters = dict(learner.model.named_parameters())
    assert not all(torch.equal(before[name], parameters[name]) for name in before)
    learner.ranks.all("load_weights", tmp_path / "c")
    assert all(torch.equal(before[name], parameters[name]) for name in before)
    other = build.learner(build.tiny_model(layers=3))
    with pytest.raises(DataError, match=r"model\.layers\.2\..* is None, expected"):
        other.ranks.all("load_weights", tmp_path / "c")


def test_weights_are_as_readable_as_the_rest(tmp_path, model_folder):
    save(tmp_path / "c", trained(0), model_folder)
    modes = {name: (tmp_path / "c" / name).stat().st_mode for name in ("model.safetensors", "config.json")}
    assert modes["model.safetensors"] == modes["config.json"]


def files(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def test_a_checkpoint_that_threads_write_is_the_one_that_would_have_been_written_at_once(tmp_path):
    learner = trained(1)
    save_checkpoint(tmp_path / "at_once", learner, STATE, {"tokenizer.json": b"{}"})
    before = {name: p.detach().clone() for name, p in learner.model.named_parameters()}
    is_updated, config = threading.Event(), tmp_path / ".meanwhile.partial" / "config.json"
    with just_before("open", config, lambda: is_updated.wait(20)):
        end = save_checkpoint(
            tmp_path / "meanwhile", learner, STATE, {"tokenizer.json": b"{}"}, in_background=True
        )
        learner.update_rows(*batch(3))
        is_updated.set()
        assert any(not torch.equal(before[name], p) for name, p in learner.model.named_parameters())
        end()
    assert read_state(tmp_path / "meanwhile", "") == STATE
    assert files(tmp_path / "meanwhile") == files(tmp_path / "at_once")


def test_a_checkpoint_that_a_thread_writes_beside_a_pass_names_the_type_of_its_weights(tmp_path):
    """The pass gathers them in the type that it computes in."""
    model = build.tiny_model()
    try:
        shard(model, Sharding(make_mesh(Rank(), "cpu", 1), torch.bfloat16, GATHERED_ONCE))
        learner = build.learner(model)
        is_gathered, config = threading.Event(), tmp_path / ".c.partial" / "config.json"
        with just_before("open", config, lambda: is_gathered.wait(20)):
            end = save_checkpoint(tmp_path / "c", learner, STATE, {}, in_background=True)
            with gathered(model):
                assert model.dtype == torch.bfloat16
                is_gathered.set()
                end()
    finally:
        torch.distributed.destroy_process_group()
    assert json.loads((tmp_path / "c" / "config.json").read_text())["dtype"] == "float32"


@pytest.mark.parametrize("where", ["weights", "state"])
def test_what_cannot_be_written_is_told_at_its_end_and_leaves_nothing(tmp_path, monkeypatch, where):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    learner = trained(1)
    if where == "weights":
        monkeypatch.setattr(checkpoint, "save_model", full)
    else:
        monkeypatch.setattr(optimizer_files, "write_tensors", full)
    end = save_checkpoint(tmp_path / "run" / "step-1", learner, STATE, {}, in_background=True)
    with pytest.raises(TrainingError, match=r"step-1: cannot be written \(OSError: .*No space left"):
        end()
    assert list((tmp_path / "run").iterdir()) == []
    monkeypatch.undo()
    learner.update_rows(*batch(3))
    save_checkpoint(tmp_path / "run" / "step-1", learner, STATE, {}, in_background=True)()
    assert read_state(tmp_path / "run" / "step-1", "") == STATE
    shutil.rmtree(tmp_path / "run")
