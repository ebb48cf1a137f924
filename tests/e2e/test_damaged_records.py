"""Records of runs with one fault each, drawn at random: each command that reads them ends well or in one line."""

import json
import random
import shutil
import time

import pytest

from damaged_records import damaged, sealed
from e2e_runs import EVAL, SELFCRITIC, TRAIN, overrides, write_task
from ramify.cli import main

QUICK = ("run.threads=1", "tools.python.timeout_seconds=10", "sandbox.min_level=0")
EACH = {
    **{"pairs": 40, "credit": 40, "score": 20, "case": 20, "rollout": 4},
    **{"runs compare": 8, "eval --resume": 6, "train": 5, "selfcritic": 5},
}
"""Faults that are drawn for each command."""


def words(*settings):
    return overrides(*QUICK, *settings)


class Runs:
    """A finished run of each kind. `copies` of them are damaged."""

    def __init__(self, folder, model):
        self.folder, self.model = folder, model
        self.recipes = {
            name: write_task(folder / name, model, text)
            for name, text in (("train", TRAIN), ("eval", EVAL), ("selfcritic", SELFCRITIC))
        }
        script = f'engine={{name="scripted",script="{folder / "eval" / "script.toml"}"}}'
        self.settings = {
            "train": words("run.steps=1", "rollout.n=4", "rollout.m=2"),
            "eval": words(script, "sampling.attempts=1", "sampling.k=[1]", "data.limit=3"),
            "selfcritic": words("rollout.n=4", "rollout.m=2"),
        }
        for name in self.recipes:
            assert main([name, str(self.recipes[name]), *self.settings[name]]) == 0
        trees = folder / "train" / "run" / "trees" / "000001.jsonl"
        self.lines = trees.read_text().splitlines(keepends=True)
        # Every other answer is right, so that there are pairs.
        self.lines = [self._half_right(line) for line in self.lines]

    @staticmethod
    def _half_right(line):
        tree = json.loads(line)
        for number, reward in enumerate(tree["rewards"]):
            reward["parts"] = {"correct": float(number % 2)}
        return json.dumps(tree) + "\n"

    def command(self, door, to, rng):
        """Put a damaged run into the folder `to`; returns the command that reads it."""
        match door:
            case "pairs" | "credit" | "score" | "case" | "rollout":
                self._trees(to, rng)
                return self._reader_of_trees(door, to, rng)
            case "runs compare":
                self._one_of(to, "eval", ["manifest.json", "results.jsonl"], rng)
                return ["runs", "compare", self.folder / "eval" / "run", to / "run"]
            case "eval --resume":
                names = ["manifest.json", "results.jsonl", "times.jsonl", "trees.jsonl"]
                self._one_of(to, "eval", names, rng)
            case "train":
                checkpoint = "checkpoints/step-000001/"
                self._one_of(to, "train", ["manifest.json", "metrics.jsonl", f"{checkpoint}state.json"], rng)
                if rng.random() < 0.7:
                    sealed(to / "run" / checkpoint / "state.json")
            case "selfcritic":
                names = [f"cycle-01/{name}" for name in ("done.json", "pairs.json", "trees.jsonl")]
                name = self._one_of(to, "selfcritic", names, rng)
                if not name.endswith("done.json"):
                    (to / "run" / "cycle-01" / "done.json").unlink()
                if name.endswith("trees.jsonl"):
                    (to / "run" / "cycle-01" / "pairs.json").unlink()
        name = door.split()[0]
        settings = [*self.settings[name], "-s", f"run.dir={to / 'run'}"]
        return [name, self.recipes[name], *settings, "--resume"]

    def _reader_of_trees(self, door, to, rng):
        trees, nodes = to / "run" / "trees.jsonl", json.loads(self.lines[0])["nodes"]
        match door:
            case "pairs":
                return ["pairs", trees, "--model", self.model, "--out", to / "out.jsonl"]
            case "credit":
                name = rng.choice(["group", "node_value", "turn_level", "tree_grpo", "reinforce_pp"])
                chosen = ["--algorithm", self.recipes["train"], "-s", f"algorithm.estimator.name={name}"]
                return ["credit", trees, *chosen, "--tree", rng.randrange(2)]
            case "score":
                return ["score", trees, "--reward", self.recipes["eval"]]
            case "case":
                shutil.copy(self.folder / "train" / "run" / "recipe.toml", to / "run")
                leaf = next(node["id"] for node in nodes if "stop" in node)
                return ["case", trees, "--tree", 0, "--leaf", leaf, "--out", to / "case"]
        (to / "run" / "trees").mkdir()
        shutil.move(trees, to / "run" / "trees" / "000001.jsonl")
        node = next(node["id"] for node in nodes if "stop" not in node)
        settings = [*self.settings["train"], "-s", f"run.dir={to / 'new'}"]
        return ["rollout", self.recipes["train"], *settings, "--from", f"{to / 'run'}:1:0/{node}"]

    def _trees(self, to, rng):
        (to / "run").mkdir(parents=True)
        lines = [line.encode() for line in self.lines]
        number = rng.randrange(len(lines))
        lines[number] = damaged(self.lines[number], rng)
        (to / "run" / "trees.jsonl").write_bytes(b"".join(lines))

    def _one_of(self, to, name, files, rng):
        shutil.copytree(self.folder / name / "run", to / "run")
        file = rng.choice(files)
        path = to / "run" / file
        if path.suffix == ".json":
            path.write_bytes(damaged(path.read_text(), rng))
            return file
        lines = path.read_text().splitlines(keepends=True)
        at = rng.randrange(len(lines))
        text = damaged(lines[at], rng)
        path.write_bytes("".join(lines[:at]).encode() + text + "".join(lines[at + 1 :]).encode())
        return file


@pytest.fixture(scope="module")
def runs(tmp_path_factory, caller):
    return Runs(tmp_path_factory.mktemp("whole"), caller)


@pytest.mark.parametrize("door", EACH)
def test_a_damaged_record_ends_a_command_well_or_in_one_line(tmp_path, runs, capsys, door):
    refused = 0
    for seed in range(EACH[door]):
        to = tmp_path / f"{seed}"
        command = [str(word) for word in runs.command(door, to, random.Random(f"{door} {seed}"))]
        capsys.readouterr()
        start = time.monotonic()
        status = main(command)
        message = capsys.readouterr().err
        assert status in (0, 2), (seed, message)
        assert time.monotonic() - start < 120, seed
        if status == 2:
            refused += 1
            assert message.count("\n") == 1, (seed, message)
            assert len(message) < 1000, (seed, message)
    assert refused


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("done.json", "{}", "done.json: lacks the field 'model'"),
        ("done.json", '{"model": "/etc"}', "done.json: model: expected a folder within"),
        ("done.json", '{"model": "../.."}', "done.json: model: expected a folder within"),
        ("pairs.json", "{}", "pairs.json: lacks the field 'pairs'"),
        ("pairs.json", '{"pairs": true, "questions": {}, "line": ""}', "pairs.json: pairs: expected a whole"),
    ],
)
def test_a_record_of_a_cycle_names_its_fault(tmp_path, runs, refused, name, text, message):
    shutil.copytree(runs.folder / "selfcritic" / "run", tmp_path / "run")
    cycle = tmp_path / "run" / "cycle-01"
    (cycle / name).write_text(text)
    if name != "done.json":
        (cycle / "done.json").unlink()
    settings = [*runs.settings["selfcritic"], "-s", f"run.dir={tmp_path / 'run'}"]
    assert message in refused("selfcritic", runs.recipes["selfcritic"], *settings, "--resume")
