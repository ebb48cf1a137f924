"""Functions that cannot be used: one sentence that names the function, its file and its line, and the trajectory if there is one."""

import asyncio
import math
import threading

import numpy as np
import pytest

import ramify as rf
from ramify.algos.branch_rules import RuleSetup
from ramify.core.errors import ConfigError, DataError
from ramify.core.records import BranchCandidate, Reward
from ramify.core.tree import Entropy
from random_trees import random_tree, sampled

CANDIDATE = BranchCandidate((0, 0), 1, 0, (Entropy(0.5, 0.5), Entropy(0.7, 0.7)), 0, 0.5)


@pytest.fixture(scope="module")
def tree():
    rng = np.random.default_rng(3)
    core = sampled(rng, random_tree(rng), -1.0)
    return rf.Tree(core, tuple(Reward(float(value), {}) for value in rng.normal(size=len(core.trajectories))))


def raises(error):
    def fails(*args, **keywords):
        raise error

    return fails


# Each is called own_function, so that messages can be compared with one name.
def rewards():
    def batch(body):
        def own_function(completions, answer):
            return body(completions)

        return own_function

    def single(body):
        def own_function(final_answer, answer):
            return body(final_answer)

        return own_function

    def verl(body):
        def own_function(data_source, solution_str, ground_truth, extra_info):
            return body(solution_str)

        return own_function

    def needs(completions, no_such_column):
        return [0.0] * len(completions)

    needs.__name__ = "own_function"
    return {
        "raises": (batch(raises(KeyError("level"))), "it raised KeyError: 'level'"),
        # None of these may end the event loop or leave the caller waiting.
        "exits": (batch(raises(SystemExit(3))), "it raised SystemExit: 3"),
        "interrupts": (single(raises(KeyboardInterrupt())), "it raised KeyboardInterrupt"),
        "stops": (verl(raises(StopIteration())), "it raised StopIteration"),
        "cancels": (batch(raises(asyncio.CancelledError())), "it raised CancelledError"),
        "none": (batch(lambda c: None), "numbers, got NoneType"),
        "number": (batch(lambda c: 1.0), "numbers, got float"),
        "mean": (batch(lambda c: np.mean([1.0] * len(c))), "numbers, got float"),
        "short": (batch(lambda c: [1.0]), "one for each completion, got 1"),
        "nan": (batch(lambda c: [math.nan] * len(c)), "expected a number from -1e9 to 1e9 or None, got nan"),
        "text": (batch(lambda c: ["1"] * len(c)), "or None, got '1'"),
        "huge": (batch(lambda c: [10**400] * len(c)), "got a larger number"),
        "infinite": (batch(lambda c: [-math.inf] * len(c)), "got -inf"),
        "lists": (batch(lambda c: [[1.0]] * len(c)), "got [1.0]"),
        "column": (
            needs,
            "unknown parameter 'no_such_column'. Use answer, completions, prompts, trajectories",
        ),
        "single raises": (single(raises(ValueError("no"))), "it raised ValueError: no"),
        "single nan": (single(lambda a: math.nan), "got nan"),
        "single list": (single(lambda a: [1.0]), "got [1.0]"),
        "verl raises": (verl(raises(TypeError("no"))), "it raised TypeError: no"),
        "verl dict": (verl(lambda s: {"score": None, "acc": 1}), ""),
        "verl without": (verl(lambda s: {"acc": 1}), "got {'acc': 1}"),
    }


def check(message, *parts):
    assert "\n" not in message
    assert "own_function" in message
    assert "test_wrong_functions.py, line " in message
    for part in parts:
        assert part in message


@pytest.mark.parametrize("name", rewards())
def test_a_reward(tree, name):
    function, reason = rewards()[name]
    with pytest.raises(DataError) as caught:
        rf.score(tree, function)
    if not reason:
        # None of all answers: the part does not apply to the problem.
        assert "no part of the reward applies" in str(caught.value)
        return
    check(str(caught.value), reason)
    if "single" in name or name in ("nan", "huge", "text"):
        assert ", trajectory '" in str(caught.value)


