"""Every mistake of a user: exit status 2 and one line that names the place and what was expected."""

import shutil

import pytest

from damaged_folders import all_damages
from e2e_runs import EVAL, SFT, TRAIN, overrides, ramify, write_task
from file_limits import file_size_limit
from loopback import Reply, serve
from ramify.cli import main


@pytest.fixture
def task(tmp_path, model_folder):
    return write_task(tmp_path / "task", model_folder)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "ramify: the following arguments are required: COMMAND"),
        (("fly",), "ramify: argument COMMAND: invalid choice: 'fly'"),
        (("trian",), "did you mean train?"),
        (("train", "r.toml", "--dryrun"), "ramify: unrecognized arguments: --dryrun, did you mean --dry-run?"),
        (("train",), "ramify train: the following arguments are required: RECIPE.toml"),
        (("train", "r.toml", "--fast"), "ramify: unrecognized arguments: --fast"),
        (("train", "r.toml", "--max-steps", "0"), "argument --max-steps: expected a whole number of at least 1"),
        (("train", "r.toml", "--max-steps", "x"), "argument --max-steps: expected a whole number of at least 1"),
        (("rollout", "r.toml", "--problems", "-1"), "argument --problems: expected a whole number of at least 1"),
        (("quickstart", "--seed", "one"), "argument --seed: expected a whole number of 64 bits, got 'one'"),
        (
            ("quickstart", "--seed", "9223372036854775808"),
            "argument --seed: expected a whole number of 64 bits, got '9223372036854775808'",
        ),
        (("quickstart", "--lm", "--difficulty", "1"), "argument --difficulty: not allowed with argument --lm"),
        (("merge",), "ramify merge: the following arguments are required: COMMAND"),
        (("merge", "verl", "x"), "the following arguments are required: --out"),
        (("merge", "verl", "x", "--out", "y", "--dtype", "int8"), "argument --dtype: invalid choice: 'int8'"),
        (("merge", "verify", "x", "y"), "model folder x: no such folder"),
        (("model",), "ramify model: the following arguments are required: COMMAND"),
        (("model", "fetch", "smollm2-135m"), "the following arguments are required: --out"),
        (("model", "fetch", "gpt 5", "--out", "x"), "gpt 5: expected smollm2-135m or an id of the hub"),
        (("model", "fetch", "smollm2-135m", "--out", "/proc/x/y"), "--out: /proc/x"),
    ],
)  # fmt: skip
def test_wrong_usage(refused, arguments, message):
    assert message in refused(*arguments)


def test_a_doctor_meets_a_recipe_whose_tables_are_none(refused, tmp_path):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('learner = 3\nmodel = "x"\n')
    assert "learner: expected a table, got 3" in refused("doctor", recipe)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rollout.tree_size=3", "rollout.tree_size: unknown key"),
        ("rollout", "expected key.name=value"),
        ("model.device=tpu", "model.device: expected"),
        ("data.train=/dev", "data.train: /dev: expected .jsonl or .parquet files in this folder"),
    ],
)
def test_a_wrong_recipe_leaves_no_run_behind(refused, task, override, message):
    line = refused("train", task, "-s", override)
    assert message in line
    assert line.startswith("ramify train: ")
    assert not (task.parent / "run").exists()


def test_all_that_is_missing_is_told_at_once(refused, task):
    settings = ("model.path=nowhere", "data.train=none.jsonl", "tools.search.corpus=none.jsonl")
    message = refused("train", task, *overrides(*settings))
    assert "3 mistakes: (1) model.path: " in message
    assert "(2) data.train: expected a file" in message
    assert "(3) tools.search.corpus: expected a file" in message


BROKEN = [
    "config.json with remote code",
    "config.json rope_theta = nan",
    "model.safetensors with nan in model.norm.weight",
    "model.safetensors.index.json with a path out of the folder",
]


def broken(name, model_folder, folder):
    """A copy of the model with one kind of damage."""
    (damage,) = [damage for damage in all_damages() if damage.name == name]
    shutil.copytree(model_folder, folder)
    damage.do(folder)
    return folder


@pytest.mark.parametrize("name", BROKEN)
def test_a_damaged_model_folder_leaves_no_run_behind(refused, tmp_path, model_folder, name):
    model = broken(name, model_folder, tmp_path / "model")
    for command, text in (("train", TRAIN), ("sft", SFT)):
        recipe = write_task(tmp_path / command, model, text)
        assert str(model) in refused(command, recipe)
        assert not (recipe.parent / "run").exists()
    assert str(model) in refused("eval", write_task(tmp_path / "eval", model, EVAL))


@pytest.mark.parametrize("name", [BROKEN[0], "chat_template.jinja with raises"])
def test_a_damaged_model_folder_prints_one_line_and_asks_nothing(tmp_path, model_folder, forked, name):
    recipe = write_task(tmp_path / "task", broken(name, model_folder, tmp_path / "model"), SFT)
    status, _, message = forked("sft", recipe)
    assert (status, message.count("\n")) == (2, 1), message
    assert str(tmp_path / "model") in message


