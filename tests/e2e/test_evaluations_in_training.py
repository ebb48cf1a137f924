"""`[eval]`: the scores are those of `ramify eval`, training does not feel it, and kills change no bit."""

import json
import signal

import pytest
from test_kill_and_resume import PARTIAL, check_equal_runs, checkpoint, files_of

from e2e_runs import DPO, EVAL, SFT, TRAIN, overrides, write_task
from ramify.obs.metrics import read_metrics

KINDS = {"train": TRAIN, "sft": SFT, "dpo": DPO}
LIMITS = (
    *("max_tokens=48", "max_calls=1", "max_turn_tokens=40", "attempts=2"),
    *("temperature=0.9", "top_p=0.95", "top_k=50", "min_p=0.001", "repetition_penalty=1.05"),
)
SHARED = (
    *("run.steps=5", "run.seed=3", "run.threads=1", "run.deterministic=true", "run.save_every=1", "run.keep_last=20"),
    *("learner.optimizer.rate=1e-2", "learner.token_budget=200"),
)  # fmt: skip
AGENT = (
    *("reward.name=hierarchical", "engine.name=local", "engine.slots=12", "sandbox.min_level=0"),
    "eval.max_prompt_tokens=200",
)


def attempt(line):
    """A traced tree; `ramify eval` reports more parts of a reward."""
    tree = json.loads(line)
    return {**tree, "rewards": [reward["value"] for reward in tree["rewards"]]}


def task(kind, folder, caller):
    """A recipe, whose prompts show the same tools in training and in evaluations, and the words of its command."""
    recipe = write_task(folder, caller, KINDS[kind])
    corpus = f"tools.search.corpus={str(folder / 'passages.jsonl')!r}"
    tools = (corpus, "tools.search.top_k=1", "tools.python.timeout_seconds=10")
    return recipe, (
        kind,
        recipe,
        *overrides(*SHARED, *tools, *(("reward.name=hierarchical",) * (kind == "train"))),
    )


def settings_of(recipe, *more):
    own = (f"test={str(recipe.parent / 'problems.jsonl')!r}", "every=2", "limit=7", *LIMITS, *more)
    return overrides(*AGENT, *(f"eval.{setting}" for setting in own))


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def evaluated(kind, tmp_path_factory, caller, forked):
    """Five steps, evaluated at 0, 2, 4 and, since it is the last, 5."""
    recipe, command = task(kind, tmp_path_factory.mktemp("evaluated"), caller)
    status, output, errors = forked(*command, *settings_of(recipe))
    assert status == 0, errors
    assert output.count("eval/pass@1") == 4
    # The demonstrations ask one question, which is no problem; the pairs ask eight.
    assert ("eval.test: 7 of 7 problems are trained on" in output) == (kind != "sft")
    # All scores are equal, and on a tie the later one is better.
    assert "checkpoints/step-000005 (score " in output
    return recipe.parent / "run"


