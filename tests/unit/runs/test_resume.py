"""Where a run begins: which checkpoints it goes on from, and which it refuses."""

import io
import json
import shutil

import pytest

import build
from model_folders import write_model, write_tokenizer
from ramify.assemble.training import training_setup
from ramify.config.other_runs import record_of
from ramify.config.schema_examples import SftRecipe
from ramify.core.errors import DataError
from ramify.data.order import DataCursor
from ramify.learner.guard import GuardState
from ramify.modeling.configs import AdapterConfig
from ramify.modeling.load import load_model
from ramify.modeling.lora import add_lora
from ramify.obs.console import RunConsole
from ramify.obs.metrics import read_metrics
from ramify.runs.checkpoint import companion_files
from ramify.runs.checkpoint_files import write_record
from ramify.runs.resume import restore, starting_point
from ramify.runs.run_folder import RunFolder
from ramify.runs.state import CheckpointScore, LoopState, Saver

STATE = LoopState(
    7,
    DataCursor(1, 4),
    (0.25, None, 0.5),
    5,
    (CheckpointScore(5, 0.75),),
    {"first_seen": [[0, [1, 0], 0.5]]},
    GuardState(1, 2, False, None, 5),
)


def learner(folder, lora=False):
    model = load_model(folder)
    if lora:
        add_lora(model, AdapterConfig(rank=2, alpha=4.0), seed=0)
    return build.learner(model)


@pytest.fixture(scope="module")
def saved(tmp_path_factory, model_folder):
    """The run folder of a run with one checkpoint, to be copied."""
    root = tmp_path_factory.mktemp("saved")
    return save(root, model_folder, learner(model_folder))


def save(root, model_path, of, **changes):
    start, checked, folder = (
        begin(root, model_path, **changes),
        recipe(root, model_path, **changes),
        RunFolder(root),
    )
    of.step, of.skipped_in_a_row = 28, 3
    identity = folder.begin(record_of(checked), {"made_from": {}, "made_with": [{}]})
    for step in range(1, STATE.step + 1):
        folder.metrics.append(step, {"loss": 1.0})
    Saver(folder, of, companion_files(model_path), start.tokenizer, identity, checked.run, 100).save(STATE)
    return root


def recipe(root, model_path, rate=0.01, save_every=5, **changes):
    """`changes` are those of [model]."""
    table = {
        "model": {"path": str(model_path), **changes},
        "data": {"train": "rows.jsonl", "max_tokens": 100},
        "run": {"dir": str(root), "seed": 3, "save_every": save_every},
        "learner": {"batch_size": 2, "optimizer": {"rate": rate}},
    }
    return SftRecipe.model_validate(table)


def begin(root, model_path, *, resume=False, stream=None, **changes):
    console = RunConsole(stream or io.StringIO(), stamp=str)
    return starting_point(
        RunFolder(root, resume), training_setup(recipe(root, model_path, **changes)), console
    )


def test_everything_comes_back(saved, model_folder):
    start = begin(saved, model_folder)
    assert start.source == saved / "checkpoints" / "step-000007"
    again, state = restore(start, lambda: learner(start.source))
    assert state == STATE
    assert (again.step, again.skipped_in_a_row) == (28, 3)


def test_without_a_checkpoint_a_run_begins_at_the_recipes_model(tmp_path, model_folder):
    start = begin(tmp_path, model_folder)
    assert (start.source, start.record) == (model_folder, None)
    again, state = restore(start, lambda: learner(model_folder))
    assert (state, again.step) == (LoopState(), 0)


def test_a_run_that_was_killed_before_its_first_checkpoint_may_be_told_to_save_more_often(
    tmp_path, model_folder
):
    rare, often = (recipe(tmp_path, model_folder, save_every=number) for number in (10, 2))
    folder = RunFolder(tmp_path)
    folder.begin(record_of(rare), {"made_from": {}, "made_with": [{}]})
    for step in range(1, 8):
        folder.metrics.append(step, {"loss": 1.0})
    console = RunConsole(io.StringIO(), stamp=str)
    for checked in (rare, often):
        assert starting_point(folder, training_setup(checked), console).record is None
    for step in range(8, 12):
        folder.metrics.append(step, {"loss": 1.0})
    for checked in (rare, often):
        with pytest.raises(DataError, match=r"metrics\.jsonl has 11 steps, but there is no checkpoint"):
            starting_point(folder, training_setup(checked), console)


NO_STATE = "it is not the state of a training run"


