"""What files alone decide, a run, `--dry-run --rows` and `ramify doctor` decide alike: status 2 and the same line.

The table has the refusals that building a run's parts can make from its recipe and files, without a server, a key, a sandbox
or a GPU. Left out is what only reading all values of the weights tells.
"""

import json
import shutil

import pytest

from e2e_runs import DPO, EVAL, SELFCRITIC, SFT, SYNTH, TRAIN, overrides, write_task
from ramify.cli import main
from ramify.files.durable import LOCK

SANDBOXED = "[tools.python]\ntimeout_seconds = 10\n[sandbox]\nmin_level = 0\n"
TRAIN, SELFCRITIC, SYNTH = (text.replace(SANDBOXED, "") for text in (TRAIN, SELFCRITIC, SYNTH))
RECIPES = {"train": TRAIN, "rollout": TRAIN, "selfcritic": SELFCRITIC}
RECIPES |= {"sft": SFT, "dpo": DPO, "eval": EVAL, "synth": SYNTH}
HERE = "{folder}"


@pytest.fixture
def task(tmp_path, model_folder):
    """A folder with the data of a task, and a copy of the model that a test may damage."""
    shutil.copytree(model_folder, tmp_path / "model")
    write_task(tmp_path, tmp_path / "model")
    return tmp_path


def refusal(capsys, *words):
    """The line without the name of the command."""
    capsys.readouterr()
    status = main([str(word) for word in words])
    out, message = capsys.readouterr()
    assert (status, message.count("\n")) == (2, 1), (words, status, message)
    assert not (out and "--dry-run" in words)
    return message.partition(": ")[2]


def check_alike(capsys, task, command, settings=()):
    """Returns the line that all three say; nobody left a run folder."""
    recipe = task / "recipe.toml"
    recipe.write_text(RECIPES[command].format(model=task / "model", folder=task))
    words = overrides(*(setting.replace(HERE, str(task)) for setting in settings))
    before = (task / "run").exists()
    lines = {
        refusal(capsys, command, recipe, *words),
        refusal(capsys, command, recipe, "--dry-run", "--rows", *words),
        refusal(capsys, "doctor", recipe, *words),
    }
    assert len(lines) == 1, lines
    assert (task / "run").exists() == before
    return lines.pop()


def python(name, *, tool="tools.own", more=""):
    return f'{tool}=[{{path="{HERE}/{name}",function="lookup"{more}}}]'


REWARD = 'reward={name="parts",own=[{path="FILE",function="paid",weight=1.0}]}'
REFUSED_BY_RECIPE = [
    ("train", ["data.train=nowhere.jsonl"], "data.train: expected a file"),
    ("train", ["model.path=nowhere"], "model.path: model folder nowhere: no such folder"),
    ("train", ["tools.search.corpus=nowhere.jsonl"], "tools.search.corpus: expected a file"),
    ("train", [python("nowhere.py")], "tools.own.path: expected a file"),
    ("train", [REWARD.replace("FILE", "nowhere.py")], "reward.own.path: expected a file"),
    ("train", [python("nowhere.py", tool="rollout.rewriters")], "rollout.rewriters.path: expected a file"),
    ("train", ['data.exclude=["nowhere"]'], "data.exclude: expected a file, a folder or hf:org/name"),
    (
        "train",
        ['rollout.branching={name="random",rate_from="nowhere"}'],
        "rate_from: expected a run's folder",
    ),
    (
        "train",
        ["tools.python.environment=nowhere"],
        "tools.python.environment: expected the folder of an environ",
    ),
    ("train", [f"tools.python.environment={HERE}"], "has no Python, expected bin/python3"),
    (
        "eval",
        ['tools.python.packages=["nothing"]'],
        "tools.python.packages: 'nothing' is not installed beside",
    ),
    ("eval", ["tools.python.preamble=nowhere.py"], "tools.python.preamble: expected a file, found none at"),
    ("synth", ['tools.python.preamble=["x = 1", "import ="]'], "tools.python.preamble, line 2: not Python: "),
    ("train", ["rollout.max_tokens=100000"], "positions, but prompt and response may take 100200"),
    ("train", ["data.max_prompt_tokens=1"], "no problem is left, all prompts have more than"),
    ("train", ["rollout.problems_per_step=19"], "expected at most 18, the number of usable rows"),
    ("train", [f'data.exclude=["{HERE}/problems.jsonl"]'], "data.exclude ("),
    ("train", ["model.dialect=hermes"], "hermes"),
    (
        "train",
        ['engine={name="vllm",urls=["http://10.0.0.9:8000"],dtype="float32"}', "run.deterministic=false"],
        "engine.weights_dir: http://10.0.0.9:8000 is on another machine",
    ),
    ("selfcritic", ["rollout.problems_per_step=19"], "expected at most 18, the number of usable rows"),
    ("selfcritic", ["dpo.max_tokens=100000"], "positions, but prompt and response may take 100000"),
    ("rollout", ["data.max_prompt_tokens=1"], "no problem is left"),
    ("sft", ["learner.batch_size=7"], "expected at most 6, the number of usable rows"),
    ("sft", ["data.max_tokens=2"], "no example is left"),
    ("sft", ["data.max_tokens=100000"], "positions, but prompt and response may take 100000"),
    ("dpo", ["learner.batch_size=9"], "expected at most 8, the number of usable rows"),
    ("eval", ["data.test=nowhere.jsonl"], "data.test: expected a file"),
    ("eval", ["data.test=aime99=nowhere"], "aime99"),
    ("eval", ["data.max_prompt_tokens=1"], "no problem is left"),
    ("eval", ["sampling.max_tokens=100000"], "positions, but prompt and response may take 100200"),
    ("synth", ["data.max_prompt_tokens=1"], "no problem is left"),
    ("synth", ["hints.library=nowhere.toml"], "hints.library: expected a file"),
    ("synth", ["engine.script=nowhere.toml"], "engine.script: expected a file"),
]


