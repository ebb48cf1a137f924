"""Every mistake of a user: exit status 2 and one line that names the place and what was expected."""

import shutil
import subprocess
import sys

import pytest

from damaged_folders import all_damages
from e2e_runs import EVAL, SECONDS, SFT, TRAIN, ramify, write_lines, write_task
from loopback import Reply, serve
from ramify.cli import main


@pytest.fixture
def task(tmp_path, model_folder):
    return write_task(tmp_path / "task", model_folder)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "ramify: the following arguments are required: COMMAND"),
        (("fly",), "ramify: argument COMMAND: invalid choice: 'fly'"),
        (("trian",), "did you mean train?"),
        (
            ("train", "r.toml", "--dryrun"),
            "ramify: unrecognized arguments: --dryrun, did you mean --dry-run?",
        ),
        (("train",), "ramify train: the following arguments are required: RECIPE.toml"),
        (("train", "r.toml", "--fast"), "ramify: unrecognized arguments: --fast"),
        (
            ("train", "r.toml", "--max-steps", "0"),
            "argument --max-steps: expected a whole number of at least 1",
        ),
        (
            ("train", "r.toml", "--max-steps", "x"),
            "argument --max-steps: expected a whole number of at least 1",
        ),
        (
            ("rollout", "r.toml", "--problems", "-1"),
            "argument --problems: expected a whole number of at least 1",
        ),
        (
            ("quickstart", "--seed", "one"),
            "argument --seed: expected a whole number of 64 bits, got 'one'",
        ),
        (
            ("quickstart", "--seed", "9223372036854775808"),
            "argument --seed: expected a whole number of 64 bits, got '9223372036854775808'",
        ),
        (
            ("quickstart", "--lm", "--difficulty", "1"),
            "argument --difficulty: not allowed with argument --lm",
        ),
        (("merge",), "ramify merge: the following arguments are required: COMMAND"),
        (("merge", "verl", "x"), "the following arguments are required: --out"),
        (("merge", "verl", "x", "--out", "y", "--dtype", "int8"), "argument --dtype: invalid choice: 'int8'"),
        (("merge", "verify", "x", "y"), "model folder x: no such folder"),
        (("model",), "ramify model: the following arguments are required: COMMAND"),
        (("model", "fetch", "smollm2-135m"), "the following arguments are required: --out"),
        (("model", "fetch", "gpt 5", "--out", "x"), "gpt 5: expected smollm2-135m or an id of the hub"),
        (("model", "fetch", "smollm2-135m", "--out", "/proc/x/y"), "--out: /proc/x"),
    ],
)
def test_wrong_usage(refused, arguments, told):
    assert told in refused(*arguments)


def test_a_doctor_meets_a_recipe_whose_tables_are_none(refused, tmp_path):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('learner = 3\nmodel = "x"\n')
    assert "learner: expected a table, got 3" in refused("doctor", recipe)


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("rollout.tree_size=3", "rollout.tree_size: unknown key"),
        ("rollout.n=many", "rollout.n: expected a valid integer, got 'many'"),
        ("rollout.m=7", "rollout.m: expected at most n = 6, got 7"),
        ("algorithm.name=grpo", "algorithm.name: unknown key"),
        ("algorithm.estimator.name=grpo", "algorithm.estimator.name: expected one of group, reinforce_pp"),
        ("algorithm.overlong_margin=9", "algorithm.overlong_margin: has no effect without truncated"),
        (
            "rollout.dynamic_sampling={}",
            "rollout.dynamic_sampling: needs a reward that tells right from wrong",
        ),
        ("data.train=nowhere.jsonl", "data.train: expected a file, found none at nowhere.jsonl"),
        ("data.train=/dev", "data.train: /dev: expected .jsonl or .parquet files in this folder"),
        ("tools.search.corpus=nowhere.jsonl", "tools.search.corpus: expected a file"),
        ("tools={}", "tools: expected [tools.search], [tools.python] or [[tools.own]]"),
        ("model.path=nowhere", "model.path: model folder nowhere: no such folder"),
        ("model.device=tpu", "model.device"),
        ("engine={name='scripted', script='nowhere.toml'}", "engine.script: expected a file"),
        ("sandbox.min_level=9", "sandbox.min_level: expected a number less than or equal to 4, got 9"),
        ("rollout", "expected key.name=value"),
    ],
)
def test_wrong_recipes_before_anything_is_loaded(refused, task, override, told):
    line = refused("train", task, "-s", override)
    assert told in line
    assert line.startswith("ramify train: ")
    assert not (task.parent / "run").exists()


