"""The research loop in Python: the bits of the same recipe under `ramify train`, in a thread, and in a running event loop."""

import asyncio
import json
import os
import shutil
import signal
import threading
from itertools import count
from pathlib import Path

import pytest

import ramify as rf
from e2e_runs import TRAIN, overrides, write_task
from ramify.cli import main
from ramify.core.errors import ConfigError, DataError
from ramify.obs.trace import read_trees
from ramify.runs.run_folder import RunFolder

STEPS = 2


@pytest.fixture(scope="module")
def task(tmp_path_factory, caller):
    return write_task(tmp_path_factory.mktemp("loop") / "task", caller, TRAIN)


@pytest.fixture(scope="module")
def run(task):
    """A finished run of the recipe."""
    assert main(["train", str(task), *overrides({"run.steps": STEPS, "reward.name": "length"})]) == 0
    return RunFolder(task.parent / "run")


def weights(folder):
    return (folder / "model.safetensors").read_bytes()


def policy_of(model):
    return rf.Policy(
        model,
        learner=rf.Learner(rate=1e-3, problems_per_minibatch=2),
        engine=rf.LocalEngine(slots=12),
        seed=3,
        threads=1,
        deterministic=True,
    )


def agent_of(policy, folder):
    return rf.Agent(
        policy,
        tools=[
            rf.tools.LocalSearch(corpus=folder / "passages.jsonl", top_k=1),
            rf.tools.Python(timeout_seconds=10),
            rf.Sandbox(min_level=0),
        ],
        limits=rf.Limits(max_prompt_tokens=200, max_tokens=64, max_calls=2),
    )


def loop(model, folder, branching, algorithm, steps=STEPS):
    """The loop of docs/python.md; returns the trees of each step, the reports, and the policy."""
    policy, grown, reports = policy_of(model), [], []
    with agent_of(policy, folder) as agent:
        problems = rf.problems(folder / "problems.jsonl", seed=3)
        for batch, _ in zip(problems.batches(2), range(steps), strict=False):
            trees = rf.score(agent.rollout(batch, n=6, m=3, branching=branching), rf.rewards.Length())
            reports.append(policy.update(trees, algorithm))
            grown.append(trees)
            # A look aside changes no draw of the loop, and no bit.
            agent.rollout(start=trees[0][trees[0].core.roots[0].id.rpartition(".")[0]], n=2)
            rf.evaluate(agent, problems[:2])
    return grown, reports, policy


def test_a_loop_gives_the_bits_of_the_recipe(task, run, caller, tmp_path):
    rule = rf.branching.Bernoulli(probe_tokens=4)
    algorithm = {"estimator": {"name": "group"}, "loss": {"name": "clip"}}
    grown, reports, policy = loop(caller, task.parent, rule, algorithm)
    for step, trees in enumerate(grown, start=1):
        recorded = read_trees(run.trees(step))
        assert [tree.core for tree in trees] == [traced.tree for traced in recorded]
        assert [tree.rewards for tree in trees] == [traced.rewards for traced in recorded]
        credited = rf.credit(trees, algorithm)
        assert [tuple(each.advantage for each in tree.trajectories) for tree in credited] == [
            traced.advantages for traced in recorded
        ]
    assert any(tree.core.decisions for trees in grown for tree in trees)
    assert [report.step for report in reports] == [1, 2]
    assert all(report.num_steps == 1 for report in reports)
    saved = policy.save(tmp_path / "saved")
    assert weights(saved) == weights(run.root / "checkpoints" / f"step-{STEPS:06d}")
    assert rf.Policy(saved).config.dialect == "tags"


def test_own_functions_that_are_the_same_give_the_same_bits(task, run, caller, tmp_path):
    algorithm = rf.algorithms.Algorithm.model_validate(
        {
            "estimator": rf.algorithms.own(
                lambda rewards, tree: (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)
            ),
            "loss": rf.algorithms.own(
                lambda ratio, sign: ratio.clamp(max=1.2) if sign > 0 else ratio.clamp(min=0.8)
            ),
        }
    )
    rule = rf.branching.Function(lambda d: 0.5 + 0.335 * d.entropy_delta, probe_tokens=4)
    _, _, policy = loop(caller, task.parent, rule, algorithm)
    saved = policy.save(tmp_path / "saved")
    assert weights(saved) == weights(run.root / "checkpoints" / f"step-{STEPS:06d}")


