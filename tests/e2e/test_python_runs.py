"""`rf.Trainer`: the recipe as an object, which the command line runs and goes on with; runs, evaluations and comparisons."""

import signal
import threading
from dataclasses import replace

import pytest

import ramify as rf
from e2e_runs import TRAIN, read_lines, write_task
from ramify.cli import main
from ramify.core.errors import ConfigError, DataError

PARTS = '''
def right(completions, answer):
    """Return 1 for an answer that names the gold, else a little for its length."""
    return [float(gold[0] in text) + len(text) / 1000 for text, gold in zip(completions, answer)]

def rule(candidate):
    return 0.5 + 0.335 * candidate.entropy_delta
'''


@pytest.fixture
def task(tmp_path, caller, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "parts.py").write_text(PARTS)
    return write_task(tmp_path / "task", caller, TRAIN)


def trainer_of(task, folder, **tables):
    """Return a trainer whose functions stand in a file."""
    own = {"path": "parts.py", "function": "right"}
    rule = {"name": "file", "path": "parts.py", "function": "rule", "probe_tokens": 4}
    tables = {"reward": {"name": "parts", "own": [own]}, "rollout": {"branching": rule}, **tables}
    return rf.Trainer.from_recipe(task, run={"dir": str(folder)}, **tables)


def weights(run):
    return (run.checkpoint / "model.safetensors").read_bytes()


def test_a_python_run_goes_on_from_the_command_line_to_the_same_bits(task, tmp_path, forked):
    whole = trainer_of(task, tmp_path / "whole").train(steps=2)
    results = {}
    worker = threading.Thread(
        target=lambda: results.update(run=trainer_of(task, tmp_path / "part").train(steps=1))
    )
    worker.start()
    worker.join()
    part = results["run"]
    assert len(part.metrics) == 1
    status, _, err = forked("train", part.dir / "recipe.toml", "--resume", "-s", "run.steps=2")
    assert status == 0, err
    assert weights(part) == weights(whole)
    assert part.steps == whole.steps == (1, 2)
    assert [tree.core for tree in part.trees(2)] == [tree.core for tree in whole.trees(2)]
    assert whole.metrics.column("reward/mean") == part.metrics.column("reward/mean")
    assert whole.trees(1)[0].tokens.column("token")[0] == "<|im_start|>"
    assert whole.best.parent == whole.dir / "checkpoints"
    with pytest.raises(ConfigError, match="expected the folder of a run, "):
        rf.open_run(tmp_path)
    with pytest.raises(DataError, match="no such file"):
        whole.trees(9)


def test_a_trainer_in_a_file_that_is_killed_goes_on_to_the_same_bits(task, tmp_path, forked):
    def write(name):
        own = {"path": str(tmp_path / "parts.py"), "function": "right"}
        tables = f"run={{'dir': {str(tmp_path / name)!r}}}, reward={{'name': 'parts', 'own': [{own}]}}"
        file = tmp_path / f"{name}.py"
        file.write_text(f"import ramify as rf\n\ntrainer = rf.Trainer.from_recipe({str(task)!r}, {tables})\n")
        return f"{file}:trainer"

    two = ("-s", "run.steps=2")
    status, _, message = forked("train", write("whole"), *two)
    assert status == 0, message
    killed = write("killed")
    status, _, message = forked("train", killed, *two, at=(r"^open .*/metrics\.jsonl a", 2))
    assert status == -signal.SIGKILL, message
    status, _, message = forked("train", killed, *two, "--resume")
    assert status == 0, message
    runs = [rf.open_run(tmp_path / name) for name in ("whole", "killed")]
    assert weights(runs[0]) == weights(runs[1])
    assert runs[0].metrics.column("reward/mean") == runs[1].metrics.column("reward/mean")


