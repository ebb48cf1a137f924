"""`--json` and `--quiet`: what scripts read, and what they do not have to."""

import json
import tomllib

import pytest

from e2e_runs import EVAL, SFT, SYNTH, TRAIN, overrides, write_task
from ramify.cli import main
from ramify.commands.doctor import _check
from ramify.obs.console import RunConsole

ROW = ["schema", "dir", "kind", "state", "step", "steps", "score", "model", "updated", "reason"]
RUNS = {
    "sft": (SFT, [], ["model"], (3, 3)),
    "train": (TRAIN, ["--max-steps", "1", "-s", "rollout.n=2", "-s", "rollout.m=1"], [], (1, 9)),
    "rollout": (TRAIN, ["--problems", "1"], ["metrics"], (1, 1)),
    "eval": (EVAL, overrides("sampling.max_tokens=4", "data.limit=2", "sampling.k=[1]"), ["summary"], (4, 4)),
    "synth": (SYNTH, ["-s", "data.limit=1"], ["summary"], (None, None)),
}


@pytest.mark.parametrize("command", RUNS)
def test_a_run_ends_with_one_object_and_shows_its_progress_elsewhere(tmp_path, model_folder, capsys, command):
    text, more, own, steps = RUNS[command]
    recipe = write_task(tmp_path / "task", model_folder, text)
    assert main([command, str(recipe), *more, "--json"]) == 0
    out, err = capsys.readouterr()
    (line,) = out.splitlines()
    answer = json.loads(line)
    assert list(answer) == list(dict.fromkeys([*ROW, *own]))
    assert (answer["schema"], answer["kind"], answer["dir"]) == (1, command, str(recipe.parent / "run"))
    assert answer["state"] == ("interrupted" if command == "train" else "finished")
    assert (answer["step"], answer["steps"]) == steps
    assert "begins" in err
    if command == "sft":
        assert answer["model"] == str(recipe.parent / "run" / "checkpoints" / "step-000003")
    if command == "eval":
        assert answer["summary"] == json.loads((recipe.parent / "run" / "summary.json").read_text())


def test_quiet_leaves_the_result(tmp_path, model_folder, capsys):
    recipe = write_task(tmp_path / "task", model_folder, SFT)
    assert main(["sft", str(recipe), "--quiet"]) == 0
    model = recipe.parent / "run" / "checkpoints" / "step-000003"
    assert capsys.readouterr().out == f"model written to {model}\n"


def test_a_dry_run_as_json_holds_the_recipe(tmp_path, model_folder, capsys):
    recipe = write_task(tmp_path / "task", model_folder, SFT)
    assert main(["sft", str(recipe), "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert main(["sft", str(recipe), "--dry-run", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["notes"] == [line[2:] for line in printed.splitlines() if line.startswith("# ")]
    table = tomllib.loads(printed)
    assert answer["recipe"]["learner"]["optimizer"].items() >= table["learner"]["optimizer"].items()
    assert answer["recipe"]["run"]["dir"] == table["run"]["dir"]


def test_doctor_as_json_says_what_is_here_and_whether_a_recipe_can_run(tmp_path, model_folder, capsys):
    assert main(["doctor", "--json"]) == 0
    machine = json.loads(capsys.readouterr().out)["machine"]
    assert {"torch", "transformers"} <= machine["packages"].keys()
    assert machine["memory_bytes"] > 0
    assert machine["sandbox"]["level"] <= machine["sandbox"]["max_level"]
    assert machine["keys"].keys() == {"BRIGHTDATA_API_KEY", "SERPER_API_KEY", "JINA_API_KEY"}
    recipe = str(write_task(tmp_path / "task", model_folder, SFT))
    assert main(["doctor", recipe, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["recipe"]["can_run"] is True
    assert answer["recipe"]["lines"][-1] == "can run here"
    (tmp_path / "task" / "demonstrations.jsonl").write_text("{}\n")
    assert main(["doctor", recipe, "--json"]) == 2
    out, err = capsys.readouterr()
    refused = json.loads(out)["recipe"]
    assert refused["can_run"] is False
    assert err == f"ramify doctor: {refused['reason']}\n"


def test_a_doctor_that_is_stopped_says_nothing_of_the_recipe(tmp_path, capsys):
    """Its object said that the recipe can run."""

    def rows():
        yield "recipe", "is for ramify train"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _check(RunConsole(as_json=True), {}, tmp_path / "recipe.toml", rows(), "")
    assert capsys.readouterr().out == ""


def test_a_key_without_a_recipe_is_refused(capsys):
    assert main(["doctor", "-s", "model.path=elsewhere"]) == 2
    assert "-s: has no effect without a recipe" in capsys.readouterr().err