def test_all_that_is_missing_is_told_at_once(refused, task):
    settings = ("model.path=nowhere", "data.train=none.jsonl", "tools.search.corpus=none.jsonl")
    told = refused("train", task, *(word for setting in settings for word in ("-s", setting)))
    assert "3 mistakes: (1) model.path: " in told
    assert "(2) data.train: expected a file" in told
    assert "(3) tools.search.corpus: expected a file" in told


def test_recipes_that_are_none(refused, tmp_path):
    assert "expected a recipe file, found none" in refused("train", tmp_path / "nowhere.toml")
    assert "expected a recipe file, found none" in refused("eval", tmp_path)
    broken = tmp_path / "broken.toml"
    broken.write_text("[model\npath = 1")
    assert f"{broken}: expected TOML" in refused("sft", broken)


def test_a_model_folder_without_tokenizer_or_weights(refused, task, tmp_path, model_folder):
    folder = tmp_path / "bare"
    shutil.copytree(model_folder, folder)
    (folder / "tokenizer.json").unlink()
    for command in ("train", "rollout", "doctor"):
        told = refused(command, task, "-s", f"model.path={folder}")
        assert f"model.path: expected a model folder, {folder}/tokenizer.json is missing" in told
    shutil.copy(model_folder / "tokenizer.json", folder)
    (folder / "model.safetensors").unlink()
    assert f"model folder {folder}: no weights, expected model.safetensors" in refused(
        "train", task, "-s", f"model.path={folder}"
    )


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("empty.jsonl", b"", "empty; expected at least one row with a prompt and an answer"),
        (
            "mute.jsonl",
            b'{"prompt": "?", "answer": 1}\n{"prompt": "?"}\n',
            "row 2 (lines count from 1): no answer",
        ),
        ("torn.jsonl", b'{"prompt": "?"', "row 1 (lines count from 1): broken JSON"),
        ("torn.parquet", b"PAR1", "not a readable parquet file"),
        ("table.csv", b"prompt,answer", "unknown kind of file '.csv'"),
    ],
)
def test_data_that_cannot_be_used_leave_no_run_behind(refused, task, tmp_path, name, content, told):
    data = tmp_path / name
    data.write_bytes(content)
    line = refused("train", task, "-s", f"data.train={data}")
    assert told in line
    assert str(data) in line
    assert not (task.parent / "run").exists()


@pytest.mark.parametrize(
    ("command", "text", "override", "told"),
    [
        (
            "train",
            TRAIN,
            "rollout.problems_per_step=1000000000",
            "rollout.problems_per_step: expected at most {rows}, the number of usable rows of data.train, got 1000000000",
        ),
        (
            "sft",
            SFT,
            "learner.batch_size=1000000000",
            "learner.batch_size: expected at most {rows}, the number of usable rows of data.train, got 1000000000",
        ),
    ],
)
def test_steps_that_the_data_do_not_have(refused, tmp_path, model_folder, command, text, override, told):
    task = write_task(tmp_path / "task", model_folder, text)
    name = "problems.jsonl" if command == "train" else "demonstrations.jsonl"
    rows = len((task.parent / name).read_text().splitlines())
    assert told.format(rows=rows) in refused(command, task, "-s", override)
    assert not (task.parent / "run").exists()


