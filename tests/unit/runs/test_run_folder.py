"""The folder of a run: what a kill leaves never blocks it, what is not its own is neither read nor written."""

import os
import shutil

import pytest
from pydantic import BaseModel

from audited import just_before
from ramify.config.other_runs import record_of
from ramify.core.errors import ConfigError, DataError
from ramify.files.durable import LOCK, replace_lines
from ramify.obs.metrics import read_metrics
from ramify.runs.manifest import read_manifest, write_manifest
from ramify.runs.run_folder import EVALUATION, ROLLOUT, SYNTHESIS, TRAINING, RunFolder, claim_run_folder

MADE = {"made_from": {"data": {"sha256": "a"}}, "made_with": [{"commit": "1"}]}


def test_what_a_kill_left_of_later_steps_is_forgotten(tmp_path):
    folder = RunFolder(tmp_path)
    for step in (1, 2, 3):
        folder.metrics.append(step, {"loss": 0.5})
        replace_lines(folder.trees(step), [])
        replace_lines(folder.timing(step), [])
        replace_lines(folder.trees(step).with_name(f"{step:06d}.index.jsonl"), [])
    folder.trees(4).with_name("000004.jsonl.part").write_bytes(b"{")
    others = {
        "notes.jsonl",
        "000009.txt",
        "9.jsonl",
        "0000.1.jsonl",
        "\u0669\u0669\u0669\u0669\u0669\u0669.jsonl",
    }
    for name in others:
        folder.trees(1).with_name(name).write_text("mine")
    folder.rewind(1)
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [1]
    others.add("000001.index.jsonl")
    for name, mine in (("trees", others), ("timing", set())):
        assert {path.name for path in (tmp_path / name).iterdir()} == {"000001.jsonl", *mine}


class Table(BaseModel):
    name: str = "a"


def recipe_record(**keys):
    return record_of(Table(**keys))


def begun(path, recipe):
    """A run that has done its first step."""
    folder = RunFolder(path)
    folder.begin(recipe, MADE)
    folder.metrics.append(1, {"loss": 0.5})
    return folder


def test_a_run_folder_belongs_to_one_process_at_a_time(tmp_path):
    path = tmp_path / "run"
    with (
        claim_run_folder(path, recipe_record(), resume=False),
        pytest.raises(ConfigError, match="in use by another process"),
        claim_run_folder(path, recipe_record(), resume=False),
    ):
        pass
    assert not path.exists()
    with claim_run_folder(path, recipe_record(), resume=False) as folder:
        folder.begin(recipe_record(), MADE)
        folder.metrics.append(1, {"loss": 0.5})
    with pytest.raises(ConfigError, match="go on with --resume"):
        TRAINING.check(path, False, recipe_record())
    with claim_run_folder(path, recipe_record(), resume=True):
        pass
    with pytest.raises(ConfigError, match="differs from the recipe"):
        TRAINING.check(path, True, recipe_record(name="b"))
    (path / "recipe.toml").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"recipe\.toml: expected TOML"):
        TRAINING.check(path, True, recipe_record())


def test_a_run_that_another_process_began_meanwhile_is_not_gone_on_with(tmp_path):
    path = tmp_path / "run"
    with (
        just_before("os.mkdir", path, lambda: begun(path, recipe_record())),
        pytest.raises(ConfigError, match="go on with --resume"),
        claim_run_folder(path, recipe_record(), resume=False),
    ):
        pytest.fail("the folder was taken")
    assert read_metrics(path / "metrics.jsonl")


@pytest.mark.parametrize(
    "left", ["recipe.toml.part", "manifest.json.part", ".checkpoint.part", LOCK, "metrics.jsonl.part"]
)
def test_what_a_kill_left_of_a_start_does_not_block_the_next(tmp_path, left):
    path = tmp_path / "run"
    path.mkdir()
    (path / left).write_bytes(b"{")
    for resume in (False, True):
        TRAINING.check(path, resume, recipe_record())
    with claim_run_folder(path, recipe_record(), resume=False) as folder:
        folder.begin(recipe_record(), MADE)
        folder.metrics.append(1, {"loss": 0.5})
    with claim_run_folder(path, recipe_record(), resume=True) as folder:
        assert folder.name() is not None


