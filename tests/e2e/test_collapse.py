"""Runs that collapse: nothing is learned from them, they go back to where they were well, and they stop."""

from contextlib import contextmanager

import pytest
import torch

from e2e_runs import overrides, write_task
from ramify.assemble.training import build_rl
from ramify.config.load import load_recipe
from ramify.config.other_runs import record_of
from ramify.config.schema_train import TrainRecipe
from ramify.core.errors import TrainingError
from ramify.core.rank import Rank
from ramify.learner.parallel import Ranks
from ramify.modeling.load import load_model
from ramify.modeling.memory_plan import GATHERED_ONCE
from ramify.obs.console import RunConsole
from ramify.obs.metrics import read_metrics
from ramify.runs.checkpoint_files import checkpoint_folder
from ramify.runs.run_folder import claim_run_folder
from ramify.sampler.sampler import sampling
from ramify.train.rl import rl_step, start_new

REPETITION = ("guard.max_repetition=0.6", "guard.patience=2", "guard.max_fallbacks=1")


@contextmanager
def running(recipe_file, *settings, resume=False):
    """A run of which single steps can be taken; gives the run, its state and what takes a step."""
    recipe = load_recipe(TrainRecipe, recipe_file, settings)
    console = RunConsole()
    with claim_run_folder(recipe.run.dir, record_of(recipe), resume) as folder:
        run, state = build_rl(recipe, console, folder, Ranks(Rank()), GATHERED_ONCE)
        with sampling(run.sampler, lambda: run.sampler) as session, console.phase("RL", 9) as phase:
            if run.is_new:
                state = start_new(run, state, session)

            def step(state):
                return run.saver.keep(rl_step(run, state, session, phase))

            yield run, state, step


