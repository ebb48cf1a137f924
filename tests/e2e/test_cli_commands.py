"""What the commands do when all is well, and how quickly they say what they do."""

import json
import re
import subprocess
import sys
import tomllib

import pytest
from safetensors.numpy import load_file

from e2e_runs import ATTEMPTS, DPO, EVAL, SFT, TRAIN, python, ramify, read_lines, write_task
from ramify.cli import COMMANDS, main
from ramify.obs.metrics import read_metrics

HEAVY = ("torch", "transformers", "pydantic", "rich", "numpy", "jinja2", "tokenizers", "pyarrow")


def test_help_needs_no_heavy_library():
    code = f"""
import runpy, sys
for command in {[[], *([name] for name in COMMANDS)]}:
    sys.argv = ["ramify", *command, "--help"]
    try:
        runpy.run_module("ramify", run_name="__main__")
    except SystemExit as end:
        assert end.code == 0
    loaded = set({HEAVY}) & sys.modules.keys()
    assert not loaded, (command, loaded)
"""
    done = python(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("usage: ramify") == 1 + len(COMMANDS)


CHECKPOINTS = {"save_every": 5, "keep_last": 2, "keep_best": 1}


@pytest.mark.parametrize(("command", "text", "saved"), [("sft", SFT, CHECKPOINTS), ("eval", EVAL, {})])
def test_a_dry_run_prints_the_whole_recipe_and_touches_nothing(
    tmp_path, model_folder, capsys, command, text, saved
):
    recipe = write_task(tmp_path / "task", model_folder, text)
    before = sorted(recipe.parent.iterdir())
    assert main([command, str(recipe), "--dry-run", "-s", "run.seed=7"]) == 0
    output = capsys.readouterr().out
    shown = tomllib.loads(output)
    assert shown["run"] == {"dir": f"{tmp_path}/task/run", "seed": 7, "deterministic": False, **saved}
    assert sorted(recipe.parent.iterdir()) == before
    again = tmp_path / "again.toml"
    again.write_text(output)
    assert main([command, str(again), "--dry-run"]) == 0
    assert capsys.readouterr().out == output


ASKED = {
    "sft": (SFT, ["3 steps of 2 demonstrations (6 rows, 1 epoch)", "6 sequences, at most 1,200 tokens in the whole"]),
    "train": (TRAIN, ["9 steps of 2 problems x 6 trajectories (18 rows", "12 trajectories a step, at most 768 tokens"]),
    "eval": (EVAL, ["18 problems x 2 attempts", "36 trajectories, at most 1,152 tokens in the whole run"]),
    "rollout": (TRAIN, ["1 step of 2 problems x 6 trajectories", "keys and values of 12 slots"]),
}  # fmt: skip


@pytest.mark.parametrize("command", ASKED)
def test_a_dry_run_says_what_the_recipe_asks_for(tmp_path, model_folder, capsys, command):
    text, expected = ASKED[command]
    assert main([command, str(write_task(tmp_path / "task", model_folder, text)), "--dry-run"]) == 0
    message = [line for line in capsys.readouterr().out.splitlines() if line.startswith("# ")]
    for part in (*expected, "device: ", "memory: about ", "weights "):
        assert any(part in line for line in message), (part, message)


def test_a_runs_recipe_runs_again(tmp_path, model_folder):
    recipe = write_task(tmp_path / "task", model_folder, SFT)
    assert main(["sft", str(recipe), "-s", "run.steps=2", "-s", "run.deterministic=true"]) == 0
    written = recipe.parent / "run" / "recipe.toml"
    assert main(["sft", str(written), "-s", f"run.dir={tmp_path / 'again'}"]) == 0
    model = "checkpoints/step-000002/model.safetensors"
    assert (tmp_path / "again" / model).read_bytes() == (recipe.parent / "run" / model).read_bytes()
    assert tomllib.loads((tmp_path / "again" / "recipe.toml").read_text()) == {
        **tomllib.loads(written.read_text()),
        "run": {**tomllib.loads(written.read_text())["run"], "dir": str(tmp_path / "again")},
    }


def test_a_finished_run_is_made_longer(tmp_path, model_folder, capsys):
    recipe = write_task(tmp_path / "task", model_folder, SFT)
    run = recipe.parent / "run"
    rates = ("-s", "learner.optimizer.final_rate=0.0")
    assert main(["sft", str(recipe), *rates, "-s", "run.steps=4"]) == 0
    assert [row["lr_factor"] for row in read_metrics(run / "metrics.jsonl")] == [1.0, 0.75, 0.5, 0.25]
    # The recipe of the run itself, which is longer than the data, too.
    assert main(["sft", str(run / "recipe.toml"), "--resume", "-s", "run.steps=8"]) == 0
    assert "goes on with run.steps = 8, it was 4" in capsys.readouterr().out
    rows = read_metrics(run / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, 9))
    assert [row["lr_factor"] for row in rows[4:]] == [0.5, 0.375, 0.25, 0.125]
    assert tomllib.loads((run / "recipe.toml").read_text())["run"]["steps"] == 8
    assert main(["sft", str(recipe), *rates, "--resume", "-s", "run.steps=5"]) == 2
    assert "run.steps: expected at least 8 steps" in capsys.readouterr().err