def test_what_a_failed_start_left_belongs_to_the_next_whatever_its_recipe(tmp_path):
    path = tmp_path / "run"
    for name in ("a", "b", "c"):
        for resume in (False, True):
            recipe = recipe_record(name=name)
            with claim_run_folder(path, recipe, resume) as folder:
                folder.check_manifest(recipe, MADE | {"made_from": {"data": name}}, pytest.fail)
                folder.begin(recipe, MADE)
                (path / "engine").mkdir(exist_ok=True)
                (path / "engine" / "server-0.log").write_text("no GPU")
                (path / "cache.sqlite").write_text("")
            assert (path / "engine" / "server-0.log").read_text() == "no GPU"
    with claim_run_folder(path, recipe_record(name="d"), resume=False) as folder:
        folder.begin(recipe_record(name="d"), MADE)
        folder.metrics.append(1, {"loss": 0.5})
    with pytest.raises(ConfigError, match="holds a run; go on with --resume"):
        TRAINING.check(path, False, recipe_record(name="d"))
    with pytest.raises(ConfigError, match="differs from the recipe given"):
        TRAINING.check(path, True, recipe_record(name="a"))


def test_a_start_that_failed_before_it_made_anything_leaves_nothing(tmp_path):
    with claim_run_folder(tmp_path / "run", recipe_record(), resume=False) as folder:
        folder.begin(recipe_record(), MADE)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", [EVALUATION, SYNTHESIS, ROLLOUT])
@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_of_another_command_or_of_a_stranger_is_not_taken(tmp_path, kind, resume):
    path = tmp_path / "run"
    with kind.claim(path, resume=False):
        (path / "engine").mkdir()
    with pytest.raises(ConfigError, match="exists and is not empty"):
        TRAINING.check(path, resume, recipe_record())
    (path / LOCK).unlink()
    with pytest.raises(ConfigError, match="exists and is not empty"):
        kind.check(path, resume)


@pytest.mark.parametrize(
    "name", ["checkpoints/step-000001", "trees/000001.jsonl", "cycle-01/rl/metrics.jsonl"]
)
def test_results_without_a_recipe_are_refused(tmp_path, name):
    """The recipe was lost: to start anew would delete the results."""
    path = tmp_path / "run"
    with claim_run_folder(path, recipe_record(), resume=False):
        (path / name).parent.mkdir(parents=True)
        (path / name).write_text("x")
    for resume in (False, True):
        with pytest.raises(ConfigError, match=r"holds a run without its recipe\.toml"):
            TRAINING.check(path, resume, recipe_record())


@pytest.mark.parametrize(
    ("kind", "result"),
    [
        (TRAINING, "cycle-01/done.json"),
        (TRAINING, "metrics.jsonl"),
        (SYNTHESIS, "trees/direct.jsonl"),
        (EVALUATION, "results.jsonl"),
    ],
)
def test_results_without_a_manifest_are_not_gone_on_with(tmp_path, kind, result):
    """Else they would be mixed with those of another model, other data or other tools."""
    path = tmp_path / "run"
    with kind.claim(path, resume=False):
        for name in ("recipe.toml", result):
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_text("{}\n")
        with pytest.raises(ConfigError, match=r"without its manifest\.json: what it was made from"):
            kind.check(path, resume=True)
        write_manifest(path, MADE)
    kind.check(path, resume=True)


def test_a_run_goes_on_from_what_it_was_made_from(tmp_path):
    folder, notes = begun(tmp_path, recipe_record()), []
    folder.check_manifest(recipe_record(), MADE, notes.append)
    assert notes == []
    folder.check_manifest(recipe_record(), MADE | {"made_with": [{"commit": "2"}]}, notes.append)
    assert len(notes) == 1
    assert [session["commit"] for session in read_manifest(tmp_path)["made_with"]] == ["1", "2"]
    with pytest.raises(ConfigError, match=r'holds a run with data\.sha256 = "a", now it is "b"'):
        folder.check_manifest(recipe_record(), MADE | {"made_from": {"data": {"sha256": "b"}}}, notes.append)
    write_manifest(tmp_path, MADE)
    with pytest.raises(DataError, match=r"manifest\.json: lacks the field 'name'"):
        folder.check_manifest(recipe_record(), MADE, notes.append)
    (tmp_path / "manifest.json").write_text("[]")
    with pytest.raises(DataError, match=r"manifest\.json: expected a JSON object"):
        folder.check_manifest(recipe_record(), MADE, notes.append)