@pytest.mark.parametrize(
    ("command", "text", "override"),
    [
        ("train", TRAIN, "data.train=nowhere.jsonl"),
        ("rollout", TRAIN, "run.dir=/"),
        ("eval", EVAL, "data.test=nowhere.jsonl"),
        ("sft", SFT, "model.path=nowhere"),
        ("dpo", SFT, "model.path=nowhere"),
    ],
)
def test_a_dry_run_prints_no_recipe_that_it_refuses(tmp_path, model_folder, capsys, command, text, override):
    task = write_task(tmp_path / "task", model_folder, text)
    beta = ("-s", "learner.beta=0.1") if command == "dpo" else ()
    assert main([command, str(task), "--dry-run", *beta, "-s", override]) == 2
    out, told = capsys.readouterr()
    assert out == ""
    assert told.startswith(f"ramify {command}: {override.partition('=')[0]}: ")


def test_prompts_that_are_all_too_long(refused, task):
    assert "no problem is left" in refused("train", task, "-s", "data.max_prompt_tokens=3")


def test_sequences_that_do_not_fit_the_model(refused, task):
    assert "has 8192 positions" in refused("train", task, "-s", "rollout.max_tokens=9000")


BROKEN = [
    "config.json quantization_config = 'int8'",
    "config.json with remote code",
    "config.json rope_theta = nan",
    "tokenizer.json model.vocab = 'x'",
    "chat_template.jinja with raises",
    "chat_template.jinja with a huge text",
    "model.safetensors holds a pickle",
    "model.safetensors with no model.layers.0.self_attn.k_norm.weight",
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


@pytest.mark.parametrize("name", BROKEN[1:8:3])
def test_a_damaged_model_folder_prints_one_line_and_asks_nothing(tmp_path, model_folder, name):
    recipe = write_task(tmp_path / "task", broken(name, model_folder, tmp_path / "model"), SFT)
    status, _, told = ramify("sft", recipe)
    assert (status, told.count("\n")) == (2, 1), told
    assert str(tmp_path / "model") in told


def test_a_broken_script(refused, task):
    script = task.parent / "broken.toml"
    script.write_text("[[turns]]\ntext = 'a'")
    told = refused("rollout", task, "-s", "engine.name=scripted", "-s", f"engine.script={script}")
    assert f"{script}: expected [[turns]] tables" in told


def test_folders_that_are_taken(refused, task, tmp_path, model_folder):
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "thesis.tex").write_text("mine")
    there = ("-s", f"run.dir={taken}")
    evaluation = write_task(tmp_path / "eval", model_folder, EVAL)
    assert f"run.dir: {taken} exists and is not empty" in refused("train", task, *there)
    assert f"run.dir: {taken} exists and is not empty" in refused("rollout", task, *there)
    assert f"run.dir: {taken} exists and is not empty" in refused("eval", evaluation, *there)
    assert f"--out: {taken} exists and is not empty" in refused("quickstart", "--out", taken)
    assert [path.name for path in taken.iterdir()] == ["thesis.tex"]


def test_a_run_is_neither_repeated_nor_resumed_with_another_recipe(refused, task, capsys):
    assert main(["train", str(task), "--max-steps", "1"]) == 0
    capsys.readouterr()
    run = task.parent / "run"
    assert f"run.dir: {run} holds a run; go on with --resume" in refused("train", task)
    other = refused("train", task, "--resume", "-s", "learner.optimizer.rate=1e-4")
    assert f"{run}/recipe.toml differs from the recipe given" in other


@pytest.mark.parametrize("command", ["train", "rollout", "eval", "sft", "quickstart"])
def test_a_folder_that_cannot_be_made(refused, tmp_path, model_folder, command):
    below_a_file = tmp_path / "file" / "run"
    below_a_file.parent.write_text("")
    if command == "quickstart":
        told = refused(command, "--out", below_a_file)
    else:
        recipe = write_task(tmp_path / "task", model_folder, {"eval": EVAL, "sft": SFT}.get(command, TRAIN))
        told = refused(command, recipe, "-s", f"run.dir={below_a_file}")
    assert f"{below_a_file} cannot be created: Not a directory" in told


