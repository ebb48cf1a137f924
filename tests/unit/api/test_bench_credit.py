"""`rf.bench_credit`: estimators and functions against the executed effects of three frozen worlds."""

from importlib.resources import files

import pytest
import torch

import ramify as rf
from ramify.study.bench import WORLDS, read_world

FUNCTIONS = {
    "short": lambda rewards, tree: rewards[:-1],
    "text": lambda rewards, tree: "?",
    "raises": lambda rewards, tree: rewards[len(rewards)],
    "alone": lambda rewards: rewards,
    "nan": lambda rewards, tree: {node.id: float("nan") for node in tree.nodes},
    "none": lambda rewards, tree: {node.id: None for node in tree.nodes},
    "strange": lambda rewards, tree: {"9.9.9.9.9": 1.0},
}


def centred(rewards, tree):
    return rewards - rewards.mean()


def texts(tree):
    return "".join(node.text for node in tree.nodes)


@pytest.fixture(scope="module")
def group():
    return rf.bench_credit("group")


def test_the_worlds_are_small_and_say_how_they_came_about():
    sizes = [path.stat().st_size for path in (files("ramify.study") / "worlds").iterdir()]
    assert len(sizes) == len(WORLDS)
    assert sum(sizes) < 2_000_000
    for name in WORLDS:
        world = read_world(name)
        assert len(world.about["commit"]) == 40
        assert all(command.startswith("ramify ") for command in world.about["commands"])
        assert 40 <= len(world.audit.known) <= len(world.effects) <= 60
        assert all(len(effect.before.rewards) >= 16 for effect in world.audit.known)


def test_an_estimator_is_shown_beside_the_others_in_each_world(group):
    text = repr(group)
    assert list(group.worlds) == list(WORLDS)
    for world, ranking in group.worlds.items():
        (same,) = (each for each in group.others[world] if each.name == "group")
        # The same numbers as those that the audit recorded.
        assert ranking == same
        assert ranking.spearman.low <= ranking.spearman.value <= ranking.spearman.high
        # Which have one row for it, and one for the ceiling.
        assert text.count(world) == len(group.others[world]) + 1


def test_an_object_has_a_name_of_its_own(group):
    rloo = rf.bench_credit(rf.algorithms.RLOO())
    assert rloo.worlds.keys() == group.worlds.keys()
    assert rloo.name == rloo.worlds["contrast"].name == "group, scale none, baseline leave_subtree_out"
    assert rf.bench_credit(rf.algorithms.ARPO()).name == "group"
    assert rf.bench_credit(rf.algorithms.ARPO(estimator=centred)).name == "centred"


def test_a_function_scores_trajectories_or_nodes(group):
    rankings = rf.bench_credit(centred).worlds
    for world, ranking in rankings.items():
        (same,) = (each for each in group.others[world] if each.name == "group, scale none")
        assert ranking.spearman.value == pytest.approx(same.spearman.value, abs=0.02)
    # As large as numbers can be, and ranked as the same ones of a usual size.
    usual, huge = (rf.bench_credit(lambda rewards, tree, size=size: rewards * size) for size in (1.0, 1e308))
    for world, ranking in huge.worlds.items():
        assert ranking.spearman.value == pytest.approx(usual.worlds[world].spearman.value)
    # The worlds share questions, so a tree is known by all that it says.
    measured = {
        (texts(world.trees[effect.row].tree), effect.node): effect.value
        for world in map(read_world, WORLDS)
        for effect in world.audit.known
    }

    def oracle(rewards, tree):
        return {node.id: measured.get((texts(tree), node.id), 0.0) for node in tree.nodes}

    for ranking in rf.bench_credit(oracle).worlds.values():
        assert ranking.spearman.value == pytest.approx(1)
        assert ranking.sure.value == 1.0


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (FUNCTIONS["short"], "finite numbers"),
        (FUNCTIONS["text"], "finite numbers"),
        (
            FUNCTIONS["raises"],
            "test_bench_credit.py, line .* world 'quick start', problem .* it raised IndexError",
        ),
        (FUNCTIONS["alone"], "rewards, tree"),
        (FUNCTIONS["nan"], "it returned nan for node"),
        (FUNCTIONS["none"], "it returned None for node"),
        (FUNCTIONS["strange"], "node '9.9.9.9.9'"),
        (lambda rewards, tree: {}, "world 'quick start': it returned no number of a turn"),
        ("nothing", "expected one of .* arpo, .* Estimators are group, .*turn_level"),
        (3, "expected a name"),
        (rf.algorithms.ARPO, "got ARPO of ramify. Did you forget its parentheses"),
        (lambda rewards, tree: torch.tensor(rewards, requires_grad=True), "Use tensor.detach"),
        (
            rf.algorithms.named("aepo", entropy_advantage={"weight": 0.2, "source": "annotate"}),
            "annotate|learner",
        ),
    ],
)
def test_what_is_no_estimator_is_refused_in_a_sentence(estimator, message):
    with pytest.raises(rf.RamifyError, match=message):
        rf.bench_credit(estimator)