def test_a_reward_with_an_unknown_parameter_is_refused_before_the_run(task, tmp_path, capsys):
    (tmp_path / "parts.py").write_text("def right(text, kind):\n    return 1.0\n")
    trainer = trainer_of(task, tmp_path / "run", rollout={})
    expected = "reward right: unknown parameter 'text'. Use answer, completions, "
    with pytest.raises(DataError, match=expected):
        trainer.check(rows=True)
    with pytest.raises(DataError, match=expected):
        trainer.train(steps=1)
    assert not (tmp_path / "run" / "trees").exists()


def test_a_run_of_lambdas_says_that_only_python_can_go_on(task, tmp_path, forked, capsys):
    def right(completions):
        return [float(len(text)) for text in completions]

    trainer = rf.Trainer.from_recipe(
        task,
        run={"dir": str(tmp_path / "run")},
        reward=right,
        rollout=rf.Rollout(branching=rf.branching.Function(lambda d: 0.6, probe_tokens=4)),
    )
    run = trainer.train(steps=1)
    assert (
        "no file has these functions at its top, so only Python can go on with this run"
        in capsys.readouterr().out
    )
    with pytest.raises(ConfigError, match="go on with resume=True or name a new folder"):
        trainer.train(steps=2)
    run = trainer.train(steps=2, resume=True)
    assert len(run.metrics) == 2
    status, _, err = forked("train", run.dir / "recipe.toml", "--resume")
    assert status == 2
    assert "a function of another Python session, which no file has. Go on from Python" in err
    assert len(err.strip().splitlines()) == 1


def test_the_recipe_of_a_trainer_is_what_the_command_line_reads(task, tmp_path, caller, capsys):
    trainer = rf.Trainer(
        caller,
        train=[{"prompt": f"what is {n} ?", "answer": n} for n in range(20)],
        reward="answer",
        tools=rf.tools.Python(timeout_seconds=5),
        rollout=rf.Rollout(n=4),
        algorithm="grpo",
        lora=rf.LoRA(4),
        eval=rf.Eval(task.parent / "problems.jsonl", every=10),
        learner=rf.Learner(rate=1e-4, problems_per_minibatch=8),
        dir=tmp_path / "own",
        data={"max_prompt_tokens": 200},
    )
    recipe = tmp_path / "printed.toml"
    recipe.write_text(trainer.recipe)
    assert rf.Trainer.from_recipe(recipe).recipe == trainer.recipe
    capsys.readouterr()
    assert main(["train", str(recipe), "--dry-run"]) == 0
    assert capsys.readouterr().out == trainer.check()
    assert trainer.config.rollout.m is None
    assert trainer.config.learner.optimizer.rate == 1e-4
    assert len(read_lines(trainer.config.data.train)) == 20
    assert trainer.estimate(gpu_memory=80, gpus=1).startswith("one GPU of 80 GiB")
    (tmp_path / "my_run.py").write_text(
        f'import ramify as rf\ntrainer = rf.Trainer.from_recipe("{recipe}", rollout=rf.Rollout(n=5, m=None))\n'
    )
    assert main(["train", "my_run.py:trainer", "--dry-run", "-s", "run.seed=7"]) == 0
    out = capsys.readouterr().out
    assert "\nn = 5\n" in out
    assert "\nseed = 7\n" in out
    assert main(["train", "my_run.py:rf", "--dry-run"]) == 2
    assert "my_run.py: rf: expected a ramify.Trainer, got module" in capsys.readouterr().err


def test_examples_and_pairs_have_the_same_shape(task, caller, tmp_path):
    rows = read_lines(task.parent / "demonstrations.jsonl")
    sft = rf.SFT(
        caller,
        train=rows,
        learner=rf.Learner(rate=1e-3, batch_size=2),
        dir=tmp_path / "sft",
        data={"max_tokens": 200},
    )
    assert sft.check().startswith("[model]\n")
    dpo = rf.DPO(
        caller,
        train=task.parent / "pairs.jsonl",
        learner=rf.Learner(beta=0.2, batch_size=4, rate=1e-3),
        dir=tmp_path / "dpo",
        data={"max_tokens": 120, "epochs": 1},
        log=[],
    )
    run = dpo.train()
    assert len(run.metrics) == 2
    assert dpo.config.learner.beta == 0.2
    assert repr(run).startswith("Run(")