@pytest.mark.parametrize(("command", "settings", "line"), REFUSED_BY_RECIPE)
def test_a_recipe_that_does_not_fit_its_files(task, capsys, command, settings, line):
    assert line in check_alike(capsys, task, command, settings)


OWN = python("own.py")
PROBLEM = '{"prompt": "what is 1 plus 1 ?", "answer": 2}\n'
DEMONSTRATION = '{"prompt": "?", "completion": "<answer> 1 </answer>"}\n'
CACHE = f'tools.cache={{path="{HERE}/kept",mode="MODE"}}'
REFUSED_BY_FILES = [
    ("train", {"problems.jsonl": ""}, [], "empty; expected at least one row"),
    ("train", {"problems.jsonl": '{"prompt": "?"'}, [], "row 1 (lines count from 1): broken JSON"),
    ("train", {"problems.jsonl": PROBLEM + '{"prompt": "?"}\n'}, [], "row 2 (lines count from 1): no answer"),
    ("train", {"problems.jsonl": PROBLEM.replace("{", '{"id": 1, ') * 2}, [], "is already that of row 1"),
    ("train", {"problems.jsonl": PROBLEM + PROBLEM.replace("plus", "plus " * 999)}, [], "expected at most 1, the number"),
    ("train", {"rows.parquet": "PAR1"}, [f"data.train={HERE}/rows.parquet"], "not a readable parquet file"),
    ("train", {"passages.jsonl": ""}, [], "passages.jsonl: empty. Expected one passage per line."),
    ("train", {"passages.jsonl": "[]\n"}, [], "passages.jsonl row 1"),
    ("train", {"own.py": "def lookup("}, [OWN], "own.py, line 1: not Python"),
    ("train", {"own.py": "1 / 0"}, [OWN], "running it failed: ZeroDivisionError"),
    ("train", {"own.py": ""}, [OWN], "no function or class 'lookup'"),
    ("train", {"own.py": "def lookup(x):\n    return x\n"}, [OWN], "own.py"),
    ("train", {"own.py": ""}, [REWARD.replace("FILE", f"{HERE}/own.py")], "no function or class 'paid'"),
    ("train", {"own.py": ""}, [OWN.replace("tools.own", "rollout.rewriters")], "no function or class 'lookup'"),
    ("train", {"own.py": "# no"}, [f"tools.python.preamble={HERE}/own.py"], "own.py: expected statements, got none"),
    ("train", {"own.py": "(\n"}, [f"tools.python.preamble={HERE}/own.py"], "own.py, line 1: not Python: "),
    ("train", {"kept": "mine"}, [CACHE.replace("MODE", "replay_or_fail")], "kept"),
    ("train", {"kept": "mine"}, [CACHE.replace("MODE", "replay")], "kept"),
    ("train", {"kept": "mine" * 2000}, [CACHE.replace("MODE", "cache")], "kept"),
    ("train", {"model/tokenizer.json": "{}"}, [], "tokenizer.json"),
    ("train", {"model/chat_template.jinja": "nothing"}, [], "the chat template drops or changes the user's message"),
    ("train", {"model/chat_template.jinja": "{{ nope("}, [], "the chat template cannot be read"),
    ("train", {"model/config.json": "[]"}, [], "config.json: expected a JSON object"),
    ("train", {"model/model.safetensors": "short"}, [], "model.safetensors"),
    ("rollout", {"problems.jsonl": '{"prompt": "?"}\n'}, [], "no answer"),
    ("selfcritic", {"problems.jsonl": '{"prompt": "?"}\n'}, [], "no answer"),
    ("sft", {"demonstrations.jsonl": ""}, [], "expected examples, the file is empty"),
    ("sft", {"demonstrations.jsonl": DEMONSTRATION + "{}\n"}, [], "Mend them, or leave them out"),
    ("sft", {"own.py": ""}, [OWN], "no function or class 'lookup'"),
    ("sft", {"model/tokenizer.json": "{}"}, [], "tokenizer.json"),
    ("dpo", {"pairs.jsonl": '{"prompt": "?", "chosen": "a", "rejected": "a"}\n'}, [], "pairs.jsonl"),
    ("eval", {"problems.jsonl": '{"prompt": "?"}\n'}, [], "no answer"),
    ("eval", {"passages.jsonl": "[]\n"}, [], "passages.jsonl row 1"),
    ("synth", {"problems.jsonl": '{"prompt": "?"}\n'}, [], "no answer"),
    ("synth", {"script.toml": "turns = 3"}, [], "script.toml: expected [[turns]] tables"),
    ("synth", {"hints.toml": "x = 1"}, [f"hints.library={HERE}/hints.toml"], "expected markers and [[hints]]"),
    (
        "synth",
        {"hints.toml": '[[hints]]\nname = "a"\nkind = "reflection"\ntext = "b"\ntool = "python"\n'},
        [f"hints.library={HERE}/hints.toml"],
        "hints.library: none of its 1 hints is for a tool of the recipe (search)",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("command", "files", "settings", "line"), REFUSED_BY_FILES)
def test_files_that_cannot_be_used(task, capsys, command, files, settings, line):
    for name, content in files.items():
        (task / name).write_text(content)
    assert line in check_alike(capsys, task, command, settings)


@pytest.mark.parametrize("command", ["train", "sft", "eval"])
@pytest.mark.parametrize("key", ["num_hidden_layers", "intermediate_size", "vocab_size"])
def test_weights_of_another_model(task, capsys, command, key):
    file = task / "model" / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps(config | {key: config[key] + 1}))
    check_alike(capsys, task, command)


