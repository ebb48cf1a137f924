"""Which checkpoints a run writes and keeps, their scores, and the way back to one of them."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import build
from ramify.algos.credit import denominator
from ramify.algos.sft import SUPERVISED
from ramify.core.errors import DataError, TrainingError
from ramify.data.order import DataCursor
from ramify.learner import optimizer_files
from ramify.learner.guard import GuardState
from ramify.learner.pack import pack
from ramify.modeling.load import load_model
from ramify.runs.checkpoint import companion_files
from ramify.runs.checkpoint_files import latest_checkpoint, read_state
from ramify.runs.configs import TrainingRunConfig
from ramify.runs.run_folder import RunFolder, RunIdentity
from ramify.runs.state import CheckpointScore, LoopState, Saver
from random_trees import credited, random_tree, supervised_credit


@pytest.fixture
def learner(model_folder):
    return build.learner(load_model(model_folder))


@pytest.fixture
def saver(tmp_path, model_folder, learner):
    def make(total_steps=99, **settings):
        run = TrainingRunConfig(dir=tmp_path, **settings)
        identity = RunIdentity("a", "b")
        return Saver(
            RunFolder(tmp_path), learner, companion_files(model_folder), "t", identity, run, total_steps
        )

    return make


def train(learner, seed=0):
    trees = [random_tree(np.random.default_rng(seed))]
    learner.update_rows(
        pack(credited(trees, [supervised_credit(trees[0])]), 1000), denominator(trees, SUPERVISED)
    )


def run(saver, scores, state=None, interrupt_at=()):
    state = state or LoopState()
    for score in scores:
        state = saver.keep(state.after_step(DataCursor(0, state.step), score))
        if state.step in interrupt_at:
            saver.save(state)
    return state


def steps(folder):
    return sorted(int(path.name.removeprefix("step-")) for path in (folder / "checkpoints").iterdir())


def test_a_run_that_fails_while_its_checkpoint_cannot_be_written_leaves_no_thread_behind(
    tmp_path, saver, monkeypatch
):
    """The thread waits for all files; the process would wait for the thread at its end."""

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    def fail():
        with keeping.settled():
            keeping.keep(LoopState().after_step(DataCursor(0, 0), 1.0))
            raise DataError("a bad row")

    keeping = replace(saver(save_every=1), in_background=True)
    monkeypatch.setattr(optimizer_files, "write_tensors", full)
    with pytest.raises(DataError, match="a bad row"):
        fail()
    assert list((tmp_path / "checkpoints").iterdir()) == []
    monkeypatch.undo()
    run(keeping, [1.0, 2.0])
    keeping.settle()
    assert steps(tmp_path) == [1, 2]


def test_a_checkpoint_is_judged_by_the_steps_that_its_weights_wrote(tmp_path, saver):
    keeping = saver(99, save_every=2, keep_last=9, keep_best=9)
    state = run(keeping, [9.0, 9.0, 1.0, 2.0, None, 4.0, 5.0])
    assert state.ranking == (CheckpointScore(4, 4.0), CheckpointScore(2, 1.5))
    assert (state.due, state.scores) == (6, (5.0,))


def test_the_best_stays_beside_the_last_and_of_equal_ones_the_later(tmp_path, saver):
    keeping = saver(save_every=1, keep_last=1, keep_best=1)
    state = run(keeping, [0.0, 0.5, 0.9, 0.9, 0.1, None])
    assert state.ranking == (CheckpointScore(3, 0.9),)
    assert steps(tmp_path) == [3, 6]
    assert keeping.best_note(state) == (
        f"best checkpoint: {tmp_path / 'checkpoints' / 'step-000003'} (score 0.9)"
    )


def test_a_policy_that_collapses_does_not_take_the_best_with_it(tmp_path, saver):
    """The step that destroys the weights still has the reward of those before it."""
    keeping = saver(save_every=1, keep_last=1, keep_best=1)
    state = run(keeping, [0.4, 0.45, -1.0, -1.0])
    assert state.ranking == (CheckpointScore(1, 0.45),)
    assert steps(tmp_path) == [1, 4]


def test_after_a_way_back_the_scores_are_those_of_the_checkpoint_gone_back_to(tmp_path, saver):
    keeping = saver(save_every=1, keep_last=9, keep_best=9)
    state = run(keeping, [0.0, 0.1, 0.2]).went_back(1)
    state = run(keeping, [0.9], state)
    assert state.ranking == (CheckpointScore(1, 0.9), CheckpointScore(2, 0.2))


def test_weights_that_are_no_numbers_are_not_saved(tmp_path, saver, learner):
    with torch.no_grad():
        next(learner.model.parameters())[0] = torch.nan
    with pytest.raises(TrainingError, match="are not finite, so no checkpoint was written"):
        run(saver(save_every=1), [0.0])
    assert not (tmp_path / "checkpoints").exists()


def test_where_no_best_one_is_kept_nothing_is_said_of_it(tmp_path, saver):
    keeping = saver(save_every=1, keep_last=1, keep_best=0)
    state = run(keeping, [0.5, 0.1])
    assert steps(tmp_path) == [2]
    assert keeping.best_note(state) is None
    assert keeping.best_note(LoopState()) is None


def test_a_checkpoint_in_between_is_not_judged_and_changes_nothing_later(tmp_path, saver):
    whole = saver(save_every=3, keep_last=9)
    once = run(whole, [0.1, 0.9, 0.2, 0.4, 0.5, 0.6])
    assert steps(tmp_path) == [3, 6]
    for path in (tmp_path / "checkpoints").iterdir():
        path.rename(tmp_path / path.name)
    state = run(whole, [0.1, 0.9, 0.2, 0.4], interrupt_at=(1, 2, 4))
    record = read_state(latest_checkpoint(tmp_path), "")
    assert (record["loop"]["step"], record["loop"]["scores"], record["loop"]["due"]) == (4, [0.4], 3)
    assert run(whole, [0.5, 0.6], state) == once
    assert once.ranking == (CheckpointScore(3, 0.5),)


def test_a_checkpoint_that_is_yet_to_be_judged_stays_however_often_the_run_is_stopped(tmp_path, saver):
    keeping = saver(save_every=3, keep_last=1, keep_best=1)
    state = run(keeping, [0.1, 0.2, 0.3, 0.9, 0.9], interrupt_at=(4, 5))
    assert steps(tmp_path) == [3, 5]
    state = run(keeping, [0.9, 0.1, 0.1, 0.1], state)
    assert keeping.best_note(state) == (
        f"best checkpoint: {tmp_path / 'checkpoints' / 'step-000003'} (score 0.9)"
    )
    assert steps(tmp_path) == [3, 9]


def test_what_the_guard_needs_is_never_deleted(tmp_path, saver):
    guard = GuardState().saved(0)
    state = saver(save_every=1, keep_last=1, keep_best=0).keep(LoopState(guard=guard))
    run(saver(save_every=1, keep_last=1, keep_best=0), [0.0] * 4, state)
    assert steps(tmp_path) == [0, 4]


def test_the_way_back_restores_weights_and_optimizer_and_not_the_count_of_steps(saver, learner, model_folder):
    train(learner)
    keeping = saver(save_every=1)
    run(keeping, [0.0])
    weights = {name: p.detach().clone() for name, p in learner.model.named_parameters()}
    optimizer_state = {name: t.clone() for name, t in learner.optimizers.state_tensors().items()}
    train(learner, 1)
    learner.skipped_in_a_row = 2
    with torch.no_grad():
        for parameter in learner.model.parameters():
            parameter.fill_(float("nan"))
    keeping.fall_back(1)
    assert all(torch.equal(weights[name], p) for name, p in learner.model.named_parameters())
    now = learner.optimizers.state_tensors()
    assert now.keys() == optimizer_state.keys()
    assert all(torch.equal(optimizer_state[name], now[name]) for name in now)
    assert (learner.step, learner.skipped_in_a_row) == (2, 0)


def test_the_way_back_to_a_damaged_checkpoint_is_refused(tmp_path, saver):
    keeping = saver(save_every=1)
    run(keeping, [0.0])
    (tmp_path / "checkpoints" / "step-000001" / "model.safetensors").write_bytes(b"")
    with pytest.raises(DataError, match="it is incomplete, the run cannot go back to it"):
        keeping.fall_back(1)
