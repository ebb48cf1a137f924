"""Training in worlds that fail: what failed teaches nothing, is recorded as such, and ends no run."""

import pytest

from e2e_runs import TRAIN, write_task
from ramify.cli import main
from ramify.core.tree import StopReason
from ramify.obs.metrics import read_metrics
from ramify.obs.trace import read_trees

pytestmark = pytest.mark.integration

WORLD = """\
import itertools

opened = itertools.count()


class World:
    def reset(self, seed: int) -> None:
        if next(opened) % {every} == 0:
            raise OSError("no room left")

    def wait(self) -> str:
        '''Wait for a while.'''
        return "done"
"""
RECIPE = (
    TRAIN.split("[tools.search]")[0]
    + '[environment]\npath = "{folder}/world.py"\nfunction = "World"\n[reward]'
    + TRAIN.split("[reward]")[1]
)


def task(folder, model, every):
    recipe = write_task(folder, model, RECIPE)
    (recipe.parent / "world.py").write_text(WORLD.format(every=every))
    return recipe


def test_the_rest_of_a_group_learns_as_if_they_had_not_been_there(tmp_path, model_folder, capsys):
    recipe = task(tmp_path / "task", model_folder, every=3)
    assert main(["train", str(recipe), "--max-steps", "1"]) == 0
    assert main(["train", str(recipe), "--max-steps", "2", "--resume"]) == 0
    assert "not counted" in capsys.readouterr().out
    run = recipe.parent / "run"
    lost = 0
    for step, row in enumerate(read_metrics(run / "metrics.jsonl"), 1):
        trees = read_trees(run / "trees" / f"{step:06d}.jsonl")
        stops = [(t.stop, reward.counts) for tree in trees for t, reward in pairs(tree)]
        assert all(counts is (stop is not StopReason.FAILED) for stop, counts in stops)
        assert row["reward/not_counted"] == row["stop/failed"]
        lost += sum(not counts for _, counts in stops)
        for tree in trees:
            advantages = [a for a, (_, r) in zip(tree.advantages, pairs(tree), strict=True) if r.counts]
            assert sum(advantages) == pytest.approx(0, abs=1e-4)
            assert [a for a, (_, r) in zip(tree.advantages, pairs(tree), strict=True) if not r.counts] == [
                0.0
            ] * (len(tree.rewards) - len(advantages))
    assert lost >= 4


def test_where_every_world_fails_nothing_is_learned_and_the_run_ends_with_the_reason(
    tmp_path, model_folder, capsys
):
    recipe = task(tmp_path / "task", model_folder, every=1)
    assert main(["train", str(recipe), "--max-steps", "2"]) == 2
    out, error = capsys.readouterr()
    assert "step 1: all 2 problems failed; nothing was learned" in out
    assert "No optimizer step was taken in 2 steps" in out
    assert "none of 4 problems worked; the first: problem " in error
    rows = read_metrics(recipe.parent / "run" / "metrics.jsonl")
    assert all(row["reward/not_counted"] == 1 and "reward/mean" not in row for row in rows)
    looked = ("-s", "preflight.enabled=true", "-s", f"run.dir={tmp_path / 'other'}")
    assert main(["train", str(recipe), "--max-steps", "1", *looked]) == 2
    assert " problems worked; the first: problem " in capsys.readouterr().err


def pairs(traced):
    return list(zip(traced.tree.trajectories, traced.rewards, strict=True))
