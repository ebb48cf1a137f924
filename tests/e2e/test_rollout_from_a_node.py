"""`ramify rollout --from RUN:STEP:TREE/NODE`, or of a file of trees: one tree that goes on from a recorded node."""

import pytest

from e2e_runs import TRAIN, write_task
from ramify.cli import main
from ramify.obs.trace import read_trees


@pytest.fixture(scope="module")
def recorded(tmp_path_factory, caller):
    recipe = write_task(tmp_path_factory.mktemp("recorded"), caller, TRAIN)
    assert main(["rollout", str(recipe), "--problems", "2"]) == 0
    run = recipe.parent / "run"
    return recipe, run, [traced.tree for traced in read_trees(run / "trees" / "000001.jsonl")]


@pytest.mark.parametrize("where", ["{run}:1:", "{run}/trees/000001.jsonl:"])
def test_a_tree_goes_on_from_a_node_of_a_run(recorded, tmp_path, where):
    recipe, run, trees = recorded
    slot, node = next(
        (tree.key.slot, node) for tree in trees for node in tree.nodes if node.results and node.stop is None
    )
    to = tmp_path / "again"
    start = f"{where.format(run=run)}{slot}/{node.id}"
    words = ["rollout", str(recipe), "-s", f"run.dir={to}", "--from", start]
    assert main(words) == 0
    ((tree,),) = [[traced.tree for traced in read_trees(to / "trees" / "000001.jsonl")]]
    assert tree.start == node.id
    assert len(tree.trajectories) == 6
    assert tree.problem == next(each for each in trees if each.key.slot == slot).problem
    assert all(trajectory.nodes[len(node.path)] == node for trajectory in tree.trajectories)


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ("{run}:1:9/0", "it has no tree 9; it has 0 to 1"),
        ("{run}/trees/000001.jsonl:2/0", "it has no tree 2; it has 0 to 1"),
        ("{run}/trees:0/0", "expected RUN:STEP:TREE/NODE"),
        ("{run}:1:0/7.7", "has no node '7.7'"),
        ("{run}:8:0/0", "000008.jsonl"),
        ("{run}:0/0", "expected RUN:STEP:TREE/NODE"),
        ("nothing", "expected RUN:STEP:TREE/NODE"),
        ("{run}:1:0", "expected RUN:STEP:TREE/NODE"),
    ],
)
def test_a_place_that_is_not_there_is_one_line(recorded, tmp_path, refused, start, message):
    recipe, run, _ = recorded
    words = ("-s", f"run.dir={tmp_path / 'again'}", "--from", start.format(run=run))
    assert message in refused("rollout", recipe, *words)