def test_a_finished_run_of_trees_is_made_longer(tmp_path, model_folder):
    recipe = write_task(tmp_path / "task", model_folder)
    for more in (("-s", "run.steps=1"), ("--resume", "-s", "run.steps=2", "-s", "run.save_every=2")):
        assert main(["train", str(recipe), *more]) == 0
    run = recipe.parent / "run"
    assert [row["step"] for row in read_metrics(run / "metrics.jsonl")] == [1, 2]
    assert (run / "checkpoints" / "step-000002").is_dir()


def test_a_dry_run_loads_no_library_that_it_has_no_use_for(tmp_path, model_folder):
    recipe = write_task(tmp_path / "task", model_folder)
    code = f"""
import sys
import tomllib
from safetensors.numpy import load_file

from ramify.cli import main
for command in ("train", "rollout"):
    assert main([command, {str(recipe)!r}, "--dry-run"]) == 0
unused = {{"torch", "transformers", "pyarrow", "aiohttp", "httpx", "rich", "asyncio"}} & sys.modules.keys()
assert not unused, unused
"""
    done = python(code)
    assert done.returncode == 0, done.stderr


def test_supervised_training_then_evaluation(tmp_path, model_folder, capsys):
    recipe = write_task(tmp_path / "sft", model_folder, SFT)
    assert main(["sft", str(recipe)]) == 0
    trained = tmp_path / "sft" / "run" / "checkpoints" / "step-000003"
    assert f"model written to {trained}" in capsys.readouterr().out
    recipe = write_task(tmp_path / "eval", trained, EVAL)
    assert main(["eval", str(recipe), "-s", "data.limit=5"]) == 0
    output = capsys.readouterr().out
    summary = json.loads((tmp_path / "eval" / "run" / "summary.json").read_text())
    assert summary["num_problems"] == summary["pass_at"]["1"]["n"] == 5
    assert f"pass@2 {summary['pass_at']['2']['value']:.3f}" in output
    rows = read_lines(tmp_path / "eval" / "run" / "results.jsonl")
    assert len({(row["problem"], row["attempt"]) for row in rows}) == len(rows) == 10


def test_training_notes_once_at_its_start_what_does_not_act(tmp_path, model_folder, capsys):
    recipe = write_task(tmp_path / "task", model_folder)
    assert main(["train", str(recipe), "--max-steps", "2", "-s", "algorithm.loss.clip_high=0.3"]) == 0
    note = "note: with one optimizer step a rollout (learner.problems_per_minibatch = 2) the ratio is 1: "
    lines = [line.split("  ", 1)[-1] for line in capsys.readouterr().out.splitlines()]
    assert [line for line in lines if "note:" in line] == [f"{note}algorithm.loss.clip_high does not act"]
    assert lines[0].startswith(note)