def test_a_reward_that_fails_ends_the_calls_beside_it(tree):
    ended = threading.Event()
    fails = [True]

    async def own_function(completions):
        if fails:
            raise KeyError(fails.pop())
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(DataError, match="it raised KeyError"):
        rf.score([tree, tree], own_function)
    assert ended.wait(20)


def test_an_async_reward_cannot_wait_for_its_own_loop(tree):
    async def own_function(completions):
        return [each.reward for each in rf.score(tree, "length")[0].trajectories]

    async def with_twin(completions):
        return [each.reward for each in (await rf.score_async(tree, "length"))[0].trajectories]

    with pytest.raises(DataError) as caught:
        rf.score(tree, own_function)
    check(str(caught.value), "Await the twin of the method")
    assert rf.score(tree, with_twin).mean == rf.score(tree, "length").mean


def named(function):
    function.__name__ = function.__qualname__ = "own_function"
    return function


ESTIMATORS = {
    "raises": (lambda rewards, tree: rewards / tree.nothing, "it raised AttributeError: "),
    "none": (lambda rewards, tree: None, "it returned "),
    "short": (lambda rewards, tree: rewards[:1], "it returned an array of shape [1] for "),
    "nan": (lambda rewards, tree: rewards * math.nan, "it returned nan for trajectory 0"),
    "text": (lambda rewards, tree: ["1"] * len(rewards), "it returned values of type "),
    "square": (lambda rewards, tree: np.outer(rewards, rewards), "it returned an array of shape ["),
    "parameters": (lambda rewards: rewards, "expected own_function"),
}
LOSSES = {
    "raises": (lambda ratio, sign: 1 / 0 * ratio, "it raised ZeroDivisionError: "),
    "number": (lambda ratio, sign: 1.0, "with sign 1 it returned 1.0. Return a tensor."),
    "sum": (lambda ratio, sign: ratio.sum(), "with sign 1 it returned a tensor []"),
    "mixes": (lambda ratio, sign: ratio * ratio.mean(), "the value of a token depends on the other tokens"),
    "no gradient": (lambda ratio, sign: ratio.detach(), "no gradient reaches the ratio"),
    "nan": (lambda ratio, sign: ratio.log().sqrt(), "a value or its gradient is not finite"),
    "half": (lambda ratio, sign: ratio.half(), "with sign 1 it returned a tensor "),
    "parameters": (lambda ratio: ratio, "expected own_function"),
}
RULES = {
    "raises": (lambda d: d.nothing, "it raised AttributeError: "),
    "none": (lambda d: None, "it returned a value of type NoneType"),
    "nan": (lambda d: math.nan, "it returned nan"),
    "text": (lambda d: "0.5", "it returned a value of type str"),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_an_estimator(tree, name):
    function, reason = ESTIMATORS[name]
    with pytest.raises(ConfigError) as caught:
        rf.credit(tree, rf.algorithms.ARPO(estimator=named(function)))
    check(str(caught.value), reason)


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss(name):
    function, reason = LOSSES[name]
    with pytest.raises(ConfigError) as caught:
        rf.algorithms.ARPO(loss=named(function)).loss.build()
    check(str(caught.value), reason)


@pytest.mark.parametrize("name", RULES)
def test_a_rule(name):
    function, reason = RULES[name]
    rule = rf.branching.Function(named(function)).build(RuleSetup(2, 100, float, pytest.fail))
    with pytest.raises(ConfigError) as caught:
        rule.propose(CANDIDATE, ())
    check(str(caught.value), reason, "tree 0 of the step, node '0.0'")


def test_marks_refuse_another_form_where_it_is_defined():
    def own_function(anything):
        return anything

    async def never(candidate):
        return 0.5

    with pytest.raises(ConfigError, match=r"line \d+\): expected a plain function, got an async one"):
        rf.branching_rule(never)

    for mark, form in (
        (rf.advantage, "own_function(rewards, tree)"),
        (rf.token_loss, "own_function(ratio, sign)"),
    ):
        with pytest.raises(ConfigError) as caught:
            mark(own_function)
        check(str(caught.value), f"expected {form}")
    with pytest.raises(ConfigError) as caught:
        rf.tool(own_function)
    check(str(caught.value), "no docstring. Write one")
    assert (
        rf.branching_rule(own_function)
        is rf.rewriter(own_function)
        is rf.reward(own_function)
        is own_function
    )