def test_the_scores_are_those_of_ramify_eval_on_the_saved_checkpoints(evaluated, tmp_path, forked):
    rows = read_metrics(evaluated / "evals.jsonl")
    assert [row["step"] for row in rows] == [0, 2, 4, 5]
    for step in (2, 5):
        model = evaluated / "checkpoints" / f"step-{step:06d}"
        recipe = write_task(tmp_path / str(step), model, EVAL)
        run = ("run.seed=3", "run.threads=1", "run.deterministic=true", "engine.slots=12")
        tools = ("tools.search.top_k=1", "tools.python.timeout_seconds=10", "sandbox.min_level=0")
        sampling = (f"sampling.{setting}" for setting in LIMITS)
        status, _, errors = forked(
            "eval", recipe, *overrides(*run, *tools, *sampling, "sampling.k=[1]", "data.limit=7")
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


def test_training_does_not_feel_it(kind, evaluated, tmp_path, caller, forked):
    recipe, command = task(kind, tmp_path, caller)
    assert forked(*command)[0] == 0
    run = recipe.parent / "run"
    (weights, state), (others, other) = checkpoint(run, scored=False), checkpoint(evaluated, scored=False)
    assert weights == others
    assert state == other
    assert files_of(run / "trees") == files_of(evaluated / "trees")


INSTANTS = (
    (r"^os.rename .*/evals/000000\.jsonl\.part", 1),
    (r"^open .*/evals\.jsonl a", 2),
    (r"^os.rename .*" + PARTIAL % 4, 1),
    (r"^os.rename .*/evals/000004\.jsonl\.part", 1),
)


def test_kills_within_evaluations_change_no_bit(kind, evaluated, tmp_path, caller, forked):
    recipe, command = task(kind, tmp_path, caller)
    for instant in INSTANTS:
        status, _, errors = forked(*command, *settings_of(recipe), "--resume", at=instant)
        assert status == -signal.SIGKILL, (instant, errors)
    status, _, errors = forked(*command, *settings_of(recipe), "--resume")
    assert status == 0, errors
    run = recipe.parent / "run"
    check_equal_runs(run, evaluated)
    assert files_of(run / "evals") == files_of(evaluated / "evals")
    rows, others = ([dict(r, time=0) for r in read_metrics(f / "evals.jsonl")] for f in (run, evaluated))
    assert rows == others


def test_what_a_start_without_a_step_evaluated_is_no_result_of_the_next(tmp_path, caller, forked):
    recipe, command = task("train", tmp_path, caller)
    instant = (r"^open .*/trees/000001\.jsonl\.part", 1)
    status, _, errors = forked(*command, *settings_of(recipe), at=instant)
    assert status == -signal.SIGKILL, errors
    first = recipe.parent / "run" / "evals" / "000000.jsonl"
    assert len(first.read_text().splitlines()) == 14
    status, _, errors = forked(*command, *settings_of(recipe), *overrides("eval.limit=3"), "--max-steps", 1)
    assert status == 0, errors
    assert len(first.read_text().splitlines()) == 6


def test_a_damaged_record_of_evaluations_is_one_line(tmp_path, caller, forked):
    recipe, command = task("sft", tmp_path, caller)
    assert forked(*command, *settings_of(recipe), "--max-steps", 1)[0] == 0
    with (recipe.parent / "run" / "evals.jsonl").open("a") as file:
        file.write('{"step":1,"time":1.0}\n')
    status, _, errors = forked(*command, *settings_of(recipe), "--resume")
    assert status == 2
    assert "evals.jsonl row 2: expected a number 'eval/pass@1'" in errors


def test_attempts_that_failed_are_noted(tmp_path, caller, forked):
    recipe, command = task("sft", tmp_path, caller)
    own = tmp_path / "picky.py"
    own.write_text("def picky(final_answer, answer):\n    return 1.0 if answer == ['5'] else 1 / 0\n")
    problems = [{"prompt": f"what is {n} ?", "answer": str(n)} for n in (5, 6)]
    (recipe.parent / "problems.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in problems))
    reward = f"reward.own=[{{path={str(own)!r},function='picky',weight=0.0}}]"
    status, output, errors = forked(*command, *settings_of(recipe), *overrides(reward), "--max-steps", 1)
    assert status == 0, errors
    assert "warning: step 0: 2 of 4 attempts failed and count as wrong; the first: problem '" in output


def test_a_lost_record_of_evaluations_is_noted(tmp_path, caller, forked):
    recipe, command = task("sft", tmp_path, caller)
    settings = settings_of(recipe)
    assert forked(*command, *settings, "--max-steps", 3)[0] == 0
    (recipe.parent / "run" / "evals.jsonl").unlink()
    status, output, errors = forked(*command, *settings, "--resume", "--max-steps", 4)
    assert status == 0, errors
    assert (
        "evals.jsonl has no line for 2 evaluations, the first is of step 0: eval.patience does not count"
        in output
    )


def test_when_it_is_evaluated_may_change_and_how_may_not(tmp_path, caller, forked):
    recipe, command = task("sft", tmp_path, caller)
    settings, run = settings_of(recipe), recipe.parent / "run"
    assert forked(*command, *settings, "--max-steps", 3)[0] == 0
    status, _, errors = forked(*command, *settings, *overrides("eval.attempts=3"), "--resume")
    assert status == 2
    assert "eval.attempts" in errors
    later = overrides("eval.every=4", "eval.patience=9", "eval.at_start=false")
    status, output, errors = forked(*command, *settings, *later, "--resume")
    assert status == 0, errors
    assert "goes on with eval.every = 4, it was 2" in output
    assert "has no line" not in output
    assert [row["step"] for row in read_metrics(run / "evals.jsonl")] == [0, 2, 4, 5]


@pytest.mark.parametrize("kind", ["train", "dpo"], indirect=True)
def test_without_a_better_score_the_run_ends_early(kind, tmp_path, caller, forked):
    """The policy cannot answer, so every score is that of the start."""
    recipe, command = task(kind, tmp_path, caller)
    never = ("max_tokens=1", "max_calls=0")
    settings = (*settings_of(recipe, "patience=2", *never), *overrides("eval.every=2"))
    status, output, errors = forked(*command, *settings)
    assert status == 0, errors
    run = recipe.parent / "run"
    assert [row["step"] for row in read_metrics(run / "metrics.jsonl")] == [1, 2, 3, 4]
    assert "no better eval/pass@1 in 2 evaluations" in output
    status, output, errors = forked(*command, *settings, "--resume")
    assert status == 0, errors
    assert len(read_metrics(run / "metrics.jsonl")) == 4


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        ("train", ("run.save_every=3",), "eval.every: expected a multiple of run.save_every = 3"),
        ("train", ("eval.max_tokens=65",), "eval.max_tokens: expected at most rollout.max_tokens = 64, got 65"),
        ("train", ("reward.name=length",), "eval: needs a reward that tells right from wrong"),
        ("train", ("eval.test=nowhere.jsonl",), "eval.test: expected a file"),
        ("dpo", ("run.save_every=3",), "eval.every: expected a multiple of run.save_every = 3"),
        ("sft", ("reward.name=length",), "reward.name: expected a reward that tells right from wrong"),
        ("sft", ("eval.max_tokens=", "reward="), "eval: attempts need [reward], eval.max_tokens too. Add what"),
        ("sft", ("eval=",), "engine: has no effect without [eval]. Remove it."),
        ("sft", ("eval.max_tokens=8192",), "8192 positions, but prompt and response may take 8392"),
        ("sft", ("tools=",), "tools: expected [tools.search], [tools.python] or [[tools.own]]"),
    ],
    indirect=["kind"],
)  # fmt: skip
def test_what_cannot_be_evaluated_is_refused_before_anything_is_loaded(
    kind, tmp_path, caller, forked, settings, message
):
    recipe, command = task(kind, tmp_path, caller)
    status, _, errors = forked(*command, *settings_of(recipe), *overrides(*settings))
    assert status == 2
    assert message in errors
