"""Functions in files as parts of an algorithm: they equal ramify's own, and each mistake is one line with its place."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch

import build
import own_parts
from branch_cases import candidate
from doc_pages import read_page
from loss_inputs import logprob_gradients, token_inputs
from ramify.algos.branch_rules import RuleSetup
from ramify.algos.file_parts import FileEstimator, FileLoss, FileRule
from ramify.algos.losses import CispoSurrogate
from ramify.assemble.algorithm import build_estimator, build_objective
from ramify.config.schema_algorithm import AlgorithmSection
from ramify.config.schema_rollout import RolloutSection
from ramify.core.errors import ConfigError
from ramify.core.records import Reward, ScoredTree
from ramify.core.tree import Source
from ramify.learner.wire import decode, encode
from random_trees import annotated, node, random_tree, sampled, some_rewards, tree_of

SETUP = RuleSetup(4, 1000, lambda _: 0.5, paired_run=pytest.fail)
EDGES = {"clip_low": 0.1, "clip_high": 0.15}
ESTIMATORS = {
    "own": {"name": "group"},
    "file": {"name": "file", "path": own_parts.__file__, "function": "advantage"},
}
LOSSES = {
    "own": {"name": "clip", **EDGES},
    "file": {"name": "file", "path": own_parts.__file__, "function": "clip", "args": EDGES},
}


def gradients(loss, dtype, budget):
    """Return the gradients and the report of one optimizer step on random trees, in rows of at most `budget` tokens."""
    section = AlgorithmSection(
        estimator={"name": "group"}, loss=LOSSES[loss], shared="mass", truncated="mask"
    )
    model = build.tiny_model(hidden=16, layers=1, heads=2, kv_heads=1, intermediate=16).to(dtype)
    learner = build.learner(model, build_objective(section), still=True, token_budget=budget)
    run = build.learning(learner, estimator=build_estimator(section), masks_truncated=True)
    rng = np.random.default_rng(3)
    trees = [sampled(rng, random_tree(rng, contexts=False), -3.9) for _ in range(4)]
    learned = run.credit([ScoredTree(tree, some_rewards(rng, tree)) for tree in trees])
    (report,), caught = build.collect_gradients(learner, lambda: run.update(learned))
    return list(caught.values()), report


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("budget", [60, 10_000])
def test_a_clip_in_a_file_has_the_gradients_of_ramifys_to_the_last_bit(dtype, budget):
    own, expected = gradients("own", dtype, budget)
    ours, report = gradients("file", dtype, budget)
    assert 0.05 < report.metrics["clip_fraction"] < 0.95
    assert report.metrics == expected.metrics
    assert report.loss == expected.loss
    assert all(torch.equal(a, b) for a, b in zip(ours, own, strict=True))


def test_a_groups_mean_in_a_file_gives_the_advantages_of_ramifys():
    rng = np.random.default_rng(5)
    tree = random_tree(rng)
    known = annotated(tree, some_rewards(rng, tree))
    own, ours = (
        build_estimator(AlgorithmSection(estimator=table, loss={"name": "clip"})).advantages(known, ())
        for table in ESTIMATORS.values()
    )
    for expected, advantages in zip(own, ours, strict=True):
        assert advantages == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("width", [0.0, 0.4])
def test_a_rule_in_a_file_decides_as_bernoulli(width):
    tables = (
        {"name": "bernoulli", "alpha": 0.4},
        {"name": "file", "path": own_parts.__file__, "function": "rule", "args": {"alpha": 0.4}},
    )
    sizes = {"problems_per_step": 1, "n": 8, "m": 4, "max_tokens": 9, "max_calls": 3}
    own, ours = (RolloutSection(**sizes, branching=table).branching.build(SETUP) for table in tables)
    for draw in (0.1, 0.3, 0.5, 0.7, 0.9):
        for delta in (-2.0, -0.5, 0.0, 0.5, 2.0):  # the outer ones lead out of [0, 1]
            point = candidate(delta, draw, width)
            assert ours.propose(point, ()) == own.propose(point, ())
    assert (ours.probe_tokens, ours.max_children, ours.state()) == (own.probe_tokens, own.max_children, {})


def test_the_example_of_the_page_works_and_its_cispo_is_ramifys(tmp_path):
    _, _, example = read_page("extending.md").partition("This is `my_parts.py`:\n\n```python\n")
    (tmp_path / "my_parts.py").write_text(example[: example.index("```")])
    tables = [
        {"path": tmp_path / "my_parts.py", "function": name}
        for name in ("often_early", "leave_one_out", "cispo")
    ]
    rule, estimator, loss = (
        part(**table) for part, table in zip((FileRule, FileEstimator, FileLoss), tables, strict=True)
    )
    assert rule.build(SETUP).propose(candidate(0.0), ()).probability == 0.5
    rloo = {"name": "group", "scale": "none", "baseline": "leave_subtree_out"}
    flat = tree_of(
        [node((), Source.PROMPT, [5]), *(node((i,), Source.POLICY, [1], leaf=True) for i in range(3))]
    )
    known = annotated(flat, tuple(Reward(value, {}) for value in (1.0, 0.0, 0.4)))
    expected = build_estimator(AlgorithmSection(estimator=rloo, loss={"name": "clip"})).advantages(known, ())
    ours = estimator.build("repeat", 0.0).advantages(known, ())
    assert np.concatenate(ours) == pytest.approx(np.concatenate(expected), abs=1e-12)
    inputs = token_inputs([1.0, 0.0, 2.0], [0.0, -1.0, -0.5], [0.9, -0.4, 0.1], dtype=torch.float64)
    named = CispoSurrogate(clip_high=0.28)
    assert logprob_gradients(loss.build(), inputs) == pytest.approx(
        logprob_gradients(named, inputs), abs=1e-12
    )
    assert loss.build()(inputs).sums["clip_fraction"] == named(inputs).sums["clip_fraction"]


@pytest.fixture
def function(tmp_path):
    """Writes a function `f` into a file, from its parameters and its body."""

    def write(parameters, body):
        path = tmp_path / "parts.py"
        path.write_text(f"import torch\n\n\ndef f({parameters}):\n    {body}\n")
        return {"path": path, "function": "f"}

    return write


def test_an_interrupt_that_a_function_raises_in_a_thread_is_its_own_error(function):
    """A rule is asked in the thread of the agent, which an interrupt would end without a word."""
    rule = FileRule(**function("candidate", "raise KeyboardInterrupt")).build(SETUP)
    with ThreadPoolExecutor(1) as thread:
        line = refusal(thread.submit(rule.propose, candidate(0.3), ()).result)
    assert "it raised KeyboardInterrupt. Correct the function." in line


def refusal(call):
    with pytest.raises(ConfigError) as raised:
        call()
    line = str(raised.value)
    assert line.count("\n") == 0
    return line


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "return float('nan')",
            "line 4: f: tree 1 of the step, node '0.0': it returned nan. Return a finite number, a probability.",
        ),
        ("return float('inf')", "it returned inf. Return a finite number"),
        ("return 10**400", "Return a finite number"),
        ("return None", "it returned a value of type NoneType. Return a finite number"),
        ("return [0.5]", "it returned a value of type list. Return a finite number"),
        ("return 1 / 0", "line 5: f: tree 1 of the step, node '0.0': it raised ZeroDivisionError: division by zero."),
        ("raise SystemExit(3)", "line 5: f: tree 1 of the step, node '0.0': it raised SystemExit: 3. Correct the"),
        ("return candidate.entropy", "it raised AttributeError: "),
    ],
)  # fmt: skip
def test_what_is_no_finite_number_is_refused_with_its_place(function, body, message):
    rule = FileRule(**function("candidate", body)).build(SETUP)
    point = replace(candidate(0.3), slot=1)
    assert message in refusal(lambda: rule.propose(point, ()))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return rewards[:1]", "line 4: f: problem 'p', tree 0 of step 0: it returned an array of shape [1] for 3"),
        ("return 0.5", "it returned 0.5 for 3 trajectories. Return 3 finite numbers, one for each trajectory."),
        ("return rewards / 0", "it returned nan for trajectory 0."),
        ("return ['a', 'b', 'c']", "it returned values of type <U1."),
        ("return [[1], [2, 3], 4]", "it returned a value of type list, which makes no array"),
        ("return None", "it returned a value of type NoneType for 3 trajectories."),
        ("return {}", "it returned a value of type dict for 3 trajectories."),
        ("return torch.zeros(3, requires_grad=True)", "it returned a value of type Tensor, which makes no array: RuntimeError: Can't call numpy() on Tensor that requires grad"),
        ("raise KeyError('x')", "line 5: f: problem 'p', tree 0 of step 0: it raised KeyError: 'x'. Correct the function."),
    ],
)  # fmt: skip
def test_what_is_no_advantage_is_refused_with_its_place(function, body, message):
    estimator = FileEstimator(**function("rewards, tree", body)).build("repeat", 0.0)
    rng = np.random.default_rng(0)
    trees = (random_tree(rng) for _ in range(99))
    tree = next(tree for tree in trees if len(tree.trajectories) == 3)
    known = annotated(tree, tuple(Reward(value, {}) for value in (0.0, 1.0, -1.0)))
    line = refusal(lambda: np.seterr(divide="ignore", invalid="ignore") and estimator.advantages(known, ()))
    assert message.replace("'p'", repr(tree.problem.id)) in line


def test_an_estimator_may_return_a_list_or_whole_numbers(function):
    known = annotated(random_tree(np.random.default_rng(0)))
    estimator = FileEstimator(**function("rewards, tree", "return [1 for _ in tree.trajectories]"))
    for array in estimator.build("repeat", 0.0).advantages(known, ()):
        assert array.tolist() == [1.0] * len(array)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return ratio[:1]", "line 4: f: with sign 1 it returned a tensor [1], torch.float32, cpu for ratios [64]"),
        ("return ratio.half()", "a tensor [64], torch.float16, cpu for ratios [64], torch.float32, cpu. Return a number"),
        ("return ratio.sum()", "a tensor [], torch.float32"),
        ("return ratio.tolist()", "with sign 1 it returned a value of type list. Return a tensor."),
        ("return ratio.detach()", "no gradient reaches the ratio, so nothing can be learned. Compute with ratio."),
        ("return (ratio - 2).log()", "with sign 1 a value or its gradient is not finite. Return finite numbers"),
        ("return ratio if sign > 0 else (ratio - ratio).sqrt()", "with sign -1 a value or its gradient is not finite."),
        ("return ratio - ratio.mean()", "the value of a token depends on the other tokens, its position, or chance."),
        ("return ratio * torch.rand_like(ratio)", "the value of a token depends on the other tokens, its position"),
        ("return ratio.log().cumsum(0).exp()", "the value of a token depends on the other tokens, its position"),
        ("return ratio * (torch.arange(len(ratio)) + 1)", "the value of a token depends on the other tokens, its"),
        ("return ratio + torch.cat([ratio[:1], ratio[:-1]])", "the value of a token depends on the other tokens, its"),
        ("return ratio if len(ratio) < 6 else ratio / len(ratio)", "the value of a token depends on the other tokens"),
        ("return ratio.double()", "with sign 1 it returned a tensor [64], torch.float64, cpu for ratios [64], torch.float32"),
        ("return ratio.exp().add_(0).sqrt().mul_(2)", "with sign 1 its gradient raised RuntimeError: one of the variables"),
        ("return ratio.nothing()", "line 5: f: it raised AttributeError: 'Tensor' object has no attribute 'nothing'."),
    ],
)  # fmt: skip
def test_what_is_no_token_loss_is_refused_before_the_first_rollout(function, body, message):
    assert message in refusal(FileLoss(**function("ratio, sign", body)).build)


def test_a_loss_that_fails_only_in_training_is_refused_with_its_place(function):
    loss = FileLoss(**function("ratio, sign", "return ratio if ratio.max() < 3 else ratio[0]")).build()
    line = refusal(lambda: loss(token_inputs([1.0, 0.0], [0.0, -1.0], [2.0, 0.0])))
    assert "parts.py, line 4: f: with sign 1 it returned a tensor []" in line


def test_a_function_that_writes_into_its_ratio_changes_nothing_else(function):
    loss = FileLoss(**function("ratio, sign", "return ratio.mul_(2)")).build()
    inputs = token_inputs([1.0, 0.0], [0.0, -1.0], [0.0, 0.0])
    assert loss(inputs).loss.item() == pytest.approx(-2 + 2)
    assert inputs.ratio.tolist() == [1.0, 1.0]


def test_a_loss_for_one_sign_alone_is_a_loss(function):
    loss = FileLoss(
        **function("ratio, sign", "return ratio if sign > 0 else torch.zeros_like(ratio)")
    ).build()
    inputs = token_inputs([1.0, 0.0], [0.0, -1.0], [0.1, 0.1])
    assert torch.autograd.grad(loss(inputs).loss, inputs.policy_logprobs)[0][1] == 0


def test_another_rank_refuses_another_file(function, tmp_path):
    written = function("ratio, sign", "return ratio")
    loss = FileLoss(**written).build()
    other = decode(encode(replace(loss, path=tmp_path / "other.py")))
    (tmp_path / "other.py").write_text((tmp_path / "parts.py").read_text() + "\n")
    line = refusal(lambda: other(token_inputs([1.0], [0.0], [0.0])))
    assert line.endswith(
        "the file differs from that of rank 0, or changed after the start. Put it back and use --resume."
    )
    # A file that is written over in mid-run changes nothing on a rank that has loaded it.
    function("ratio, sign", "return 2 * ratio")
    assert loss(token_inputs([1.0], [0.0], [0.0])).loss == -1


@pytest.mark.parametrize(
    ("parameters", "body", "message"),
    [
        ("ratio", "return ratio", "f: expected f(ratio, sign): too many positional arguments. Give it these parameters."),
        ("ratio, sign, edge", "return ratio", "f: expected f(ratio, sign): missing a required argument: 'edge'."),
        ("ratio, sign", "yield ratio", "f: expected a function that returns, got a class or a generator"),
    ],
)  # fmt: skip
def test_a_function_with_other_parameters_is_refused_when_it_is_loaded(function, parameters, body, message):
    assert message in refusal(FileLoss(**function(parameters, body)).load)


def test_an_async_function_is_refused(function):
    written = function("ratio, sign", "return ratio")
    written["path"].write_text("async def f(ratio, sign):\n    return ratio\n")
    assert refusal(FileLoss(**written).load).endswith(
        "expected a plain function, got an async one. Remove async."
    )
