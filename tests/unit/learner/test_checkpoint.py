import json

import numpy as np
import pytest
import torch
from model_makers import learner_for, tiny
from transformers import AutoModelForCausalLM, AutoTokenizer

from ramify.algos.credit import denominator
from ramify.algos.sft import SUPERVISED, NegativeLogLikelihood, supervised_credit
from ramify.core.errors import DataError
from ramify.learner.checkpoint import (
    checkpoint_folder,
    latest_checkpoint,
    load_checkpoint,
    prune_checkpoints,
    read_state,
    save_checkpoint,
)
from ramify.learner.optimizer import AdamWSettings, MuonSettings
from ramify.learner.pack import pack
from ramify.modeling.load import load_model
from random_trees import random_tree

STATE = {"step": 3, "policy_version": 3, "cursor": {"epoch": 0, "next_index": 24}}
OPTIMIZERS = [
    AdamWSettings(lr=0.01),
    MuonSettings(matrix_lr=0.006, vector_lr=4e-3, embedding_lr=1e-3),
]


def batch(seed):
    tree = random_tree(np.random.default_rng(seed))
    credits = supervised_credit(tree)
    return pack([tree], [credits], 1000), denominator([tree], SUPERVISED)


def trained(steps, optimizer=OPTIMIZERS[0]):
    learner = learner_for(tiny(), NegativeLogLikelihood(), optimizer)
    for seed in range(steps):
        learner.update(*batch(seed))
    return learner


def save(folder, learner, tokenizer_dir):
    save_checkpoint(folder, learner.model, learner.optimizers, STATE, tokenizer_dir)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_training_goes_on_bitwise(tmp_path, model_folder, optimizer):
    learner = trained(3, optimizer)
    folder = checkpoint_folder(tmp_path, 3)
    save(folder, learner, model_folder)
    again = learner_for(load_model(folder), NegativeLogLikelihood(), optimizer)
    assert load_checkpoint(folder, again.optimizers) == STATE
    saved, loaded = learner.optimizers.state_tensors(), again.optimizers.state_tensors()
    assert saved.keys() == loaded.keys()
    assert all(torch.equal(saved[key], loaded[key]) for key in saved)
    for seed in (3, 4):
        learner.update(*batch(seed))
        again.update(*batch(seed))
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
    assert load_checkpoint(tmp_path / "c", trained(0).optimizers) == STATE


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
    assert read_state(target) == STATE


def test_incomplete_and_foreign_checkpoints_are_refused(tmp_path, model_folder):
    learner = trained(1)
    folder = tmp_path / "c"
    save(folder, learner, model_folder)
    with pytest.raises(DataError, match="exists already"):
        save(folder, learner, model_folder)
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[:-10])
    with pytest.raises(DataError, match=r"model\.safetensors has .* it is incomplete"):
        load_checkpoint(folder, learner.optimizers)
    (folder / "model.safetensors").write_bytes(weights)
    (folder / "state" / ".metadata").rename(folder / "metadata")
    with pytest.raises(DataError, match=r"state/\.metadata has None bytes"):
        load_checkpoint(folder, learner.optimizers)
    record = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps(record | {"schema": 99}))
    with pytest.raises(DataError, match="expected a checkpoint of schema 1"):
        read_state(folder)
    (folder / "state.json").write_text("{")
    with pytest.raises(DataError, match="not valid JSON"):
        read_state(folder)
    with pytest.raises(DataError, match=r"state\.json is missing"):
        read_state(model_folder)


def test_the_last_ones_are_kept_in_order_of_their_steps(tmp_path, model_folder):
    learner = trained(0)
    assert latest_checkpoint(tmp_path) is None
    for step in (5, 20, 100, 1_000_000):
        save(checkpoint_folder(tmp_path, step), learner, model_folder)
    (tmp_path / "checkpoints" / ".step-000007.partial").mkdir()
    prune_checkpoints(tmp_path, 2)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
        "step-000100",
        "step-1000000",
    ]
    assert latest_checkpoint(tmp_path) == checkpoint_folder(tmp_path, 1_000_000)


def test_a_damaged_state_of_the_right_size_is_refused_in_one_line(tmp_path, model_folder):
    learner = trained(1)
    save(tmp_path / "c", learner, model_folder)
    for file in (tmp_path / "c" / "state").iterdir():
        content = file.read_bytes()
        file.write_bytes(bytes(len(content)))
        with pytest.raises(DataError, match=r"training state is damaged .* delete this folder"):
            load_checkpoint(tmp_path / "c", learner.optimizers)
        file.write_bytes(content)
    load_checkpoint(tmp_path / "c", learner.optimizers)


def test_weights_are_as_readable_as_the_rest(tmp_path, model_folder):
    save(tmp_path / "c", trained(0), model_folder)
    modes = {name: (tmp_path / "c" / name).stat().st_mode for name in ("model.safetensors", "config.json")}
    assert modes["model.safetensors"] == modes["config.json"]