@pytest.mark.parametrize(
    ("path_to_key", "value", "message"),
    [
        (("seed",), "3", "seed: Input should be a valid integer"),
        (("seed",), 4, "of a run with seed 4, but the recipe's run.seed is 3"),
        (("learner_step",), -1, "learner_step: Input should be greater than or equal to 0"),
        (("learner_step",), 1.5, NO_STATE),
        (("loop",), None, "loop: Input should be"),
        (("loop", "due"), "5", "loop.due: Input should be a valid integer"),
        (("loop", "step"), 7.0, "loop.step: Input should be a valid integer"),
        (("loop", "step"), 10**30, "state"),
        (("loop", "step"), -1, NO_STATE),
        (("loop", "cursor"), [1, 4], "loop.cursor: Input should be"),
        (("loop", "cursor"), {"epoch": "0", "next_index": 1}, NO_STATE),
        (("loop", "scores"), [[]], NO_STATE),
        (("loop", "scores"), ["x"], NO_STATE),
        (("loop", "scores"), [1e308, 1e308], NO_STATE),
        (("loop", "ranking"), [{"step": 1, "score": "high"}], NO_STATE),
        (("loop", "guard", "in_a_row"), True, "loop.guard.in_a_row: Input should be a valid integer"),
        (("loop", "guard"), {"in_a_row": "1"}, NO_STATE),
        (("loop", "branching"), [], NO_STATE),
        (("run",), {"name": None, "recipe": "x"}, NO_STATE),
    ],
)
def test_a_state_of_other_values_is_refused_in_a_line(
    tmp_path, saved, model_folder, path_to_key, value, message
):
    shutil.copytree(saved, tmp_path / "run")
    folder = tmp_path / "run" / "checkpoints" / "step-000007"
    state = json.loads((folder / "state.json").read_text())["state"]
    table = state
    for key in path_to_key[:-1]:
        table = table[key]
    table[path_to_key[-1]] = value
    write_record(folder, state)
    with pytest.raises(DataError) as caught:
        begin(tmp_path / "run", model_folder)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_checkpoint_under_another_steps_name_is_refused(tmp_path, saved, model_folder):
    shutil.copytree(saved, tmp_path / "run")
    folder = tmp_path / "run" / "checkpoints"
    (folder / "step-000007").rename(folder / "step-000009")
    with pytest.raises(DataError, match="its state is that of step 7"):
        begin(tmp_path / "run", model_folder)


def test_a_missing_entry_is_named(tmp_path, saved, model_folder):
    shutil.copytree(saved, tmp_path / "run")
    folder = tmp_path / "run" / "checkpoints" / "step-000007"
    write_record(folder, {"seed": 3})
    with pytest.raises(DataError, match=r"state\.json: loop: Field required"):
        begin(tmp_path / "run", model_folder)


def test_another_tokenizer_is_refused(tmp_path, saved, model_folder):
    other = tmp_path / "other"
    shutil.copytree(model_folder, other)
    write_tokenizer(other, vocab_size=500)
    with pytest.raises(DataError, match=r"with tokenizer \w{16}, that of model\.path = .* is \w{16}"):
        begin(saved, other)


@pytest.mark.parametrize(
    ("key", "changes"),
    [("num_hidden_layers = 2", {"layers": 3}), ("model_type = 'qwen3'", {"family": "llama"})],
)
def test_another_model_is_refused(tmp_path, saved, key, changes):
    other = write_model(tmp_path / "other", **changes)
    with pytest.raises(DataError, match=rf"of a model with {key}, that of model\.path"):
        begin(saved, other)


def test_an_adapter_and_a_whole_model_are_not_each_others(tmp_path, saved, model_folder):
    with pytest.raises(DataError, match=r"a whole model, the recipe trains an adapter \(LoRA\)"):
        begin(saved, model_folder, lora={"rank": 2, "alpha": 4.0})
    adapter = {"rank": 2, "alpha": 4.0}
    adapted = save(tmp_path, model_folder, learner(model_folder, lora=True), lora=adapter)
    with pytest.raises(DataError, match=r"an adapter \(LoRA\), the recipe trains a whole model"):
        begin(adapted, model_folder)
    start = begin(adapted, model_folder, lora=adapter)
    assert restore(start, lambda: learner(start.source))[1] == STATE