def test_a_run_is_neither_repeated_nor_resumed_with_another_recipe(refused, task, capsys):
    assert main(["train", str(task), "--max-steps", "1"]) == 0
    capsys.readouterr()
    run = task.parent / "run"
    assert f"run.dir: {run} holds a run; go on with --resume" in refused("train", task)
    other = refused("train", task, "--resume", "-s", "learner.optimizer.rate=1e-4")
    assert f"{run}/recipe.toml differs from the recipe given" in other


def test_folders_in_which_no_quick_start_can_be(refused, tmp_path):
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "thesis.tex").write_text("mine")
    assert f"--out: {taken} exists and is not empty" in refused("quickstart", "--out", taken)
    assert [path.name for path in taken.iterdir()] == ["thesis.tex"]
    below_a_file = taken / "thesis.tex" / "run"
    message = refused("quickstart", "--out", below_a_file)
    assert f"{below_a_file} cannot be created: Not a directory" in message


def test_a_sandbox_that_cannot_reach_the_level(task, tmp_path):
    """A machine without libseccomp: importing its binding fails as it does there. The default asks for level 2."""
    (tmp_path / "pyseccomp.py").write_text("raise RuntimeError('Unable to find libseccomp')")
    for command in ("train", "doctor"):
        status, out, message = ramify(command, task, "-s", "sandbox.min_level=", PYTHONPATH=str(tmp_path))
        assert status == 2
        assert message.count("\n") == 1
        assert "sandbox.min_level = 2: this machine reaches level 0" in message
        assert "(not level 1: seccomp: Unable to find libseccomp)" in message
        assert "Set sandbox.min_level = 0 to accept that level" in message
    assert "not level 1: seccomp: Unable to find libseccomp" in out
    assert not (task.parent / "run").exists()


KEY = "skAbcDefGhiJklMnoPqr0123456789"


@pytest.mark.parametrize(
    ("command", "setting", "message"),
    [
        ("train", f"sandbox={{url='http://h', level=2, key_variable='{KEY}'}}", "sandbox.key_variable: expected the name"),
        ("train", f"sandbox.key_variable=sk-{KEY}", "sandbox.key_variable: expected the name"),
        ("train", f"sandbox.key_variable={KEY.upper()}", "sandbox.key_variable: expected the name"),
        ("train", f"sandbox.key_variable=['{KEY}']", "sandbox.key_variable: expected the name"),
        ("eval", f"engine={{name='openai', url='http://h', model='m', key_variable='{KEY}'}}", "engine.key_variable: exp"),
        ("eval", f"engine=http://joe:{KEY}@h", "engine: expected a table"),
        ("train", f"tools.search={{provider='retriever', url=['http://joe:{KEY}@h']}}", "tools.search.url: expected"),
        ("train", f"tools.search={{provider='retriever', url='http://joe:{KEY}@h'}}", "expected an address without a key"),
        ("train", f"model.path=http://joe:{KEY}@h", "model.path: model folder http"),
        ("train", f"rollout.n.x={KEY}", "-s rollout.n.x: n is a value"),
    ],
)  # fmt: skip
def test_a_key_in_the_wrong_place_is_refused_and_shown_to_nobody(
    refused, tmp_path, model_folder, command, setting, message
):
    recipe = write_task(tmp_path / "task", model_folder, EVAL if command == "eval" else TRAIN)
    line = refused(command, recipe, "-s", setting)
    assert message in line
    assert KEY.lower() not in line.lower()


def test_what_a_service_says_acts_on_no_terminal(refused, tmp_path, model_folder):
    recipe = write_task(tmp_path / "task", model_folder, EVAL)
    body = "go away \x1b[2J\x1b]0;title\x07 \u202e \x9b31m".encode()
    with serve(lambda _: Reply(401, body)) as server:
        engine = f"{{name = 'openai', url = '{server.url}', model = 'm'}}"
        line = refused("eval", recipe, "-s", f"engine={engine}")
    assert r"go away \x1b[2J\x1b]0;title\x07 \u202e \x9b31m" in line
    assert line[:-1].isprintable()


def test_a_name_that_is_no_text_is_shown_as_well_as_it_can_be(tmp_path, model_folder, forked):
    """The system gives bytes that are not UTF-8 as halves of surrogate pairs, which no stream takes."""
    recipe = tmp_path / "task \udcff\x1b[31m" / "recipe.toml"
    recipe.parent.mkdir()
    recipe.write_text(write_task(tmp_path / "task", model_folder).read_text())
    status, out, message = forked("doctor", recipe)
    assert (status, message) == (0, "")
    assert rf"{tmp_path}/task \udcff\x1b[31m/recipe.toml is for ramify train" in out
    assert "\x1b" not in out


def test_a_disk_that_takes_no_more(task, capsys):
    """The size of a file is limited as a quota limits it."""
    with file_size_limit(8192):
        assert main(["train", str(task)]) == 1
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert f"{task.parent}/run/" in message
    assert "File too large" in message
