"""`[eval]`: the scores are those of `ramify eval`, training does not feel it, and kills change no bit."""

import json
import signal

import pytest
from forked_runs import ForkedRuns
from test_kill_and_resume import PARTIAL, check_equal_runs, checkpoint, files_of

from e2e_runs import EVAL, TRAIN, write_task
from ramify.obs.metrics import read_metrics

RUN = ("reward.name=hierarchical", "run.keep_last=20", "learner.optimizer.rate=1e-2")
LIMITS = ("max_tokens=48", "max_calls=1", "temperature=0.9", "top_p=0.95", "attempts=2")


def attempt(line):
    """A traced tree; `ramify eval` reports more parts of a reward."""
    tree = json.loads(line)
    return {**tree, "rewards": [reward["value"] for reward in tree["rewards"]]}


def words(*settings):
    return [word for setting in settings for word in ("-s", setting)]


@pytest.fixture(scope="module")
def forked(tmp_path_factory):
    runs = ForkedRuns(tmp_path_factory.mktemp("said"))
    yield runs
    runs.close()


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory, caller, forked):
    """Nine steps, evaluated at 0, 4, 8 and, since it is the last, 9."""
    recipe = write_task(tmp_path_factory.mktemp("evaluated"), caller)
    status, said, errors = forked("train", recipe, *settings_of(recipe))
    assert status == 0, errors
    assert said.count("eval/pass@1") == 4
    assert "eval.test: 7 of 7 problems are trained on" in said
    # All scores are equal, and on a tie the later one is better.
    assert "checkpoints/step-000009 (score " in said
    return recipe.parent / "run"


def settings_of(recipe, *more):
    own = (f"test={str(recipe.parent / 'problems.jsonl')!r}", "every=4", "limit=7", *LIMITS, *more)
    return words(*RUN, *(f"eval.{setting}" for setting in own))


def test_the_scores_are_those_of_ramify_eval_on_the_saved_checkpoints(evaluated, tmp_path, forked):
    rows = read_metrics(evaluated / "evals.jsonl")
    assert [row["step"] for row in rows] == [0, 4, 8, 9]
    for step in (4, 9):
        model = evaluated / "checkpoints" / f"step-{step:06d}"
        recipe = write_task(tmp_path / str(step), model, EVAL)
        run = ("run.seed=3", "run.threads=1", "run.deterministic=true", "engine.slots=12")
        tools = ("tools.search.top_k=1", "tools.python.timeout_seconds=10", "sandbox.min_level=0")
        sampling = (f"sampling.{setting}" for setting in LIMITS)
        status, _, errors = forked(
            "eval", recipe, *words(*run, *tools, *sampling, "sampling.k=[1]", "data.limit=7")
        )
        assert status == 0, errors
        summary = json.loads((recipe.parent / "run" / "summary.json").read_text())
        (row,) = (row for row in rows if row["step"] == step)
        assert row["eval/pass@1"] == summary["pass_at"]["1"]["value"]
        ours, theirs = (
            [attempt(line) for line in path.read_text().splitlines()]
            for path in (evaluated / "evals" / f"{step:06d}.jsonl", recipe.parent / "run" / "trees.jsonl")
        )
        assert len(ours) == 14
        assert ours == theirs


def test_training_does_not_feel_it(evaluated, tmp_path, caller, forked):
    recipe = write_task(tmp_path, caller)
    assert forked("train", recipe, *words(*RUN))[0] == 0
    run = recipe.parent / "run"
    (weights, state), (others, other) = checkpoint(run, scored=False), checkpoint(evaluated, scored=False)
    assert weights == others
    assert state == other
    assert files_of(run / "trees") == files_of(evaluated / "trees")


@pytest.mark.parametrize(
    "instant",
    [
        (r"^os.rename .*/evals/000000\.jsonl\.part", 1),
        (r"^open .*/evals\.jsonl a", 2),
        (r"^os.rename .*/evals/000008\.jsonl\.part", 1),
        (r"^os.rename .*" + PARTIAL % 8, 1),
    ],
)
def test_a_kill_within_an_evaluation_changes_no_bit(evaluated, tmp_path, caller, forked, instant):
    recipe = write_task(tmp_path, caller)
    status, _, errors = forked("train", recipe, *settings_of(recipe), at=instant)
    assert status == -signal.SIGKILL, errors
    status, _, errors = forked("train", recipe, *settings_of(recipe), "--resume")
    assert status == 0, errors
    run = recipe.parent / "run"
    check_equal_runs(run, evaluated)
    assert files_of(run / "evals") == files_of(evaluated / "evals")
    rows, others = ([dict(r, time=0) for r in read_metrics(f / "evals.jsonl")] for f in (run, evaluated))
    assert rows == others


def test_what_a_start_without_a_step_evaluated_is_no_result_of_the_next(tmp_path, caller, forked):
    recipe = write_task(tmp_path, caller)
    instant = (r"^open .*/trees/000001\.jsonl\.part", 1)
    status, _, errors = forked("train", recipe, *settings_of(recipe), at=instant)
    assert status == -signal.SIGKILL, errors
    first = recipe.parent / "run" / "evals" / "000000.jsonl"
    assert len(first.read_text().splitlines()) == 14
    status, _, errors = forked(
        "train", recipe, *settings_of(recipe), *words("eval.limit=3"), "--max-steps", 1
    )
    assert status == 0, errors
    assert len(first.read_text().splitlines()) == 6


def test_a_damaged_record_of_evaluations_is_one_line(evaluated, tmp_path, caller, forked):
    recipe = write_task(tmp_path, caller)
    assert forked("train", recipe, *settings_of(recipe), "--max-steps", 1)[0] == 0
    with (recipe.parent / "run" / "evals.jsonl").open("a") as file:
        file.write('{"step":1,"time":1.0}\n')
    status, _, errors = forked("train", recipe, *settings_of(recipe), "--resume")
    assert status == 2
    assert "evals.jsonl row 2: expected a number 'eval/pass@1'" in errors


def test_without_a_better_score_the_run_ends_early(tmp_path, caller, forked):
    """The policy cannot answer, so every score is that of the start."""
    recipe = write_task(tmp_path, caller)
    never = ("max_tokens=1", "max_calls=0")
    settings = (*settings_of(recipe, "patience=2", *never), *words("eval.every=2"))
    status, said, errors = forked("train", recipe, *settings)
    assert status == 0, errors
    run = recipe.parent / "run"
    assert [row["step"] for row in read_metrics(run / "metrics.jsonl")] == [1, 2, 3, 4]
    assert "no better eval/pass@1 in 2 evaluations" in said
    status, said, errors = forked("train", recipe, *settings, "--resume")
    assert status == 0, errors
    assert len(read_metrics(run / "metrics.jsonl")) == 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("run.save_every=3",), "eval.every: expected a multiple of run.save_every = 3"),
        (("eval.max_tokens=65",), "eval.max_tokens: expected at most rollout.max_tokens = 64, got 65"),
        (("reward.name=length",), "eval: needs a reward that tells right from wrong"),
        (("eval.test=nowhere.jsonl",), "eval.test: expected a file"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_before_anything_is_loaded(
    tmp_path, caller, forked, settings, message
):
    recipe = write_task(tmp_path, caller, TRAIN)
    status, _, errors = forked("train", recipe, *settings_of(recipe), *words(*settings))
    assert status == 2
    assert message in errors