def test_ctrl_c_stops_a_rollout_and_the_agent_goes_on(task, caller):
    interruptions = [signal.SIGINT]

    def interrupts(candidate):
        # Once: a second one could come when nobody expects it any more.
        if interruptions:
            os.kill(os.getpid(), interruptions.pop())
        return 0.5

    def count(completions):
        return list(range(len(completions)))

    policy = policy_of(caller)
    problems = rf.problems(task.parent / "problems.jsonl", limit=2)
    with agent_of(policy, task.parent) as agent:
        before = signal.getsignal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            agent.rollout(problems, n=6, m=3, branching=rf.branching.Function(interrupts, probe_tokens=4))
        assert signal.getsignal(signal.SIGINT) is before
        trees = agent.rollout(problems, n=4)
        # Scored in two ways, or grown by two policies, trees have one key.
        both = [*rf.score(trees[:1], "length"), *rf.score(trees[:1], count)]
        by_model, by_record = (rf.credit(both, "arpo", *own) for own in ((policy,), ()))
        for ours, theirs in zip(by_model, by_record, strict=True):
            assert [each.advantage for each in ours.trajectories] == [
                each.advantage for each in theirs.trajectories
            ]
        report = policy.update(rf.score(trees, "length"))
        assert report.num_steps == 1
        assert len(agent.rollout(problems, n=2)) == 2
    agent.close()
    with pytest.raises(ConfigError, match=r"Policy\.save: .* cannot be created"):
        policy.save(task / "saved")


def test_in_a_thread_and_in_a_running_loop(task, caller):
    question = "what is 12 plus 3 ?"

    async def in_a_notebook(agent):
        # A blocking method works although the loop of this thread runs, and so do the twins.
        return [agent.rollout(question, n=2), await agent.rollout_async(question, n=2)]

    results = {}

    def in_a_thread():
        with agent_of(policy_of(caller), task.parent) as agent:
            results["thread"] = [agent.rollout(question, n=2), agent.rollout(question, n=2)]

    worker = threading.Thread(target=in_a_thread)
    worker.start()
    worker.join()
    with agent_of(policy_of(caller), task.parent) as agent:
        results["loop"] = asyncio.run(in_a_notebook(agent))
    first, second = results["thread"]
    assert [tree.core for tree in first] != [tree.core for tree in second]
    for ours, theirs in zip(results["thread"], results["loop"], strict=True):
        assert [tree.core for tree in ours] == [tree.core for tree in theirs]


def test_trees_of_another_tokenizer_are_refused(task, caller, tmp_path):
    policy = policy_of(caller)
    with agent_of(policy, task.parent) as agent:
        trees = rf.score(agent.rollout("what is 12 plus 30 ?", n=2), rf.rewards.Length())
    other = tmp_path / "other"
    shutil.copytree(caller, other)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    ids = tokenizer["model"]["vocab"]
    ids["what"], ids["is"] = ids["is"], ids["what"]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(DataError, match=r"update: problem .*tokens are those of another model's tokenizer"):
        policy_of(other).update(trees)
    assert policy.update(trees).step == 1


def test_an_agent_that_cannot_be_made_closes_its_tools(task, caller, tmp_path):
    tools = [
        rf.tools.LocalSearch(corpus=task.parent / "passages.jsonl"),
        rf.tools.Cache(path=tmp_path / "cache.sqlite"),
    ]
    policy = policy_of(caller)
    with rf.Agent(policy, tools=tools, limits=rf.Limits(max_prompt_tokens=200, max_tokens=64)):
        assert is_open(tmp_path)
    assert not is_open(tmp_path)
    with pytest.raises(ConfigError, match="positions"):
        rf.Agent(policy, tools=tools, limits=rf.Limits(max_tokens=1_000_000))
    assert not is_open(tmp_path)


def is_open(folder):
    """Return True if this process has a file of the folder open."""
    return any(str(folder) in os.path.realpath(each) for each in Path("/proc/self/fd").iterdir())


def test_in_16_bits_a_policy_writes_or_trains_an_adapter(model_folder):
    def repeat(text: str) -> str:
        """Return the text again.

        Args:
            text: The text.
        """
        return text

    def trees_of(policy):
        limits = rf.Limits(max_prompt_tokens=200, max_tokens=12, max_calls=1)
        with rf.Agent(policy, tools=[repeat], limits=limits) as agent:
            return agent.rollout(["what is 12 plus 30 ?"], n=2)

    halves = {"dtype": "bfloat16", "threads": 1}
    with pytest.raises(
        ConfigError, match=r'dtype: "bfloat16" trains weights in float32 .*\. Train an adapter'
    ):
        rf.Policy(model_folder, learner=rf.Learner(rate=1e-3), **halves)
    policy = rf.Policy(model_folder, **halves)
    assert {str(parameter.dtype) for parameter in policy.model.parameters()} == {"torch.bfloat16"}
    assert len(trees_of(policy)[0].trajectories) == 2
    policy = rf.Policy(model_folder, learner=rf.Learner(rate=1e-3), lora=rf.LoRA(rank=2), **halves)
    numbers = count()
    trees = rf.score(trees_of(policy), lambda completions: [float(next(numbers)) for _ in completions])
    report = policy.update(trees, {"estimator": {"name": "group"}, "loss": {"name": "clip"}})
    assert report.num_steps == 1
    # As in a recipe: the engine's logprobs are too far off to be the old ones.
    assert report.metrics["update/weight_mean"] == pytest.approx(1.0, abs=0.2)