class RunPart(BaseModel):
    steps: int | None = None
    threads: int = 1
    seed: int = 0
    deterministic: bool = False


class Parts(BaseModel):
    name: str = "a"
    run: RunPart = RunPart()


def test_a_run_that_goes_on_may_be_longer_and_says_so(tmp_path):
    begun(tmp_path, record_of(Parts()))
    longer, notes = record_of(Parts(run=RunPart(steps=20, threads=2))), []
    with claim_run_folder(tmp_path, longer, resume=True) as folder:
        folder.check_manifest(longer, MADE, notes.append)
        identity = folder.begin(longer, MADE)
    assert notes == [
        "goes on with run.steps = 20, it was not set",
        "goes on with run.threads = 2, it was 1",
    ]
    assert identity.recipe == record_of(Parts()).fingerprint
    TRAINING.check(tmp_path, True, longer)


def test_every_key_that_must_not_change_is_named(tmp_path):
    begun(tmp_path, record_of(Parts(run=RunPart(deterministic=True))))
    other = record_of(Parts(name="b", run=RunPart(seed=1, threads=2, steps=3, deterministic=True)))
    with pytest.raises(ConfigError) as caught:
        TRAINING.check(tmp_path, True, other)
    message = str(caught.value)
    # The number of threads decides the last bits of a sum.
    for difference in (
        'name = "a", now it is "b"',
        "run.seed = 0, now it is 1",
        "run.threads = 1, now it is 2",
    ):
        assert difference in message
    assert "run.steps =" not in message
    assert "may change data.epochs" in message


def test_of_many_differences_the_rest_is_named_without_values(tmp_path):
    class Many(BaseModel):
        keys: dict[str, int]

    begun(tmp_path, record_of(Many(keys={f"k{i}": 0 for i in range(10)})))
    with pytest.raises(ConfigError, match=r"keys\.k7 = 0, now it is 1; and so do keys\.k8, keys\.k9;"):
        TRAINING.check(tmp_path, True, record_of(Many(keys={f"k{i}": 1 for i in range(10)})))


@pytest.mark.parametrize(
    "entry", ["recipe.toml", "manifest.json", "metrics.jsonl", "trees", "timing", "preflight", "checkpoints"]
)
@pytest.mark.parametrize("kind", ["link", "pipe", "other"])
def test_what_is_not_a_runs_own_is_refused_before_it_is_touched(tmp_path, entry, kind):
    path, outside = tmp_path / "run", tmp_path / "outside"
    begun(path, recipe_record())
    replace_lines(RunFolder(path).trees(1), ["{}"])
    outside.mkdir()
    (outside / "000009.jsonl").write_text("mine")
    shutil.rmtree(path / entry) if entry == "trees" else (path / entry).unlink(missing_ok=True)
    if kind == "link":
        (path / entry).symlink_to(outside)
    elif kind == "pipe":
        os.mkfifo(path / entry)
    elif "." in entry:
        (path / entry).mkdir()
    else:
        (path / entry).write_text("")
    with pytest.raises(ConfigError, match=rf"run\.dir: .*{entry} is (a link|neither|no file|no folder)"):
        TRAINING.check(path, True, recipe_record())
    assert (outside / "000009.jsonl").read_text() == "mine"


@pytest.mark.parametrize(
    ("kind", "name", "result"),
    [
        (EVALUATION, "times.json", "summary.json"),
        (EVALUATION, "results.jsonl", "summary.json"),
        (SYNTHESIS, "summary.json", "rl.jsonl"),
        (SYNTHESIS, "manifest.json", "trees/direct.jsonl"),
        (ROLLOUT, "recipe.toml", None),
    ],
)
def test_a_folder_in_the_place_of_a_file_is_refused_in_every_kind_of_run(tmp_path, kind, name, result):
    path = tmp_path / "run"
    with kind.claim(path, resume=False):
        for file in (result, "recipe.toml") if result else ():
            (path / file).parent.mkdir(exist_ok=True)
            (path / file).write_text("{}\n")
        (path / name).mkdir()
        (path / "engine").mkdir()
    with pytest.raises(ConfigError, match=rf"run\.dir: .*{name} is no file"):
        kind.check(path, resume=True)