@pytest.mark.parametrize("command", RECIPES)
def test_a_folder_that_is_taken(task, capsys, command):
    (task / "run").mkdir()
    (task / "run" / "thesis.tex").write_text("mine")
    if command == "rollout":
        # For doctor it is a recipe of `ramify train`.
        (task / "run" / LOCK).write_text("")
    assert "exists and is not empty; expected a new or empty folder" in check_alike(capsys, task, command)


@pytest.mark.parametrize("command", RECIPES)
def test_a_recipe_that_is_right_is_accepted_by_all(task, capsys, command):
    recipe = task / "recipe.toml"
    recipe.write_text(RECIPES[command].format(model=task / "model", folder=task))
    assert main([command, str(recipe), "--dry-run"]) == 0
    assert "# rows were not read: add --rows" in capsys.readouterr().out
    assert main([command, str(recipe), "--dry-run", "--rows"]) == 0
    assert capsys.readouterr().out.endswith("# all files were read, and can be used\n")
    assert not (task / "run").exists()
    assert main(["doctor", str(recipe)]) == 0
    assert "can run here" in capsys.readouterr().out
    short = {"train": ("--max-steps", "1"), "rollout": ("--problems", "1"), "sft": ("--max-steps", "1")}
    more = short.get(command, ("--max-steps", "1") if command == "dpo" else ())
    assert main([command, str(recipe), *more]) == 0


@pytest.mark.parametrize(
    ("command", "settings", "rows"),
    [
        ("train", ["rollout.problems_per_step=128"], 18),
        ("train", ["rollout.problems_per_step=128", "data.weights=[2]", "data.limit=4"], 8),
        ("sft", ["learner.batch_size=128"], 6),
        ("sft", ["learner.batch_size=128", "data.weights=[2]", "data.limit=4"], 8),
        ("dpo", ["learner.batch_size=128"], 8),
    ],
)
def test_a_plain_dry_run_counts_the_rows(task, capsys, command, settings, rows):
    line = check_alike(capsys, task, command, settings)
    options = [option for setting in settings for option in ("-s", setting)]
    assert line == refusal(capsys, command, task / "recipe.toml", "--dry-run", *options)
    assert f"expected at most {rows}, the number of usable rows of data.train, got 128" in line


def test_rows_are_read_by_a_dry_run_only(task, capsys):
    assert refusal(capsys, "train", task / "recipe.toml", "--rows").startswith(
        "--rows: expected --dry-run too"
    )