def test_a_damaged_checkpoint_is_neither_resumed_nor_trained_on_in_another_run(tmp_path, saved, model_folder):
    shutil.copytree(saved, tmp_path / "run")
    folder = tmp_path / "run" / "checkpoints" / "step-000007"
    weights = bytearray((folder / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (folder / "model.safetensors").write_bytes(weights)
    with pytest.raises(DataError, match=r"model\.safetensors has checksum .* there is none before it"):
        begin(tmp_path / "run", model_folder)
    shutil.copytree(folder, folder.with_name("step-000003"))
    with pytest.raises(DataError, match=r"checksum .* delete this folder to go on from step-000003$"):
        begin(tmp_path / "run", model_folder)
    with pytest.raises(DataError, match=r"checksum .* copy it again"):
        begin(tmp_path / "new", folder)


def test_lost_checkpoints_are_missed_from_the_step_after_the_first_that_was_due(tmp_path, model_folder):
    folder = RunFolder(tmp_path)
    folder.begin(record_of(recipe(tmp_path, model_folder)), {"made_from": {}, "made_with": [{}]})
    for step in range(1, 6):
        folder.metrics.append(step, {"loss": 1.0})
    assert begin(tmp_path, model_folder).record is None
    folder.metrics.append(6, {"loss": 1.0})
    with pytest.raises(DataError, match=r"metrics\.jsonl has 6 steps, but there is no checkpoint"):
        begin(tmp_path, model_folder)


def test_a_checkpoint_of_another_run_is_refused_though_all_shapes_agree(tmp_path, saved, model_folder):
    other = save(tmp_path / "other", model_folder, learner(model_folder))
    names = [RunFolder(root).name() for root in (saved, other)]
    assert names[0] != names[1]
    shutil.copytree(
        saved / "checkpoints" / "step-000007", other / "checkpoints" / "step-000007", dirs_exist_ok=True
    )
    with pytest.raises(DataError) as error:
        begin(other, model_folder)
    path = other / "checkpoints" / "step-000007"
    assert str(error.value) == (
        f"{path}: of run {names[0]}, this is run {names[1]} ({other / 'manifest.json'}); move it out of this folder, or name "
        "a new run.dir with it as model.path"
    )


def test_a_recipe_that_was_changed_with_its_record_is_refused(saved, model_folder):
    with pytest.raises(DataError, match=r"under another recipe than .*recipe\.toml"):
        begin(saved, model_folder, rate=0.02)


@pytest.mark.parametrize("content", [None, b"{", b"[]", b'{"name": 3}'])
def test_a_run_without_its_name_does_not_take_any_checkpoint_for_its_own(
    tmp_path, saved, model_folder, content
):
    shutil.copytree(saved, tmp_path / "run")
    file = tmp_path / "run" / "manifest.json"
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(DataError, match=r"manifest\.json: missing or not readable"):
        begin(tmp_path / "run", model_folder)


def test_it_is_said_where_a_resumed_run_begins(tmp_path, saved, model_folder):
    output = io.StringIO()
    begin(tmp_path, model_folder, resume=True, stream=output)
    assert output.getvalue() == f"nothing to resume in {tmp_path}: starting from step 0\n"
    output = io.StringIO()
    begin(tmp_path, model_folder, stream=output)
    assert output.getvalue() == ""
    begin(saved, model_folder, resume=True, stream=output)
    assert output.getvalue() == f"going on from {saved / 'checkpoints' / 'step-000007'}\n"


def test_a_last_line_of_metrics_that_a_crash_cut_off_is_dropped_and_said(tmp_path, model_folder):
    folder, output = RunFolder(tmp_path), io.StringIO()
    folder.metrics.append(1, {"loss": 1.0})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step":2,"ti')
    begin(tmp_path, model_folder, stream=output)
    assert output.getvalue() == (
        f"{tmp_path / 'metrics.jsonl'}: the last line was cut off by a crash and is dropped; a step that has no "
        "checkpoint is done again\n"
    )
    folder.rewind(1)
    assert not folder.metrics.is_cut_off()
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [1]


def test_lost_lines_of_metrics_are_told_and_stop_nothing(tmp_path, saved, model_folder):
    shutil.copytree(saved, tmp_path / "run")
    file, output = tmp_path / "run" / "metrics.jsonl", io.StringIO()
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:2] + lines[4:]))
    assert begin(tmp_path / "run", model_folder, stream=output).record is not None
    assert (
        f"warning: {file} has no line for 2 of 7 steps, the first is step 3: restore it" in output.getvalue()
    )


def test_an_adapter_of_another_base_is_refused(tmp_path, model_folder):
    adapter = {"rank": 2, "alpha": 4.0}
    adapted = save(tmp_path / "run", model_folder, learner(model_folder, lora=True), lora=adapter)
    folder = adapted / "checkpoints" / "step-000007"
    other = tmp_path / "other"
    shutil.copytree(model_folder, other)
    settings = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(
        json.dumps(settings | {"base_model_name_or_path": str(other)})
    )
    write_record(folder, json.loads((folder / "state.json").read_text())["state"])
    with pytest.raises(DataError, match=r"an adapter of the model in .*other, the recipe's is in .*qwen3"):
        begin(adapted, model_folder, lora=adapter)