@pytest.mark.parametrize(
    ("command", "text"),
    [(["eval", "-s", "data.limit=1"], EVAL), (["rollout"], TRAIN), (["train", "--max-steps", "1"], TRAIN)],
    ids=["eval", "rollout", "train"],
)
def test_an_index_that_is_built_is_announced(tmp_path, model_folder, capsys, command, text):
    recipe = write_task(tmp_path / "task", model_folder, text)
    folder = tmp_path / "index"
    name, *options = command
    assert main([name, str(recipe), *options, "-s", f"tools.search.index={folder}"]) == 0
    message = capsys.readouterr()
    (line,) = [line for line in (message.out + message.err).splitlines() if "passages.jsonl: " in line]
    assert "building a search index in" in line


def test_doctor_tells_what_the_machine_has(capsys):
    assert main(["doctor"]) == 0
    message = capsys.readouterr().out
    packages = ("python", "ramify", "torch", "transformers", "tokenizers", "tantivy")
    for name in (*packages, "cpus", "memory", "gpu", "keys"):
        assert f"\n{name} " in f"\n{message}"
    assert "sandbox       level " in message


def test_doctor_tells_the_rest_where_no_sandbox_works():
    """As on a machine so busy that no trial program ends in time: the line about the sandbox was all."""
    broken = "import sys, tempfile; tempfile.tempdir = '/nowhere'; from ramify.cli import main; sys.exit(main(['doctor']))"
    done = subprocess.run([sys.executable, "-c", broken], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "sandbox: no level works on this machine (L4: " in done.stderr
    rows = dict(line.split(maxsplit=1) for line in done.stdout.splitlines() if not line.startswith(" "))
    assert rows["sandbox"] == "no level of 4"
    assert {"python", "torch", "cpus", "memory", "gpu", "keys"} <= rows.keys()


@pytest.mark.parametrize("text", [SFT, DPO + ATTEMPTS, EVAL, None], ids=["sft", "evaluated", "eval", "train"])
def test_doctor_says_whether_a_recipe_can_run(tmp_path, model_folder, capsys, text):
    arguments = (tmp_path / "task", model_folder) + ((text,) if text else ())
    recipe = write_task(*arguments)
    assert main(["doctor", str(recipe), "-s", "run.seed=1"]) == 0
    message = capsys.readouterr().out
    assert "can run here" in message
    weights = load_file(model_folder / "model.safetensors")
    assert f"{sum(tensor.size for tensor in weights.values()):,} parameters" in message
    assert ("  optimizer\n" in message) == (text is not EVAL)
    assert ("opening them and the reward" in message) == (text is not SFT)
    assert ("keys and values of" in message) == (text is not SFT)
    assert "\nwork " in message
    assert "together: fits" in message
    assert ("sandbox.min_level 0: met" in message) == (text is None or "[sandbox]" in text)


CANNOT_RUN = {
    "a key": (["tools.search={provider = 'serper'}"], "SERPER_API_KEY"),
    "a judge's key": (
        ["reward.name=answer", "reward.judge={url = 'http://a', model = 'm', key_variable = 'NO_SUCH_KEY'}"],
        "NO_SUCH_KEY",
    ),
    "a tool without hints": (["tools.own=[{path = '{own}', function = 'tool'}]"], "tool: "),
    "a tool that is not there": (["tools.own=[{path = '{own}', function = 'none'}]"], "'none'"),
    "a reward that is not there": (
        ["reward.name=answer", "reward.own=[{path = '{own}', function = 'none', name = 'r', weight = 1.0}]"],
        "'none'",
    ),
}


@pytest.mark.parametrize("case", CANNOT_RUN)
def test_doctor_opens_what_the_recipe_names(tmp_path, model_folder, capsys, monkeypatch, case):
    monkeypatch.delenv("SERPER_API_KEY", raising=False)
    settings, named = CANNOT_RUN[case]
    (tmp_path / "own.py").write_text("def tool(key):\n    return key\n")
    recipe = write_task(tmp_path / "task", model_folder)
    overrides = [f"-s={each.replace('{own}', str(tmp_path / 'own.py'))}" for each in settings]
    assert main(["doctor", str(recipe), *overrides]) == 2
    message = capsys.readouterr()
    assert named in message.err
    assert "can run here" not in message.out


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps the programs of a user from each other")
@pytest.mark.parametrize("command", ["doctor", "train", "eval"])
def test_no_program_of_the_user_may_look_into_a_command(tmp_path, model_folder, forked, command):
    """Asked by the user's own code, which runs in the command's process: PR_GET_DUMPABLE."""
    (tmp_path / "own.py").write_text(
        "import ctypes\nprint('dumpable:', ctypes.CDLL(None).prctl(3, 0, 0, 0, 0), flush=True)\n"
        "def tool(key: str) -> str:\n    'Does something.'\n    return key\n"
    )
    recipe = write_task(tmp_path / "task", model_folder, EVAL if command == "eval" else TRAIN)
    own = f"tools.own=[{{path = '{tmp_path / 'own.py'}', function = 'tool'}}]"
    more = ["--max-steps", "1"] if command == "train" else []
    status, out, message = forked(command, recipe, "-s", own, *more)
    assert (status, "dumpable: 0\n" in out) == (0, True), message


@pytest.mark.parametrize(
    "engine", ["name = 'openai', url = 'http://a', model = 'm'", "name = 'vllm', urls = ['http://a']"]
)
def test_doctor_wants_the_key_of_the_engine(tmp_path, model_folder, capsys, engine):
    recipe = write_task(tmp_path / "task", model_folder, EVAL)
    assert main(["doctor", str(recipe), "-s", f"engine={{{engine}, key_variable = 'NO_SUCH_KEY'}}"]) == 2
    assert "NO_SUCH_KEY" in capsys.readouterr().err


def test_doctor_refuses_what_does_not_fit_into_memory(tmp_path, model_folder, capsys):
    recipe = write_task(tmp_path / "task", model_folder)
    large = ("-s", "engine.slots=65536", "-s", "rollout.max_tokens=7000")
    assert main(["doctor", str(recipe), *large]) == 2
    message = capsys.readouterr()
    assert "takes at least" in message.err
    assert re.search(r"engine.slots = [\d]+ would fit$", message.err.strip())
    assert "can run here" not in message.out


def test_doctor_makes_no_cache(tmp_path, model_folder, capsys):
    recipe = write_task(tmp_path / "task", model_folder)
    cache = tmp_path / "cache.sqlite"
    assert main(["doctor", str(recipe), "-s", f"tools.cache.path={cache}"]) == 0
    assert "can run here" in capsys.readouterr().out
    assert not cache.exists()
    cache.write_text("something else")
    assert main(["doctor", str(recipe), "-s", f"tools.cache.path={cache}"]) == 2


def test_doctor_refuses_weights_that_are_none(tmp_path, model_folder, capsys):
    recipe = write_task(tmp_path / "task", tmp_path / "model")
    (tmp_path / "model").mkdir()
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / "model" / name).write_bytes((model_folder / name).read_bytes())
    (tmp_path / "model" / "model.safetensors").write_text("{}")
    assert main(["doctor", str(recipe)]) == 2
    assert "model.safetensors: cannot be read as safetensors" in capsys.readouterr().err


def test_doctor_says_which_keys_are_there_and_shows_none(capsys, monkeypatch):
    monkeypatch.setenv("SERPER_API_KEY", "s3cr3t")
    monkeypatch.delenv("JINA_API_KEY", raising=False)
    assert main(["doctor"]) == 0
    (message,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("keys")]
    assert "SERPER_API_KEY set" in message
    assert "JINA_API_KEY not set" in message
    assert "s3cr3t" not in message


def test_the_program_says_its_version():
    assert ramify("--version") == (0, "ramify 0.1.0\n", "")
