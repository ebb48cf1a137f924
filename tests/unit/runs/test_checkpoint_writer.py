"""A checkpoint that threads write while training goes on is the one that would have been written at once."""

import shutil

import numpy as np
import pytest
import torch

from model_makers import learner_for, tiny
from ramify.algos.sft import NegativeLogLikelihood, demonstrated
from ramify.core.errors import TrainingError
from ramify.learner import optimizer_files
from ramify.runs import checkpoint_writer
from ramify.runs.checkpoint import read_state
from ramify.runs.checkpoint_writer import begin_checkpoint, save_checkpoint
from random_trees import random_tree

STATE = {"step": 1}


def trained():
    learner = learner_for(tiny(), NegativeLogLikelihood())
    step(learner)
    return learner


def step(learner):
    trees = [demonstrated(random_tree(np.random.default_rng(3), contexts=False))]
    assert learner.update(trees).outcome == "stepped"


def files(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def test_it_holds_what_was_when_it_began(tmp_path):
    learner = trained()
    save_checkpoint(tmp_path / "at_once", learner, STATE, {"tokenizer.json": b"{}"})
    end = begin_checkpoint(tmp_path / "meanwhile", learner, STATE, {"tokenizer.json": b"{}"})
    before = {name: p.detach().clone() for name, p in learner.model.named_parameters()}
    step(learner)
    assert any(not torch.equal(before[name], p) for name, p in learner.model.named_parameters())
    end()
    assert read_state(tmp_path / "meanwhile", "") == STATE
    assert files(tmp_path / "meanwhile") == files(tmp_path / "at_once")


@pytest.mark.parametrize("where", ["weights", "state"])
def test_what_cannot_be_written_is_told_at_its_end_and_leaves_nothing(tmp_path, monkeypatch, where):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    learner = trained()
    if where == "weights":
        monkeypatch.setattr(checkpoint_writer, "save_model", full)
    else:
        monkeypatch.setattr(optimizer_files, "write_tensors", full)
    end = begin_checkpoint(tmp_path / "run" / "step-1", learner, STATE, {})
    with pytest.raises(TrainingError, match=r"step-1: cannot be written \(OSError: .*No space left"):
        end()
    assert list((tmp_path / "run").iterdir()) == []
    monkeypatch.undo()
    step(learner)
    begin_checkpoint(tmp_path / "run" / "step-1", learner, STATE, {})()
    assert read_state(tmp_path / "run" / "step-1", "") == STATE
    shutil.rmtree(tmp_path / "run")