def test_demonstrations_that_cannot_be_used(refused, tmp_path, model_folder):
    recipe = write_task(tmp_path / "task", model_folder, SFT)
    rows = write_lines(tmp_path / "rows.jsonl", [{"prompt": [{"role": "user", "content": "?"}]}])
    assert f"{rows} row 1: no 'completion'. Mend them, or leave" in refused(
        "sft", recipe, "-s", f"data.train={rows}"
    )
    told = refused("sft", recipe, "-s", "data.max_tokens=5")
    assert (
        "no example is left: left out 6 of 6 rows with more than data.max_tokens = 5 tokens: rows 1, 2, 3"
        in told
    )


def test_a_sandbox_that_cannot_reach_the_level(task, tmp_path):
    """A machine without libseccomp: importing its binding fails as it does there. The default asks for level 2."""
    (tmp_path / "pyseccomp.py").write_text("raise RuntimeError('Unable to find libseccomp')")
    for command in ("train", "doctor"):
        status, out, told = ramify(command, task, "-s", "sandbox.min_level=", PYTHONPATH=str(tmp_path))
        assert status == 2
        assert told.count("\n") == 1
        assert "sandbox.min_level = 2: this machine reaches level 0" in told
        assert "(not level 1: seccomp: Unable to find libseccomp)" in told
        assert "Set sandbox.min_level = 0 to accept that level" in told
    assert "not level 1: seccomp: Unable to find libseccomp" in out
    assert not (task.parent / "run").exists()


KEY = "skAbcDefGhiJklMnoPqr0123456789"


@pytest.mark.parametrize(
    ("command", "setting", "told"),
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
    refused, tmp_path, model_folder, command, setting, told
):
    recipe = write_task(tmp_path / "task", model_folder, EVAL if command == "eval" else TRAIN)
    said = refused(command, recipe, "-s", setting)
    assert told in said
    assert KEY.lower() not in said.lower()


def test_what_a_service_says_acts_on_no_terminal(refused, tmp_path, model_folder):
    recipe = write_task(tmp_path / "task", model_folder, EVAL)
    body = "go away \x1b[2J\x1b]0;title\x07 \u202e \x9b31m".encode()
    with serve(lambda _: Reply(401, body)) as server:
        engine = f"{{name = 'openai', url = '{server.url}', model = 'm'}}"
        said = refused("eval", recipe, "-s", f"engine={engine}")
    assert r"go away \x1b[2J\x1b]0;title\x07 \u202e \x9b31m" in said
    assert said[:-1].isprintable()


def test_a_name_that_is_no_text_is_shown_as_well_as_it_can_be(tmp_path, model_folder):
    """The system gives bytes that are not UTF-8 as halves of surrogate pairs, which no stream takes."""
    recipe = tmp_path / "task \udcff\x1b[31m" / "recipe.toml"
    recipe.parent.mkdir()
    recipe.write_text(write_task(tmp_path / "task", model_folder).read_text())
    status, out, told = ramify("doctor", recipe)
    assert (status, told) == (0, "")
    assert rf"{tmp_path}/task \udcff\x1b[31m/recipe.toml is for ramify train" in out
    assert "\x1b" not in out


def test_a_disk_that_takes_no_more(task):
    """The size of a file is limited as a quota limits it."""
    code = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))"
    code += "; from ramify.cli import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", code, "train", str(task)], capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 1, done.stderr
    assert done.stderr.count("\n") == 1
    assert f"{task.parent}/run/" in done.stderr
    assert "File too large" in done.stderr


def test_the_program_itself_ends_with_the_status(task):
    status, _, told = ramify("train", task, "-s", "data.train=nowhere.jsonl")
    assert (status, told.count("\n")) == (2, 1)