def test_an_evaluation_and_a_comparison(task, caller):
    search = rf.tools.LocalSearch(corpus=task.parent / "passages.jsonl", top_k=1)
    limits = rf.Limits(max_prompt_tokens=200, max_tokens=48, max_calls=2, temperature=0.9)
    policy = rf.Policy(caller, threads=1, deterministic=True)
    problems = rf.problems(task.parent / "problems.jsonl", limit=4)
    with rf.Agent(policy, tools=search, limits=limits) as agent:
        results = rf.evaluate(agent, problems, attempts=2)
        again = rf.evaluate(agent, problems, attempts=2, reward=lambda completions: [2.0] * len(completions))
        with pytest.warns(RuntimeWarning, match="evaluate: failed and skipped: .* it raised KeyError"):
            rf.evaluate(
                agent, problems[:2], reward=lambda answer: {problems[0].answer[0]: [1.0]}[answer[0][0]]
            )
        with pytest.raises(DataError, match=r"none of 2 problems worked; the first: .* it raised KeyError"):
            rf.evaluate(agent, problems[:2], reward=lambda answer: {}[answer[0][0]])
        with pytest.raises(ConfigError, match='right from wrong, "length" does not'):
            rf.evaluate(agent, problems, reward="length")
        with pytest.raises(DataError, match="evaluate: 2 problems have the id "):
            rf.evaluate(agent, [*problems, problems[0]])
    assert len(results) == len(results.trees) == len(results.attempts) == 8
    assert again.score == 1.0
    assert results.trees.temperature == 0.9
    assert rf.compare(results, again).value == pytest.approx(1.0 - results.score)
    assert rf.compare(results.trees, again.trees).column("trees") == [8, 8]
    assert len(repr(results)) < 200
    # Rows of Python have the ids rows-1, rows-2, ... whatever they are.
    others = replace(again, problems=tuple(replace(each, answer=("another",)) for each in again.problems))
    with pytest.raises(DataError, match="compare: the results are of different problems "):
        rf.compare(results, others)
    with pytest.raises(ConfigError, match="compare: expected two results, two folders or two trees, "):
        rf.compare(results, agent)
    with pytest.raises(ConfigError, match=r"its learner has no rate\. "):
        policy.update(results.trees)


def test_an_evaluation_says_what_is_wrong_with_its_reward_and_its_problems(task, caller):
    def picky(final_answer, answer):
        if answer == ["2"]:
            raise ValueError("no")
        return 1.0

    limits = rf.Limits(max_prompt_tokens=200, max_tokens=16, max_calls=1)
    policy = rf.Policy(caller, threads=1, deterministic=True)
    first, second = ([{"prompt": f"what is {n} ?", "answer": str(n)}] for n in (1, 2))
    search = rf.tools.LocalSearch(corpus=task.parent / "passages.jsonl", top_k=1)
    with rf.Agent(policy, tools=search, limits=limits) as agent:
        with pytest.raises(ConfigError, match='tells right from wrong, "length" does not'):
            rf.evaluate(agent, first, reward="length")
        with pytest.raises(
            DataError, match=r"none of 1 problems worked; the first: .* raised ValueError: no"
        ):
            rf.evaluate(agent, second, reward=picky)
        with pytest.warns(RuntimeWarning) as warned:
            both = rf.evaluate(agent, [*first, *second], reward=picky)
        # Rows without an id have the same ones in both.
        with pytest.raises(DataError, match="compare: the results are of different problems"):
            rf.compare(rf.evaluate(agent, first), rf.evaluate(agent, second))
    assert both.score == 0.5
    texts = [str(each.message) for each in warned]
    assert any("evaluate: failed and skipped: problem" in text for text in texts)
    assert any("evaluate: 1 of 2 attempts have no 'picky" in text for text in texts)