def weights(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def break_down(model):
    """From now on the model writes one token for ever."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Layers that add nothing: the last hidden state is the norm of the token's own embedding.
            parameter.fill_(0.0 if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0)
        model.get_input_embeddings().weight[7] = 100.0


def same(model, saved):
    return all(torch.equal(saved[name], p) for name, p in model.named_parameters())


def test_a_model_that_breaks_down_is_put_back_and_learns_on(tmp_path, caller, capsys):
    recipe = write_task(tmp_path, caller)
    with running(recipe, *REPETITION) as (run, state, step):
        model = run.learning.learner.model
        for _ in range(3):
            state = step(state)
        assert (state.guard.last_good, state.guard.candidate) == (2, 3)
        good = weights(load_model(checkpoint_folder(run.folder.root, 2)))
        break_down(model)
        broken = weights(model)
        state = step(state)
        assert (state.guard.in_a_row, state.guard.last_good, state.guard.candidate) == (1, 2, None)
        assert same(model, broken)
        state = step(state)
        assert (state.step, state.guard.in_a_row, state.guard.fallbacks) == (5, 0, 1)
        assert same(model, good)
        state = step(state)
        assert not same(model, good)
        # Mini-batches that were skipped count for the schedule.
        assert run.learning.learner.step == state.step == 6
    rows = read_metrics(run.folder.root / "metrics.jsonl")
    assert [row["guard/violated"] for row in rows] == [0, 0, 0, 1, 1, 0]
    assert [row["guard/fallbacks"] for row in rows] == [0, 0, 0, 0, 1, 1]
    assert [row["update/steps"] for row in rows] == [1, 1, 1, 0, 0, 1]
    assert rows[3]["health/repetition"] > 0.9
    output = capsys.readouterr().out
    assert output.count("breaks guard.max_repetition = 0.6; the rest of its update was skipped") == 2
    assert f"step 5: back to {checkpoint_folder(run.folder.root, 2)}" in output
    # The problems and draws after the way back are others than those before.
    traces = [(run.folder.root / "trees" / f"00000{n}.jsonl").read_text() for n in (3, 6)]
    assert traces[0] != traces[1]


def test_what_the_guard_has_seen_survives_a_resume(tmp_path, caller):
    recipe = write_task(tmp_path, caller)
    with running(recipe, *REPETITION) as (run, state, step):
        for _ in range(2):
            state = step(state)
        break_down(run.learning.learner.model)
        state = step(state)
    with running(recipe, *REPETITION, resume=True) as (again, resumed, step):
        assert resumed == state
        assert (resumed.guard.in_a_row, resumed.guard.last_good) == (1, 1)
        resumed = step(resumed)
        assert (resumed.guard.in_a_row, resumed.guard.fallbacks) == (0, 1)
        good = weights(load_model(checkpoint_folder(again.folder.root, 1)))
        assert same(again.learning.learner.model, good)


def test_after_the_last_way_back_the_run_stops_with_a_reason(tmp_path, caller, forked):
    recipe = write_task(tmp_path, caller)
    settings = overrides(*REPETITION[1:], "guard.max_length=0.01")
    status, _, message = forked("train", recipe, *settings)
    run = recipe.parent / "run"
    assert status == 1
    assert message.startswith("ramify train: step 4: health/written = 0.")
    assert message.endswith(
        "breaks guard.max_length = 0.01 in 2 steps in a row, after 1 return to a good checkpoint; the last good one "
        f"is {run}/checkpoints/step-000000: start a new run from it with other settings\n"
    )
    assert [row["guard/in_a_row"] for row in read_metrics(run / "metrics.jsonl")] == [1, 0, 1, 2]
    assert checkpoint_folder(run, 0).is_dir()
    model = load_model(checkpoint_folder(run, 0))
    assert same(load_model(checkpoint_folder(run, 3)), weights(model))
    assert same(load_model(caller), weights(model))


def test_what_only_the_update_sees_ends_the_step_at_its_mini_batch(tmp_path, caller):
    recipe = write_task(tmp_path, caller)
    settings = (
        "guard.max_non_finite=0",
        "guard.patience=2",
        "guard.max_fallbacks=0",
        "learner.problems_per_minibatch=1",
    )
    with running(recipe, *settings) as (run, state, step):
        # A rate of infinity cannot be asked for; a weight that the rollout does not notice can be broken.
        run.learning.learner.optimizers.parameters[0].register_hook(lambda grad: grad * float("nan"))
        before = weights(run.learning.learner.model)
        state = step(state)
        assert (state.guard.in_a_row, run.learning.learner.step) == (1, 2)
        assert same(run.learning.learner.model, before)
        with pytest.raises(TrainingError, match=r"non_finite.* in 2 steps in a row, after 0 returns"):
            step(state)
    rows = read_metrics(run.folder.root / "metrics.jsonl")
    assert [(row["update/steps"], row["update/non_finite"]) for row in rows] == [(0, 1), (0, 1)]


def test_a_policy_that_is_certain_is_seen_where_every_group_is_dead(tmp_path, caller):
    recipe = write_task(tmp_path, caller)
    settings = ("guard.min_entropy=0.01", "guard.patience=1", "guard.max_fallbacks=0")
    with running(recipe, *settings) as (run, state, step):
        state = step(state)
        break_down(run.learning.learner.model)
        with pytest.raises(
            TrainingError,
            match=r"step 2: health/entropy = .* breaks guard\.min_entropy = 0\.01 in 1 step, after 0",
        ):
            step(state)
    fine, dead = read_metrics(run.folder.root / "metrics.jsonl")
    assert fine["health/entropy"] > 0.01
    assert (fine["update/steps"], dead["update/steps"]) == (1, 0)
    assert (dead["group/zero_variance"], dead["update/entropy"]) == (1.0, None)
    assert -1e-6 < dead["health/entropy"] < 0.01


def test_a_recipe_without_a_guard_has_one_that_stops_a_lost_run(tmp_path, caller):
    recipe = write_task(tmp_path, caller)
    with running(recipe) as (run, state, step):
        state = step(state)
        assert "max_repetition" in state.guard.passed
        break_down(run.learning.learner.model)
        broken = weights(run.learning.learner.model)
        for _ in range(2):
            state = step(state)
        with pytest.raises(
            TrainingError, match=r"step 4: health/.* in 3 steps in a row: .* lower learner\.optimizer\.rate"
        ):
            step(state)
        assert same(run.learning.learner.model, broken)
    rows = read_metrics(run.folder.root / "metrics.jsonl")
    assert [row["guard/violated"] for row in rows] == [0, 1, 1, 1]
    assert not checkpoint_folder(run.folder.root, 0).exists()


def test_without_a_guard_nothing_is_looked_at(tmp_path, caller):
    recipe = write_task(tmp_path, caller)
    with running(recipe, "guard.enabled=false") as (run, state, step):
        break_down(run.learning.learner.model)
        for _ in range(3):
            state = step(state)
        assert state.guard is None
    rows = read_metrics(run.folder.root / "metrics.jsonl")
    assert all(row["health/repetition"] > 0.9 for row in rows)
    assert not any(name.startswith("guard/") for name in rows[0])
    assert not checkpoint_folder(run.folder.root, 0).exists()
